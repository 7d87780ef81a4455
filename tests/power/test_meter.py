"""PowerMonitor against a sensor whose truth is known."""

from __future__ import annotations

import random

import pytest
from fakes.sensors import Card, Clock, Load, Power, constant, share, square_wave

from convscope.power import energy
from profiler import PowerMonitor

PASS_S = 0.00226


def monitor_of(*cards: Card) -> PowerMonitor:
    clock = cards[0].clock
    return PowerMonitor(cards, clock=clock, sleep=clock.sleep, period_s=None)


def steady(card: Card, **options: float):
    return monitor_of(card).steady(Load(card.clock, PASS_S), **options)


def measured(card: Card, **options: float) -> energy.LoadEnergy:
    found, reason = steady(card, **options)
    assert found is not None, reason
    return found


@pytest.mark.parametrize("tick_s", [0.02, 0.1])
def test_energy_of_an_inference_is_within_its_uncertainty_at_19_of_20_phases(tick_s: float):
    def covered(index: int) -> bool:
        draw = random.Random(index)
        watts = draw.uniform(80, 700)
        card = Card(
            Clock(), constant(watts), tick_s=tick_s, phase_s=draw.random() * tick_s, look_s=draw.random() * 4e-3
        )
        found = measured(card)
        return abs(found.per_inference_j - watts * PASS_S) <= found.uncertainty_j

    assert share(covered, 100) >= 0.93


def test_a_window_that_ignores_the_ticks_would_be_wrong_by_more_than_the_stated_uncertainty():
    def naive_is_worse(index: int) -> bool:
        card = Card(Clock(), constant(500.0), phase_s=random.Random(index).random() * 0.1)
        stated = measured(card).window.relative_uncertainty
        before_j, _ = card.read()
        started_s = card.clock.now_s
        card.clock.sleep(1.05)
        after_j, _ = card.read()
        naive_w = (after_j - before_j) / (card.clock.now_s - started_s)
        return abs(naive_w / 500.0 - 1) > stated

    assert share(naive_is_worse, 100) > 0.8


def test_the_window_begins_and_ends_on_ticks_and_lasts_long_enough():
    found = measured(Card(Clock(), constant(300.0), phase_s=0.03))
    assert found.window.duration_s >= 1.0
    assert found.window.duration_s / 0.1 == pytest.approx(round(found.window.duration_s / 0.1), abs=0.06)


def test_the_ramp_before_the_window_does_not_count():
    ramp = Power([(100.0, 100.0), (100.3, 600.0)])
    with_warmup = measured(Card(Clock(), ramp), warmup_s=0.4)
    without = measured(Card(Clock(), ramp), warmup_s=0.0, precision=0.5)
    assert with_warmup.per_inference_j == pytest.approx(600 * PASS_S, rel=0.01)
    assert without.per_inference_j < 0.99 * 600 * PASS_S


def test_a_power_that_drifts_is_measured_as_its_mean():
    drift = Power([(100.0, 300.0), (110.0, 400.0)])
    found = measured(Card(Clock(), drift)).window
    truth_j = drift.energy_j(found.end_s) - drift.energy_j(found.start_s)
    assert abs(found.energy_j - truth_j) <= found.uncertainty_j


def test_counter_and_integral_agree_under_steady_load_with_noise():
    found = measured(Card(Clock(), constant(400.0), noise_w=8.0))
    assert found.window.disagreement_pct is not None
    assert abs(found.window.disagreement_pct) < 2.0
    assert found.window.power_std_w == pytest.approx(8.0, rel=0.6)


def test_a_part_time_sensor_disagrees_with_the_counter_under_a_load_of_its_own_period():
    wave = square_wave(100.0, 700.0, period_s=0.1, until_s=120.0)
    found = measured(Card(Clock(), wave, phase_s=0.03, boxcar_s=0.025))
    assert found.per_inference_j == pytest.approx(400.0 * PASS_S, rel=0.02)
    assert abs(found.window.disagreement_pct) > 20.0


def test_the_inferences_are_those_of_the_window():
    found = measured(Card(Clock(), constant(400.0)))
    assert found.inferences == pytest.approx(found.window.duration_s / PASS_S, abs=1)


