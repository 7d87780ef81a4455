"""Energy of plans: whose is measured, who is the most frugal, and how it comes into the tables; joules on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes import ENVIRONMENT, run
from fakes.racing import LAYERS, OnPaper, shapes
from torch import nn

from convscope.atlas import energy, report, tables
from convscope.atlas.offered import KnownPlan
from convscope.atlas.race import FRUGAL, Race, Shape
from convscope.convolution.swap import Conv2d
from convscope.cudnn.graph.engines import Offer
from convscope.cudnn.graph.plan import Plan
from convscope.profiling.layer_energy import CallOfPass, LayerEnergy
from convscope.verification.candidates import HEURISTIC
from convscope.verification.choice import TOGETHER

JOULES = {"plan:0": 3e-3, "plan:1": 2e-3, "plan:5": 4e-3, HEURISTIC: 1e-3}


def plans(*named: tuple[int, int]) -> tuple[KnownPlan, ...]:
    made = (Offer(Plan.of(engine, {2: knob}), {}, (), (), 0) for engine, knob in named)
    return tuple(map(KnownPlan, made))


def test_the_fastest_of_each_engine_come_before_the_next_of_one():
    times_ms = {"plan:1:k2=0": 1.0, "plan:1:k2=1": 1.1, "plan:1:k2=2": 1.2, "plan:7:k2=0": 1.3, "plan:9:k2=0": 1.4}
    named = [(1, 0), (1, 1), (1, 2), (7, 0), (9, 0)]
    shape = Shape((LAYERS[0],), plans(*named), {name: {0: time} for name, time in times_ms.items()})
    assert energy.contenders(shape) == ["plan:1:k2=0", "plan:7:k2=0", "plan:9:k2=0"]
    shape.dropped.add("plan:7:k2=0")
    assert energy.contenders(shape) == ["plan:1:k2=0", "plan:9:k2=0", "plan:1:k2=1"]


def measured(monkeypatch: pytest.MonkeyPatch) -> tuple[OnPaper, list[tuple[str, str]]]:
    """Return a race whose plans have the energies of `JOULES`, and which calls were measured."""
    race, asked = OnPaper(shapes()), list[tuple[str, str]]()
    race.round(0)
    convolutions = [nn.Conv2d(each.in_channels, each.out_channels, 3) for each in LAYERS]
    given = zip(LAYERS, convolutions, strict=True)
    calls = [CallOfPass(each.name, module, None, None) for each, module in given]  # type: ignore[arg-type]

    def alone(call: CallOfPass, measure: object) -> LayerEnergy:
        name = call.module.algorithm if isinstance(call.module, Conv2d) else HEURISTIC
        asked.append((call.name, name))
        if name == "plan:5":
            return LayerEnergy(None, None, "no energy: oom")
        return LayerEnergy(JOULES[name], 1e-5)

    monkeypatch.setattr(energy.layer_energy, "calls_of", lambda model, inputs: calls)
    monkeypatch.setattr(energy.layer_energy, "alone", alone)
    bench: Any = SimpleNamespace(release=lambda: None, steady_energy=None)
    energy.measure(race._subject, bench, pytest.fail, race.shapes)
    return race, asked


def test_each_shape_is_measured_once_by_its_best_plans_and_as_pytorch_runs_it(monkeypatch: pytest.MonkeyPatch):
    race, asked = measured(monkeypatch)
    assert asked == [("one", HEURISTIC), ("one", "plan:1"), ("two", HEURISTIC), ("two", "plan:5"), ("two", "plan:0")]
    assert [shape.most_frugal() for shape in race.shapes] == ["plan:1", "plan:0"]  # PyTorch is no plan


def test_the_most_frugal_are_put_together_and_judged_beside_the_fastest(monkeypatch: pytest.MonkeyPatch):
    race, _ = measured(monkeypatch)
    monkeypatch.setattr("convscope.verification.choice.judge", lambda subject, bench, race, rounds, judged: {})
    race.judged(2)
    assert race.assignments[TOGETHER] == {"one": "plan:1", "two": "plan:5", "three": "plan:1"}
    assert race.assignments[FRUGAL] == {"one": "plan:1", "two": "plan:0", "three": "plan:1"}


def test_without_energies_nothing_is_called_frugal(monkeypatch: pytest.MonkeyPatch):
    race = OnPaper(shapes())
    race.round(0)
    monkeypatch.setattr("convscope.verification.choice.judge", lambda subject, bench, race, rounds, judged: {})
    race.judged(2)
    assert FRUGAL not in race.assignments


def test_passes_of_what_was_judged_are_measured_and_a_failure_is_left_out(monkeypatch: pytest.MonkeyPatch):
    race, _ = measured(monkeypatch)
    race.assignments |= {TOGETHER: {}, FRUGAL: {}}
    ran: list[str] = []

    def tried(self: Race, name: str, work: object) -> object:
        ran.append(name)
        return None if name == FRUGAL else (SimpleNamespace(per_inference_j=0.2, uncertainty_j=0.001), None)

    monkeypatch.setattr(Race, "tried", tried)
    bench: Any = SimpleNamespace(release=lambda: None, pass_energy=lambda given: None)
    found = energy.of_passes(race, race._subject, bench)
    assert ran == [TOGETHER, FRUGAL, HEURISTIC]
    assert set(found) == {TOGETHER, HEURISTIC}


def test_rows_and_text_have_the_energy(monkeypatch: pytest.MonkeyPatch):
    race, _ = measured(monkeypatch)
    settings = run(device="cuda:0", input_sizes=(224,))
    rows = {(row.layer, row.candidate): row for row in tables.rows(settings, ENVIRONMENT, race.shapes)}
    assert (rows["one", "plan:1"].energy_j, rows["one", "plan:1"].energy_uncertainty_j) == (2e-3, 1e-5)
    assert rows["one", HEURISTIC].energy_j == 1e-3
    assert (rows["two", "plan:5"].energy_j, rows["two", "plan:5"].energy_reason) == (None, "no energy: oom")
    assert rows["one", "plan:2"].energy_j is None
    judged = SimpleNamespace(energy_per_inference_j=0.1912, energy_uncertainty_j=0.0012)
    assert report._energy_line(FRUGAL, judged) == "most frugal of each layer: 191.20 ± 1.20 mJ a pass"  # type: ignore[arg-type]
