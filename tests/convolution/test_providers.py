"""Providers of plans: what each of them takes, which of them is taken, and what they say where they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from convscope.convolution import backends
from convscope.convolution.operator import CudaOperator
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.convolution.providers.others import TorchProvider, TritonProvider
from convscope.convolution.providers.plan import Execution, cudnn_refusal
from convscope.cudnn import legacy, library
from convscope.cudnn.shape import Convolution
from convscope.errors import NotSupportedError

CPU = torch.device("cpu")
SHAPE = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1))


class Handle:
    """A context of cuDNN that is none; remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class LegacyPlan:
    """A plan of cuDNN's that is only asked for its numbers; its heuristic chooses FFT."""

    workspace_bytes, output_shape = 64, (1, 4, 6, 6)

    def __init__(self, handle: Handle, shape: Convolution, number: int | None) -> None:
        self.algorithm = 4 if number is None else number

    def close(self) -> None:
        return None


@pytest.fixture
def _no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "Handle", Handle)
    monkeypatch.setattr(legacy, "LegacyPlan", LegacyPlan)


def refuse(*_: object) -> None:
    raise NotSupportedError("cudnnGetConvolutionForwardWorkspaceSize: CUDNN_STATUS_NOT_SUPPORTED")


@pytest.mark.usefixtures("_no_card")
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("default", "implicit precomp gemm"), ("gemm", "gemm"), ("guess", "fft"), ("winograd", "winograd")],
)
def test_a_plan_of_cudnn_says_what_it_executes(algorithm: str, name: str):
    assert CudaOperator().plan(SHAPE, algorithm, CPU).execution == Execution(name, "cudnn", 64)


@pytest.mark.usefixtures("_no_card")
def test_cudnn_is_asked_for_direct_by_its_number():
    assert CudnnProvider().plan("direct", SHAPE, CPU).execution.algorithm == "direct"


@pytest.mark.usefixtures("_no_card")
def test_the_plans_of_a_device_share_one_handle_which_is_closed_with_the_provider():
    provider = CudnnProvider()
    one, two = provider.plan("gemm", SHAPE, CPU), provider.plan("fft", SHAPE, CPU)
    handle = one._handles.mine()
    assert handle is two._handles.mine()
    provider.close()
    assert handle.closed
    assert provider.plan("gemm", SHAPE, CPU)._handles.mine() is not handle


def in_threads(count: int, work: Callable[[], object]) -> list[object]:
    """Return what work gives in some threads that live at the same time."""
    together = threading.Barrier(count)

    def run(_: int) -> object:
        together.wait()
        given = work()
        together.wait()
        return given

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.usefixtures("_no_card")
def test_threads_that_live_at_the_same_time_have_a_handle_each():
    handles = legacy.ThreadHandles()
    lent = [handles.mine(), *in_threads(3, handles.mine)]
    assert len(set(map(id, lent))) == 4
    assert handles.mine() is lent[0]


@pytest.mark.usefixtures("_no_card")
def test_the_handle_of_a_thread_that_has_ended_is_used_again_and_all_are_closed():
    handles = legacy.ThreadHandles()
    first = in_threads(2, handles.mine)
    second = in_threads(2, handles.mine)
    assert set(map(id, first)) == set(map(id, second))
    handles.close()
    assert all(handle.closed for handle in first)
    assert handles.mine() not in first


def test_types_that_cudnn_does_not_convolve_are_refused():
    shape = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), dtype="int64")
    for algorithm in ("gemm", "winograd"):
        with pytest.raises(NotImplementedError, match="cuDNN has no convolution of int64"):
            CudaOperator().plan(shape, algorithm, CPU)


def test_triton_computes_what_cudnn_refuses_and_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CudnnProvider, "plan", refuse)
    assert CudaOperator().plan(SHAPE, "winograd", CPU).execution == Execution("winograd", "triton", 0)
    with pytest.raises(NotSupportedError, match="CUDNN_STATUS_NOT_SUPPORTED"):
        CudaOperator().plan(SHAPE, "fft", CPU)


def test_where_triton_has_no_kernel_either_the_refusal_is_cudnns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CudnnProvider, "plan", refuse)
    double = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), dtype="float64")
    with pytest.raises(NotSupportedError, match="CUDNN_STATUS_NOT_SUPPORTED"):
        CudaOperator().plan(double, "winograd", CPU)
    with (
        backends.settings(provider="triton"),
        pytest.raises(NotImplementedError, match="winograd by Triton takes float32, float16 and bfloat16, not float64"),
    ):
        CudaOperator().plan(double, "winograd", CPU)


@pytest.mark.usefixtures("_no_card")
@pytest.mark.parametrize(("provider", "taken"), [(None, "cudnn"), ("cudnn", "cudnn"), ("triton", "triton")])
def test_a_provider_is_preferred_where_it_has_the_algorithm(provider: str | None, taken: str):
    with backends.settings(provider=provider):
        assert CudaOperator().plan(SHAPE, "winograd", CPU).execution.provider == taken
        assert CudaOperator().plan(SHAPE, "gemm", CPU).execution.provider == "cudnn"
        assert CudaOperator().plan(SHAPE, "direct", CPU).execution.provider == "triton"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_the_triton_kernels_take_16_bits_and_both_layouts(algorithm: str, layout: str, dtype: str):
    shape = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), dtype=dtype, layout=layout)
    assert TritonProvider().why_not(algorithm, shape) is None
    assert TritonProvider().plan(algorithm, shape, CPU).execution == Execution(algorithm, "triton", 0)


@pytest.mark.parametrize("module", [nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.Conv3d(4, 6, (1, 2, 3), stride=2)])
def test_pytorchs_plan_is_pytorchs_convolution(module: nn.Conv2d | nn.Conv3d):
    x = torch.randn(2, 4, *(7 for _ in module.kernel_size))
    options = module.padding, module.stride, module.dilation, module.groups
    shape = Convolution(tuple(x.shape), tuple(module.weight.shape), *options)
    plan = TorchProvider().plan("torch", shape, CPU)
    with torch.no_grad():
        assert torch.equal(plan.run(x, module.weight, module.bias), module(x))
    assert plan.execution == Execution("torch", "torch", None)


def test_the_refusal_of_winograd_names_library_and_card():
    short = ".".join(library.version().split(".")[:2])
    assert cudnn_refusal("winograd", "NVIDIA H200") == f"cuDNN {short} has no fused Winograd on NVIDIA H200"


def test_any_other_refusal_names_algorithm_layout_and_card():
    assert cudnn_refusal("fft", "NVIDIA H200").endswith(" refuses fft for this shape on NVIDIA H200")
    assert cudnn_refusal("fft", "NVIDIA H200", "nhwc").endswith(" refuses fft for this shape in NHWC on NVIDIA H200")
