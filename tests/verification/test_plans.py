"""The atlas of plans: real offers of cuDNN for an H200 that is described, times that are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import ENVIRONMENT, layer, run
from fakes.swapping import subject_on

from convscope import failures
from convscope.convolution import backends
from convscope.convolution.layer import Layer
from convscope.cudnn.graph.engines import DOWN_CONVERTS, Offer, Offers, Plan
from convscope.cudnn.shape import Convolution
from convscope.errors import DeviceFaultError, InputError, NotSupportedError
from convscope.profiling.request import Run
from convscope.verification import plan_report, plans, study, trial
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC
from convscope.verification.choice import TOGETHER
from convscope.verification.plans import KnownPlan, Race, Shape
from convscope.verification.request import PLANS, make_verification
from convscope.verification.rows import ModelKey, PlanTimeRow
from convscope.verification.study import VerificationStudy, plans_text

OUTCOMES = (trial.OK, trial.REFUSED, trial.LESS_PRECISE)
SQUARE = {"in_channels": 64, "out_channels": 64, "in_height": 56, "in_width": 56, "kernel": (3, 3), "padding": (1, 1)}
WIDE = SQUARE | {"out_channels": 128}
LAYERS = (
    layer(name="one", position=0, **SQUARE),
    layer(name="two", position=1, **WIDE),
    layer(name="three", position=2, **SQUARE),
)


def offer(engine: int, **changes: Any) -> Offer:
    return Offer(Plan(engine), {"a": engine}, (), (), 64, **changes)


def known(*engines: int) -> tuple[KnownPlan, ...]:
    return tuple(KnownPlan(offer(engine)) for engine in engines)


def shapes() -> list[Shape]:
    """Two shapes, one of two layers and three plans, one of one layer and two plans."""
    return [Shape((LAYERS[0], LAYERS[2]), known(0, 1, 2)), Shape((LAYERS[1],), known(0, 5))]


# Of a call in ms, by layer and algorithm; PyTorch's where nothing else is said.
TIMES = {
    "one": {"plan:0": 1.0, "plan:1": 0.5, "plan:2": 9.0, GUESS: 1.0, HEURISTIC: 1.0},
    "two": {"plan:0": 2.0, "plan:5": 1.9, GUESS: 2.5, HEURISTIC: 2.0},
    "three": {"plan:0": 3.0, "plan:1": 0.7, "plan:2": 9.0, GUESS: 3.0, HEURISTIC: 3.0},
}


class OnPaper(Race):
    """A race whose passes take the times of `TIMES`, longer by 1 % in each later round."""

    def __init__(self, mine: Sequence[Shape], note: Callable[[str], None] = pytest.fail, fails: str = "") -> None:
        self.ran: list[tuple[str, ...]] = []
        self.fails = fails
        bench = SimpleNamespace(
            layer_times_ms=self._taken_ms,
            launched_ms=lambda given, passes: self._taken_ms(given, 0),
            release=lambda: None,
        )
        super().__init__(subject_on("cpu", LAYERS), bench, note, mine)  # type: ignore[arg-type]

    def _guessed(self) -> Iterator[Layer]:
        return iter(LAYERS)

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        self._now = self.assignments[name]
        return work()

    def _taken_ms(self, given: object, place: int) -> list[float]:
        assigned = tuple(self._now[each.name] for each in LAYERS)
        self.ran.append(assigned)
        if self.fails in assigned:
            raise torch.OutOfMemoryError("no room\nat all")
        return [TIMES[each.name][name] * (1 + place / 100) for each, name in zip(LAYERS, assigned, strict=True)]


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
        (LAYERS[0],), known(0, 1), {"plan:0": {0: 1.0, 1: 1.0}, "plan:1": {0: 0.9}, HEURISTIC: {0: 0.1, 1: 0.1}}
    )
    assert shape.fastest() == "plan:0"
    assert Shape((LAYERS[0],), known(0), {HEURISTIC: {0: 1.0}}).fastest() is None


def test_where_a_pass_fails_its_plans_run_alone_and_the_one_that_fails_is_refused():
    race = OnPaper(shapes(), fails="plan:5")
    race.round(0)
    failed = race.shapes[1].plans[1]
    assert (failed.outcome, failed.reason) == (trial.REFUSED, "no room")
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


def test_plans_that_take_many_times_the_least_are_not_captured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TIMES, "one", {**TIMES["one"], "plan:2": 60.0})
    race = OnPaper(shapes())
    race.leave_out_slow()
    slow = race.shapes[0].plans[2]
    assert (slow.outcome, slow.reason) == (plans.SLOW, "launched one by one it takes 58 times the least")
    assert [plan.outcome for plan in (*race.shapes[0].plans[:2], *race.shapes[1].plans)] == [trial.OK] * 4
    race.round(0)
    assert "plan:2" not in race.shapes[0].times_ms


def test_the_fastest_together_are_judged_against_the_choosers():
    race = OnPaper(shapes())
    race.round(0)
    race.round(1)
    found = race.judged(2)
    assert race.shapes[0].fastest() == "plan:1"
    assert race.assignments[TOGETHER] == {"one": "plan:1", "two": "plan:5", "three": "plan:1"}
    assert set(found) == {TOGETHER, HEURISTIC, BENCHMARK, GUESS}
    assert found[TOGETHER].layers_ms == pytest.approx([1.02 * 3.1, 1.03 * 3.1])


def rows_of(race: Race, kernels: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], plans.PlanRow]:
    for shape in race.shapes:
        for plan in shape.plans:
            plan.kernels = kernels.get(plan.name)
        shape.kernels |= {name: kernels[name] for name in plans.CHOOSERS if name in kernels}
    found = plans.rows(run(device="cuda:0", input_sizes=(224,)), ENVIRONMENT, race.shapes)
    return {(row.layer, row.candidate): row for row in found}


def test_each_plan_has_a_row_with_its_regret_and_whose_kernels_it_shares():
    race = OnPaper([*shapes()[:1], Shape((LAYERS[1],), (*known(0, 5), KnownPlan(offer(7), "refused", "no")))])
    race.round(0)
    race.round(1)
    found = rows_of(
        race, {"plan:0": {"implicit_gemm a": 1}, "plan:1": {"implicit_gemm b": 1}, HEURISTIC: {"implicit_gemm a": 1}}
    )
    fast, torchs = found["one", "plan:1"], found["one", HEURISTIC]
    assert (fast.is_fastest, fast.regret_us, fast.rounds, fast.layers) == (True, 0.0, 2, 2)
    assert fast.regret_ci99_us is None
    assert (fast.engine, fast.rank_a, fast.rank_b, fast.workspace_bytes, fast.outcome) == (1, 1, None, 64, "ok")
    assert torchs.regret_us == pytest.approx(1.005 * 2000 - 1.005 * 600)
    assert torchs.regret_ci99_us == pytest.approx(14.0 / 2 * 381.97, rel=1e-4)  # Student's t, 1 - 0.01 / 6
    once = found["one", "plan:0"]
    assert (once.rounds, once.regret_us, once.regret_ci99_us) == (1, pytest.approx(2000.0 - 600.0), None)
    assert (torchs.same_kernels_as, torchs.engine, torchs.is_fastest) == ("plan:0", None, False)
    assert found["one", "plan:0"].same_kernels_as is None
    refused = found["two", "plan:7"]
    assert (refused.outcome, refused.reason, refused.mean_ms, refused.rounds, refused.regret_us) == (
        "refused",
        "no",
        None,
        0,
        None,
    )
    assert (refused.in_channels, refused.out_channels, refused.kernel_size) == (64, 128, "3x3")
    assert list(dict.fromkeys(layer for layer, _ in found)) == ["one", "two"]
    assert next(name for of, name in found if of == "one") == "plan:1"


def test_the_text_has_a_line_a_shape_with_the_regret_of_each_pick():
    race = OnPaper(shapes())
    race.round(0)
    race.round(1)
    race.shapes[0].plans[0].outcome, race.shapes[0].plans[0].reason = "wrong", "relative error 1, tolerance 1e-06"
    rows = [*rows_of(race, {"plan:0": {"implicit_gemm": 1}, HEURISTIC: {"implicit_gemm": 1}}).values()]
    text = plan_report.plans_report(rows, {}).splitlines()
    assert text[0].split()[:6] == ["layer", "calls", "shape", "plans", "µs", "fastest"]
    assert text[1].split()[:7] == ["one", "2", "64-64", "3x3/1x1", "56", "2/3", "603.0"]
    assert "+1407.0" in text[1]
    assert text[1].endswith("plan:0")
    assert text[2].split()[-4:] == ["+603.0", "(tie)", "-", "plan:0"]  # the rounds differ by as much
    assert text[3] == "plans: 4 ok, 1 wrong"
    assert text[4] == "plan:0 of one is wrong: relative error 1, tolerance 1e-06"


class Operator:
    """The operator of an H200 that is described: it offers what cuDNN offers there, and refuses one engine."""

    refused: int

    def offers(self, convolution: Convolution, device: torch.device) -> list[Offer]:
        with Offers(convolution) as offers:
            return offers.plans()

    def build(self, each: Layer, name: str, device: torch.device, dtype: str) -> None:
        if name.startswith(f"plan:{self.refused}:") or name == f"plan:{self.refused}":
            raise NotSupportedError("finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED\nmore")


class Trial:
    """A trial in which every plan errs by what is given."""

    errs: float | Exception = 1e-8

    def __init__(self, each: Layer, device: torch.device, dtype: str) -> None:
        self.layer, self.device, self.dtype = each, device, dtype

    def error(self, name: str) -> float:
        if isinstance(self.errs, Exception):
            raise self.errs
        return self.errs


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    made = Operator()
    with Offers(LAYERS[0].convolution("float32", "fp32")) as offers:
        made.refused = offers.plans()[-1].plan.engine
    monkeypatch.setattr(trial, "cuda_operator", lambda: made)
    monkeypatch.setattr(trial, "Trial", Trial)
    monkeypatch.setattr(trial, "release", lambda device: None)
    return made


def asked(*layers: Layer) -> list[Shape]:
    subject = dataclasses.replace(run(device="cuda:0", math="fp32"))
    made = subject_on("cuda", layers)
    made.run = subject
    with backends.math("fp32"):
        return plans.shapes_of(made, pytest.fail)


def test_layers_of_one_shape_are_asked_about_once_and_what_is_not_exact_enough_is_marked(operator: Operator):
    first, second = asked(*LAYERS)
    assert [each.name for each in first.layers] == ["one", "three"]
    assert [each.name for each in second.layers] == ["two"]
    found = {outcome: [plan for plan in first.plans if plan.outcome == outcome] for outcome in OUTCOMES}
    assert sum(map(len, found.values())) == len(first.plans) > 20
    assert all(found.values())
    assert {plan.reason for plan in found[trial.REFUSED]} == {"finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED"}
    less = {"uses TF32, which is forbidden", "computes float32 in 16 bits"}
    assert {plan.reason for plan in found[trial.LESS_PRECISE]} <= less
    assert all(DOWN_CONVERTS not in plan.offer.numerical_notes for plan in found[trial.OK])
    assert all(plan.build_ms is not None for plan in found[trial.OK])
    assert {plan.relative_error for plan in found[trial.OK]} == {1e-8}


def test_a_plan_beyond_its_tolerance_is_wrong_and_no_rival(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Trial, "errs", 1e-2)
    (shape,) = asked(LAYERS[1])
    assert {plan.outcome for plan in shape.plans} >= {"wrong"}
    assert trial.OK not in {plan.outcome for plan in shape.plans}
    assert shape.rivals() == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room\nat all"), NotSupportedError("no room")])
def test_a_plan_that_fails_in_its_trial_is_refused_and_the_next_is_tried(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setattr(Trial, "errs", error)
    (shape,) = asked(LAYERS[1])
    reasons = {plan.reason for plan in shape.plans if plan.outcome == trial.REFUSED}
    assert reasons == {"no room", "finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED"}


def test_a_plan_that_loses_the_gpu_is_named(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    def lost(error: Exception, device: torch.device) -> None:
        raise DeviceFaultError("the GPU is lost")

    monkeypatch.setattr(Trial, "errs", RuntimeError("misaligned address"))
    monkeypatch.setattr(failures, "of_cell", lost)
    with pytest.raises(DeviceFaultError, match=r"^plan:\d+\S* of two: the GPU is lost"):
        asked(LAYERS[1])


def test_a_shape_that_cannot_be_tried_is_left_to_pytorch(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    def full(self: object, *given: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Trial, "__init__", full)
    made, noted = subject_on("cuda", (LAYERS[1],)), []
    made.run = run(device="cuda:0", math="fp32")
    assert plans.shapes_of(made, noted.append) == []
    assert noted == ["two is left to PyTorch: no room"]


def test_what_no_plan_can_replace_is_left_to_pytorch_with_a_note(operator: Operator):
    odd = layer(name="odd", position=0, padding_mode="reflect", **SQUARE)
    twice = (layer(name="twice", position=1, **SQUARE), layer(name="twice", position=2, **WIDE))
    subject, noted = subject_on("cuda", (odd, *twice)), []
    subject.run = run(device="cuda:0", math="fp32")
    assert plans.shapes_of(subject, noted.append) == []
    assert noted == [
        "odd is left to PyTorch: heuristic a pads with zeros only, not 'reflect'",
        *["twice is left to PyTorch: it is called at several shapes"] * 2,
    ]


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a study of the CPU find a plan for each layer, which PyTorch runs; return the rounds that it measures."""
    measured: list[int] = []

    def shapes_of(subject: Any, note: object) -> list[Shape]:
        return [Shape((each,), known(0, 1)) for each in subject.layers]

    round_of = Race.round

    def counted(self: Race, place: int) -> None:
        measured.append(place)
        round_of(self, place)

    monkeypatch.setattr(plans, "shapes_of", shapes_of)
    monkeypatch.setattr(Race, "run", lambda self, name, work: work())
    monkeypatch.setattr(Race, "leave_out_slow", lambda self: None)
    monkeypatch.setattr(Race, "trace", lambda self: None)
    monkeypatch.setattr(Race, "round", counted)
    return measured


