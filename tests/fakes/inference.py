"""An inference study of a small model on a CPU, with a meter that is handed in."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from convscope.distributed import Ranks
from convscope.inference.request import Inference
from convscope.inference.rows import SCHEMA, TABLE
from convscope.inference.study import InferenceStudy
from convscope.power.energy import EnergyWindow
from convscope.power.sampler import PowerWindow
from convscope.storage.store import Store
from fakes import ENVIRONMENT

ASKED = Inference(
    model="torchvision:resnet18", engines=("eager",), batch_sizes=(1, 2), gpu="cpu", image_size_px=32,
    warmup_iters=1, measure_iters=5, min_seconds=0.05,
)  # fmt: skip


class Small(nn.Module):
    """One convolution, and the mean over each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


class Meter:
    """A power meter of a card that takes 100 W."""

    reason = None

    def begin(self) -> PowerWindow:
        return PowerWindow(0.0)

    def end(self, window: PowerWindow) -> PowerWindow:
        window.energies.append(EnergyWindow(0.0, 2.0, 200.0, 4.0, "a counter"))
        window.reasons.append(None)
        return window


def study(folder: Path, **changes: Any) -> InferenceStudy:
    asked = dataclasses.replace(ASKED, **changes)
    store = Store(folder, SCHEMA)
    store.prepare()
    store.missing(asked, ENVIRONMENT, [])
    store.begin(asked, ENVIRONMENT, ["x"])
    return InferenceStudy(
        inference=asked,
        model=Small().eval(),
        device=torch.device("cpu"),
        ranks=Ranks(),
        open_meter=lambda: contextlib.nullcontext(Meter()),
        make_bench=lambda run, model: pytest.fail("nobody needs a bench here"),
        store=store,
        stop=lambda: False,
        note=lambda line: None,
    )


def run(folder: Path, **changes: Any) -> pd.DataFrame:
    study(folder, **changes).run()
    return Store(folder, SCHEMA).read(TABLE)
