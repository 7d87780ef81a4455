"""CUDA kernel of `ai3::conv2d`, with tensors of the CPU and plans that compute nothing; GPU tests compare results."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from convscope.convolution import backends, operator, swap
from convscope.convolution.operator import CudaOperator, cuda_operator, recording
from convscope.convolution.providers.plan import Execution
from convscope.convolution.swap import Swap
from convscope.cudnn.shape import Convolution

CPU = torch.device("cpu")
X, WEIGHT = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3)
PADDED = 1, 1, 1, 1, 1, 1, 0, 1  # padding, stride, dilation, padding mode, groups


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


class Plan:
    """A plan that remembers how its tensors lay, and computes nothing."""

    def __init__(self, shape: Convolution, algorithm: str) -> None:
        self.shape, self.execution = shape, Execution(algorithm, "cudnn", 8)
        self.workspace_bytes, self.tuned = 8, {}
        self.ran: list[tuple[bool, bool]] = []

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        memory = backends.LAYOUTS[self.shape.layout]
        self.ran.append((x.is_contiguous(memory_format=memory), weight is WEIGHT))
        return torch.zeros(self.shape.output)

    def close(self) -> None:
        return None


class Recording(CudaOperator):
    """An operator whose plans compute nothing, and which remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Plan] = []

    def plan(self, shape: Convolution, algorithm: str, device: torch.device) -> Plan:
        self.made.append(Plan(shape, algorithm))
        return self.made[-1]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    return Recording()


def test_the_engine_refuses_padding_modes_other_than_zeros():
    x, weight = torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    with pytest.raises(NotImplementedError, match="cuDNN pads with zeros only"):
        CudaOperator().forward(x, weight, None, 1, 1, 1, 1, 1, 1, 1, 1, "gemm")


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("smm", "smm is neither an algorithm of cuDNN nor"),
        ("torch", "torch is neither an algorithm of cuDNN nor"),
        ("nonsense", "unknown algorithm 'nonsense': choose one of direct"),
        ("plan:x", "'x' is no plan: write an engine and its knobs"),
    ],
)
def test_the_engine_refuses_what_is_not_an_algorithm_of_cudnn(algorithm: str, said: str):
    convolution = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1))
    with pytest.raises(NotImplementedError, match=said):
        CudaOperator().plan(convolution, algorithm, CPU)


def test_a_plan_is_of_the_layout_in_force_as_is_its_input_and_gets_the_weight_itself(engine: Recording):
    for layout in ("nchw", "nhwc", "nchw", "nhwc"):
        with backends.settings(layout=layout):
            engine.forward(X, WEIGHT, None, *PADDED, "gemm")
    assert [plan.shape.layout for plan in engine.made] == ["nchw", "nhwc"]
    assert [plan.ran for plan in engine.made] == [[(True, True)] * 2] * 2


def test_a_plan_is_made_anew_for_another_provider_math_algorithm_or_shape_only(engine: Recording):
    def call(algorithm: str = "gemm", x: torch.Tensor = X) -> None:
        engine.forward(x, WEIGHT, None, *PADDED, algorithm)

    for mode in ("fp32", "tf32"):
        with backends.math(mode):
            call()
            call()
    with backends.math("fp32"), backends.settings(provider="triton"):
        call()
    with backends.math("fp32"):
        call("fft")
        call(x=X[:1])
        call(x=X[0])
    made = [(plan.shape.math, plan.shape.batch, plan.execution.algorithm) for plan in engine.made]
    assert made == [
        ("fp32", 2, "gemm"), ("tf32", 2, "gemm"), ("fp32", 2, "gemm"), ("fp32", 2, "fft"), ("fp32", 1, "gemm")
    ]  # fmt: skip


def test_plans_that_are_handed_over_are_their_new_owners_to_close(engine: Recording, monkeypatch: pytest.MonkeyPatch):
    closed: list[Plan] = []
    monkeypatch.setattr(Plan, "close", lambda self: closed.append(self))
    engine.forward(X, WEIGHT, None, *PADDED, "gemm")
    before = engine.releases
    assert engine.hand_over() == engine.made
    assert engine.releases > before  # a swapped layer that kept a plan asks for it anew
    engine.release()
    assert closed == []
    engine.forward(X, WEIGHT, None, *PADDED, "gemm")
    assert len(engine.made) == 2
    engine.release()
    assert closed == engine.made[1:]
    assert engine.hand_over() == operator.hand_over(CPU) == []


