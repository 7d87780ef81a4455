"""Calls of a swapped layer past PyTorch's dispatcher, with tensors of the CPU: which plan, and when none."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import ai3
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from convscope.convolution import backends, operator, swap
from convscope.convolution.operator import CudaOperator, recording
from convscope.convolution.providers.plan import Execution
from convscope.convolution.swap import Conv2d, DirectCalls, Swap, SwappedConv2d
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError
from convscope.kernels.operands import Operands

CPU = -1  # the number of the device that a tensor of the CPU gives
BY_OPERATOR, BY_PLAN = -1.0, 1.0


class Plan:
    """A plan that checks its tensors, and gives a constant."""

    def __init__(self, shape: Convolution, value: float) -> None:
        self.shape, self.value, self.runs, self.closed = shape, value, 0, False
        self.workspace_bytes, self.tuned, self.execution = 0, {}, Execution("gemm", "cudnn", 0)
        self._operands = Operands(shape)

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert not self.closed
        assert x.is_contiguous(memory_format=backends.LAYOUTS[self.shape.layout])
        self._operands.check(x, weight, bias)
        self.runs += 1
        return torch.full(self.shape.output, self.value)

    def close(self) -> None:
        self.closed = True


class Engine(CudaOperator):
    """An operator of such plans, which counts the questions for one; the plan of Triton gives 2."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.made: list[Plan] = []

    def find(self, *of: object) -> Plan:  # type: ignore[override]
        self.asked += 1
        return super().find(*of)  # type: ignore[arg-type,return-value]

    def plan(self, shape: Convolution, algorithm: str, device: torch.device) -> Plan:
        triton = backends.settings_in_force().provider == "triton"
        self.made.append(Plan(shape, 2.0 if triton else BY_PLAN))
        return self.made[-1]


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Let the CPU stand for a GPU, and have the operator give a constant too."""
    engine = Engine()
    monkeypatch.setattr(swap, "cuda_operator", lambda: engine)
    monkeypatch.setattr(DirectCalls, "device_type", "cpu")
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: CPU)
    monkeypatch.setattr(SwappedConv2d, "forward", lambda module, x: torch.full((1,), BY_OPERATOR))
    return engine


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def layer(**options: object) -> Conv2d:
    return Conv2d(nn.Conv2d(3, 4, 3, **options), "gemm", "0")  # type: ignore[arg-type]


def images(*size: int) -> torch.Tensor:
    return torch.randn(size or (2, 3, 8, 8))


def way(output: torch.Tensor) -> float:
    """Return the constant that an output is full of: `BY_OPERATOR`, or that of the plan that ran."""
    return float(output.flatten()[0])


@pytest.mark.usefixtures("no_grad")
def test_a_plan_is_asked_for_at_the_first_call_only(engine: Engine):
    module, x = layer(), images()
    for _ in range(3):
        assert way(module(x)) == BY_PLAN
    assert engine.asked == 1
    assert engine.made[0].runs == 3


@pytest.mark.usefixtures("no_grad")
def test_a_layer_has_the_very_plan_of_the_operator(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    module, x = layer(padding=1, stride=2), images()
    engine.forward(x, module.weight, module.bias, 1, 1, 2, 2, 1, 1, 0, 1, "gemm")
    module(x)
    assert len(engine.made) == 1


@contextlib.contextmanager
def setting(module: Conv2d, name: str, value: object) -> Iterator[None]:
    setattr(module, name, value)
    yield


CHANGES: dict[str, tuple[Callable[[Conv2d], contextlib.AbstractContextManager[object]], dict[str, object]]] = {
    "provider": (lambda module: backends.settings(provider="triton"), {}),
    "layout": (lambda module: backends.settings(layout="nhwc"), {"layout": "nhwc"}),
    "math": (lambda module: backends.math("fp32"), {"math": "fp32"}),
    "stride": (lambda module: setting(module, "stride", (2, 2)), {"stride": (2, 2)}),
    "padding": (lambda module: setting(module, "padding", (1, 1)), {"padding": (1, 1)}),
    "algorithm": (lambda module: setting(module, "algorithm", "fft"), {}),
    "weight": (
        lambda module: setting(module.weight, "data", torch.randn(4, 3, 5, 5)),
        {"weight": (4, 3, 5, 5)},
    ),
    "type": (lambda module: contextlib.nullcontext(module.double()), {"dtype": "float64"}),
}


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", CHANGES)
def test_another_plan_runs_after_a_change(engine: Engine, name: str):
    change, expected = CHANGES[name]
    module, x = layer(), images()
    with backends.math("tf32"):
        module(x)
        with change(module):
            module(x.to(module.weight.dtype))
            module(x.to(module.weight.dtype))
    assert len(engine.made) == 2
    assert [plan.runs for plan in engine.made] == [1, 2]
    assert {key: getattr(engine.made[1].shape, key) for key in expected} == expected


@pytest.mark.usefixtures("no_grad")
def test_inputs_of_two_sizes_have_a_plan_each(engine: Engine):
    module, small, large = layer(), images(1, 3, 8, 8), images(1, 3, 16, 16)
    shapes = [tuple(module(x).shape) for x in (small, large, small, large)]
    assert shapes == [(1, 4, 6, 6), (1, 4, 14, 14)] * 2
    assert [plan.runs for plan in engine.made] == [2, 2]


@pytest.mark.usefixtures("no_grad")
def test_ai3_may_give_a_swapped_layer_another_algorithm(engine: Engine):
    model, x = nn.Sequential(layer()), images()
    model(x)
    ai3.swap_conv2d(model, "implicit gemm")
    model(x)
    assert len(engine.made) == 2


@pytest.mark.usefixtures("no_grad")
def test_a_released_plan_is_not_run_again_and_not_kept_alive(engine: Engine):
    module, x = layer(), images()
    module(x)
    engine.release()
    assert way(module(x)) == BY_PLAN
    assert [plan.closed for plan in engine.made] == [True, False]
    gone = weakref.ref(engine.made[1])
    engine.release()
    engine.made.clear()
    assert gone() is None


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("odd", ["weight", "bias"])
def test_a_tensor_of_another_type_than_the_input_is_refused(engine: Engine, odd: str, before: bool):
    module, x = layer(), images()
    if before:
        module(x)
    parameter = getattr(module, odd)
    parameter.data = parameter.data.double()
    for _ in range(2):
        with pytest.raises(InputError, match=f"the {odd} of this convolution is .*float64 on cpu"):
            module(x)


@pytest.mark.usefixtures("no_grad")
def test_inputs_that_lie_otherwise_are_laid_out_first():
    module, x = layer(), images().contiguous(memory_format=torch.channels_last)
    for layout in ("nchw", "nhwc"):
        with backends.settings(layout=layout):
            assert [way(module(given)) for given in (x, images(), x.transpose(2, 3))] == [BY_PLAN] * 3


class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "a function mode": Function,
    "a dispatch mode": Dispatch,
    "a default device": lambda: torch.device("cpu"),
    "the profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "forward derivatives": forward_ad.dual_level,
    "a recording": recording,
}


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", MODES)
def test_the_operator_is_called_where_something_looks_at_it(engine: Engine, name: str):
    module, x = layer(), images()
    assert way(module(x)) == BY_PLAN
    with MODES[name]():
        assert way(module(x)) == BY_OPERATOR
    assert way(module(x)) == BY_PLAN
    assert engine.asked == 1


def test_the_operator_is_called_for_gradients_only():
    module, x = layer(), images()
    assert way(module(x)) == BY_OPERATOR
    with torch.no_grad():
        assert way(module(x)) == BY_PLAN
    with torch.inference_mode():
        assert way(module(x)) == BY_PLAN
    module.requires_grad_(False)
    assert way(module(x)) == BY_PLAN
    assert way(module(images().requires_grad_())) == BY_OPERATOR
    module.bias.requires_grad_()
    assert way(module(x)) == BY_OPERATOR


@pytest.mark.filterwarnings("ignore")  # PyTorch gives up its tracer, and warns of numbers in a trace
@pytest.mark.usefixtures("no_grad")
def test_transforms_and_tracing_see_the_operator():
    module, x = layer(), images()
    assert way(module(x)) == BY_PLAN
    seen: list[float] = []

    def call(given: torch.Tensor) -> torch.Tensor:
        output = module(given)
        seen.append(way(output) if output.numel() == 1 else BY_PLAN)
        return given.sum()

    torch.func.vmap(call)(x.unsqueeze(0))
    torch.jit.trace(call, x, check_trace=False)
    assert seen == [BY_OPERATOR] * 2


class Subclass(torch.Tensor):
    """A tensor that is not PyTorch's own."""


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize(
    "given",
    [images(3, 8, 8), images().as_subclass(Subclass), torch._neg_view(images()), nn.Parameter(images())],
    ids=["no batch", "a subclass", "negated when read", "a parameter"],
)
def test_the_operator_is_called_for_an_unusual_input(given: torch.Tensor):
    module = layer()
    module(images())
    assert way(module(given)) == BY_OPERATOR


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_the_operator_is_called_for_a_weight_or_bias_that_is_no_parameter(name: str):
    module, x = layer(), images()
    module(x)
    given = {name: getattr(module, name).clone()}
    assert way(torch.func.functional_call(module, given, (x,))) == BY_OPERATOR
    assert way(module(x)) == BY_PLAN


