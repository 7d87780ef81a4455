"""The race of plans: passes, rounds, what is timed again, and what fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes.racing import LAYERS, TIMES, OnPaper, known, shapes

from convscope import failures
from convscope.atlas import rows
from convscope.atlas.race import Shape
from convscope.convolution.layer import Layer
from convscope.profiling.layer_energy import LayerEnergy
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC
from convscope.verification.choice import TOGETHER
from convscope.verification.rows import ModelKey


@pytest.fixture(autouse=True)
def _no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "device_fault", lambda device: None)


def test_a_pass_runs_one_plan_of_each_shape_and_a_round_all_of_them():
    race = OnPaper(shapes())
    race.round(0)
    assert len(race.ran) == 3 + 3  # the choosers, and as many passes as the shape with the most plans has
    assert all(one == three for one, _, three in race.ran)
    assert {one for one, _, _ in race.ran} == {"plan:0", "plan:1", "plan:2", HEURISTIC, GUESS}
    assert [two for _, two, _ in race.ran].count(HEURISTIC) == 3  # twice a chooser, once for want of a third plan
    first, second = race.shapes
    assert first.times_ms["plan:1"] == {0: pytest.approx(0.6)}  # the mean of its two calls
    assert second.times_ms["plan:5"] == {0: pytest.approx(1.9)}
    assert set(first.times_ms) == {"plan:0", "plan:1", "plan:2", HEURISTIC, BENCHMARK, GUESS}
    assert second.times_ms[HEURISTIC] == {0: pytest.approx(2.0)}


def test_the_legacy_heuristic_has_no_time_where_it_chooses_nothing():
    class Half(OnPaper):
        def _guessed(self) -> Iterator[Layer]:
            return iter(LAYERS[1:2])

    race = Half(shapes())
    race.round(0)
    assert [GUESS in shape.times_ms for shape in race.shapes] == [False, True]

    class NoneGuessed(OnPaper):
        def _guessed(self) -> Iterator[Layer]:
            return iter(())

    race = NoneGuessed(shapes())
    race.round(0)
    assert GUESS not in race.assignments
    assert not any(GUESS in shape.times_ms for shape in race.shapes)
    assert all(HEURISTIC in shape.times_ms for shape in race.shapes)


def test_passes_have_another_order_in_another_round():
    orders = []
    for place in range(6):
        race = OnPaper(shapes())
        race.round(place)
        orders.append(tuple(race.ran))
    again = OnPaper(shapes())
    again.round(0)
    assert len(set(orders)) > 3
    assert tuple(again.ran) == orders[0]


def test_what_is_far_behind_after_a_round_is_never_timed_again():
    race = OnPaper(shapes())
    race.round(0)
    race.ran.clear()
    for place in (1, 2):
        race.round(place)
    assert {one for one, _, _ in race.ran} == {"plan:1", HEURISTIC, GUESS}
    assert {two for _, two, _ in race.ran} == {"plan:0", "plan:5", HEURISTIC, GUESS}
    assert [shape.fastest() for shape in race.shapes] == ["plan:1", "plan:5"]
    assert race.places() == {0, 1, 2}
    assert race.shapes[0].times_ms["plan:1"] == {place: pytest.approx(0.6 + 0.006 * place) for place in range(3)}
    assert set(race.shapes[0].times_ms["plan:0"]) == {0}


def test_a_short_plan_is_not_far_behind_by_less_than_events_can_tell():
    shape = Shape((LAYERS[0],), known(0, 1, 2), {"plan:0": {0: 0.002}, "plan:1": {0: 0.0039}, "plan:2": {0: 0.0041}})
    shape.drop()
    assert shape.rivals() == ["plan:0", "plan:1"]


def test_a_plan_with_fewer_rounds_is_not_the_fastest():
    shape = Shape(
        (LAYERS[0],), known(0, 1), {"plan:0": {0: 1.0, 1: 1.0}, "plan:1": {0: 0.9}, HEURISTIC: {0: 0.1, 1: 1.1}}
    )
    assert shape.fastest() == "plan:0"
    assert Shape((LAYERS[0],), known(0), {HEURISTIC: {0: 1.0}}).fastest() is None


@pytest.mark.parametrize(
    ("own", "fastest"),
    [({0: 0.9, 1: 0.9}, HEURISTIC), ({0: 0.1, 1: 1.1}, "plan:0"), ({0: 1.0, 1: 0.9}, "plan:0"), ({}, "plan:0")],
)
def test_a_layer_is_left_to_pytorch_where_that_is_ahead_of_all_plans_in_each_round(own: dict[int, float], fastest: str):
    shape = Shape((LAYERS[0],), known(0, 1), {"plan:0": {0: 1.0, 1: 1.0}, "plan:1": {0: 1.2, 1: 1.2}, HEURISTIC: own})
    assert shape.fastest() == fastest
    shape.energies = {"plan:0": LayerEnergy(2.0, 0.1), HEURISTIC: LayerEnergy(1.0, 0.1)}
    assert shape.most_frugal() == fastest


def test_where_a_pass_fails_its_plans_run_alone_and_the_one_that_fails_is_refused():
    race = OnPaper(shapes(), fails="plan:5")
    race.round(0)
    failed = race.shapes[1].plans[1]
    assert (failed.outcome, failed.reason) == (rows.REFUSED, "no room")
    assert "plan:5" not in race.shapes[1].times_ms
    assert {plan.name for plan in race.shapes[0].plans} <= race.shapes[0].times_ms.keys()
    assert [shape.fastest() for shape in race.shapes] == ["plan:1", "plan:0"]
    assert race.shapes[0].times_ms["plan:1"] == {0: pytest.approx(0.6)}


def test_a_chooser_that_fails_is_left_out_with_a_note():
    noted: list[str] = []
    race = OnPaper(shapes(), noted.append, fails=GUESS)
    race.round(0)
    assert noted == ["guess is left out: no room"]
    assert GUESS not in race.shapes[0].times_ms
    assert race.shapes[0].fastest() == "plan:1"


def test_rounds_that_were_measured_before_are_taken_with_what_they_dropped():
    race = OnPaper(shapes())
    race.round(0)
    race.round(1)
    key = ModelKey("alexnet", 224, 1, "fp32")
    earlier = [row for place in (0, 1) for row in race.times_of(place, key)]
    again = OnPaper(shapes())
    again.resume(earlier)
    assert [shape.times_ms for shape in again.shapes] == [shape.times_ms for shape in race.shapes]
    assert [shape.rivals() for shape in again.shapes] == [["plan:1"], ["plan:0", "plan:5"]]
    assert again.places() == {0, 1}
    newer = OnPaper(shapes())  # of a program that has one candidate more than the earlier one
    newer.resume([row for row in earlier if row.candidate != "plan:5"])
    assert newer.shapes[1].rivals() == ["plan:0"]


def test_plans_that_take_many_times_the_least_are_not_captured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TIMES, "one", {**TIMES["one"], "plan:2": 60.0})
    race = OnPaper(shapes())
    race.leave_out_slow()
    slow = race.shapes[0].plans[2]
    assert (slow.outcome, slow.reason) == (rows.SLOW, "launched one by one it takes 58 times the least")
    assert [plan.outcome for plan in (*race.shapes[0].plans[:2], *race.shapes[1].plans)] == [rows.OK] * 4
    race.round(0)
    assert "plan:2" not in race.shapes[0].times_ms


def test_plans_whose_launch_takes_the_host_long_stay_beside_one_that_waited_for_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(TIMES, "one", {**TIMES["one"], "plan:0": 0.004, "plan:1": 0.25, "plan:2": 1.5})
    monkeypatch.setitem(TIMES, "three", {**TIMES["three"], "plan:0": 0.004, "plan:1": 0.25, "plan:2": 1.5})
    race = OnPaper(shapes())
    race.leave_out_slow()
    assert [plan.outcome for plan in race.shapes[0].plans] == [rows.OK, rows.OK, rows.SLOW]


def test_the_fastest_together_are_judged_against_the_choosers():
    race = OnPaper(shapes())
    race.round(0)
    race.round(1)
    found = race.judged(2)
    assert race.shapes[0].fastest() == "plan:1"
    assert race.assignments[TOGETHER] == {"one": "plan:1", "two": "plan:5", "three": "plan:1"}
    assert set(found) == {TOGETHER, HEURISTIC, BENCHMARK, GUESS}
    assert found[TOGETHER].layers_ms == pytest.approx([1.02 * 3.1, 1.03 * 3.1])
