"""Weights of features in the likeness of two samples: how much a standard deviation of each makes them unlike.

Learned from the data of an H200, version 0.19.0 (`benchmarks/feature_weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIKE, ALIKE_ENGINE, ALIKE_ALGORITHM = 0.87, 1.44, 0.19
"""Shares of likeness that any two samples have, those of one engine besides, and those of one algorithm besides: an
algorithm has one engine. In the ratio that was learned: what counts is how large they are beside each other and the noise."""
UNKNOWN = 1.0
"""Weight of a feature that is not in `WEIGHTS`: how slow a call is, of a target that follows from the time."""
WEIGHTS: Mapping[str, float] = {
    "log_batch": 1.92, "log_channels": 1.24, "log_filters": 0.71, "log_groups": 6.5, "log_out_side": 1.18,
    "log_taps": 3.41, "log_stride": 1.23, "log_dilation": 0.23, "log_terms": 3.14, "log_flops": 1.97,
    "log_elements": 1.28, "log_inputs": 1.17, "log_pixels": 2.27, "log_channels_of_group": 2.63,
    "log_filters_of_group": 4.96, "ridge": 1.54, "log_bytes": 1.28, "log_roofline": 2.89, "channels_of_4": 0.38,
    "channels_in_4": 0.52, "filters_of_4": 0.55, "filters_in_4": 0.47, "channels_of_8": 0.69, "channels_in_8": 0.87,
    "filters_of_8": 0.57, "filters_in_8": 0.86, "channels_of_16": 1.07, "channels_in_16": 0.81, "filters_of_16": 0.99,
    "filters_in_16": 0.31, "channels_of_32": 1.36, "channels_in_32": 0.55, "filters_of_32": 2.01,
    "filters_in_32": 0.16, "channels_of_64": 0.8, "channels_in_64": 0.24, "filters_of_64": 1.03,
    "filters_in_64": 0.16, "channels_of_128": 0.71, "channels_in_128": 0.08, "filters_of_128": 1.28,
    "filters_in_128": 0.18, "all_channels_in_8": 0.86, "all_filters_in_8": 0.66, "all_channels_in_16": 0.23,
    "all_filters_in_16": 0.14, "all_channels_in_32": 0.26, "all_filters_in_32": 0.13, "all_channels_in_64": 0.27,
    "all_filters_in_64": 0.14, "channels_in_powers": 0.42, "filters_in_powers": 0.37, "side_of_2": 0.31,
    "side_of_4": 0.7, "plane_in_2": 0.22, "plane_in_4": 0.26, "plane_in_8": 0.14, "width_in_2": 0.21,
    "width_in_4": 0.16, "width_in_8": 0.13, "width_of_8": 0.66, "width_of_32": 0.76, "log_transform": 1.8,
    "transform_of_side": 0.31, "waves_128x128": 3.79, "last_wave_128x128": 0.21, "tile_128x128": 0.09,
    "waves_128x64": 0.97, "last_wave_128x64": 0.15, "tile_128x64": 0.09, "waves_64x64": 1.49, "last_wave_64x64": 0.16,
    "tile_64x64": 0.09, "waves_128x32": 1.83, "last_wave_128x32": 0.12, "tile_128x32": 0.11, "winograd_waves_2": 0.97,
    "winograd_waves_4": 0.6, "plan_waves": 1.95, "plan_last_wave": 1.12, "plan_last_two_waves": 0.83,
    "plan_tile": 1.82, "plan_steps": 2.14, "plan_cluster": 0.97,
}  # fmt: skip
