"""Energy of passes that are long beside the window: fractions at both ends, and an uncertainty that holds."""

from __future__ import annotations

import random

import fakes
import pytest
from fakes.sensors import Card, Clock, GpuClock, Load, constant, drawn_energy, share, square_wave

from convscope.power.energy import LoadEnergy
from convscope.timing import graphs
from profiler import PowerMonitor

POWER_W = 400.0


def of_replays(monkeypatch: pytest.MonkeyPatch, pass_s: float, seed: int) -> LoadEnergy:
    """Measure the replays of a graph on a simulated GPU, with drawn phases."""
    draw, gpu = random.Random(seed), fakes.Gpu()
    gpu.host_ms = 1e5 + draw.random() * 1e3
    gpu.patch(monkeypatch)
    clock = GpuClock(gpu)
    card = Card(clock, constant(POWER_W), phase_s=draw.random() * 0.1, look_s=draw.uniform(1e-3, 4e-3))
    monitor = PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(graphs.ReplayLoad(fakes.Captured(gpu, pass_s * 1e3), pass_s * 1e3))
    assert found is not None, reason
    return found


@pytest.mark.parametrize("pass_s", [0.002, 0.03, 0.2])
def test_the_energy_of_replays_is_within_its_uncertainty_however_long_they_are(
    monkeypatch: pytest.MonkeyPatch, pass_s: float
):
    def covered(seed: int) -> bool:
        found = of_replays(monkeypatch, pass_s, seed)
        return abs(found.per_inference_j - POWER_W * pass_s) <= found.uncertainty_j <= 0.01 * POWER_W * pass_s

    assert share(covered, 30) >= 0.9


@pytest.mark.parametrize("pass_s", [0.03, *(pytest.param(each, marks=pytest.mark.long) for each in (0.002, 0.2))])
def test_the_uncertainty_holds_in_95_of_100_draws(pass_s: float):
    drawn = [drawn_energy(pass_s, seed) for seed in range(100)]
    assert all(energy.found for energy in drawn)
    assert sum(energy.covered for energy in drawn) / len(drawn) >= 0.93


def test_the_uncertainty_is_no_larger_than_it_has_to_be():
    drawn = [drawn_energy(0.2, seed) for seed in range(40)]
    errors = [abs(energy.error_pct) for energy in drawn]
    stated = [energy.uncertainty_pct for energy in drawn]
    assert sum(stated) / len(stated) < 6 * sum(errors) / len(errors)


@pytest.mark.parametrize("pass_s", [0.03, 0.2])
def test_the_uncertainty_holds_where_one_part_of_a_pass_takes_more_power_than_another(pass_s: float):
    drawn = [drawn_energy(pass_s, seed, swing=0.1) for seed in range(40)]
    assert sum(energy.found for energy in drawn) >= 38
    assert all(energy.covered for energy in drawn if energy.found)


def test_a_window_holds_a_whole_inference_or_there_is_no_energy():
    clock = Clock()
    monitor = PowerMonitor([Card(clock, constant(POWER_W))], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(Load(clock, 3.0), budget_s=2.0)
    assert found is None
    assert reason == "no energy: no inference ended within 2 s"


def test_a_window_is_made_longer_until_an_inference_is_in_it():
    clock = Clock()
    monitor = PowerMonitor([Card(clock, constant(POWER_W))], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(Load(clock, 3.0), budget_s=5.0)
    assert found is not None, reason
    assert found.inferences >= 0.9
    assert found.per_inference_j == pytest.approx(POWER_W * 3.0, rel=0.01)


def test_an_inference_that_does_not_end_after_the_window_gives_a_reason():
    clock = Clock()
    load = Load(clock, 0.01, ends_s=clock.now_s + 0.9)
    monitor = PowerMonitor([Card(clock, constant(POWER_W))], clock=clock, sleep=clock.sleep, period_s=None)
    assert monitor.steady(load, budget_s=2.0) == (None, "no energy: an inference takes more than 2 s")


def test_power_that_swings_with_the_passes_is_less_uncertain_than_independent_steps_would_make_it():
    clock = Clock()
    card = Card(clock, square_wave(380.0, 420.0, 0.2, until_s=120.0), phase_s=0.03)
    monitor = PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)
    found, reason = monitor.steady(Load(clock, 0.2, began_s=100.0))
    assert found is not None, reason
    assert abs(found.per_inference_j - 400.0 * 0.2) <= found.uncertainty_j
