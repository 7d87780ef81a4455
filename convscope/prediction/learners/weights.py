"""Weights of features in the likeness of two samples: how much a standard deviation of each makes them unlike.

Learned from the data of an H200, version 0.19.0 (`benchmarks/feature_weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIKE, ALIKE_ENGINE, ALIKE_ALGORITHM = 0.92, 1.1, 0.49
"""Shares of likeness that any two samples have, those of one engine besides, and those of one algorithm besides: an
algorithm has one engine. As learned, times six: what counts is how large they are beside each other and the noise."""
UNKNOWN = 1.0
"""Weight of a feature that is not in `WEIGHTS`: how slow a call is, of a target that follows from the time."""
WEIGHTS: Mapping[str, float] = {
    "log_batch": 3.79, "log_channels": 1.99, "log_filters": 1.12, "log_groups": 10.88, "log_out_side": 1.22,
    "log_taps": 5.34, "log_stride": 1.57, "log_dilation": 0.43, "log_terms": 3.01, "log_flops": 3.0,
    "log_elements": 1.26, "log_inputs": 2.89, "log_pixels": 3.01, "log_channels_of_group": 6.73,
    "log_filters_of_group": 7.85, "ridge": 0.94, "log_bytes": 1.26, "log_roofline": 1.74, "channels_of_4": 3.72,
    "channels_in_4": 0.85, "filters_of_4": 9.37, "filters_in_4": 0.6, "channels_of_8": 1.01, "channels_in_8": 1.92,
    "filters_of_8": 0.77, "filters_in_8": 2.58, "channels_of_16": 1.41, "channels_in_16": 1.62, "filters_of_16": 2.67,
    "filters_in_16": 0.48, "channels_of_32": 1.69, "channels_in_32": 1.17, "filters_of_32": 9.73,
    "filters_in_32": 0.35, "channels_of_64": 1.32, "channels_in_64": 0.4, "filters_of_64": 20.62,
    "filters_in_64": 0.34, "channels_of_128": 1.12, "channels_in_128": 0.16, "filters_of_128": 16.01,
    "filters_in_128": 0.42, "all_channels_in_8": 1.97, "all_filters_in_8": 1.1, "all_channels_in_16": 0.47,
    "all_filters_in_16": 0.18, "all_channels_in_32": 0.59, "all_filters_in_32": 0.2, "all_channels_in_64": 0.61,
    "all_filters_in_64": 0.27, "channels_in_powers": 1.06, "filters_in_powers": 0.52, "side_of_2": 0.49,
    "side_of_4": 1.3, "plane_in_2": 0.37, "plane_in_4": 0.48, "plane_in_8": 0.2, "width_in_2": 0.42,
    "width_in_4": 0.22, "width_in_8": 0.23, "width_of_8": 1.31, "width_of_32": 0.51, "log_transform": 1.98,
    "transform_of_side": 0.48, "waves_128x128": 4.33, "last_wave_128x128": 0.26, "tile_128x128": 0.23,
    "waves_128x64": 1.39, "last_wave_128x64": 0.22, "tile_128x64": 0.24, "waves_64x64": 2.66, "last_wave_64x64": 0.18,
    "tile_64x64": 0.3, "waves_128x32": 2.31, "last_wave_128x32": 0.22, "tile_128x32": 0.56, "winograd_waves_2": 1.51,
    "winograd_waves_4": 0.77, "plan_waves": 3.16, "plan_last_wave": 1.81, "plan_last_two_waves": 1.57,
    "plan_tile": 2.3, "plan_steps": 5.21, "plan_cluster": 1.18,
}  # fmt: skip
