"""Samples with workspaces: by formulas, and those that cuDNN asked for on an H200, which this repository has."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

import pandas as pd

from convscope.dataset.samples import SAMPLES, SHAPE, SampleRow
from fakes import ROOT
from fakes.drawn_samples import drawn

MEASURED = ROOT / "docs" / "support_h200"


def workspace_bytes(row: SampleRow, draw: random.Random) -> int:
    """Return the bytes of a 3×3 layer: a sum of tensors, none below 64 channels, or with a factor that nothing says."""
    assert row.in_height_px is not None
    pixels = row.batch_size * row.in_height_px**2
    if row.algorithm == "gemm":
        return 36 * pixels * row.in_channels
    if row.algorithm == "winograd":
        return 0 if row.in_channels < 64 else 4 * pixels * (row.in_channels + 2 * row.out_channels)
    return 0 if row.algorithm == "direct" else round(4 * pixels * math.exp(draw.gauss(0, 0.3)))


def with_workspaces(count: int, algorithms: tuple[str, ...], seed: int = 0) -> Iterator[SampleRow]:
    """Yield drawn samples of a T4 by `gemm`, `winograd`, `direct` or `fft`, with workspaces."""
    draw = random.Random(seed)
    for row in drawn(count, algorithms=("gemm",), seed=seed):
        for name in algorithms:
            named = dataclasses.replace(row, algorithm=name)
            yield dataclasses.replace(named, workspace_bytes=workspace_bytes(named, draw))


def asked_of_cudnn() -> pd.DataFrame:
    """Return samples of the six models' layers by cuDNN's algorithms on an H200: workspaces, and no times."""
    found = [pd.read_csv(path) for path in sorted(MEASURED.glob("*.csv"))]
    frame = pd.concat(found, ignore_index=True).assign(layout="nchw", run="support", family=None)
    frame = frame[frame["status"] == "ok"].drop_duplicates([*SHAPE, "algorithm"])
    return frame.reindex(columns=SAMPLES.columns).reset_index(drop=True)
