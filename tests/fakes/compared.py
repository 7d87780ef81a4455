"""Folders of two runs on one GPU, as `compare` reads them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from convscope.profiling.rows import LayerRow, OverallRow, profile_store
from fakes import ENVIRONMENT, LAYER_ROW, OVERALL, run

GPU = dataclasses.replace(ENVIRONMENT, gpu_name="NVIDIA H200", driver="580.159", cuda="13.0", cudnn="9.19.0")
PASS = dataclasses.replace(OVERALL, mean=10.0, std=0.05, samples=20, sm_clock_mhz=1980, throttle_reasons="none")
LAYER = dataclasses.replace(LAYER_ROW, mean_ms=1.0, std_ms=0.005, samples=20)


def overall(**changes: Any) -> OverallRow:
    return dataclasses.replace(PASS, **changes)


def layer(**changes: Any) -> LayerRow:
    return dataclasses.replace(LAYER, **changes)


def written(
    path: Path,
    passes: list[OverallRow] | None = None,
    layers: list[LayerRow] | None = None,
    environment: dict[str, Any] | None = None,
    **request: Any,
) -> Path:
    """Write a folder of results and return it: one pass and one layer at 64 px, on a GPU, but for what is given."""
    asked = run(**{"device": "cuda:0", "gpu": "h200"} | request)
    folder = profile_store(path, asked.stem)
    folder.prepare()
    folder.begin(asked, dataclasses.replace(GPU, **(environment or {})), [])
    layers = [LAYER] if layers is None else layers
    for row in [PASS] if passes is None else passes:
        folder.append([row, *(each for each in layers if each.input_size == row.input_size)])
    return path