def test_executions_are_recorded_in_order_inside_the_block_only(engine: Recording):
    engine.forward(X, WEIGHT, None, *PADDED, "gemm")
    with recording() as executions:
        engine.forward(X[0], WEIGHT, None, *PADDED, "fft")
        with recording() as inner:
            engine.forward(X, WEIGHT, None, *PADDED, "winograd")
        with backends.PlanThread(CPU) as thread:
            thread.run(lambda: engine.forward(X, WEIGHT, None, *PADDED, "gemm"))
        assert operator.recorded() == executions
    engine.forward(X, WEIGHT, None, *PADDED, "guess")
    assert [execution.algorithm for execution in executions] == ["fft", "gemm"]
    assert [execution.algorithm for execution in inner] == ["winograd"]
    assert operator.recorded() == ()


def test_what_ran_on_a_gpu_is_the_last_execution_recorded(engine: Recording):
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    Swap(model).apply({"0": "gemm"})
    with recording():
        for algorithm in ("fft", "gemm"):
            engine.forward(X, WEIGHT, None, *PADDED, algorithm)
        assert swap.what_ran(model[0]) == Execution("gemm", "cudnn", 8, copied_input_bytes=0)


@pytest.mark.parametrize(("layout", "copied"), [("nchw", (0, 1)), ("nhwc", (1, 0))])
def test_tensors_that_lie_otherwise_than_the_layout_are_copied_and_counted(
    engine: Recording, layout: str, copied: tuple[int, int]
):
    last = torch.zeros(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    weight = WEIGHT.contiguous(memory_format=backends.LAYOUTS[layout])
    with backends.settings(layout=layout), recording() as executions:
        for given in (X, last):
            engine.forward(given, weight, None, *PADDED, "gemm")
    assert [execution.copied_input_bytes for execution in executions] == [X.nbytes * times for times in copied]
    assert [lies_right for lies_right, _ in engine.made[0].ran] == [True] * 2


@pytest.mark.parametrize(("provider", "copied"), [("cudnn", WEIGHT.nbytes), ("triton", 0)])
def test_filters_that_are_packed_once_are_not_counted_as_copied(engine: Recording, provider: str, copied: int):
    last = X.contiguous(memory_format=torch.channels_last)
    with backends.settings(layout="nhwc"), recording() as executions:
        engine.forward(last, WEIGHT, None, *PADDED, "gemm")
        (plan,) = engine.made
        plan.execution = dataclasses.replace(plan.execution, provider=provider)
        engine.forward(last, WEIGHT, None, *PADDED, "gemm")
    assert executions[-1].copied_input_bytes == copied


@pytest.mark.parametrize(("layout", "memory"), backends.LAYOUTS.items())
def test_a_traced_convolution_lies_as_the_real_one(layout: str, memory: torch.memory_format):
    cuda_operator()
    with FakeTensorMode(), backends.settings(layout=layout):
        given, weight = torch.empty(2, 3, 17, 12, device="cuda"), torch.empty(5, 3, 3, 4, device="cuda")
        output = torch.ops.ai3.conv2d(given, weight, None, 1, 2, 2, 1, 2, 1, 0, 1, "gemm")
    assert output.is_contiguous(memory_format=memory)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_traced_convolution_of_cuda_tensors_ends_on_the_gpu(batch: tuple[int, ...]):
    cuda_operator()
    with FakeTensorMode():
        given, weight = torch.empty(*batch, 3, 17, 12, device="cuda"), torch.empty(5, 3, 3, 4, device="cuda")
        output = torch.ops.ai3.conv2d(given, weight, None, 1, 2, 2, 1, 2, 1, 0, 1, "gemm")
    assert output.device == given.device
    assert output.shape == (*batch, 5, 8, 13)
