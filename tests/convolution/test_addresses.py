"""What a swapped layer hands to cuDNN: addresses and workspace, with a fake plan and tensors of the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from convscope.convolution import swap
from convscope.convolution.operator import CudaOperator
from convscope.convolution.providers.legacy import CudnnProvider
from convscope.convolution.swap import Conv2d, DirectCalls
from convscope.cudnn import legacy
from convscope.cudnn.shape import Convolution
from convscope.errors import InputError, NotSupportedError


@pytest.fixture(autouse=True)
def a_cpu_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the CPU stand for a GPU."""
    monkeypatch.setattr(DirectCalls, "device_type", "cpu")
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1)
    with torch.no_grad():
        yield


def layer(**options: object) -> Conv2d:
    return Conv2d(nn.Conv2d(3, 4, 3, **options), "gemm", "0")  # type: ignore[arg-type]


class Handle:
    """A context that remembers its stream."""

    def use_stream(self, stream: int) -> None:
        self.stream = stream

    def close(self) -> None:
        return None


class LegacyPlan:
    """A plan that remembers the addresses that it gets."""

    algorithm, output_shape, workspace_bytes = 1, (2, 4, 6, 6), 64

    def __init__(self, *_: object) -> None:
        self.ran: list[tuple[int, ...]] = []

    def run(self, handle: Handle, *addresses: int) -> None:
        self.ran.append((handle.stream, *addresses))
        if len(self.ran) > 1:
            raise NotSupportedError("cudnnConvolutionForward: CUDNN_STATUS_NOT_SUPPORTED")

    def close(self) -> None:
        return None


@pytest.fixture
def workspaces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Return what is taken from PyTorch's memory and given back; address 4096, on stream 7."""
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(legacy, "Handle", Handle)
    monkeypatch.setattr(legacy, "LegacyPlan", LegacyPlan)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7)

    def take(size_bytes: int, stream: int) -> int:
        seen.append(("taken", size_bytes, stream))
        return 4096

    monkeypatch.setattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", take)
    give_back = torch._C, "_cuda_cudaCachingAllocator_raw_delete"
    monkeypatch.setattr(*give_back, lambda address: seen.append(("given back", address, 0)))
    return seen


def test_a_layer_hands_cudnn_its_addresses_and_gives_the_workspace_back(
    monkeypatch: pytest.MonkeyPatch, workspaces: list[tuple[str, int, int]]
):
    engine = CudaOperator()
    monkeypatch.setattr(swap, "cuda_operator", lambda: engine)
    module, x = layer(bias=False), torch.randn(2, 3, 8, 8)
    y = module(x)
    plan = next(iter(engine._plans.values()))
    assert plan._call.ran == [(7, x.data_ptr(), module.weight.data_ptr(), y.data_ptr(), 4096)]
    assert workspaces == [("taken", 64, 7), ("given back", 4096, 0)]
    with pytest.raises(NotSupportedError):
        module(x)
    assert workspaces == [("taken", 64, 7), ("given back", 4096, 0)] * 2


def test_no_workspace_is_taken_where_none_is_needed(
    monkeypatch: pytest.MonkeyPatch, workspaces: list[tuple[str, int, int]]
):
    monkeypatch.setattr(LegacyPlan, "workspace_bytes", 0)
    shape = Convolution((2, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), layout="nhwc")
    x, weight = (
        torch.randn(size).contiguous(memory_format=torch.channels_last) for size in (shape.input, shape.weight)
    )
    plan = CudnnProvider().plan("gemm", shape, torch.device("cpu"))
    y = plan.run(x, weight, None)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert plan._call.ran[0][-1] == 0
    assert not workspaces


def test_a_layer_checks_its_weight_before_cudnn_gets_the_address(
    monkeypatch: pytest.MonkeyPatch, workspaces: list[tuple[str, int, int]]
):
    engine = CudaOperator()
    monkeypatch.setattr(swap, "cuda_operator", lambda: engine)
    module, x = layer(), torch.randn(2, 3, 8, 8)
    module(x)
    module.weight.data = module.weight.data.half()
    with pytest.raises(InputError, match=r"the weight of this convolution is .* float16 on cpu"):
        module(x)
    assert len(next(iter(engine._plans.values()))._call.ran) == 1