def test_a_window_is_made_longer_until_the_precision_is_reached():
    slow = {"look_s": 0.02}
    rough = measured(Card(Clock(), constant(400.0), **slow), precision=0.05)
    fine = measured(Card(Clock(), constant(400.0), **slow), precision=0.01, budget_s=10.0)
    assert fine.window.duration_s > 1.5 * rough.window.duration_s
    assert fine.window.relative_uncertainty <= 0.01


def test_where_the_budget_is_too_small_there_is_no_energy_and_the_reason_says_how_long_it_takes():
    found, reason = steady(Card(Clock(), constant(400.0), look_s=0.02), precision=0.001, budget_s=2.0)
    assert found is None
    assert reason is not None
    assert "0.1 % needs a window of" in reason
    assert reason.endswith("2 s are allowed")


def test_the_card_is_loaded_all_the_while():
    clock = Clock()
    load = Load(clock, PASS_S)
    card = Card(clock, constant(400.0))
    monitor_of(card).steady(load)
    assert load.steps > 300


class Pausing(Load):
    """A load whose device is out of work for 40 ms at each of some seconds: no inference ends, the card idles."""

    def __init__(self, clock: Clock, pass_s: float, pauses_s: list[float]) -> None:
        super().__init__(clock, pass_s)
        self._pauses_s = list(pauses_s)

    def step(self) -> None:
        if self._pauses_s and self._clock() >= self._pauses_s[0]:
            self._pauses_s.pop(0)
            self._clock.sleep(0.04)
            self._began_s += 0.04
            self._looked_s = self._clock()
            self.starved += 1
        super().step()


def paused(pauses_s: list[float], **options: float) -> tuple[energy.LoadEnergy | None, str | None]:
    points = [(0.0, 400.0)]
    for at_s in pauses_s:
        points += [(at_s, 400.0), (at_s, 120.0), (at_s + 0.04, 120.0), (at_s + 0.04, 400.0)]
    clock = Clock()
    return monitor_of(Card(clock, Power(points))).steady(Pausing(clock, PASS_S, pauses_s), **options)


def test_a_window_in_which_the_device_ran_out_of_work_begins_anew():
    found, reason = paused([100.7, 101.3])
    assert found is not None, reason
    assert found.window.start_s > 101.34
    assert found.pass_s == pytest.approx(PASS_S, rel=3e-3)
    assert found.per_inference_j == pytest.approx(400.0 * PASS_S, rel=3e-3)


def test_a_window_that_began_anew_too_late_says_so():
    found, reason = paused([100.7], budget_s=1.5)
    assert found is None
    assert reason is not None
    why = "the device ran out of work, or kept step with the sensor"
    assert reason == f"no energy: 1 % needs a window of 1.0 s, it began anew once with 0.5 s of 1.5 left ({why})"


def test_before_the_window_the_device_may_be_out_of_work():
    found, reason = paused([100.1])
    assert found is not None, reason
    assert found.window.start_s < 100.4


def test_a_device_that_is_out_of_work_again_and_again_is_measured_so():
    found, reason = paused([100.0 + 0.5 * index for index in range(20)], precision=0.2, budget_s=6.0)
    assert found is not None, reason
    assert found.pass_s == pytest.approx(PASS_S / (1 - 0.04 / 0.5), rel=0.03)


def test_a_device_that_is_out_of_work_until_the_time_is_spent_has_a_reason():
    found, reason = paused([100.0 + 0.5 * index for index in range(20)], budget_s=2.0)
    assert (found, reason) == (None, "no energy: the device ran out of work again and again in 2 s")


@pytest.mark.parametrize(("source", "boxcar_s"), [(energy.INSTANT, 0.1), (energy.AVERAGE, 1.0)])
def test_without_a_counter_power_is_integrated_and_the_row_can_say_so(source: str, boxcar_s: float):
    card = Card(Clock(), constant(350.0), source=source, boxcar_s=boxcar_s, noise_w=2.0)
    found = measured(card, warmup_s=1.2, precision=0.05)
    assert found.window.source == source
    assert abs(found.per_inference_j - 350.0 * PASS_S) <= found.uncertainty_j
    assert found.window.disagreement_pct is None


def test_a_power_sensor_that_still_climbs_is_uncertain_by_what_it_averages_over():
    step = Power([(100.0, 100.0), (100.25, 100.0), (100.251, 600.0)])
    found, _ = steady(Card(Clock(), step, source=energy.AVERAGE, boxcar_s=1.0), precision=0.9)
    assert found is not None
    window = found.window
    truth_j = step.energy_j(window.end_s) - step.energy_j(window.start_s)
    assert abs(window.energy_j - truth_j) <= window.uncertainty_j


