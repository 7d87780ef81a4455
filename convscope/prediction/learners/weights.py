"""Weights of features in the likeness of two samples: how much a standard deviation of each makes them unlike.

Learned from the data of an H200, version 0.19.0, before all plans had parts (`benchmarks/feature_weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIKE, ALIKE_ENGINE, ALIKE_ALGORITHM = 0.95, 1.34, 0.21
"""Shares of likeness that any two samples have, those of one engine besides, and those of one algorithm besides: an
algorithm has one engine. Their ratios were learned; how large all are beside the noise, each process finds."""
UNKNOWN = 1.0
"""Weight of a feature that is not in `WEIGHTS`: how slow a call is, of a target that follows from the time."""
WEIGHTS: Mapping[str, float] = {
    "log_batch": 1.75, "log_channels": 1.25, "log_filters": 0.71, "log_groups": 5.89, "log_out_side": 1.29,
    "log_taps": 3.63, "log_stride": 1.27, "log_dilation": 0.23, "log_terms": 3.14, "log_flops": 2.11,
    "log_elements": 1.28, "log_inputs": 1.23, "log_pixels": 2.24, "log_channels_of_group": 2.84,
    "log_filters_of_group": 5.23, "ridge": 1.58, "log_bytes": 1.28, "log_roofline": 2.86, "channels_of_4": 0.4,
    "channels_in_4": 0.54, "filters_of_4": 0.55, "filters_in_4": 0.47, "channels_of_8": 0.69, "channels_in_8": 0.87,
    "filters_of_8": 0.63, "filters_in_8": 0.56, "channels_of_16": 1.02, "channels_in_16": 0.81, "filters_of_16": 1.04,
    "filters_in_16": 0.32, "channels_of_32": 1.22, "channels_in_32": 0.56, "filters_of_32": 2.07,
    "filters_in_32": 0.17, "channels_of_64": 0.76, "channels_in_64": 0.24, "filters_of_64": 1.1,
    "filters_in_64": 0.16, "channels_of_128": 0.69, "channels_in_128": 0.09, "filters_of_128": 1.42,
    "filters_in_128": 0.18, "all_channels_in_8": 0.68, "all_filters_in_8": 0.57, "all_channels_in_16": 0.23,
    "all_filters_in_16": 0.15, "all_channels_in_32": 0.28, "all_filters_in_32": 0.14, "all_channels_in_64": 0.29,
    "all_filters_in_64": 0.14, "channels_in_powers": 0.42, "filters_in_powers": 0.36, "side_of_2": 0.33,
    "side_of_4": 0.78, "plane_in_2": 0.23, "plane_in_4": 0.26, "plane_in_8": 0.14, "width_in_2": 0.22,
    "width_in_4": 0.16, "width_in_8": 0.13, "width_of_8": 0.74, "width_of_32": 0.93, "log_transform": 1.89,
    "transform_of_side": 0.31, "waves_128x128": 3.93, "last_wave_128x128": 0.22, "tile_128x128": 0.09,
    "waves_128x64": 1.03, "last_wave_128x64": 0.17, "tile_128x64": 0.09, "waves_64x64": 1.62, "last_wave_64x64": 0.15,
    "tile_64x64": 0.1, "waves_128x32": 1.82, "last_wave_128x32": 0.14, "tile_128x32": 0.12, "winograd_waves_2": 1.05,
    "winograd_waves_4": 0.63, "plan_waves": 1.96, "plan_last_wave": 1.21, "plan_last_two_waves": 0.85,
    "plan_tile": 1.92, "plan_steps": 2.19, "plan_cluster": 0.86,
}  # fmt: skip
