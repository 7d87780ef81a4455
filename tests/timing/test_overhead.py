"""Overhead of the events around a layer: what they add to a pass, its change inside a pass, what is believed."""

from __future__ import annotations

import dataclasses
import json
from statistics import fmean, median

import fakes
import pytest

from convscope.timing.layer_times import (
    LayerTimes,
    Overhead,
    Reading,
    is_plausible_reference,
    levels,
    overhead_of,
    plausible_overhead,
)

TIMES = LayerTimes(
    [8.0, 8.0], [[0.5, 0.25], [2.0, 0.125]], [[0.025, 0.025], [0.025, 0.025]], [0.25, 0.55, 1.0], repeated=0
)


def test_a_pair_costs_half_of_what_is_added_beside_the_empty_pair():
    """550 µs by two layers: 275 each, of which the empty pair reads 25."""
    assert overhead_of([TIMES]) == Overhead(pytest.approx(125.0), pytest.approx(25.0), [pytest.approx(25.0)])


def test_one_disturbed_pass_does_not_change_the_overhead():
    disturbed = LayerTimes([1.0] * 3, [[0.1] * 3], [[0.0] * 3], [0.1, 0.1, 9.0], repeated=0)
    assert overhead_of([disturbed]) == Overhead(pytest.approx(50.0), 0.0, [0.0])


def test_all_placements_have_one_overhead():
    one, other, third = (LayerTimes([1.0], [[0.1]], [[0.0]], [added_ms], repeated=0) for added_ms in (0.1, 0.2, 0.6))
    assert overhead_of([one, other, third]) == Overhead(pytest.approx(100.0), 0.0, [0.0])


def test_placements_in_which_records_cost_more_and_less_agree():
    """Layers of 10 µs: in two placements a pair adds 3.8 to them and an empty one reads 2.3, in one 2.0 and 1.3."""
    placed = [
        LayerTimes([1.0], [[(10 + pair_us) / 1e3]] * 2, [[empty_us / 1e3]] * 2, [2e-3 * (2 * pair_us + empty_us)], 0)
        for pair_us, empty_us in ((3.8, 2.3), (2.0, 1.3), (3.8, 2.3))
    ]
    found = overhead_of(placed)
    assert [times.less(found) for times in placed] == [[pytest.approx([0.010])] * 2] * 3


@pytest.mark.parametrize("added_ms", [-0.5, 0.0, 0.001])
def test_events_that_add_no_more_than_their_empty_pairs_have_no_overhead(added_ms: float):
    found = overhead_of([LayerTimes([1.0], [[0.1]], [[0.002]], [added_ms], repeated=0)])
    assert found == Overhead(0.0, pytest.approx(2.0), [pytest.approx(2.0)])


def test_without_layers_there_is_no_overhead():
    assert overhead_of([LayerTimes([1.0], [], [], [0.1], repeated=0)]) is None


def test_the_overhead_is_taken_off_each_sample_down_to_nothing():
    assert TIMES.less(Overhead(125.0, 25.0, [25.0])) == [pytest.approx([0.375, 0.125]), pytest.approx([1.875, 0.0])]
    assert TIMES.less(None) == TIMES.layers_ms


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([1.28], [1.28]),
        ([2.6, 2.3, 2.5], [2.5]),
        ([2.6, 1.28, 2.3, 1.31, 2.5], [1.295, 2.5]),
        ([0.0, 0.8, 1.6], [0.0, 0.8, 1.6]),
        ([0.0, 0.7, 1.4], [0.7]),
    ],
)
def test_readings_of_one_state_have_neighbours_that_are_near(values: list[float], expected: list[float]):
    assert levels(values) == pytest.approx(expected)


EVENTS_US = [17.07, 17.17, 17.28, 17.17, 17.02, 16.99, 25.04, 15.36, 15.14, 14.72, 14.72, 14.91, 15.14]
EMPTY_US = [2.34, 2.34, 2.34, 2.30, 2.30, 2.32, 2.30, *[1.28] * 6]
ADDED_US = 95.42
"""Read on an H200 by `benchmarks/events.py`: equal convolutions, one of 6 groups in the middle."""


def recorded(layers_us: list[float], empty_us: list[float], added_us: float) -> LayerTimes:
    layers_ms, empty_ms = ([[value / 1e3] for value in values] for values in (layers_us, empty_us))
    return LayerTimes([1.0], layers_ms, empty_ms, [added_us / 1e3], repeated=0)


def test_equal_layers_before_and_behind_one_on_several_streams_take_the_same():
    times = recorded(EVENTS_US, EMPTY_US, ADDED_US)
    times_us = [1e3 * value for (value,) in times.less(overhead_of([times], is_row=True))]
    before_us, behind_us = times_us[:6], times_us[7:]
    assert fmean(before_us) == pytest.approx(fmean(behind_us), abs=0.3)
    assert fmean(EVENTS_US[:6]) - fmean(EVENTS_US[7:]) > 2.0


