"""Energy at its edges: windows that are just long enough, uncertainties as exact numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convscope.errors import WindowError
from convscope.power import energy
from convscope.power.energy import CardState, Conditions, EnergyWindow, LoadEnergy, Sample, Tick

# Looks at a counter with ticks at 0.375, 1.125 and 2.25 s, the last one seen after a longer pause.
LOOKS = [
    Sample(time_s, energy_j, None)
    for time_s, energy_j in ((0.0, 4.0), (0.25, 4.0), (0.5, 8.0), (1.0, 8.0), (1.25, 16.0), (2.0, 16.0), (2.5, 20.0))
]
POWERS = [Sample(float(second), None, watts) for second, watts in enumerate((100.0, 100.0, 200.0, 200.0, 400.0))]


def counted(source: str = energy.COUNTER, **changes: float) -> EnergyWindow:
    return EnergyWindow(
        **({"start_s": 1.0, "end_s": 3.0, "energy_j": 200.0, "uncertainty_j": 5.0} | changes), source=source
    )


def test_a_tick_is_in_the_middle_of_the_looks_around_it_and_knows_how_far_they_are():
    assert energy.ticks(LOOKS) == [Tick(0.375, 0.125, 8.0), Tick(1.125, 0.125, 16.0), Tick(2.25, 0.25, 20.0)]


def test_looks_without_a_counter_are_passed_over():
    assert energy.ticks([Sample(0.0, 1.0, None), Sample(0.5, None, 9.0), Sample(1.0, 2.0, None)]) == [
        Tick(0.5, 0.5, 2.0)
    ]


def test_a_window_has_the_energy_between_its_ticks_and_the_uncertainty_of_edges_and_scatter():
    found = energy.counter_window(LOOKS, 0.375, 2.25, energy.RAPL)
    edges_s = math.hypot(0.125, 0.25) / math.sqrt(3)
    scatter_j = math.sqrt(8.0) * math.sqrt(2)  # steps of 8 and 4 J
    assert (found.start_s, found.end_s, found.energy_j, found.source) == (0.375, 2.25, 12.0, energy.RAPL)
    assert found.uncertainty_j == pytest.approx(math.hypot(2 * 12.0 / 1.875 * edges_s, 13.968 * scatter_j), rel=1e-4)
    assert found.power_samples == 0


def test_a_window_of_two_ticks_has_no_scatter():
    found = energy.counter_window(LOOKS, 0.375, 1.125)
    assert (found.duration_s, found.energy_j, found.source) == (0.75, 8.0, energy.COUNTER)
    assert found.uncertainty_j == pytest.approx(2 * 8.0 / 0.75 * math.hypot(0.125, 0.125) / math.sqrt(3), rel=1e-12)


@pytest.mark.parametrize(
    ("start_s", "end_s", "first_s", "last_s"),
    [(0.375, 2.25, 0.375, 2.25), (0.376, 2.25, 1.125, 2.25), (0.375, 2.249, 0.375, 1.125)],
)
def test_ticks_on_the_bounds_are_inside(start_s: float, end_s: float, first_s: float, last_s: float):
    found = energy.counter_window(LOOKS, start_s, end_s)
    assert (found.start_s, found.end_s) == (first_s, last_s)


def test_a_window_of_one_tick_is_refused_with_its_length():
    with pytest.raises(WindowError, match=r"ticked once in 1\.50 s, a window needs two"):
        energy.counter_window(LOOKS, 0.5, 2.0)


ARCHES, TRIPLES = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0], [-1.0, 2.0, -1.0] * 5


@pytest.mark.parametrize(
    ("steps", "variance"),
    [
        ([], 0.0),
        ([3.0], 0.0),
        ([1.0, 3.0], 2 * 2.0),
        (ARCHES[:7], 7 * (7 - 1 / 7) / 6),
        (ARCHES, 8 * (8 + 2 * (2 / 3 * -1 + 1 / 3 * -6)) / (8 - 2 * 2 - 2)),
        (TRIPLES, 30 / (15 - 2)),  # at least that of one step; by the lags 15 (30 - 2 (2/3 16 + 1/3 11)) / 9
    ],
)
@pytest.mark.parametrize("drift", [0.0, 0.25])
def test_the_sum_of_steps_has_their_long_run_variance_without_a_drift(
    steps: list[float], variance: float, drift: float
):
    drift = drift if len(steps) >= energy.LAGGED_LEAST else 0.0
    drifting = [5.0 + drift * at + step for at, step in enumerate(steps)]
    assert energy.sum_std(drifting) == pytest.approx(math.sqrt(variance), rel=1e-9)


def test_the_dependence_of_steps_counts_from_eight_on():
    assert energy.LAGGED_LEAST == 8


@pytest.mark.parametrize(("relative_uncertainty", "needed_s"), [(0.25, 1.5), (0.5, 3.0), (2.0, 12.0)])
def test_a_window_needs_to_be_longer_by_the_ratio_of_uncertainty_to_precision(
    relative_uncertainty: float, needed_s: float
):
    assert energy.needed_s(3.0, relative_uncertainty, precision=0.5) == needed_s


def test_power_is_integrated_with_the_uncertainty_of_scatter_and_averaging():
    found = energy.power_window(POWERS, 1.0, 3.0, 0.25, energy.AVERAGE)
    readings_std_w = math.sqrt(((100 - 500 / 3) ** 2 + 2 * (200 - 500 / 3) ** 2) / 2)
    lag_j = 0.25 * 100.0 / math.sqrt(3)
    assert (found.start_s, found.end_s, found.energy_j, found.source) == (1.0, 3.0, 350.0, energy.AVERAGE)
    assert found.uncertainty_j == pytest.approx(2 * math.hypot(readings_std_w / math.sqrt(2) * 2.0, lag_j), rel=1e-12)
    assert (found.integral_j, found.power_min_w, found.power_max_w, found.power_samples) == (350.0, 100.0, 200.0, 3)
    assert found.power_std_w == pytest.approx(readings_std_w, rel=1e-12)


@pytest.mark.parametrize(("start_s", "end_s"), [(0.0, 1.0), (1.25, 1.75)])
def test_a_reading_that_never_changed_is_refused(start_s: float, end_s: float):
    with pytest.raises(WindowError, match=rf"the power reading changed 0 times in {end_s - start_s:.2f} s"):
        energy.power_window(POWERS, start_s, end_s, 0.25, energy.AVERAGE)


def test_a_reading_that_changed_once_is_enough():
    assert energy.power_window(POWERS, 1.0, 2.0, 0.25, energy.AVERAGE).energy_j == 150.0


@pytest.mark.parametrize(
    ("start_s", "end_s", "area_j"),
    [(0.0, 4.0, 750.0), (0.0, 1.0, 100.0), (1.5, 2.5, 187.5), (3.25, 3.75, 150.0), (1.25, 1.5, 34.375)],
)
def test_the_area_is_that_of_trapezoids_cut_at_the_edges(start_s: float, end_s: float, area_j: float):
    assert energy.integrate(POWERS, start_s, end_s) == pytest.approx(area_j, rel=1e-12)


@pytest.mark.parametrize(("start_s", "end_s"), [(-0.001, 4.0), (0.0, 4.001)])
def test_readings_that_miss_an_edge_by_a_millisecond_are_refused(start_s: float, end_s: float):
    with pytest.raises(WindowError, match="do not cover"):
        energy.integrate(POWERS, start_s, end_s)
    with pytest.raises(WindowError, match="do not cover"):
        energy.integrate([Sample(0.0, 1.0, None)], start_s, end_s)


@given(st.lists(st.floats(1.0, 700.0), min_size=3, max_size=20), st.floats(0.0, 1.0))
def test_the_areas_of_two_parts_are_that_of_the_whole(watts: list[float], part: float):
    samples = [Sample(0.1 * index, None, power_w) for index, power_w in enumerate(watts)]
    end_s = samples[-1].time_s
    cut_s = part * end_s
    whole_j = energy.integrate(samples, 0.0, end_s)
    assert energy.integrate(samples, 0.0, cut_s) + energy.integrate(samples, cut_s, end_s) == pytest.approx(whole_j)


def both(*watts: float | None) -> list[Sample]:
    """Return the looks at the counter, the last ones with these readings of power."""
    readings = [None] * (len(LOOKS) - len(watts)) + list(watts)
    return [Sample(one.time_s, one.energy_j, power_w) for one, power_w in zip(LOOKS, readings, strict=True)]


def test_one_reading_in_a_window_has_no_statistics_and_two_have():
    one = energy.counter_window(both(60.0, 80.0, 90.0, 60.0), 1.125, 2.25)
    assert (one.power_samples, one.power_min_w, one.power_max_w) == (2, 80.0, 90.0)
    assert one.integral_j == pytest.approx(75.0 * 0.125 + 85.0 * 0.75 + 82.5 * 0.25)
    alone = energy.counter_window(both(None, 80.0, None, None), 1.125, 2.25)
    assert (alone.power_samples, alone.power_std_w, alone.integral_j) == (0, None, None)


def test_readings_that_do_not_cover_a_window_of_the_counter_give_statistics_and_no_integral():
    found = energy.counter_window(both(80.0, 90.0, 60.0), 1.125, 2.25)
    assert (found.power_samples, found.integral_j) == (2, None)
    assert found.power_std_w == pytest.approx(math.sqrt(50.0))


def test_mean_power_and_uncertainty_are_shares_of_the_energy():
    assert counted().power_mean_w == 100.0
    assert counted().relative_uncertainty == 0.025
    assert counted(energy_j=0.0).relative_uncertainty == math.inf
    assert counted(energy_j=0.5).relative_uncertainty == 10.0


@pytest.mark.parametrize(
    ("source", "integral_j", "excess_pct"),
    [
        (energy.COUNTER, 250.0, 25.0),
        (energy.RAPL, 150.0, -25.0),
        (energy.COUNTER, None, None),
        (energy.AVERAGE, 250.0, None),
        (energy.INSTANT, None, None),
    ],
)
def test_only_a_counter_is_checked_by_the_integral(source: str, integral_j: float | None, excess_pct: float | None):
    assert counted(source, integral_j=integral_j).disagreement_pct == excess_pct


def test_the_energy_of_an_inference_is_exact_with_its_uncertainty():
    found = LoadEnergy(counted(), inferences=50.0)
    assert (found.per_inference_j, found.uncertainty_j) == (4.0, 0.1)
    assert found.dynamic_j(idle_power_w=25.0) == 3.0


COUNTED = {energy.POWER_CAP: 1.0}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CardState(time_s=1.0), CardState(time_s=2.0, held_back_s=COUNTED)),
        (CardState(time_s=1.0, held_back_s=COUNTED), CardState(time_s=2.0)),
        (CardState(held_back_s=COUNTED), CardState(time_s=2.0, held_back_s=COUNTED)),
        (CardState(time_s=1.0, held_back_s=COUNTED), CardState(held_back_s=COUNTED)),
        (CardState(time_s=1.0, held_back_s=COUNTED), CardState(time_s=1.0, held_back_s=COUNTED)),
    ],
)
def test_a_cause_that_is_counted_at_one_end_or_in_no_time_has_no_share(before: CardState, after: CardState):
    assert Conditions(before, after).held_back_pct(energy.POWER_CAP) is None


def test_a_reading_averages_over_a_tenth_of_a_second_or_a_second():
    assert energy.AVERAGING_S == {energy.INSTANT: 0.1, energy.AVERAGE: 1.0}