def test_a_card_that_is_lost_gives_a_reason_and_no_number():
    found, reason = steady(Card(Clock(), constant(400.0), fails_at_s=100.7))
    assert found is None
    assert reason == "no energy: no energy counter: NVML says GPU is lost"


def test_a_counter_that_is_set_back_gives_a_reason_and_no_number():
    found, reason = steady(Card(Clock(), constant(400.0), resets_at_s=100.7), budget_s=2.0)
    assert found is None
    assert reason is not None
    assert "went back" in reason


def test_a_counter_that_stands_still_gives_a_reason_and_no_number():
    found, reason = steady(Card(Clock(), constant(400.0), tick_s=1e6), budget_s=2.0)
    assert found is None
    assert reason is not None
    assert "ticked 0 times" in reason


def test_without_a_sensor_there_is_a_monitor_with_a_reason_and_no_energy():
    monitor = PowerMonitor(reason="nvidia-ml-py is not installed")
    assert monitor.reason == "nvidia-ml-py is not installed"
    assert monitor.idle_power_w() is None
    assert monitor.settings() == {}
    with monitor.window() as window:
        pass
    assert window.energies == []
    assert monitor.steady(Load(Clock(), PASS_S)) == (None, "no energy: nvidia-ml-py is not installed")


def test_windows_nest_and_each_has_its_own_energy():
    step = Power([(100.0, 200.0), (101.999, 200.0), (102.0, 500.0)])
    clock = Clock()
    card = Card(clock, step)
    monitor = monitor_of(card)

    def spend(seconds: float) -> None:
        until_s = clock.now_s + seconds
        while clock.now_s < until_s:
            monitor._sampler.poll()

    with monitor.window() as outer:
        spend(2.0)
        with monitor.window() as inner:
            spend(2.0)
    assert inner.energies[0].power_mean_w == pytest.approx(500.0, rel=0.03)
    assert outer.energies[0].power_mean_w == pytest.approx(350.0, rel=0.03)
    assert outer.energies[0].power_samples > inner.energies[0].power_samples


def test_several_cards_are_measured_side_by_side():
    clock = Clock()
    monitor = monitor_of(Card(clock, constant(200.0)), Card(clock, constant(600.0), phase_s=0.04))
    window = monitor.begin()
    while clock.now_s < window.start_s + 1.5:
        monitor._sampler.poll()
    energies = monitor.end(window).energies
    assert [round(found.power_mean_w, -1) for found in energies] == [200.0, 600.0]


def test_a_window_too_short_for_two_ticks_has_a_reason():
    monitor = monitor_of(Card(Clock(), constant(200.0)))
    window = monitor.end(monitor.begin())
    assert window.energies == [None]
    assert "a window needs two" in window.reasons[0]


def test_idle_power_is_what_the_card_takes_with_nothing_to_do():
    assert monitor_of(Card(Clock(), constant(76.0))).idle_power_w() == pytest.approx(76.0, rel=0.02)


def test_the_thread_samples_while_the_block_runs_and_ends_with_it():
    import threading
    import time

    class Real(Card):
        def read(self) -> tuple[float, float]:
            return time.perf_counter() * 100.0, 100.0

    card = Real(Clock(), constant(100.0))
    monitor = PowerMonitor([card], period_s=0.001)
    with monitor, monitor.window() as window:
        time.sleep(0.2)
    assert window.energies[0].power_mean_w == pytest.approx(100.0, rel=0.1)
    assert not [thread for thread in threading.enumerate() if thread.name == "power"]


def test_the_conditions_are_those_from_the_beginning_of_a_window_to_its_end():
    class Capped(Card):
        def state(self) -> energy.CardState:
            held_back_s = {energy.POWER_CAP: (self.clock.now_s - 100.0) / 4}
            return energy.CardState(sm_clock_mhz=1500, time_s=self.clock.now_s, held_back_s=held_back_s)

    found = measured(Capped(Clock(), constant(700.0)))
    assert found.conditions.throttle_power_pct == pytest.approx(25.0)
    assert found.conditions.throttle_reasons == "power cap"
    assert found.conditions.before.time_s <= found.window.start_s
    assert found.conditions.after.time_s >= found.window.end_s


def test_without_a_sensor_the_state_is_empty():
    assert PowerMonitor().state() == energy.CardState()
