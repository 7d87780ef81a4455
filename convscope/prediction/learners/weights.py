"""Weights of features in the likeness of two samples: how much a standard deviation of each makes them unlike.

Learned from the data of an H200, version 0.13.0 (`benchmarks/feature_weights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIKE, ALIKE_ENGINE, ALIKE_ALGORITHM = 1.04, 1.3, 0.17
"""Shares of likeness that any two samples have, those of one engine besides, and those of one algorithm besides: an
algorithm has one engine."""
UNKNOWN = 1.0
"""Weight of a feature that is not in `WEIGHTS`: how slow a call is, of a target that follows from the time."""
WEIGHTS: Mapping[str, float] = {
    "log_batch": 1.54, "log_channels": 1.29, "log_filters": 0.57, "log_groups": 5.6, "log_out_side": 1.0,
    "log_taps": 2.66, "log_stride": 1.01, "log_dilation": 0.13, "log_terms": 3.49, "log_flops": 1.85,
    "log_elements": 1.08, "log_inputs": 0.98, "log_pixels": 2.35, "log_channels_of_group": 2.44,
    "log_filters_of_group": 4.66, "ridge": 1.62, "log_bytes": 1.08, "log_roofline": 2.7, "channels_of_4": 0.35,
    "channels_in_4": 0.53, "filters_of_4": 0.37, "filters_in_4": 0.73, "channels_of_8": 0.57, "channels_in_8": 1.12,
    "filters_of_8": 0.57, "filters_in_8": 0.48, "channels_of_16": 1.08, "channels_in_16": 0.6, "filters_of_16": 0.55,
    "filters_in_16": 0.16, "channels_of_32": 1.21, "channels_in_32": 0.65, "filters_of_32": 0.88,
    "filters_in_32": 0.18, "channels_of_64": 1.05, "channels_in_64": 0.26, "filters_of_64": 1.2, "filters_in_64": 0.15,
    "channels_of_128": 0.98, "channels_in_128": 0.13, "filters_of_128": 1.31, "filters_in_128": 0.22,
    "all_channels_in_8": 0.41, "all_filters_in_8": 0.49, "all_channels_in_16": 0.21, "all_filters_in_16": 0.09,
    "all_channels_in_32": 0.21, "all_filters_in_32": 0.11, "all_channels_in_64": 0.22, "all_filters_in_64": 0.12,
    "channels_in_powers": 0.59, "filters_in_powers": 0.49, "side_of_2": 0.26, "side_of_4": 0.68, "plane_in_2": 0.19,
    "plane_in_4": 0.23, "plane_in_8": 0.13, "width_in_2": 0.18, "width_in_4": 0.13, "width_in_8": 0.11,
    "width_of_8": 0.5, "width_of_32": 0.58, "log_transform": 1.25, "transform_of_side": 0.22, "waves_128x128": 3.28,
    "last_wave_128x128": 0.16, "tile_128x128": 0.1, "waves_128x64": 1.39, "last_wave_128x64": 0.17, "tile_128x64": 0.1,
    "waves_64x64": 2.09, "last_wave_64x64": 0.17, "tile_64x64": 0.11, "waves_128x32": 2.2, "last_wave_128x32": 0.13,
    "tile_128x32": 0.14, "winograd_waves_2": 1.13, "winograd_waves_4": 0.95,
}  # fmt: skip
