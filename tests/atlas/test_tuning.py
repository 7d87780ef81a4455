"""Autotuning: the fastest plan of each layer by a race in the model; a card is not needed to see how it is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes import run
from fakes.racing import LAYERS, TIMES, OnPaper, shapes
from fakes.swapping import subject_on

from convscope import failures
from convscope.atlas import tuning
from convscope.atlas.race import Shape
from convscope.atlas.rows import REFUSED
from convscope.convolution.assignment import Assignment
from convscope.verification.candidates import HEURISTIC


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[OnPaper]:
    """The races that were run, each over the shapes of `fakes.racing`."""
    races: list[OnPaper] = []

    def race(subject: object, bench: object, note: object, mine: list[Shape]) -> OnPaper:
        races.append(OnPaper(mine))
        return races[-1]

    monkeypatch.setattr(failures, "device_fault", lambda device: None)
    monkeypatch.setattr(tuning, "Race", race)
    return races


def tuned(**options: Any) -> Assignment:
    subject = subject_on("cpu", LAYERS)
    bench: Any = SimpleNamespace(expect_captures=lambda inputs: None)
    return tuning.raced(run(), subject.model, subject.inputs, LAYERS, bench, pytest.fail, **options)


def test_each_layer_has_the_fastest_plan_of_its_shape(monkeypatch: pytest.MonkeyPatch, raced: list[OnPaper]):
    monkeypatch.setattr(tuning, "shapes_of", lambda subject, note, first: shapes())
    assert tuned() == Assignment({"one": "plan:1", "three": "plan:1", "two": "plan:5"}, {})
    assert raced[0].places() == {0, 1, 2}
    assert all({*each.times_ms} <= {"plan:0", "plan:1", "plan:2", "plan:5"} for each in raced[0].shapes)  # no chooser


def test_a_layer_without_a_plan_that_runs_is_left_out(monkeypatch: pytest.MonkeyPatch, raced: list[OnPaper]):
    found = shapes()
    for plan in found[1].plans:
        plan.outcome = REFUSED
    monkeypatch.setattr(tuning, "shapes_of", lambda subject, note, first: found)
    assert tuned() == Assignment({"one": "plan:1", "three": "plan:1"}, {"two": tuning.UNTIMED})


def test_a_model_without_plans_has_none(monkeypatch: pytest.MonkeyPatch, raced: list[OnPaper]):
    monkeypatch.setattr(tuning, "shapes_of", lambda subject, note, first: [])
    assert tuned() == Assignment({}, dict.fromkeys(("one", "two", "three"), tuning.UNTIMED))


def test_pytorchs_own_convolution_is_a_candidate_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, raced: list[OnPaper]
):
    monkeypatch.setattr(tuning, "shapes_of", lambda subject, note, first: shapes())
    monkeypatch.setitem(TIMES, "two", {**TIMES["two"], HEURISTIC: 1.8})
    assert tuned().algorithms["two"] == "plan:5"
    assert tuned(with_pytorch=True) == Assignment({"one": "plan:1", "three": "plan:1", "two": HEURISTIC}, {})
    assert {*raced[1].shapes[1].times_ms[HEURISTIC]} == {0, 1, 2}  # timed in each placement, as the plans are


@pytest.mark.parametrize("first", [None, 8])
def test_plans_beyond_the_first_of_each_heuristic_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, raced: list[OnPaper], first: int | None
):
    asked: list[int | None] = []
    monkeypatch.setattr(tuning, "shapes_of", lambda subject, note, first: asked.append(first) or shapes())
    tuned(first=first)
    assert asked == [first]
