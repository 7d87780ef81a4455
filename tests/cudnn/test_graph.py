"""cuDNN's graph API, asked without a GPU about one that is described: the real library, no fake."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from convscope.cudnn.graph import devices
from convscope.cudnn.graph.backend import Attribute, Descriptor, Kind, Scope, Type
from convscope.cudnn.graph.engines import DOWN_CONVERTS, TENSOR_CORE, Mode, Offer, Offers
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import Convolution, Fused
from convscope.errors import CudnnError, InputError, NotSupportedError

SQUARE = Convolution((1, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1))
DEPTHWISE = Convolution((1, 96, 56, 56), (96, 1, 7, 7), (3, 3), (1, 1), (1, 1), groups=96)
CUBE = Convolution((1, 16, 16, 16, 16), (32, 16, 3, 3, 3), (1, 1, 1), (2, 2, 2), (1, 1, 1))
HALF = dataclasses.replace(SQUARE, dtype="float16", layout="nhwc")
EVERY = pytest.mark.parametrize(
    "convolution",
    [
        SQUARE,
        HALF,
        dataclasses.replace(SQUARE, dtype="bfloat16"),
        dataclasses.replace(SQUARE, dtype="float64"),
        DEPTHWISE,
        CUBE,
        dataclasses.replace(SQUARE, fused=Fused(bias=True, relu=True)),
        dataclasses.replace(HALF, fused=Fused(addition=True, bias=True, relu=True)),
    ],
    ids=["tf32", "float16 nhwc", "bfloat16", "float64", "depthwise", "3-D", "bias relu", "addition bias relu"],
)


@EVERY
def test_every_plan_that_is_offered_can_be_named_and_built(convolution: Convolution):
    with Offers(convolution) as offers:
        plans = offers.plans()
        assert len(plans) >= 4
        assert len({offer.plan for offer in plans}) == len(plans)
        assert {name for offer in plans for name in offer.ranks} >= {"a", "fallback"}
        for offer in plans:
            with Scope() as scope:
                built = offers.built(scope, Plan.named(str(offer.plan)))
                assert built.read(Attribute.PLAN_WORKSPACE_BYTES, Type.INT64) == [offer.workspace_bytes]


@EVERY
def test_an_engine_of_a_plan_takes_the_convolution_and_the_others_say_why_not(convolution: Convolution):
    with Offers(convolution) as offers:
        engines = {engine.number: engine for engine in offers.engines()}
        assert [*engines] == [*range(offers.engine_count)]
        for offer in offers.plans():
            engine = engines[offer.plan.engine]
            assert engine.refusal is None
            assert engine.numerical_notes == offer.numerical_notes
            assert engine.behavior_notes == offer.behavior_notes
        refused = [engine.refusal for engine in engines.values() if engine.refusal is not None]
        assert refused
        assert all(re.search(": CUDNN_STATUS_(NOT_SUPPORTED|INTERNAL_ERROR)", refusal) for refusal in refused)


def test_an_engine_that_ends_in_an_error_is_refused_and_the_others_are_asked(monkeypatch: pytest.MonkeyPatch):
    finalized, set_, numbers = Descriptor.finalized, Descriptor.set, dict[int, int]()

    def noted(engine: Descriptor, attribute: Attribute, kind: Type, *values: int) -> Descriptor:
        if attribute is Attribute.ENGINE_NUMBER:
            numbers[engine.address] = values[0]
        return set_(engine, attribute, kind, *values)

    def broken(engine: Descriptor) -> Descriptor:
        if engine.kind is Kind.ENGINE and numbers.get(engine.address) == 3:
            raise CudnnError("finalize ENGINE: CUDNN_STATUS_INTERNAL_ERROR")
        return finalized(engine)

    with Offers(SQUARE) as offers:
        before = {engine.number: engine.refusal for engine in offers.engines()}
        monkeypatch.setattr(Descriptor, "set", noted)
        monkeypatch.setattr(Descriptor, "finalized", broken)
        after = {engine.number: engine.refusal for engine in offers.engines()}
        assert after == before | {3: "finalize ENGINE: CUDNN_STATUS_INTERNAL_ERROR"}
        with Scope() as scope, pytest.raises(NotSupportedError, match="INTERNAL_ERROR"):
            offers.config(scope, Plan(3))


def test_plans_stand_in_the_order_of_their_heuristics():
    with Offers(SQUARE) as offers:
        for mode in Mode:
            ranks = [offer.ranks[mode.name.lower()] for offer in offers.plans((mode,))]
            assert ranks == sorted(ranks)
            assert ranks[0] == 0
        first = [offer for offer in offers.plans() if "a" in offer.ranks]
        assert [offer.ranks["a"] for offer in first] == sorted(offer.ranks["a"] for offer in first)


def test_what_computes_float32_in_less_is_marked():
    def marks(convolution: Convolution) -> dict[Plan, str | None]:
        with Offers(convolution) as offers:
            return {offer.plan: offer.why_not_comparable(convolution) for offer in offers.plans()}

    permitted, forbidden = marks(SQUARE), marks(dataclasses.replace(SQUARE, math="fp32"))
    assert permitted.keys() == forbidden.keys()  # cuDNN is not told: its notes decide
    assert "uses TF32, which is forbidden" in forbidden.values()
    assert "uses TF32, which is forbidden" not in permitted.values()
    assert None in forbidden.values()
    assert set(marks(HALF).values()) == {None}
    offer = Offer(Plan(62), {}, (TENSOR_CORE, DOWN_CONVERTS), (), 0)
    assert offer.why_not_comparable(SQUARE) == "computes float32 in 16 bits"
    assert offer.why_not_comparable(HALF) is None


def test_some_engine_computes_float32_in_16_bits():
    with Offers(SQUARE) as offers:
        assert any(DOWN_CONVERTS in engine.numerical_notes for engine in offers.engines())


@pytest.mark.parametrize(
    ("plan", "name"),
    [(Plan(0), "0"), (Plan.of(38, {13: 1, 2: 8}), "38:k2=8,k13=1"), (Plan.of(7, {1: -1}), "7:k1=-1")],
)
def test_a_plan_has_one_name(plan: Plan, name: str):
    assert str(plan) == name
    assert Plan.named(name) == Plan.named(f" {name} ".replace(",", " , ")) == plan


@pytest.mark.parametrize("name", ["", "gemm", "38:", "38:k2", "38:2=8", "38:k2=8,", "-1", "38 k2=8;"])
def test_another_name_is_one_line(name: str):
    with pytest.raises(InputError, match="is no plan: write an engine and its knobs, 38:k2=8,k13=1"):
        Plan.named(name)


def test_a_plan_that_there_is_not_is_refused():
    with Offers(SQUARE) as offers, Scope() as scope:
        (first, *_) = (offer.plan for offer in offers.plans() if offer.plan.knobs)
        with pytest.raises(CudnnError):
            offers.config(scope, Plan.of(first.engine, {**dict(first.knobs), first.knobs[0][0]: 10**6}))
        with pytest.raises(CudnnError):
            offers.config(scope, Plan(offers.engine_count))
        refused = next(engine.number for engine in offers.engines() if engine.refusal is not None)
        with pytest.raises(NotSupportedError, match="CUDNN_STATUS_"):
            offers.config(scope, Plan(refused))


@pytest.mark.parametrize("missing", ["deviceVer", "multiProcessorCount"])
def test_a_device_that_is_half_described_is_an_error(missing: str):
    known = {name: value for name, value in devices.H200.items() if name != missing}
    with pytest.raises(CudnnError, match="finalize DEVICE_PROPERTIES: CUDNN_STATUS_BAD_PARAM"):
        Offers(SQUARE, known)


def test_another_device_has_other_plans():
    ampere = {**devices.H200, "deviceName": "NVIDIA A100", "deviceVer": 800, "multiProcessorCount": 108}
    with Offers(HALF) as here, Offers(HALF, ampere) as there:
        assert [str(offer.plan) for offer in here.plans((Mode.A,))] != [str(o.plan) for o in there.plans((Mode.A,))]


def test_a_description_says_what_cudnn_reads():
    with Scope() as scope:
        device = devices.Described(scope, devices.H200)
        assert json.loads(device.descriptor.read_text(Attribute.DEVICE_JSON)) == dict(devices.H200)


def test_closing_twice_is_once():
    offers = Offers(SQUARE)
    offers.close()
    offers.close()


@pytest.mark.parametrize("adds", [False, True])
def test_silu_behind_a_convolution_is_a_graph_that_cudnn_has_engines_for(adds: bool):
    """Those that would take it are compiled at run time, which wants a GPU (`tests/gpu/test_channels_last.py`)."""
    with Offers(dataclasses.replace(HALF, fused=Fused(addition=adds, bias=True, swish=True))) as offers:
        refusals = [engine.refusal for engine in offers.engines()]
    assert refusals
    assert any("RUNTIME_PREREQUISITE_MISSING" in (refusal or "") for refusal in refusals)
