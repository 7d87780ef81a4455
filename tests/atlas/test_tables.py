"""Tables and text of the atlas of plans, and a study that stops and goes on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import ENVIRONMENT, run
from fakes.racing import LAYERS, OnPaper, known, offer, shapes

from convscope import failures
from convscope.atlas import race, report, study, tables
from convscope.atlas.offered import KnownPlan, PlanFaultError
from convscope.atlas.race import Race, Shape
from convscope.atlas.rows import LOST, PLANS, PlanRow, PlanTimeRow
from convscope.atlas.study import AtlasStudy, plans_text
from convscope.convolution import algorithms
from convscope.cudnn.graph.engines import Offer
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import Fused
from convscope.errors import DeviceFaultError, InputError
from convscope.profiling.request import Run
from convscope.verification import candidates
from convscope.verification import request as requests
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC
from convscope.verification.request import make_verification


@pytest.fixture(autouse=True)
def _no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "device_fault", lambda device: None)


def rows_of(race: Race, kernels: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], PlanRow]:
    for shape in race.shapes:
        for plan in shape.plans:
            plan.kernels = kernels.get(plan.name)
        shape.kernels |= {name: kernels[name] for name in candidates.PICKS if name in kernels}
    found = tables.rows(run(device="cuda:0", input_sizes=(224,)), ENVIRONMENT, race.shapes)
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


def test_plans_that_copy_other_tensors_are_not_the_same():
    """AlexNet's features.6 as an H200 has launched it: one kernel convolves in three plans, one of which splits it."""
    plain, bias = {"nchwToNhwc": 2, "fprop_gemm": 1}, "void at::native::elementwise_kernel<128>"
    packed, split = {"nchwToNhwc": 1, "fprop_gemm": 1}, plain | {"Memset (Device)": 1}
    plans = (
        *known(0, 1, 2, 3),
        KnownPlan(Offer(Plan(1), {}, (), (), 64), kind=algorithms.PACKED),
        KnownPlan(Offer(Plan(4), {"b": 0}, (), (), 64)),
    )
    race = OnPaper([Shape((LAYERS[0],), plans)])
    names = ("plan:4", "plan:2", "plan:0", "plan:1", "plan+packed:1", "plan:3", *candidates.PICKS)
    race.shapes[0].times_ms = {name: {0: float(place)} for place, name in enumerate(names, 1)}
    found = rows_of(race, {
        "plan:0": split, "plan:1": plain, "plan:2": split, "plan:3": {"conv_depthwise": 1}, "plan:4": split,
        "plan+packed:1": packed, HEURISTIC: split | {bias: 1}, BENCHMARK: plain,
        GUESS: {"void at::native::conv_depthwise2d_forward": 1},
    })  # fmt: skip
    twins = {name: row.same_kernels_as for (_, name), row in found.items()}
    assert twins == {
        "plan:0": "plan:4", "plan:1": None, "plan:2": "plan:4", "plan:3": None, "plan:4": "plan:2",
        "plan+packed:1": None, HEURISTIC: "plan:0", BENCHMARK: "plan:1", GUESS: None,
    }  # fmt: skip


def test_the_text_has_a_line_a_shape_with_the_regret_of_each_pick():
    race = OnPaper(shapes())
    race.round(0)
    race.round(1)
    race.shapes[0].plans[0].outcome, race.shapes[0].plans[0].reason = "wrong", "relative error 1, tolerance 1e-06"
    rows = [*rows_of(race, {"plan:0": {"implicit_gemm": 1}, HEURISTIC: {"implicit_gemm": 1}}).values()]
    text = report.plans_report(rows, {}).splitlines()
    assert text[0].split()[:6] == ["layer", "calls", "shape", "plans", "µs", "fastest"]
    assert text[1].split()[:7] == ["one", "2", "64-64", "3x3/1x1", "56", "2/3", "603.0"]
    assert "+1407.0" in text[1]
    assert text[1].endswith("plan:0")
    assert text[2].split()[-4:] == ["+603.0", "(tie)", "-", "plan:0"]  # the rounds differ by as much
    assert text[3] == "plans: 4 ok, 1 wrong"
    assert text[4] == "plan:0 of one is wrong: relative error 1, tolerance 1e-06"


