"""Stand-ins that are handed to the code under test: a clock, a sensor, a load, instruments, a GPU, and first values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.power import energy
from convscope.profiling.request import Run
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.storage.environment import Environment
from convscope.storage.store import Store
from convscope.timing import graphs
from convscope.timing.layer_times import Reading

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
LAYER = Layer.of_sizes(
    "features.0", 0, batch=1, in_channels=16, out_channels=32, size=(56, 56), kernel=(3, 3), padding=(1, 1), bias=True
)
RUN = Run(
    model="alexnet", algorithm="direct", stage="1_sanity", gpu="cpu", input_sizes=(64,), math="fp32", energy=False
)
ENVIRONMENT = Environment(
    host="node1", cpu="a processor", python="3.11.7", torch="2.11.0", torchvision="0.26.0", ai3="0.1.0"
)
OVERALL = OverallRow(model="alexnet", algorithm="direct", input_size=64, mean=1.5)
LAYER_ROW = LayerRow(
    layer="features.0",
    in_channels=3,
    out_channels=64,
    kernel_size="11x11",
    mean_ms=0.5,
    percentage=33.0,
    model="alexnet",
    algorithm="direct",
    input_size=64,
    position=0,
    stride="4x4",
    padding="2x2",
    dilation="1x1",
    groups=1,
    batch_size=1,
    in_height_px=64,
    in_width_px=64,
    out_height_px=15,
    out_width_px=15,
)


def layer(**changes: Any) -> Layer:
    """Return a 3×3 layer with stride 1 on 56×56, but for the changes."""
    size = changes.pop("in_height", LAYER.in_height), changes.pop("in_width", LAYER.in_width)
    return LAYER.resized(size=size, **changes)


def layer3d(channels: int, filters: int, size: tuple[int, ...], kernel: tuple[int, ...], **options: Any) -> Layer:
    """Return a 3-D layer for one image, but for the options."""
    named = {"name": "", "position": 0, "batch": 1} | options
    return Layer.of_sizes(in_channels=channels, out_channels=filters, size=size, kernel=kernel, **named)


def run(**changes: Any) -> Run:
    """Return a run of AlexNet with direct on a CPU at 64 px, but for the changes."""
    return dataclasses.replace(RUN, **changes)


class Clock:
    """Seconds that pass only when somebody looks, `step_s` a look."""

    def __init__(self, step_s: float = 0.001) -> None:
        self.now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Card:
    """A sensor of one card under `power_w`: its counter changes every `tick_s` of the clock and holds in between."""

    name, source, reason = "GPU-1", energy.COUNTER, None

    def __init__(self, clock: Clock, power_w: float = 400.0, tick_s: float = 0.1) -> None:
        self._clock, self._power_w, self._tick_s = clock, power_w, tick_s
        self.closed = 0

    def read(self) -> tuple[float | None, float | None]:
        ticks = int(self._clock.now_s / self._tick_s)
        return ticks * self._tick_s * self._power_w, self._power_w

    def state(self) -> energy.CardState:
        return energy.CardState(temperature_c=40)

    def settings(self) -> dict[str, object]:
        return {"driver": "580.159"}

    def close(self) -> None:
        self.closed += 1


class LayerTimer:
    """A layer timer that reads the same times whatever runs."""

    def __init__(self, times_ms: list[float]) -> None:
        self._times_ms = times_ms
        self.entered = 0

    def __enter__(self) -> LayerTimer:
        self.entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def read_ms(self) -> list[float]:
        return list(self._times_ms)

    def reader(self) -> Callable[[], Reading]:
        return lambda: Reading(self.read_ms(), [0.0] * len(self._times_ms))


class Meter:
    """A meter that nobody should ask for energy: the runs here measure none."""

    def steady(self, load: object, **options: float) -> tuple[None, str]:
        raise AssertionError("no energy was asked for")

    def state(self) -> energy.CardState:
        return energy.CardState()

    def idle_power_w(self) -> None:
        raise AssertionError("no energy was asked for")


class Gpu:
    """A GPU as far as events tell: work takes time on it, in order; its clock is in milliseconds.

    `launch_ms` is how long the host needs for whatever it launches, `look_ms` for a look at its own clock; `patch` puts
    the GPU in torch.cuda's place and the host's clock in that of `time`. `replays_ms` has start and end of each replay.
    """

    def __init__(self, cycles_per_ms: float = 2_000_000, launch_ms: float = 0.01, look_ms: float = 0.0) -> None:
        self.host_ms = self.busy_until_ms = 0.0
        self.launch_ms, self.look_ms = launch_ms, look_ms
        self.replays_ms: list[tuple[float, float]] = []
        self.debug_mode: object = 0
        self._cycles_per_ms = cycles_per_ms
        gpu = self

        class Event:
            def __init__(self, **options: object) -> None:
                self.at_ms = 0.0

            def record(self) -> None:
                self.at_ms = max(gpu.busy_until_ms, gpu.host_ms)

            def query(self) -> bool:
                return self.at_ms <= gpu.host_ms

            def synchronize(self) -> None:
                gpu.host_ms = max(gpu.host_ms, self.at_ms)

            def elapsed_time(self, end: Event) -> float:
                return end.at_ms - self.at_ms

        self.event_type = Event

    def work(self, duration_ms: float) -> None:
        self.busy_until_ms = max(self.busy_until_ms, self.host_ms) + duration_ms

    def spin(self, cycles: int) -> None:
        self.work(cycles / self._cycles_per_ms)

    def synchronize(self) -> None:
        self.host_ms = max(self.host_ms, self.busy_until_ms)

    def wait(self) -> None:
        """Wait for the GPU as an operator does: PyTorch's debug mode sees it."""
        if self.debug_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronize()

    def perf_counter(self) -> float:
        self.host_ms += self.look_ms
        return self.host_ms / 1e3

    def patch(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(graphs, "time", self)
        monkeypatch.setattr(torch.cuda, "Event", self.event_type)
        monkeypatch.setattr(torch.cuda, "_sleep", self.spin)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.debug_mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: setattr(self, "debug_mode", mode))


class Captured:
    """A graph of the fake GPU whose replay takes `duration_ms`."""

    def __init__(self, gpu: Gpu, duration_ms: float) -> None:
        self._gpu, self.duration_ms = gpu, duration_ms
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._gpu.host_ms += self._gpu.launch_ms
        self._gpu.work(self.duration_ms)
        self._gpu.replays_ms.append((self._gpu.busy_until_ms - self.duration_ms, self._gpu.busy_until_ms))


class Branching(nn.Module):
    """Two convolutions behind control flow that depends on the data: no symbolic trace follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        if x.sum() > 1e9:
            return x
        return self.two(x)


def both(store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the overall table and the table of layers of a profile, of one moment."""
    tables = store.read_all("overall", "layers")
    return tables["overall"], tables["layers"]


def randomized(name: str) -> nn.Module:
    """Return a model whose normalisations have drawn statistics, weights and biases."""
    model = models.build(name)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in ((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 2.0),
                                      (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5)):  # fmt: skip
                tensor.data.uniform_(low, high, generator=generator)
    return model


def distance(model: nn.Module, other: nn.Module) -> float:
    """Return how far apart the outputs of two models are, over the length of the first one's."""
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(given)
        return float((other(given) - expected).norm() / expected.norm())
