"""Plans of cuDNN's graph API as algorithms: the real library, asked about an H200 that is described; nothing runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from convscope.convolution import algorithms, backends
from convscope.convolution import operator as operator_module
from convscope.convolution.operator import CudaOperator
from convscope.convolution.providers.graph import FusedPlan, GraphPlan, GraphProvider, PlanWithSteps
from convscope.convolution.providers.legacy import CudnnPlan, CudnnProvider
from convscope.convolution.providers.others import TritonProvider
from convscope.convolution.providers.plan import cudnn_refusal
from convscope.cudnn import legacy
from convscope.cudnn.graph import backend, devices
from convscope.cudnn.graph.backend import Descriptor, Scope
from convscope.cudnn.graph.engines import DOWN_CONVERTS, Mode, Offer, Offers
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import Convolution, Fused
from convscope.errors import DeviceFaultError, InputError, NotSupportedError

CPU = torch.device("cpu")
TF32 = Convolution((1, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1))
FP32 = dataclasses.replace(TF32, math="fp32")
HALF = dataclasses.replace(TF32, dtype="float16", layout="nhwc")


class Handle(dict[str, object]):
    """A context of no card, whose device is described."""

    def __init__(self) -> None:
        super().__init__(devices.H200)

    def close(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "Handle", Handle)


@pytest.fixture
def provider() -> Iterator[GraphProvider]:
    cudnn = CudnnProvider()
    yield GraphProvider(cudnn)
    cudnn.close()


def ran(provider: GraphProvider, algorithm: str, shape: Convolution) -> str:
    """Return the name of the plan that an algorithm is."""
    plan = provider.plan(algorithm, shape, CPU)
    plan.close()
    plan.close()
    assert plan.execution.provider == "cudnn graph"
    assert plan.execution.workspace_bytes == plan.workspace_bytes
    return plan.execution.algorithm


@pytest.mark.parametrize("shape", [TF32, FP32, HALF], ids=["tf32", "fp32", "float16 nhwc"])
@pytest.mark.parametrize(("algorithm", "mode"), [("heuristic a", Mode.A), ("heuristic b", Mode.B)])
def test_a_heuristic_is_its_first_plan_that_is_exact_enough(
    algorithm: str, mode: Mode, shape: Convolution, provider: GraphProvider
):
    with Offers(shape) as offers:
        expected = next(offer for offer in offers.plans((mode,)) if offer.why_not_comparable(shape) is None)
    assert ran(provider, algorithm, shape) == f"plan:{expected.plan}"


def test_a_plan_is_the_one_that_is_named_with_its_workspace(provider: GraphProvider):
    with Offers(TF32) as offers:
        every = [offer for offer in offers.plans() if offer.why_not_comparable(TF32) is None]
    assert len({offer.plan.engine for offer in every}) > 3
    for offer in every:
        plan = provider.plan(algorithms.plan_name(offer.plan), TF32, CPU)
        assert plan.execution.algorithm == f"plan:{offer.plan}"
        assert plan.workspace_bytes == offer.workspace_bytes
        plan.close()


def test_an_engine_without_knobs_has_their_usual_values(provider: GraphProvider):
    engine = ran(provider, "heuristic a", TF32).split(":")[1]
    assert ran(provider, f"plan:{engine}", TF32) == f"plan:{engine}"


def test_less_precision_than_asked_for_is_refused_with_the_reason(provider: GraphProvider):
    name = ran(provider, "heuristic a", TF32)  # it uses TF32
    with pytest.raises(NotSupportedError, match="uses TF32, which is forbidden"):
        provider.plan(name, FP32, CPU)
    with Offers(TF32) as offers:
        engines = [engine for engine in offers.engines() if DOWN_CONVERTS in engine.numerical_notes]
    for engine in engines:
        with pytest.raises(NotSupportedError, match="computes float32 in 16 bits"):
            provider.plan(f"plan:{engine.number}", TF32, CPU)
    assert engines


def test_a_plan_that_cudnn_refuses_says_what_cudnn_says(provider: GraphProvider):
    with pytest.raises(NotSupportedError, match="finalize ENGINE: CUDNN_STATUS_NOT_SUPPORTED"):
        provider.plan("plan:9999", TF32, CPU)
    with pytest.raises(NotSupportedError, match="finalize ENGINE_CONFIG: CUDNN_STATUS_NOT_SUPPORTED"):
        provider.plan("plan:0:k99=1", TF32, CPU)


def test_a_plan_that_cannot_be_built_is_refused_and_a_heuristic_takes_the_next(
    provider: GraphProvider, monkeypatch: pytest.MonkeyPatch
):
    built, tried = Offers.built, list[str]()

    def refuse_the_first(self: Offers, scope: Scope, plan: Plan) -> Descriptor:
        tried.append(str(plan))
        if len(tried) == 1:
            raise NotSupportedError("finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED")
        return built(self, scope, plan)

    monkeypatch.setattr(Offers, "built", refuse_the_first)
    assert ran(provider, "heuristic a", TF32) == f"plan:{tried[1]}"
    tried.clear()
    with pytest.raises(NotSupportedError, match="finalize EXECUTION_PLAN: CUDNN_STATUS_NOT_SUPPORTED"):
        provider.plan("plan:38", TF32, CPU)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_plan_gets_addresses_that_are_multiples_of_16(layout: str, offset: int, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(CudnnPlan, "launch", lambda self, x, weight, bias: seen.append((x, weight)))
    memory = backends.LAYOUTS[layout]
    plan = object.__new__(GraphPlan)
    plan._filter_format, plan._packed = memory, None
    x = torch.randn(2 * 8 * 6 * 6 + offset)[offset:].as_strided((2, 8, 6, 6), legacy.strides((2, 8, 6, 6), layout))
    weight = torch.randn(4 * 8 * 9 + offset)[offset:].view(4, 8, 3, 3)
    plan.launch(x, weight, None)
    ((given, filters),) = seen
    assert (given is x) == (x.data_ptr() % 16 == 0)
    assert not given.data_ptr() % 16
    assert not filters.data_ptr() % 16
    assert torch.equal(given, x)
    assert torch.equal(filters, weight)
    assert given.is_contiguous(memory_format=memory)
    assert filters.is_contiguous(memory_format=memory)


FUSED = dataclasses.replace(TF32, fused=Fused(addition=True, bias=True, relu=True))


def test_what_is_fused_has_plans_of_its_own_and_no_other_provider(provider: GraphProvider):
    plan = provider.plan("heuristic a", FUSED, CPU)
    assert isinstance(plan, FusedPlan)
    assert plan.execution.provider == "cudnn graph"
    plan.close()
    assert "legacy calls are convolutions alone" in str(CudnnProvider().why_not("implicit gemm", FUSED))
    assert "is a convolution alone" in str(TritonProvider().why_not("direct", FUSED))


def test_steps_behind_a_plan_end_with_relu_or_nothing(provider: GraphProvider):
    asked = dataclasses.replace(TF32, fused=Fused(bias=True, swish=True))
    assert provider.why_not("plan+steps:0", asked) == "the steps of plan+steps:0 end with ReLU or nothing"


def test_packed_filters_are_laid_out_once_and_again_where_the_weight_was_written_to(
    provider: GraphProvider, monkeypatch: pytest.MonkeyPatch
):
    name = "plan+packed:" + ran(provider, "heuristic a", dataclasses.replace(TF32, packed=True)).partition(":")[2]
    read: list[torch.Tensor] = []
    monkeypatch.setattr(CudnnPlan, "launch", lambda self, x, weight, bias: read.append(weight))
    plan = provider.plan(name, TF32, CPU)
    assert plan.execution.algorithm == name
    x, weight = torch.zeros(TF32.input), torch.nn.Parameter(torch.randn(TF32.weight))
    with torch.inference_mode():
        for _ in range(2):
            plan.run(x, weight, None)
        weight.mul_(2)
        plan.run(x, weight, None)
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in read)
    assert read[0] is read[1]
    assert torch.equal(read[0] * 2, read[2])
    assert torch.equal(read[2], weight)
    plan.close()
    plan.close()


def test_cudnn_wants_less_memory_where_it_has_not_to_lay_filters_out():
    with Offers(TF32) as plain, Offers(dataclasses.replace(TF32, packed=True)) as packed:
        before = {offer.plan: offer.workspace_bytes for offer in plain.plans()}
        after = {offer.plan: offer.workspace_bytes for offer in packed.plans()}
    copy_bytes = 4 * 64 * 64 * 9
    less = [plan for plan in before if plan in after and before[plan] - after[plan] >= copy_bytes]
    more = [plan for plan in before if plan in after and after[plan] - before[plan] >= copy_bytes]
    assert len(less) >= 10
    assert len(more) < len(less)
    assert not {plan.engine for plan in less} & {plan.engine for plan in more}  # those read filters as NCHW has them


@pytest.mark.parametrize("shape", [HALF, Convolution((1, 8, 9, 9), (8, 8, 1, 1), (0, 0), (1, 1), (1, 1))])
def test_filters_that_lie_in_channels_last_are_not_packed(shape: Convolution, provider: GraphProvider):
    with pytest.raises(NotImplementedError, match=r"filters lie in channels last as they are: plan:67 is the same"):
        provider.plan("plan+packed:67", shape, CPU)


def test_a_plan_of_the_convolution_alone_has_its_steps_behind_it(
    provider: GraphProvider, monkeypatch: pytest.MonkeyPatch
):
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(CudnnPlan, "launch", lambda self, x, weight, bias: torch.zeros(FUSED.output))
    monkeypatch.setattr("convscope.kernels.steps.do", lambda y, *given: done.append(given) or y)
    name = "plan+steps:" + ran(provider, "heuristic a", TF32).removeprefix("plan:")
    plan = provider.plan(name, FUSED, CPU)
    assert isinstance(plan, PlanWithSteps)
    assert (plan.execution.algorithm, plan.execution.provider) == (name, "cudnn graph")
    given = torch.zeros(FUSED.input), torch.zeros(FUSED.weight)
    bias, added = torch.zeros(FUSED.out_channels), torch.zeros(FUSED.output)
    assert plan.run(*given, bias, added).shape == FUSED.output
    assert done == [(bias, added, True, False)]
    with pytest.raises(InputError, match="give it the tensors of these alone"):
        plan.run(*given, bias)
    with pytest.raises(InputError, match=r"the bias must have 64 numbers of torch\.float32"):
        plan.run(*given, bias.half(), added)
    plan.close()
    with pytest.raises(NotImplementedError, match="nothing is fused with this one"):
        provider.plan(name, TF32, CPU)


@pytest.mark.parametrize(
    ("bias", "added", "wrong"),
    [
        (None, torch.zeros(FUSED.output), "does addition bias relu after the convolution: give it the tensors"),
        (torch.zeros(FUSED.out_channels), None, "give it the tensors of these alone"),
        (torch.zeros(FUSED.out_channels), torch.zeros(1, *FUSED.output[1:-1], 1), "must be as the output"),
        (torch.zeros(FUSED.out_channels), torch.zeros(FUSED.output).half(), "must be as the output"),
        (
            torch.zeros(FUSED.out_channels),
            torch.zeros(FUSED.output).to(memory_format=torch.channels_last),
            "must lie as the plan's output does",
        ),
        (torch.zeros(3), torch.zeros(FUSED.output), "the bias of this convolution is 3"),
    ],
)
def test_a_fused_plan_gets_no_other_tensors_than_its_own(
    bias: torch.Tensor | None, added: torch.Tensor | None, wrong: str, provider: GraphProvider
):
    plan = provider.plan("heuristic a", FUSED, CPU)
    assert isinstance(plan, FusedPlan)
    with pytest.raises(InputError, match=wrong):
        plan.run(torch.zeros(FUSED.input), torch.zeros(FUSED.weight), bias, added)
    plan.close()


def test_a_plan_that_cudnn_notes_as_winograds_is_judged_as_such(
    provider: GraphProvider, monkeypatch: pytest.MonkeyPatch
):
    plan = provider.plan("heuristic a", TF32, CPU)
    assert plan.execution.arithmetic == plan.execution.algorithm
    plan.close()
    offered = Offers.of_mode

    def noted(self: Offers, mode: Mode) -> Iterator[Offer]:
        return (dataclasses.replace(each, numerical_notes=("winograd 4x4",)) for each in offered(self, mode))

    monkeypatch.setattr(Offers, "of_mode", noted)
    plan = provider.plan("heuristic a", TF32, CPU)
    assert plan.execution.algorithm.startswith("plan:")
    assert plan.execution.arithmetic == "winograd"
    plan.close()


def test_what_is_refused_leaves_no_descriptor(provider: GraphProvider, monkeypatch: pytest.MonkeyPatch):
    alive: set[int] = set()
    call = backend.call

    def counted(name: str, about: str, *arguments: object) -> None:
        call(name, about, *arguments)
        if name == "cudnnBackendCreateDescriptor":
            alive.add(arguments[1]._obj.value)  # type: ignore[attr-defined]
        elif name == "cudnnBackendDestroyDescriptor":
            alive.remove(arguments[0])  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "call", counted)
    for name in ("plan:9999", "plan:0:k99=1"):
        with pytest.raises(NotSupportedError):
            provider.plan(name, TF32, CPU)
        assert not alive
    plan = provider.plan("heuristic a", TF32, CPU)
    assert alive
    plan.close()
    assert not alive


def test_a_heuristic_without_a_plan_says_so(provider: GraphProvider, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Offers, "of_mode", lambda self, mode: iter(()))
    with pytest.raises(NotSupportedError, match="it has no plan for such a convolution"):
        provider.plan("heuristic b", TF32, CPU)


def test_a_data_type_that_cudnn_does_not_convolve_is_refused(provider: GraphProvider):
    with pytest.raises(NotImplementedError, match="cuDNN has no convolution of int16"):
        provider.plan("heuristic a", dataclasses.replace(TF32, dtype="int16"), CPU)


def test_the_operator_asks_the_graph_api_for_them():
    operator = CudaOperator()
    plan = operator.plan(TF32, "heuristic a", CPU)
    assert isinstance(plan, CudnnPlan)
    assert plan.execution.provider == "cudnn graph"
    plan.close()
    with pytest.raises(NotImplementedError, match="'x' is no plan: write an engine and its knobs"):
        operator.plan(TF32, "plan:x", CPU)
    operator.close()


def test_a_refusal_has_cudnns_reason():
    assert cudnn_refusal("plan:3", "NVIDIA H200", why="finalize ENGINE: CUDNN_STATUS_NOT_SUPPORTED").endswith(
        " refuses plan:3 for this shape on NVIDIA H200: finalize ENGINE: CUDNN_STATUS_NOT_SUPPORTED"
    )


@pytest.fixture
def operator() -> Iterator[CudaOperator]:
    made = CudaOperator()
    yield made
    made.close()


def found(operator: CudaOperator, algorithm: str, shape: Convolution = TF32) -> object:
    x, weight = torch.empty(shape.input), torch.empty(shape.weight)
    return operator.find(x, weight, None, (shape.padding, shape.stride, shape.dilation, 1), algorithm)


def test_plans_are_spared_by_a_release_inside_the_block_alone(operator: CudaOperator):
    before = found(operator, "heuristic a")
    with operator.sparing():
        first = found(operator, "heuristic b")
        assert operator.built == 2
        operator.release()
        releases = operator.releases
        assert found(operator, "heuristic b") is first
        with operator.sparing():
            operator.release()
        assert found(operator, "heuristic b") is first
        assert operator.built == 2
        assert operator.releases > releases  # what a swapped layer has found is asked for anew
    assert found(operator, "heuristic b") is first
    operator.release()
    assert found(operator, "heuristic b") is not first
    assert found(operator, "heuristic a") is not before


def test_spared_plans_keep_no_packed_filters_and_are_closed_at_the_end(
    operator: CudaOperator, monkeypatch: pytest.MonkeyPatch
):
    done: list[str] = []
    monkeypatch.setattr(GraphPlan, "forget_filters", lambda self: done.append("forgotten"))
    monkeypatch.setattr(CudnnPlan, "close", lambda self: done.append("closed"))
    with operator.sparing():
        found(operator, "heuristic a")
        operator.release()
        assert done == ["forgotten"]
    assert done == ["forgotten", "closed", "forgotten"]


def test_no_more_plans_are_spared_than_fit(operator: CudaOperator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operator_module, "SPARES_MOST", 1)
    with operator.sparing():
        plans = [found(operator, name) for name in ("heuristic a", "heuristic b")]
        operator.release()
        again = [found(operator, name) for name in ("heuristic a", "heuristic b")]
        assert [one is other for one, other in zip(plans, again, strict=True)].count(True) == 1


def test_nothing_is_closed_once_the_gpu_is_lost(operator: CudaOperator, monkeypatch: pytest.MonkeyPatch):
    def lost() -> None:
        with operator.sparing():
            found(operator, "heuristic a")
            operator.release()
            raise DeviceFaultError("lost")

    with monkeypatch.context() as patched:
        patched.setattr(CudnnPlan, "close", lambda self: pytest.fail("it was closed"))
        with pytest.raises(DeviceFaultError):
            lost()
    first = found(operator, "heuristic a")
    operator.release()
    assert found(operator, "heuristic a") is not first
