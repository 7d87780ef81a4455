"""cuDNN by its legacy calls; `CudnnPlan` runs a plan of the graph API too."""

from __future__ import annotations

import functools
from typing import Protocol

import torch

from convscope.convolution import algorithms, backends
from convscope.convolution.providers.plan import NOTHING, Execution, why_no_dtype
from convscope.cudnn import legacy
from convscope.cudnn.shape import Convolution
from convscope.kernels.operands import Operands


class CudnnCall(Protocol):
    """One call of cuDNN that convolves, prepared (`legacy.LegacyPlan`, `graph.execution.ExecutablePlan`)."""

    workspace_bytes: int

    def run(self, handle: legacy.Handle, x: int, w: int, y: int, workspace: int) -> None:
        """Launch on the handle's stream; `x`, `w`, `y` and `workspace` are device addresses."""

    def close(self) -> None:
        """Destroy the descriptors; twice is once."""


class CudnnPlan:
    """A plan of cuDNN: output and workspace by PyTorch, then one call, then the bias.

    Args:
        name: of the algorithm that the call is, by its identifier.
        provider: the way into cuDNN, "cudnn" or "cudnn graph".
    """

    tuned = NOTHING

    def __init__(
        self, handles: legacy.ThreadHandles, shape: Convolution, call: CudnnCall, name: str, provider: str,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._operands = Operands(shape, -1 if device.type == "cpu" else device.index)
        self._handles, self._call = handles, call
        self._filter_format = backends.memory_format(shape.layout, len(shape.kernel))
        size, dtype = shape.output, getattr(torch, shape.dtype)
        # Of PyTorch's ways to an empty tensor the one that takes the host the least time.
        strides = legacy.strides(size, shape.layout)
        self._output = functools.partial(torch.empty_strided, size, strides, dtype=dtype, device=device)
        self._bias_shape = (1, -1, *(1 for _ in shape.size))
        self.workspace_bytes = call.workspace_bytes
        self.execution = Execution(name, provider, self.workspace_bytes)

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve on the current stream; NotSupportedError where cuDNN refuses only now, which happens."""
        self._operands.check(x, weight, bias)
        return self.launch(x, weight, bias)

    def launch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as `run` does; the caller has checked the tensors (`Operands.fit`)."""
        weight = weight.contiguous(memory_format=self._filter_format)
        handle, size_bytes = self._handles.mine(), self.workspace_bytes
        # The public current_stream() builds an object each time, which costs as much as the rest of this function.
        stream = torch._C._cuda_getCurrentRawStream(x.get_device())
        handle.use_stream(stream)
        y = self._output()
        # PyTorch's memory without a tensor around it. Given back at once: what gets it next runs on this stream, later.
        workspace = torch._C._cuda_cudaCachingAllocator_raw_alloc(size_bytes, stream) if size_bytes else 0
        try:
            self._call.run(handle, x.data_ptr(), weight.data_ptr(), y.data_ptr(), workspace)
        finally:
            if workspace:
                torch._C._cuda_cudaCachingAllocator_raw_delete(workspace)
        if bias is not None:
            y.add_(bias.view(self._bias_shape))
        return y

    def close(self) -> None:
        """Destroy the descriptors; twice is once."""
        self._call.close()


class CudnnProvider:
    """cuDNN's legacy calls: one handle a device and thread; exactly the algorithm requested, in 2-D and 3-D."""

    name = "cudnn"

    def __init__(self) -> None:
        self._handles: dict[int | None, legacy.ThreadHandles] = {}

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why cuDNN has no such legacy call, as far as that is known without a card, or None."""
        if shape.fused.count:
            return f"cuDNN's legacy calls are convolutions alone: only plans take {shape.fused} with one"
        return why_no_dtype(shape.dtype)

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> CudnnPlan:
        """Make a plan of one of cuDNN's algorithms, or of its heuristic's choice ("guess"); errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        handles = self.handles(device)
        call = legacy.LegacyPlan(handles.mine(), shape, algorithms.cudnn_number(algorithm))
        name = algorithms.NAMES_BY_CUDNN_NUMBER[call.algorithm]
        return CudnnPlan(handles, shape, call, name, self.name, device)

    def handles(self, device: torch.device) -> legacy.ThreadHandles:
        """Return the contexts of a device, the current one."""
        return self._handles.setdefault(device.index, legacy.ThreadHandles())

    def close(self) -> None:
        """Destroy the handles."""
        while self._handles:
            self._handles.popitem()[1].close()