@pytest.mark.usefixtures("no_grad")
def test_the_operator_is_called_where_another_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch):
    module, x = layer(), images()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
    assert way(module(x)) == BY_OPERATOR
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: CPU)
    assert way(module(x)) == BY_PLAN
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
    assert way(module(x)) == BY_OPERATOR


@pytest.mark.usefixtures("no_grad")
def test_on_a_cpu_and_for_other_paddings_the_operator_is_called(monkeypatch: pytest.MonkeyPatch):
    assert way(layer(padding=1, padding_mode="reflect")(images())) == BY_OPERATOR
    monkeypatch.setattr(DirectCalls, "device_type", "cuda")
    assert way(layer()(images())) == BY_OPERATOR


@pytest.mark.usefixtures("no_grad")
def test_a_compiled_model_holds_the_operator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), images()
    Swap(model).apply({"0": "direct"})
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    output = torch.compile(model, backend=keep, fullgraph=True)(x)
    assert torch.equal(output, model(x))
    assert [node.target for node in graphs[0].graph.nodes if node.op == "call_function"] == [torch.ops.ai3.conv2d]


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_begins_without_a_plan(engine: Engine, again: Callable[[nn.Module], nn.Module]):
    module, x = layer(bias=False), images()
    module(x)
    other = again(module)
    assert other._direct._found is None
    assert swap.original(other).weight is other.weight
    assert way(other(x)) == BY_PLAN
    assert engine.asked == 2


def test_threads_with_other_settings_have_their_own_plans():
    module, x, ready = layer(), images(), threading.Barrier(2)

    def run(provider: str) -> set[float]:
        with torch.no_grad(), backends.settings(provider=provider):
            ready.wait()
            return {way(module(x)) for _ in range(200)}

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ["cudnn", "triton"])) == [{BY_PLAN}, {2.0}]


def test_whether_calls_are_recorded_is_known():
    assert not operator.is_recording()
    with recording():
        assert operator.is_recording()
    assert not operator.is_recording()
