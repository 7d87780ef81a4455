"""Energy of passes that are long beside the window: real replays of a simulated GPU, a simulated sensor."""

from __future__ import annotations

import random

import fakes
import pytest
from fakes.sensors import Card, constant, share

from convscope.timing import graphs
from profiler import PowerMonitor

POWER_W = 400.0


class GpuClock:
    """The clock of a simulated GPU's host, as a simulated card wants it."""

    def __init__(self, gpu: fakes.Gpu) -> None:
        self._gpu = gpu

    @property
    def now_s(self) -> float:
        return self._gpu.host_ms / 1e3

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self._gpu.host_ms += seconds * 1e3


def error_and_uncertainty(monkeypatch: pytest.MonkeyPatch, pass_s: float, seed: int) -> tuple[float, float]:
    """Measure one inference by replays, with drawn phases; return error and stated uncertainty over the energy."""
    draw, gpu = random.Random(seed), fakes.Gpu()
    gpu.host_ms = 1e5 + draw.random() * 1e3
    gpu.patch(monkeypatch)
    clock = GpuClock(gpu)
    card = Card(clock, constant(POWER_W), phase_s=draw.random() * 0.1, look_s=draw.uniform(1e-3, 4e-3))
    monitor = PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(graphs.ReplayLoad(fakes.Captured(gpu, pass_s * 1e3), pass_s * 1e3))
    assert found is not None, reason
    truth_j = POWER_W * pass_s
    return found.per_inference_j / truth_j - 1, found.uncertainty_j / truth_j


@pytest.mark.parametrize("pass_s", [0.002, 0.03, 0.2])
def test_the_energy_of_replays_is_within_its_uncertainty_whatever_they_last(
    monkeypatch: pytest.MonkeyPatch, pass_s: float
):
    def covered(seed: int) -> bool:
        error, uncertainty = error_and_uncertainty(monkeypatch, pass_s, seed)
        return abs(error) <= uncertainty <= 0.01

    assert share(covered, 30) >= 0.9