def made_study(budget_s: float | None, noted: list[str]) -> VerificationStudy:
    from profiler import CUDALayerTimer, PowerMonitor

    request: Run = make_verification("torchvision:squeezenet1_1", "torch", 48, device="cpu", question=PLANS, rounds=4)
    return VerificationStudy(request, PowerMonitor(), CUDALayerTimer, noted.append, budget_s)  # type: ignore[arg-type]


def test_a_study_whose_time_is_up_goes_on_where_it_stood(tmp_path: Path, on_a_cpu: list[int]):
    noted: list[str] = []
    store = made_study(0.0, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1]
    assert noted[-1] == "the time is up after 2 of 4 rounds: the same command goes on, without --overwrite"
    assert (store.read_run() or {})["ended_utc"] is None
    assert {row.rounds for row in store.objects("plans")["plans"] if row.is_fastest} == {2}
    made_study(0.0, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1, 2]  # a start measures one round at least
    store = made_study(None, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1, 2, 3]
    assert (store.read_run() or {})["ended_utc"]
    rows = store.objects("plans", "passes", "plan_times")
    assert {row.rounds for row in rows["plans"] if row.is_fastest} == {4}
    assert {row.round for row in rows["plan_times"]} == {0, 1, 2, 3}
    assert len(rows["passes"]) == 4
    text, agrees = plans_text(store)
    assert agrees
    assert text.splitlines()[-1].startswith(("keep PyTorch's choice", "choosing layer by layer"))
    made_study(None, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1, 2, 3]
    assert "nothing measured" in noted[-1]


def test_a_model_without_a_plan_is_one_line_and_leaves_no_tables(
    tmp_path: Path, on_a_cpu: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plans, "shapes_of", lambda subject, note: [])
    with pytest.raises(InputError, match="cuDNN has no plans for any layer of torchvision:squeezenet1_1"):
        made_study(None, []).measure(tmp_path / "plans", overwrite=False)
    assert not [*(tmp_path / "plans").glob("*.csv")]


def test_another_card_may_not_go_on_with_the_rounds_of_the_first():
    assert "gpu_uuid" not in study.SCHEMAS[PLANS].free
    assert {"gpu_uuid", "start"} <= {column.name for column in dataclasses.fields(PlanTimeRow)}


def test_the_questions_have_a_schema_and_a_text_each():
    assert set(study.SCHEMAS) == set(study.TEXTS) == {"support", "choice", "plans"}