def test_the_dear_states_of_a_pass_have_one_overhead():
    """Read on another H200: where an empty pair reads 2.9 µs, a pair costs a little less than where it reads 2.3."""
    times = recorded([17.2] * 6 + [16.7] * 6, [2.27] * 6 + [2.94] * 6, 12 * 7.1)
    found = overhead_of([times], is_row=True)
    assert found is not None
    assert len(found.levels_us) == 1
    assert found.at(2.27) == found.at(2.94)


RECORDED = json.loads((fakes.DATA / "events_h200.json").read_text())
"""Of 32 convolutions of a table on an H200, by PyTorch's choices in a state where records cost more, and in another."""


@pytest.mark.parametrize("name", RECORDED)
def test_the_layers_of_a_table_add_up_to_its_pass(name: str):
    """Gaps between kernels are counted to the layers, so that nothing else is in the pass."""
    kept = RECORDED[name]
    times = recorded(kept["layers_us"], kept["empty_us"], kept["added_us"])
    as_a_row, among_others = (
        sum(1e3 * value for (value,) in times.less(overhead_of([times], is_row))) for is_row in (True, False)
    )
    assert as_a_row == pytest.approx(kept["pass_us"], rel=0.006)
    assert among_others > 1.03 * kept["pass_us"]


def test_a_single_outlier_is_not_followed_further_than_was_seen():
    times = recorded([15.0] * 20, [1.3] * 19 + [9.0], 20 * (2 * 2.0 + 1.3))
    *others_us, last_us = (1e3 * value for (value,) in times.less(overhead_of([times])))
    assert min(others_us) == max(others_us) == pytest.approx(13.0, abs=0.9)
    assert others_us[0] - last_us == pytest.approx(1.8 * 1.5, abs=0.8)


def test_passes_launched_by_python_have_one_overhead():
    times = recorded(EVENTS_US, EMPTY_US, ADDED_US)
    found = overhead_of([dataclasses.replace(times, way="eager")])
    assert found is not None
    assert [*found.levels_us] == [median(EMPTY_US)]
    taken = {round(event_us - 1e3 * value, 6) for event_us, (value,) in zip(EVENTS_US, times.less(found), strict=True)}
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("measured_us", "taken_us"), [(13.0, 13.0), (13.001, 10.0), (10.0 / 1.3, 10.0 / 1.3), (7.69, 10.0), (10.5, 10.5)]
)
def test_an_overhead_is_believed_up_to_thirty_percent_from_the_reference(measured_us: float, taken_us: float):
    measured, reference = (Overhead(pair_us, 2.0, [2.0]) for pair_us in (measured_us, 10.0))
    assert plausible_overhead(measured, reference) == Overhead(taken_us, 2.0, [2.0])


def test_a_pass_in_which_records_cost_less_has_its_own_overhead():
    """Read on an H200: the reference in one state, the pass of `torch benchmark` in the other."""
    reference, measured = Overhead(4.73, 2.48, [2.48]), Overhead(2.88, 1.30, [1.30])
    assert plausible_overhead(measured, reference) == measured
    too_much = Overhead(33.2, 1.30, [1.30])  # the events of an FFT part its streams
    assert plausible_overhead(too_much, reference).pair_us == pytest.approx(2.88, rel=0.25)


def test_within_a_state_the_reference_is_the_same_whatever_an_empty_pair_reads():
    reference, measured = Overhead(4.73, 2.30, [2.30]), Overhead(13.0, 2.62, [2.62])
    assert plausible_overhead(measured, reference) == Overhead(4.73, 2.62, [2.62])


def test_a_pass_whose_records_cost_a_little_less_has_the_overhead_of_the_reference():
    """Readings 0.7 µs apart tell no state from another."""
    reference, measured = Overhead(4.73, 2.27, [2.27]), Overhead(13.0, 2.97, [2.97])
    assert plausible_overhead(measured, reference).pair_us == 4.73


def test_a_reference_that_says_nothing_of_another_state_changes_nothing():
    measured = Overhead(2.0, 1.3, [1.3])
    assert plausible_overhead(measured, Overhead(1.9, 2.5, [2.5])) == measured


@pytest.mark.parametrize(("pair_us", "can_be"), [(0.0, False), (0.49, False), (0.5, True), (2.9, True), (20.1, False)])
def test_an_overhead_that_cannot_be_is_no_reference(pair_us: float, can_be: bool):
    assert is_plausible_reference(Overhead(pair_us, 1.3, [1.3])) is can_be


def test_an_overhead_is_never_below_nothing():
    assert Overhead(1.0, 3.0, [1.0]).at(0.0) == 0.0


class _Event:
    def __init__(self, at_ms: float) -> None:
        self._at_ms = at_ms

    def elapsed_time(self, other: _Event) -> float:
        return other._at_ms - self._at_ms


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_call_is_read_from_the_mark_before_it_and_its_empty_pair_from_the_one_ahead(on_gpu: bool):
    marks = [[0.0, 2.0, 12.0], [20.0, 21.0, 26.0]]
    made = [tuple(_Event(at_ms) if on_gpu else at_ms / 1e3 for at_ms in each) for each in marks]
    layers_ms, empty_ms = Reading.of(made, on_gpu)
    assert (layers_ms, empty_ms) == (pytest.approx([10.0, 5.0]), pytest.approx([2.0, 1.0]))