def test_what_is_fused_stands_in_the_row_and_behind_the_shape():
    fused = Fused(addition=True, bias=True, relu=True)
    race = OnPaper([Shape((dataclasses.replace(LAYERS[0], fused=fused),), known(0, 1, 2)), shapes()[1]])
    race.round(0)
    rows = rows_of(race, {})
    assert {row.fused for (layer, _), row in rows.items() if layer == "one"} == {"addition bias relu"}
    assert {row.fused for (layer, _), row in rows.items() if layer == "two"} == {None}
    text = report.plans_report([*rows.values()], {}).splitlines()
    assert " 64-64 3x3/1x1 56 +addition +bias +relu " in text[1]


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a study of the CPU find a plan for each layer, which PyTorch runs; return the rounds that it measures."""
    measured: list[int] = []

    def shapes_of(subject: Any, note: object, lost: object, first: object, by_name: bool, turns: object) -> list[Shape]:
        return [Shape((each,), known(0, 1)) for each in subject.layers]

    round_of = Race.round

    def counted(self: Race, place: int) -> None:
        measured.append(place)
        round_of(self, place)

    monkeypatch.setattr(race, "shapes_of", shapes_of)
    monkeypatch.setattr(Race, "run", lambda self, name, work: work())
    monkeypatch.setattr(Race, "leave_out_slow", lambda self: None)
    monkeypatch.setattr(Race, "trace", lambda self, turns: None)
    monkeypatch.setattr(Race, "round", counted)
    return measured


def made_study(budget_s: float | None, noted: list[str]) -> AtlasStudy:
    from profiler import CUDALayerTimer, PowerMonitor

    request: Run = make_verification(
        "torchvision:squeezenet1_1", "torch", 48, device="cpu", question=requests.PLANS, rounds=4
    )
    return AtlasStudy(request, PowerMonitor(), CUDALayerTimer, noted.append, budget_s=budget_s)  # type: ignore[arg-type]


def test_long_steps_are_noted_with_their_time(tmp_path: Path, on_a_cpu: list[int], monkeypatch: pytest.MonkeyPatch):
    noted: list[str] = []
    monkeypatch.setattr(study, "STEP_S", 0.0)
    made_study(0.0, noted).measure(tmp_path / "plans", overwrite=False)
    steps = [line.rpartition(":")[0] for line in noted if re.fullmatch(r"[^:]+: \d+ s", line)]
    assert steps == [
        *(
            "candidates tried",
            "waited for the GPU",
            "candidates launched from Python",
            "round 1",
            "round 2",
            "whole passes",
        ),
        "kernels traced",
    ]
    assert on_a_cpu == [0, 1]


def test_a_study_whose_time_is_up_goes_on_where_it_stood(tmp_path: Path, on_a_cpu: list[int]):
    noted: list[str] = []
    store = made_study(0.0, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1]
    assert "the time is up after 2 of 4 rounds: run the same command again, without --overwrite, to continue" in noted
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
    assert {row.convolutions_by for row in rows["passes"]} == {"fastest of each layer", "torch", "torch benchmark"}
    text, agrees = plans_text(store)
    assert agrees
    assert text.splitlines()[-1].startswith(("keep PyTorch's choice", "choosing layer by layer"))
    made_study(None, noted).measure(tmp_path / "plans", overwrite=False)
    assert on_a_cpu == [0, 1, 2, 3]
    assert "nothing measured" in noted[-1]


def test_a_model_without_a_plan_is_one_line_and_leaves_no_tables(
    tmp_path: Path, on_a_cpu: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(race, "shapes_of", lambda subject, note, lost, first, by_name, turns: [])
    with pytest.raises(InputError, match="cuDNN has no plans for any layer of torchvision:squeezenet1_1"):
        made_study(None, []).measure(tmp_path / "plans", overwrite=False)
    assert not [*(tmp_path / "plans").glob("*.csv")]


def test_another_card_may_not_go_on_with_the_rounds_of_the_first():
    assert "gpu_uuid" not in PLANS.free
    assert {"gpu_uuid", "start"} <= {column.name for column in dataclasses.fields(PlanTimeRow)}


def test_a_plan_that_loses_the_gpu_is_written_down_and_left_out_by_the_next_start(
    tmp_path: Path, on_a_cpu: list[int], monkeypatch: pytest.MonkeyPatch
):
    tried, shapes_on_a_cpu = [], race.shapes_of

    def shapes_of(
        subject: Any, note: object, lost: dict[str, dict[str, str]], first: object, by_name: bool, turns: object
    ) -> list[Shape]:
        tried.append({layer: dict(plans) for layer, plans in lost.items()})
        if len(tried) == 1:
            raise PlanFaultError("features.0", "plan:7", "misaligned address")
        found = shapes_on_a_cpu(subject, note, lost, first, by_name, turns)  # type: ignore[arg-type]
        found[0].plans += (KnownPlan(offer(7), LOST, lost["features.0"]["plan:7"]),)
        return found

    monkeypatch.setattr(race, "shapes_of", shapes_of)
    with pytest.raises(
        DeviceFaultError,
        match=r"plan:7 of features.0 has lost the GPU: misaligned .* run the same command again to continue without it",
    ) as fault:
        made_study(None, []).measure(tmp_path / "plans", overwrite=False)
    assert fault.value.exit_code == 70
    store = made_study(None, []).measure(tmp_path / "plans", overwrite=False)
    assert tried == [{}, {"features.0": {"plan:7": "misaligned address"}}]
    assert "plan:7 of features.0 lost the GPU: misaligned address" in plans_text(store)[0].splitlines()
    (row,) = (row for row in store.objects("plans")["plans"] if row.engine == 7)
    assert (row.outcome, row.rounds) == (LOST, 0)
