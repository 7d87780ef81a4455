"""cuDNN's legacy convolution calls through ctypes: describe, plan, run. Integers in, no torch.

cuDNN marks these calls deprecated since 9.0 and still ships them; everything that depends on them is in this file.
Only these calls take the algorithm's number. They serve two and three spatial dimensions.
Source: NVIDIA cuDNN backend API reference, `cudnn_cnn.h` and `cudnn_graph.h`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any

from convscope.cudnn import library as cudnn
from convscope.cudnn.library import call
from convscope.cudnn.shape import Convolution
from convscope.errors import CudnnError, NotSupportedError


class Handle:
    """A cuDNN context on the device that is current when it is created."""

    def __init__(self) -> None:
        pointer = c_void_p()
        call("cudnnCreate", byref(pointer))
        self.pointer = pointer.value or 0
        self.argument = pointer  # the same for calls that are made often: converted to C once
        self._stream: int | None = None

    def use_stream(self, stream: int) -> None:
        """Send the following work to this CUDA stream (its address)."""
        if stream != self._stream:
            call("cudnnSetStream", self.pointer, stream)
            self._stream = stream

    def close(self) -> None:
        """Destroy the context; twice is once."""
        if self.pointer:
            call("cudnnDestroy", self.pointer)
            self.pointer = 0


class ThreadHandles:
    """Contexts of one device, one for each thread; that of a thread which has ended goes to the next new thread.

    cuDNN permits one thread at a time in a context, and a context sends its work to one stream.
    """

    def __init__(self) -> None:
        self._every: list[Handle] = []
        self._free: list[Handle] = []
        self._threads = threading.local()

    def mine(self) -> Handle:
        """Return the context of the calling thread; where it has none yet, the device must be the current one."""
        try:
            loan: _Loan = self._threads.loan
        except AttributeError:
            loan = self._threads.loan = _Loan(self._unused(), self._free)
        return loan.handle

    def _unused(self) -> Handle:
        try:
            return self._free.pop()
        except IndexError:
            handle = Handle()
            self._every.append(handle)
            return handle

    def close(self) -> None:
        """Destroy the contexts of all threads; twice is once."""
        self._threads = threading.local()
        self._free = []
        while self._every:
            self._every.pop().close()


class _Loan:
    """A context in the hands of a thread, which drops this object when it ends."""

    def __init__(self, handle: Handle, free: list[Handle]) -> None:
        self.handle, self._free = handle, free

    def __del__(self) -> None:
        self._free.append(self.handle)


class LegacyPlan:
    """One convolution with one algorithm: descriptors, output shape and workspace, created once and run many times.

    Any thread may run it in its own context, several at the same time.

    Args:
        handle: a context on the device, for cuDNN's answers about the plan.
        algorithm: cuDNN's number, or None to take the first choice of cuDNN's heuristic; `self.algorithm` is the
            number that runs. The arithmetic stays as permitted, whichever the heuristic ranked the algorithm with.

    Raises:
        NotSupportedError: cuDNN refuses the algorithm for this convolution.
    """

    def __init__(self, handle: Handle, convolution: Convolution, algorithm: int | None) -> None:
        self._destroyers: list[tuple[str, int]] = []
        scalar = ctypes.c_double if convolution.dtype == "float64" else c_float
        self._one, self._zero = scalar(1.0), scalar(0.0)
        self._alpha, self._beta = c_void_p(ctypes.addressof(self._one)), c_void_p(ctypes.addressof(self._zero))
        self._forward = cudnn.library().cudnnConvolutionForward
        try:
            self._describe(convolution)
            self.algorithm = self._heuristic_choice(handle) if algorithm is None else algorithm
            self.workspace_bytes = self._workspace_bytes(handle)
        except CudnnError:
            self.close()
            raise
        # What all runs have in common, converted to C once.
        self._descriptors = tuple(map(c_void_p, (self._x, self._w, self._conv, self._y)))
        self._numbers = c_int(self.algorithm), c_size_t(self.workspace_bytes)

    def _describe(self, convolution: Convolution) -> None:
        data_type = cudnn.DATA_TYPES[convolution.dtype]
        compute_type = cudnn.FLOAT64 if convolution.dtype == "float64" else cudnn.FLOAT32
        rank = 2 + len(convolution.size)
        self._x = self._tensor(data_type, convolution.input, convolution.layout)
        self._w = self._create("Filter")
        filters = cudnn.FILTER_FORMATS[convolution.layout], rank, _integers(convolution.weight)
        call("cudnnSetFilterNdDescriptor", self._w, data_type, *filters)
        self._conv = self._create("Convolution")
        call(
            "cudnnSetConvolutionNdDescriptor", self._conv, rank - 2, _integers(convolution.padding),
            _integers(convolution.stride), _integers(convolution.dilation), cudnn.CROSS_CORRELATION, compute_type,
        )  # fmt: skip
        call("cudnnSetConvolutionGroupCount", self._conv, convolution.groups)
        call("cudnnSetConvolutionMathType", self._conv, convolution.math_type)
        output = (c_int * rank)()
        call("cudnnGetConvolutionNdForwardOutputDim", self._conv, self._x, self._w, rank, output)
        self.output_shape = tuple(output)
        self._y = self._tensor(data_type, self.output_shape, convolution.layout)

    def _create(self, kind: str) -> int:
        pointer = c_void_p()
        call(f"cudnnCreate{kind}Descriptor", byref(pointer))
        address = pointer.value or 0
        self._destroyers.append((f"cudnnDestroy{kind}Descriptor", address))
        return address

    def _tensor(self, data_type: int, shape: Sequence[int], layout: str) -> int:
        descriptor = self._create("Tensor")
        sizes = _integers(shape), _integers(strides(shape, layout))
        call("cudnnSetTensorNdDescriptor", descriptor, data_type, len(shape), *sizes)
        return descriptor

    def _heuristic_choice(self, handle: Handle) -> int:
        count, ranked = c_int(), (cudnn.AlgorithmPerformance * cudnn.ALGORITHM_COUNT)()
        descriptors = handle.pointer, self._x, self._w, self._conv, self._y
        call("cudnnGetConvolutionForwardAlgorithm_v7", *descriptors, cudnn.ALGORITHM_COUNT, byref(count), ranked)
        usable = [entry.algorithm for entry in ranked[: count.value] if entry.status == 0]
        if not usable:
            raise NotSupportedError("cudnnGetConvolutionForwardAlgorithm_v7: no algorithm for this convolution")
        return int(usable[0])

    def _workspace_bytes(self, handle: Handle) -> int:
        size = c_size_t()
        descriptors = handle.pointer, self._x, self._w, self._conv, self._y
        call("cudnnGetConvolutionForwardWorkspaceSize", *descriptors, self.algorithm, byref(size))
        return size.value

    def run(self, handle: Handle, x: int, w: int, y: int, workspace: int) -> None:
        """Launch on the handle's stream; `x`, `w`, `y` and `workspace` are device addresses.

        The handle is the calling thread's; `workspace` may be 0 where the plan needs none.

        Raises:
            NotSupportedError: refused only now; some refusals come as late as this.
        """
        of_x, of_w, of_conv, of_y = self._descriptors
        algorithm, size = self._numbers
        status = self._forward(
            handle.argument, self._alpha, of_x, x, of_w, w, of_conv, algorithm, workspace, size, self._beta, of_y, y
        )
        if status:
            cudnn.check(status, "cudnnConvolutionForward")

    def close(self) -> None:
        """Destroy every descriptor; twice is once."""
        while self._destroyers:
            name, address = self._destroyers.pop()
            call(name, address)


def strides(shape: Sequence[int], layout: str) -> list[int]:
    """Return the strides, in elements, of a contiguous N × C × spatial tensor, channels second or last in memory."""
    order = [*range(len(shape))] if layout == "nchw" else [0, *range(2, len(shape)), 1]
    found, step = [0] * len(shape), 1
    for axis in reversed(order):
        found[axis] = step
        step *= shape[axis]
    return found


def _integers(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)
