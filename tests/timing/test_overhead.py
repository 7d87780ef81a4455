"""Overhead of the events around a layer: what they add to a pass, its change inside a pass, what is believed."""

from __future__ import annotations

from statistics import fmean

import pytest

from convscope.timing.layer_times import (
    LayerTimes,
    Overhead,
    is_plausible_reference,
    levelled,
    overhead_of,
    plausible_overhead,
)

TIMES = LayerTimes(
    [8.0, 8.0], [[0.5, 0.25], [2.0, 0.125]], [[0.025, 0.025], [0.025, 0.025]], [0.25, 0.55, 1.0], repeated=0
)


def test_a_pair_costs_half_of_what_is_added_beside_the_empty_pair():
    """550 µs by two layers: 275 each, of which the empty pair reads 25."""
    assert overhead_of([TIMES]) == Overhead(pytest.approx(125.0), pytest.approx(25.0))


def test_one_disturbed_pass_does_not_change_the_overhead():
    disturbed = LayerTimes([1.0] * 3, [[0.1] * 3], [[0.0] * 3], [0.1, 0.1, 9.0], repeated=0)
    assert overhead_of([disturbed]) == Overhead(pytest.approx(50.0), 0.0)


def test_all_placements_have_one_overhead():
    one, other, third = (LayerTimes([1.0], [[0.1]], [[0.0]], [added_ms], repeated=0) for added_ms in (0.1, 0.2, 0.6))
    assert overhead_of([one, other, third]) == Overhead(pytest.approx(100.0), 0.0)


def test_placements_in_which_records_cost_more_and_less_agree():
    """Layers of 10 µs: in two placements a pair adds 3.7 to them and an empty one reads 2.3, in one 2.0 and 1.3."""
    placed = [
        LayerTimes([1.0], [[(10 + pair_us) / 1e3]] * 2, [[empty_us / 1e3]] * 2, [2e-3 * (2 * pair_us + empty_us)], 0)
        for pair_us, empty_us in ((3.7, 2.3), (2.0, 1.3), (3.7, 2.3))
    ]
    found = overhead_of(placed)
    assert [times.less(found) for times in placed] == [[pytest.approx([0.010])] * 2] * 3


@pytest.mark.parametrize("added_ms", [-0.5, 0.0, 0.001])
def test_events_that_add_no_more_than_their_empty_pairs_have_no_overhead(added_ms: float):
    found = overhead_of([LayerTimes([1.0], [[0.1]], [[0.002]], [added_ms], repeated=0)])
    assert found == Overhead(0.0, pytest.approx(2.0))


def test_without_layers_there_is_no_overhead():
    assert overhead_of([LayerTimes([1.0], [], [], [0.1], repeated=0)]) is None


def test_the_overhead_is_taken_off_each_sample_down_to_nothing():
    assert TIMES.less(Overhead(125.0, 25.0)) == [pytest.approx([0.375, 0.125]), pytest.approx([1.875, 0.0])]
    assert TIMES.less(None) == TIMES.layers_ms


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([1.28], [1.28]),
        ([2.6, 2.3, 2.5], [2.5] * 3),
        ([2.6, 1.28, 2.3, 1.31, 2.5], [2.5, 1.295, 2.5, 1.295, 2.5]),
        ([0.0, 0.4, 0.8], [0.0, 0.4, 0.8]),
        ([9.0, 1.3, 2.4, 1.2], [9.0, 1.25, 2.4, 1.25]),
    ],
)
def test_readings_of_one_state_are_their_median(values: list[float], expected: list[float]):
    assert levelled(values) == pytest.approx(expected)


EVENTS_US = [17.07, 17.17, 17.28, 17.17, 17.02, 16.99, 25.04, 15.36, 15.14, 14.72, 14.72, 14.91, 15.14]
EMPTY_US = [2.34, 2.34, 2.34, 2.30, 2.30, 2.32, 2.30, *[1.28] * 6]
PAIR_US = 2.75
"""Read on an H200 by `benchmarks/events.py`: equal convolutions, one of 6 groups in the middle."""


def test_equal_layers_before_and_behind_one_on_several_streams_take_the_same():
    added_ms = len(EVENTS_US) * (2 * PAIR_US + fmean(EMPTY_US)) / 1e3
    layers, empty = ([[value / 1e3] for value in values] for values in (EVENTS_US, EMPTY_US))
    times = LayerTimes([1.0], layers, empty, [added_ms], repeated=0)
    found = overhead_of([times])
    assert found is not None
    assert found.pair_us == pytest.approx(PAIR_US, abs=0.02)
    times_us = [1e3 * value for (value,) in times.less(found)]
    before_us, behind_us = times_us[:6], times_us[7:]
    assert fmean(before_us) == pytest.approx(fmean(behind_us), abs=0.4)
    assert fmean(EVENTS_US[:6]) - fmean(EVENTS_US[7:]) > 2.0


@pytest.mark.parametrize(
    ("measured_us", "taken_us"), [(13.0, 13.0), (13.001, 10.0), (10.0 / 1.3, 10.0 / 1.3), (7.69, 10.0), (10.5, 10.5)]
)
def test_an_overhead_is_believed_up_to_thirty_percent_from_the_reference(measured_us: float, taken_us: float):
    assert plausible_overhead(Overhead(measured_us, 2.0), Overhead(10.0, 2.0)) == Overhead(taken_us, 2.0)


def test_a_pass_in_which_records_cost_less_has_its_own_overhead():
    """Read on an H200: the reference in one state, the pass of `torch benchmark` in the other."""
    reference, measured = Overhead(3.78, 2.48), Overhead(2.09, 1.30)
    assert plausible_overhead(measured, reference) == measured
    too_much = Overhead(18.3, 1.30)  # the events of an FFT part its streams
    assert plausible_overhead(too_much, reference) == Overhead(reference.at(1.30), 1.30)
    assert reference.at(1.30) == pytest.approx(2.09, rel=0.25)


@pytest.mark.parametrize(("pair_us", "can_be"), [(0.0, False), (0.49, False), (0.5, True), (2.9, True), (20.1, False)])
def test_an_overhead_that_cannot_be_is_no_reference(pair_us: float, can_be: bool):
    assert is_plausible_reference(Overhead(pair_us, 1.3)) is can_be


def test_an_overhead_is_never_below_nothing():
    assert Overhead(1.0, 3.0).at(0.0) == 0.0
