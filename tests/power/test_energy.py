"""Joules with an uncertainty from a sensor's readings, or a reason why not."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from fakes.sensors import share

from convscope.errors import WindowError
from convscope.power import energy
from convscope.power.energy import (
    POWER_BRAKE,
    POWER_CAP,
    THERMAL,
    CardState,
    Conditions,
    EnergyWindow,
    LoadEnergy,
    Sample,
)


def counter(tick_s: float = 0.1, power_w: float = 300.0, until_s: float = 3.0) -> list[Sample]:
    """Return looks every millisecond at a counter under constant power that changes every `tick_s`."""
    times_s = [0.001 * look for look in range(int(until_s / 0.001))]
    return [Sample(time_s, int(time_s / tick_s) * tick_s * power_w, None) for time_s in times_s]


def test_a_tick_lies_between_the_looks_around_it():
    (tick,) = energy.ticks([Sample(1.0, 5.0, None), Sample(1.2, 5.0, None), Sample(1.4, 8.0, None)])
    assert (tick.time_s, tick.half_width_s, tick.energy_j) == pytest.approx((1.3, 0.1, 8.0))


def test_a_counter_that_went_backwards_is_refused_with_its_values():
    with pytest.raises(WindowError, match=r"went back from 9\.000 J to 4\.000 J"):
        energy.ticks([Sample(1.0, 9.0, None), Sample(2.0, 4.0, None)])


def test_a_window_begins_and_ends_on_ticks_inside_its_bounds():
    found = energy.counter_window(counter(), 0.55, 2.55)
    assert (found.start_s, found.end_s) == pytest.approx((0.6, 2.5), abs=0.002)


def test_constant_power_is_found_to_the_time_between_two_looks():
    found = energy.counter_window(counter(power_w=300.0), 0.5, 2.6)
    assert found.energy_j == pytest.approx(300.0 * found.duration_s, abs=300.0 * 0.002)


@pytest.mark.parametrize(("end_s", "often"), [(0.05, "0 times"), (0.15, "once")])
def test_a_window_needs_two_ticks(end_s: float, often: str):
    with pytest.raises(WindowError, match=f"ticked {often} in .* a window needs two"):
        energy.counter_window(counter(), 0.0, end_s)


def test_the_integral_of_a_ramp_is_its_area():
    ramp = [Sample(0.1 * step, None, 100.0 * step) for step in range(11)]
    assert energy.integrate(ramp, 0.25, 0.75) == pytest.approx(250.0)


def test_readings_that_do_not_cover_the_window_are_refused():
    with pytest.raises(WindowError, match="do not cover the window"):
        energy.integrate([Sample(1.0, None, 100.0), Sample(2.0, None, 100.0)], 0.5, 1.5)


def test_energy_of_one_inference_is_the_windows_over_the_inferences_in_it():
    window = EnergyWindow(1.0, 3.0, energy_j=600.0, uncertainty_j=6.0, source=energy.COUNTER)
    found = LoadEnergy(window, inferences=200.0)
    assert (found.per_inference_j, found.uncertainty_j) == (3.0, 0.03)


def test_dynamic_energy_leaves_out_what_an_idle_card_would_have_taken():
    window = EnergyWindow(1.0, 3.0, energy_j=600.0, uncertainty_j=6.0, source=energy.COUNTER)
    assert LoadEnergy(window, inferences=200.0).dynamic_j(idle_power_w=100.0) == pytest.approx(2.0)


def test_the_uncertainty_of_the_number_of_inferences_is_part_of_that_of_the_energy():
    window = EnergyWindow(1.0, 3.0, energy_j=600.0, uncertainty_j=6.0, source=energy.COUNTER)
    found = LoadEnergy(window, inferences=200.0, inferences_std=1.0)
    assert found.relative_uncertainty == pytest.approx(math.hypot(0.01, 0.01))
    assert found.uncertainty_j == pytest.approx(math.sqrt(2) * 0.03)


def test_the_time_of_a_pass_is_the_windows_over_the_inferences_in_it():
    assert LoadEnergy(EnergyWindow(1.0, 3.0, 600.0, 6.0, energy.COUNTER), inferences=200.0).pass_s == 0.01


def test_a_window_is_to_be_as_much_longer_as_it_is_less_precise():
    assert energy.needed_s(2.0, relative_uncertainty=0.03, precision=0.01) == pytest.approx(6.0)


def conditions(
    after_s: dict[str, float], glances: tuple[str | None, str | None] = ("none", "none"), **before_s: float
) -> Conditions:
    """Return a window of 12.5 s, with the time for which each cause held a card back before and after it."""
    zeros = dict.fromkeys(after_s, 5.0)
    first = CardState(41, 1980, glances[0], 1, time_s=100.0, held_back_s=zeros | before_s)
    last = CardState(60, 1700, glances[1], 2, time_s=112.5, held_back_s={c: 5.0 + s for c, s in after_s.items()})
    return Conditions(first, last)


def test_conditions_are_the_temperatures_at_both_ends_and_the_rest_at_the_end():
    found = conditions({})
    assert (found.temperature_start_c, found.temperature_end_c) == (41, 60)
    assert (found.sm_clock_mhz, found.other_processes) == (1700, 2)


def test_the_share_of_a_cause_is_the_time_that_it_was_counted_in_the_window():
    found = conditions({POWER_CAP: 5.0, THERMAL: 0.625})
    assert (found.throttle_power_pct, found.throttle_thermal_pct) == (pytest.approx(40.0), pytest.approx(5.0))


def test_a_slowdown_by_the_hardware_counts_with_heat_and_not_with_the_power_limit():
    found = conditions({POWER_CAP: 0.0, THERMAL: 0.5, POWER_BRAKE: 2.5})
    assert (found.throttle_power_pct, found.throttle_thermal_pct) == (0.0, pytest.approx(20.0))


def test_a_counter_that_runs_ahead_of_the_window_is_at_most_all_of_it():
    assert conditions({POWER_CAP: 13.0}).throttle_power_pct == 100.0


def test_a_cause_that_is_not_counted_has_no_share():
    found = conditions({})
    assert (found.throttle_power_pct, found.throttle_thermal_pct) == (None, None)


def test_a_counter_that_was_set_back_has_no_share():
    found = conditions({POWER_CAP: 1.0}, **{POWER_CAP: 9.0})
    assert found.throttle_power_pct is None


def test_without_two_moments_there_is_no_share():
    state = CardState(held_back_s={POWER_CAP: 1.0})
    assert Conditions(state, state).throttle_power_pct is None
    assert Conditions(CardState(time_s=1.0), CardState(time_s=1.0)).throttle_power_pct is None


@pytest.mark.parametrize(
    ("counted", "glances", "reasons"),
    [
        ({POWER_CAP: 4.0, THERMAL: 0.0}, ("none", "none"), "power cap"),
        ({POWER_CAP: 0.125, THERMAL: 0.0}, ("none", "none"), "power cap"),
        ({POWER_CAP: 0.124, THERMAL: 0.0}, ("power cap", "power cap"), "none"),
        ({POWER_CAP: 4.0, THERMAL: 3.0}, ("none", "none"), "power cap, thermal slowdown"),
        (
            {POWER_CAP: 0.0, THERMAL: 3.0},
            ("none", "power cap, hardware thermal slowdown"),
            "hardware thermal slowdown",
        ),
        ({POWER_CAP: 0.0, THERMAL: 0.0}, ("software thermal slowdown", "none"), "none"),
        ({POWER_CAP: 0.0}, ("software thermal slowdown", "none"), "software thermal slowdown"),
        ({POWER_CAP: 4.0, THERMAL: 0.0}, ("hardware slowdown", "none"), "hardware slowdown, power cap"),
        ({}, ("none", "power cap"), "power cap"),
        ({}, ("power cap", None), "power cap"),
        ({}, ("none", None), "none"),
        ({}, (None, None), None),
        ({POWER_CAP: 4.0}, (None, None), "power cap"),
    ],
)
def test_reasons_are_those_counted_for_a_hundredth_of_the_window_else_those_seen_at_its_ends(
    counted: dict[str, float], glances: tuple[str | None, str | None], reasons: str | None
):
    assert conditions(counted, glances).throttle_reasons == reasons


def test_steps_that_alternate_leave_only_the_ends_of_their_sum_uncertain():
    assert energy.sum_std([1.0, 3.0] * 20) < 2.0
    assert energy.sum_std([1.0, 3.0] * 20) == pytest.approx(1.0, rel=0.2)


def test_a_constant_drift_of_the_steps_is_no_uncertainty_of_their_sum():
    assert energy.sum_std([5.0 + 0.1 * step for step in range(20)]) == pytest.approx(0.0, abs=1e-6)


def test_few_steps_are_taken_for_independent():
    assert energy.sum_std([1.0, 3.0, 1.0, 3.0]) == pytest.approx(2 * math.sqrt(4 / 3))
    assert (energy.sum_std([1.0]), energy.sum_std([])) == (0.0, 0.0)


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.9), (0.5, 0.8)])
def test_the_sum_of_steps_is_within_two_deviations_for_independent_steps_and_nearly_for_wandering_ones(
    memory: float, least: float
):
    def covered(seed: int) -> bool:
        draw, steps = random.Random(seed), [0.0]
        for _ in range(60):
            steps.append(memory * steps[-1] + draw.gauss(0.0, 1.0))
        return abs(sum(steps[11:])) <= 2 * energy.sum_std(steps[11:])

    assert share(covered, 400) >= least


# GUM (JCGM 100:2008), table G.2, 95.45 %: 1, 4, 6, 4, 5, 7 and 25 degrees of freedom.
@pytest.mark.parametrize(
    ("steps", "deviations"), [(2, 13.97), (5, 2.87), (7, 2.52), (8, 2.87), (10, 2.65), (14, 2.43), (100, 2.11)]
)
def test_the_sum_of_few_steps_is_uncertain_by_more_than_two_of_its_deviations(steps: int, deviations: float):
    assert energy.sum_coverage(steps) == pytest.approx(deviations, abs=0.005)


def test_a_sum_without_scatter_has_a_finite_coverage():
    assert energy.sum_coverage(1) == energy.sum_coverage(2)


@pytest.mark.parametrize("count", [3, 5, 8, 10, 15, 30])
def test_the_coverage_of_a_sum_of_independent_steps_holds_in_95_of_100_draws(count: int):
    def covered(seed: int) -> bool:
        draw = random.Random(seed)
        steps = [draw.gauss(0.0, 1.0) for _ in range(count)]
        return abs(sum(steps)) <= energy.sum_coverage(count) * energy.sum_std(steps)

    assert 0.93 <= share(covered, 1000) <= 0.985


def load_energy(**changes: float) -> energy.LoadEnergy:
    window = energy.EnergyWindow(10.0, 12.0, 600.0, 3.0, energy.COUNTER, integral_j=606.0)
    return energy.LoadEnergy(window, inferences=1000.0, **changes)


def test_rests_are_taken_off_the_window_with_their_time_and_energy():
    found = load_energy().without_rests(0.0019, 100.0)
    assert found.rest_s == pytest.approx(1e-4)
    assert (found.window.start_s, found.window.end_s) == (10.0, pytest.approx(11.9))
    assert found.window.energy_j == pytest.approx(590.0)
    assert found.window.integral_j == pytest.approx(596.0)
    assert found.pass_s == pytest.approx(0.0019)
    assert found.per_inference_j == pytest.approx(0.59)
    assert found.window.uncertainty_j == pytest.approx(math.hypot(3.0, 2 * 0.05 * 10.0))


def test_inferences_shorter_than_without_a_rest_lose_nothing():
    found = load_energy().without_rests(0.0021, 100.0)
    assert found == load_energy()


def test_a_window_without_power_readings_has_none_without_its_rests():
    plain = energy.LoadEnergy(energy.EnergyWindow(0.0, 1.0, 100.0, 1.0, energy.COUNTER), 10.0)
    assert plain.without_rests(0.09, 50.0).window.integral_j is None


def test_constant_power_is_uncertain_by_two_deviations_of_the_edges_alone():
    found = energy.counter_window(counter(power_w=300.0), 0.5, 2.6)
    edge_s = 0.0005 / math.sqrt(3)  # half of the time between two looks, a rectangle
    assert found.uncertainty_j == pytest.approx(2 * 300.0 * math.hypot(edge_s, edge_s), rel=1e-3)
    assert found.relative_uncertainty == pytest.approx(found.uncertainty_j / found.energy_j)


def test_scatter_from_tick_to_tick_adds_to_the_uncertainty_of_the_edges():
    steps = pairwise([0.0, 10.0, 22.0, 32.0])
    looks = [((at_s - 0.001, before_j), (at_s, after_j)) for at_s, (before_j, after_j) in enumerate(steps, 1)]
    samples = [Sample(time_s, energy_j, None) for pair in looks for time_s, energy_j in pair]
    found = energy.counter_window(samples, -1.0, 4.0)
    edge_s = 0.0005 / math.sqrt(3)
    edges_j = found.power_mean_w * math.hypot(edge_s, edge_s)
    scatter_j = energy.sum_std([12.0, 10.0])
    assert found.energy_j == pytest.approx(22.0)
    assert found.uncertainty_j == pytest.approx(math.hypot(2 * edges_j, 13.968 * scatter_j), rel=1e-3)


@pytest.mark.parametrize(
    ("start_s", "end_s", "ends"), [(0.9, 3.1, (1.0, 3.0)), (1.0, 3.0, (1.0, 3.0)), (1.1, 3.0, (2.0, 3.0))]
)
def test_a_tick_on_the_edge_of_a_window_belongs_to_it(start_s: float, end_s: float, ends: tuple[float, float]):
    samples = [Sample(0.5 + step, 100.0 * step, None) for step in range(4)]  # ticks at 1, 2 and 3 s
    found = energy.counter_window(samples, start_s, end_s)
    assert (found.start_s, found.end_s) == ends


def powers(*watts: float) -> list[Sample]:
    """Return readings of power a second apart, from 0 s."""
    return [Sample(float(second), None, power_w) for second, power_w in enumerate(watts)]


def test_a_power_window_is_uncertain_by_scatter_and_by_what_a_reading_averages_over():
    found = energy.power_window(powers(100.0, 100.0, 130.0, 100.0, 130.0), 1.0, 4.0, averaging_s=0.5, source="x")
    scatter_j = math.sqrt(300.0) / math.sqrt(4) * 3.0  # three changes are four readings
    lag_j = 0.5 * 30.0 / math.sqrt(3)
    assert found.energy_j == pytest.approx(115 + 115 + 115)
    assert found.uncertainty_j == pytest.approx(2 * math.hypot(scatter_j, lag_j))


def test_a_power_reading_that_never_changes_is_refused():
    with pytest.raises(WindowError, match=r"the power reading changed 0 times in 2\.00 s"):
        energy.power_window(powers(100.0, 100.0, 100.0, 100.0), 0.5, 2.5, averaging_s=0.5, source="x")


def test_a_window_has_the_statistics_of_the_readings_in_it():
    samples = [Sample(0.5 + step, 100.0 * step, watts) for step, watts in enumerate((90.0, 100.0, 110.0, 130.0))]
    found = energy.counter_window(samples, 0.0, 4.0)
    assert (found.power_min_w, found.power_max_w, found.power_samples) == (100.0, 110.0, 2)
    assert found.power_std_w == pytest.approx(math.sqrt(50.0))
    assert found.integral_j == pytest.approx(48.75 + 105.0 + 57.5)
    assert found.disagreement_pct == pytest.approx(100 * (found.integral_j / 200.0 - 1))


def test_a_window_without_energy_has_no_relative_uncertainty_to_trust():
    assert EnergyWindow(0.0, 1.0, 0.0, 0.1, energy.COUNTER).relative_uncertainty == math.inf
