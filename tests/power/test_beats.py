"""Energy of replays that keep step with the moments at which a power sensor looks."""

from __future__ import annotations

import math
import random
from bisect import bisect_right

import fakes
import pytest
from fakes.sensors import Card, Clock, GpuClock, Load, Looks, constant, share

from convscope.power.energy import LoadEnergy
from convscope.timing import graphs
from profiler import PowerMonitor

IDLE_W = 122.0
PASS_S = 205e-6
ENERGY_J = 350.0 * PASS_S
STEP_S = 10 * PASS_S  # between two looks of a sensor that sees the same part of each tenth replay


def watts(gpu: fakes.Gpu, time_s: float) -> float:
    """Return the power: 450 W in the first half of a replay, 250 W in the second, that of an idle card in a rest."""
    index = bisect_right(gpu.replays_ms, (time_s * 1e3, math.inf)) - 1
    start_ms, end_ms = gpu.replays_ms[index] if index >= 0 else (0.0, 0.0)
    if time_s * 1e3 >= end_ms:
        return IDLE_W
    return 450.0 if time_s * 1e3 < (start_ms + end_ms) / 2 else 250.0


def measured(
    monkeypatch: pytest.MonkeyPatch, every_s: float, seed: int = 0, idle_power_w: float | None = IDLE_W
) -> tuple[LoadEnergy | None, str | None]:
    """Measure replays on a simulated card whose sensor looks every `every_s`, with drawn phases."""
    draw, gpu = random.Random(seed), fakes.Gpu()
    gpu.host_ms = 1e5 + draw.random() * 1e3
    gpu.patch(monkeypatch)
    clock = GpuClock(gpu)
    seen = Looks(lambda time_s: watts(gpu, time_s), every_s, clock.now_s + draw.random() * every_s)
    card = Card(clock, seen, phase_s=draw.random() * 0.1, look_s=draw.uniform(1e-3, 4e-3))
    monitor = PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)
    load = graphs.ReplayLoad(fakes.Captured(gpu, PASS_S * 1e3), PASS_S * 1e3)
    return monitor.steady(load, idle_power_w=idle_power_w)


@pytest.mark.parametrize("every_s", [STEP_S, STEP_S * (1 + 1e-5), STEP_S * (1 + 1e-4), 0.97 * STEP_S])
def test_the_energy_is_within_its_uncertainty_however_the_sensor_looks(monkeypatch: pytest.MonkeyPatch, every_s: float):
    def covered(seed: int) -> bool:
        found, reason = measured(monkeypatch, every_s, seed)
        assert found is not None, reason
        return abs(found.per_inference_j - ENERGY_J) <= found.uncertainty_j <= 0.01 * ENERGY_J

    assert share(covered, 15) >= 0.9


def test_what_keeps_step_with_the_sensor_is_detuned_and_the_rest_is_taken_off(monkeypatch: pytest.MonkeyPatch):
    found, reason = measured(monkeypatch, STEP_S)
    assert found is not None, reason
    assert 0.01 * PASS_S < found.rest_s < 0.04 * PASS_S
    assert found.pass_s == pytest.approx(PASS_S, rel=0.002)
    assert found.window.power_mean_w == pytest.approx(350.0, rel=0.01)


def test_what_keeps_no_step_has_no_rest(monkeypatch: pytest.MonkeyPatch):
    found, reason = measured(monkeypatch, 0.97 * STEP_S)
    assert found is not None, reason
    assert found.rest_s == 0.0


def test_without_the_power_of_the_idle_card_nothing_is_detuned_and_no_number_is_given(monkeypatch: pytest.MonkeyPatch):
    found, reason = measured(monkeypatch, STEP_S, idle_power_w=None)
    assert found is None
    assert reason is not None
    assert "1 % needs a window of" in reason


class Deaf(Load):
    """A load that counts how often it is asked to change its period, and does not."""

    asked = 0

    def detune(self) -> bool:
        self.asked += 1
        return False


def test_a_load_that_cannot_be_detuned_is_measured_on(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()
    load = Deaf(clock, 0.002)
    monitor = PowerMonitor([Card(clock, constant(400.0), look_s=0.02)], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(load, precision=0.001, budget_s=2.0, idle_power_w=IDLE_W)
    assert found is None
    assert reason is not None
    assert reason.endswith("2 s are allowed")
    assert load.asked > 1
