"""Trials of plans: real offers of cuDNN for an H200 that is described, and what becomes of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from fakes import layer, run
from fakes.racing import LAYERS, SQUARE, WIDE
from fakes.swapping import subject_on

from convscope import failures
from convscope.atlas import offered, race, rows
from convscope.atlas.offered import PlanFaultError
from convscope.atlas.race import Shape
from convscope.convolution import algorithms, backends
from convscope.convolution.layer import Layer
from convscope.cudnn.graph.engines import DOWN_CONVERTS, Offer, Offers
from convscope.cudnn.shape import Convolution, Fused
from convscope.errors import NotSupportedError

OUTCOMES = (rows.OK, rows.REFUSED, rows.LESS_PRECISE)


@pytest.fixture(autouse=True)
def _no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "device_fault", lambda device: None)


class Operator:
    """The operator of an H200 that is described: it offers what cuDNN offers there."""

    def offers(self, convolution: Convolution, device: torch.device) -> list[Offer]:
        with Offers(convolution) as offers:
            return offers.plans()


class Trial:
    """A trial in which cuDNN refuses one engine, and every plan errs by what is given."""

    errs: float | Exception = 1e-8
    refused: int

    def __init__(self, each: Layer, device: torch.device, dtype: str) -> None:
        self.layer, self.device, self.dtype = each, device, dtype

    def plan(self, name: str) -> tuple[None, float]:
        if name.startswith(f"plan:{self.refused}:") or name == f"plan:{self.refused}":
            raise NotSupportedError("finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED\nmore")
        return None, 1.0

    def error(self, name: str) -> float:
        if isinstance(self.errs, Exception):
            raise self.errs
        return self.errs


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    made = Operator()
    with Offers(LAYERS[0].convolution("float32", "fp32")) as offers:
        monkeypatch.setattr(Trial, "refused", offers.plans()[-1].plan.engine, raising=False)
    monkeypatch.setattr(offered, "cuda_operator", lambda: made)
    monkeypatch.setattr(offered, "Trial", Trial)
    monkeypatch.setattr(offered, "release", lambda device: None)
    return made


def asked(*layers: Layer, first: int | None = None) -> list[Shape]:
    subject = dataclasses.replace(run(device="cuda:0", math="fp32"))
    made = subject_on("cuda", layers)
    made.run = subject
    with backends.math("fp32"):
        return race.shapes_of(made, pytest.fail, first=first)


def test_a_fused_shape_has_the_best_ranked_plans_of_the_convolution_alone_too(operator: Operator):
    (alone,) = asked(LAYERS[0])
    (shape,) = asked(dataclasses.replace(LAYERS[0], fused=Fused(bias=True, relu=True)))
    behind = [plan for plan in shape.plans if plan.kind == algorithms.WITH_STEPS]
    plain = [plan for plan in alone.plans if plan.kind == algorithms.PLAN]
    best = {plan.offer.plan for plan in plain if min(map(plan.offer.ranks.get, "ab", (99, 99))) < 8}
    assert {plan.offer.plan for plan in behind} == best
    assert 8 <= len(behind) < len(plain)
    assert all(plan.name.startswith("plan+steps:") and not plan.offer.ranks for plan in behind)
    assert all(
        plan.name.startswith("plan:") and plan.offer.ranks for plan in shape.plans if plan.kind == algorithms.PLAN
    )
    assert len({plan.name for plan in shape.plans}) == len(shape.plans)


def test_filters_that_are_not_in_channels_last_are_tried_packed_too(operator: Operator):
    (shape,) = asked(LAYERS[0])
    packed = [plan for plan in shape.plans if plan.kind == algorithms.PACKED]
    assert len(packed) >= 8
    assert all(plan.name.startswith("plan+packed:") and not plan.offer.ranks for plan in packed)
    (fused,) = asked(dataclasses.replace(LAYERS[0], fused=Fused(bias=True, relu=True)))
    assert {plan.kind for plan in fused.plans} == {algorithms.PLAN, algorithms.WITH_STEPS, algorithms.PACKED}
    (pointwise,) = asked(layer(name="pointwise", position=0, kernel=(1, 1), padding=(0, 0)))
    assert {plan.kind for plan in pointwise.plans} == {algorithms.PLAN}
    (depthwise,) = asked(layer(name="depthwise", position=0, in_channels=64, out_channels=64, groups=64))
    assert {plan.kind for plan in depthwise.plans} == {algorithms.PLAN}
    with backends.settings(layout="nhwc"):
        (last,) = asked(LAYERS[0])
    assert {plan.kind for plan in last.plans} == {algorithms.PLAN}


def test_only_the_first_of_each_heuristic_are_tried_where_that_is_asked_for(operator: Operator):
    (every,), (few,) = asked(LAYERS[0]), asked(LAYERS[0], first=2)
    plain = [plan.name for plan in few.plans if plan.kind == algorithms.PLAN]
    assert plain == [plan.name for plan in every.plans if any(rank < 2 for rank in plan.offer.ranks.values())]
    assert 3 <= len(plain) <= 6
    assert 2 <= sum(plan.kind == algorithms.PACKED for plan in few.plans) <= 4


def test_layers_of_one_shape_are_asked_about_once_and_what_is_not_exact_enough_is_marked(operator: Operator):
    first, second = asked(*LAYERS)
    assert [each.name for each in first.layers] == ["one", "three"]
    assert [each.name for each in second.layers] == ["two"]
    found = {outcome: [plan for plan in first.plans if plan.outcome == outcome] for outcome in OUTCOMES}
    assert sum(map(len, found.values())) == len(first.plans) > 20
    assert all(found.values())
    assert {plan.reason for plan in found[rows.REFUSED]} == {"finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED"}
    less = {"uses TF32, which is forbidden", "computes float32 in 16 bits"}
    assert {plan.reason for plan in found[rows.LESS_PRECISE]} <= less
    assert all(DOWN_CONVERTS not in plan.offer.numerical_notes for plan in found[rows.OK])
    assert all(plan.build_ms is not None for plan in found[rows.OK])
    assert {plan.relative_error for plan in found[rows.OK]} == {1e-8}


def test_a_plan_beyond_its_tolerance_is_wrong_and_no_rival(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Trial, "errs", 1e-2)
    (shape,) = asked(LAYERS[1])
    assert {plan.outcome for plan in shape.plans} >= {"wrong"}
    assert rows.OK not in {plan.outcome for plan in shape.plans}
    assert shape.rivals() == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room\nat all"), NotSupportedError("no room")])
def test_a_plan_that_fails_in_its_trial_is_refused_and_the_next_is_tried(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setattr(Trial, "errs", error)
    (shape,) = asked(LAYERS[1])
    reasons = {plan.reason for plan in shape.plans if plan.outcome == rows.REFUSED}
    assert reasons == {"no room", "finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED"}


def test_a_plan_that_loses_the_gpu_is_named_whatever_fails_after_it(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    def lost(device: torch.device) -> None:
        raise RuntimeError("CUDA error: misaligned address")  # as PyTorch's allocator says where its GPU is lost

    monkeypatch.setattr(Trial, "errs", RuntimeError("CUDA error: misaligned address"))
    monkeypatch.setattr(failures, "device_fault", lambda device: "CUDA error: misaligned address")
    monkeypatch.setattr(offered, "release", lost)
    with pytest.raises(PlanFaultError, match=r"^plan:\d+\S* of two has lost the GPU: CUDA error: misaligned") as fault:
        asked(LAYERS[1])
    assert (fault.value.layer, fault.value.reason) == ("two", "CUDA error: misaligned address")


def test_a_plan_that_has_lost_the_gpu_before_is_not_run_again(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    subject = subject_on("cuda", (LAYERS[1],))
    subject.run = run(device="cuda:0", math="fp32")
    with backends.math("fp32"):
        name = race.shapes_of(subject, pytest.fail)[0].plans[0].name
        tried: list[str] = []
        monkeypatch.setattr(Trial, "error", lambda self, plan: tried.append(plan) or 1e-8)
        (shape,) = race.shapes_of(subject, pytest.fail, {"two": {name: "misaligned address"}})
    assert (shape.plans[0].outcome, shape.plans[0].reason) == (rows.LOST, "misaligned address")
    assert name not in tried
    assert tried
    assert name not in shape.rivals()


def test_a_shape_that_cannot_be_tried_is_left_to_pytorch(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    def full(self: object, *given: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Trial, "__init__", full)
    made, noted = subject_on("cuda", (LAYERS[1],)), []
    made.run = run(device="cuda:0", math="fp32")
    assert race.shapes_of(made, noted.append) == []
    assert noted == ["two is left to PyTorch: no room"]


def test_what_no_plan_can_replace_is_left_to_pytorch_with_a_note(operator: Operator):
    odd = layer(name="odd", position=0, padding_mode="reflect", **SQUARE)
    twice = (layer(name="twice", position=1, **SQUARE), layer(name="twice", position=2, **WIDE))
    subject, noted = subject_on("cuda", (odd, *twice)), []
    subject.run = run(device="cuda:0", math="fp32")
    assert race.shapes_of(subject, noted.append) == []
    assert noted == [
        "odd is left to PyTorch: heuristic a pads with zeros only, not 'reflect'",
        *["twice is left to PyTorch: it is called at several shapes"] * 2,
    ]
