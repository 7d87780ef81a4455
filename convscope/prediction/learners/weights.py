"""Weights of features in the likeness of two samples: how much a standard deviation of each makes them unlike.

Learned from the data of an H200, version 0.19.0 (`benchmarks/feature_weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIKE, ALIKE_ENGINE, ALIKE_ALGORITHM = 0.92, 1.17, 0.41
"""Shares of likeness that any two samples have, those of one engine besides, and those of one algorithm besides: an
algorithm has one engine."""
UNKNOWN = 1.0
"""Weight of a feature that is not in `WEIGHTS`: how slow a call is, of a target that follows from the time."""
WEIGHTS: Mapping[str, float] = {
    "log_batch": 3.5, "log_channels": 1.79, "log_filters": 1.08, "log_groups": 10.47, "log_out_side": 1.54,
    "log_taps": 5.26, "log_stride": 1.56, "log_dilation": 0.47, "log_terms": 3.33, "log_flops": 2.94, "log_elements":
    1.37, "log_inputs": 2.66, "log_pixels": 3.23, "log_channels_of_group": 5.24, "log_filters_of_group": 7.54,
    "ridge": 0.9, "log_bytes": 1.37, "log_roofline": 1.95, "channels_of_4": 1.68, "channels_in_4": 0.88,
    "filters_of_4": 1.68, "filters_in_4": 0.65, "channels_of_8": 1.63, "channels_in_8": 2.09, "filters_of_8": 1.28,
    "filters_in_8": 1.77, "channels_of_16": 2.6, "channels_in_16": 1.37, "filters_of_16": 5.37, "filters_in_16": 0.51,
    "channels_of_32": 2.03, "channels_in_32": 1.08, "filters_of_32": 10.67, "filters_in_32": 0.37, "channels_of_64":
    1.37, "channels_in_64": 0.45, "filters_of_64": 17.56, "filters_in_64": 0.3, "channels_of_128": 1.26,
    "channels_in_128": 0.13, "filters_of_128": 10.4, "filters_in_128": 0.36, "all_channels_in_8": 1.39,
    "all_filters_in_8": 1.4, "all_channels_in_16": 0.47, "all_filters_in_16": 0.21, "all_channels_in_32": 0.6,
    "all_filters_in_32": 0.17, "all_channels_in_64": 0.58, "all_filters_in_64": 0.29, "channels_in_powers": 1.13,
    "filters_in_powers": 0.51, "side_of_2": 0.44, "side_of_4": 1.14, "plane_in_2": 0.36, "plane_in_4": 0.43,
    "plane_in_8": 0.2, "width_in_2": 0.38, "width_in_4": 0.19, "width_in_8": 0.2, "width_of_8": 1.35, "width_of_32":
    0.76, "log_transform": 1.96, "transform_of_side": 0.49, "waves_128x128": 4.2, "last_wave_128x128": 0.27,
    "tile_128x128": 0.22, "waves_128x64": 1.34, "last_wave_128x64": 0.21, "tile_128x64": 0.23, "waves_64x64": 2.22,
    "last_wave_64x64": 0.2, "tile_64x64": 0.31, "waves_128x32": 1.7, "last_wave_128x32": 0.19, "tile_128x32": 0.56,
    "winograd_waves_2": 1.44, "winograd_waves_4": 0.93, "plan_waves": 3.57, "plan_last_wave": 1.82,
    "plan_last_two_waves": 1.54, "plan_tile": 1.87, "plan_steps": 5.0, "plan_cluster": 1.22,
}  # fmt: skip
