"""cuDNN's legacy convolution calls through ctypes: load, check, describe, plan, run. Integers in, no torch.

cuDNN marks these calls deprecated since 9.0 and still ships them; everything that depends on them is in this file.
They are the only ones that take the algorithm's number. The same calls serve two and three spatial dimensions.
Source: NVIDIA cuDNN backend API reference, `cudnn_cnn.h` and `cudnn_graph.h`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
FLOAT32, FLOAT64 = DATA_TYPES["float32"], DATA_TYPES["float64"]
MATH_TYPES = {"tf32": 0, "fp32": 3}  # of float32: CUDNN_DEFAULT_MATH permits TF32, CUDNN_FMA_MATH forbids it
HALF_MATH_TYPE = 1  # CUDNN_TENSOR_OP_MATH: without it 16-bit types are computed by the CUDA cores
HALF_TYPES = ("float16", "bfloat16")
FILTER_FORMATS = {"nchw": 0, "nhwc": 1}  # cudnnTensorFormat_t
CROSS_CORRELATION = 1
ALGORITHM_COUNT = 8

# Each C function beside its argument types; all return cudnnStatus_t unless `_load` says otherwise.
_SIGNATURES: dict[str, list[Any]] = {
    "cudnnCreate": [POINTER(c_void_p)],
    "cudnnDestroy": [c_void_p],
    "cudnnSetStream": [c_void_p, c_void_p],
    "cudnnCreateTensorDescriptor": [POINTER(c_void_p)],
    "cudnnSetTensorNdDescriptor": [c_void_p, c_int, c_int, POINTER(c_int), POINTER(c_int)],
    "cudnnDestroyTensorDescriptor": [c_void_p],
    "cudnnCreateFilterDescriptor": [POINTER(c_void_p)],
    "cudnnSetFilterNdDescriptor": [c_void_p, c_int, c_int, c_int, POINTER(c_int)],
    "cudnnDestroyFilterDescriptor": [c_void_p],
    "cudnnCreateConvolutionDescriptor": [POINTER(c_void_p)],
    "cudnnSetConvolutionNdDescriptor": [
        c_void_p, c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int), c_int, c_int,
    ],
    "cudnnSetConvolutionGroupCount": [c_void_p, c_int],
    "cudnnSetConvolutionMathType": [c_void_p, c_int],
    "cudnnDestroyConvolutionDescriptor": [c_void_p],
    "cudnnGetConvolutionNdForwardOutputDim": [c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int)],
    "cudnnGetConvolutionForwardWorkspaceSize": [
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_size_t),
    ],
    "cudnnGetConvolutionForwardAlgorithm_v7": [
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int), c_void_p,
    ],
    "cudnnConvolutionForward": [
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p,
        c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p,
    ],
}  # fmt: skip


class CudnnError(RuntimeError):
    """A cuDNN call failed; the message names the call and the status."""


class CudnnMissingError(CudnnError):
    """There is no cuDNN library on this machine."""


class NotSupportedError(CudnnError):
    """cuDNN refuses this algorithm for this convolution on this card."""


class _AlgorithmPerformance(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time_ms", c_float),
        ("memory_bytes", c_size_t),
        ("determinism", c_int),
        ("math_type", c_int),
        ("reserved", c_int * 3),
    )


@dataclass(frozen=True)
class Convolution:
    """The shape of a forward convolution: input N × C × spatial, weight K × C/groups × kernel, contiguous both.

    `layout` is "nchw", or "nhwc" for channels last in memory.
    `math` says whether float32 may be rounded to TF32; 16-bit types have the matrix unit at all times, as in PyTorch.
    """

    input: tuple[int, ...]
    weight: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: str = "float32"
    math: str = "tf32"
    layout: str = "nchw"

    @property
    def math_type(self) -> int:
        """cuDNN's number of the arithmetic that is permitted (`cudnnMathType_t`)."""
        return HALF_MATH_TYPE if self.dtype in HALF_TYPES else MATH_TYPES[self.math]

    @property
    def output(self) -> tuple[int, ...]:
        """N × K × spatial of the output."""
        spatial = self.input[2:], self.weight[2:], self.padding, self.stride, self.dilation
        return self.input[0], self.weight[0], *output_extents(*spatial)


def output_extents(
    extents: Sequence[int],
    kernel: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the spatial extents of a convolution's output."""
    spatial = zip(extents, kernel, padding, stride, dilation, strict=True)
    return tuple((extent + 2 * pad - dil * (k - 1) - 1) // step + 1 for extent, k, pad, step, dil in spatial)


def _library_path() -> str:
    """Return where PyTorch's wheels keep cuDNN, or the bare name for the loader (conda, modules) to resolve."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "lib" / "libcudnn.so.9"
        if path.exists():
            return str(path)
    return "libcudnn.so.9"


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load cuDNN once.

    Raises:
        CudnnMissingError: there is none.
    """
    try:
        loaded = ctypes.CDLL(_library_path())
    except OSError as error:
        raise CudnnMissingError(
            f"cuDNN 9 cannot be loaded ({error}): install PyTorch's CUDA wheels, "
            "or put libcudnn.so.9 on LD_LIBRARY_PATH"
        ) from None
    for name, argument_types in _SIGNATURES.items():
        getattr(loaded, name).argtypes = argument_types
        getattr(loaded, name).restype = c_int
    loaded.cudnnGetVersion.restype = c_size_t
    loaded.cudnnGetErrorString.argtypes = [c_int]
    loaded.cudnnGetErrorString.restype = c_char_p
    return loaded


def version() -> str:
    """Return the library's version, "9.19.0"."""
    number = int(library().cudnnGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check(status: int, call: str) -> None:
    """Raise what a status other than success means.

    Raises:
        NotSupportedError: the library refuses the request.
        CudnnError: any other failure.
    """
    if status == 0:
        return
    name = library().cudnnGetErrorString(status).decode()
    error = NotSupportedError if name.startswith("CUDNN_STATUS_NOT_SUPPORTED") else CudnnError
    raise error(f"{call}: {name}")


def _call(name: str, *arguments: Any) -> None:
    check(getattr(library(), name)(*arguments), name)


class Handle:
    """A cuDNN context on the device that is current when it is made."""

    def __init__(self) -> None:
        pointer = c_void_p()
        _call("cudnnCreate", byref(pointer))
        self.pointer = pointer.value or 0
        self._stream: int | None = None

    def use_stream(self, stream: int) -> None:
        """Send the following work to this CUDA stream (its address)."""
        if stream != self._stream:
            _call("cudnnSetStream", self.pointer, stream)
            self._stream = stream

    def close(self) -> None:
        """Destroy the context; twice is once."""
        if self.pointer:
            _call("cudnnDestroy", self.pointer)
            self.pointer = 0

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Plan:
    """One convolution with one algorithm: descriptors, output shape and workspace, made once and run many times.

    Args:
        algorithm: cuDNN's number, or None to take the first choice of cuDNN's heuristic; `self.algorithm` is the
            number that runs. The arithmetic stays what is permitted, whichever the heuristic ranked it with.

    Raises:
        NotSupportedError: cuDNN refuses the algorithm for this convolution.
    """

    def __init__(self, handle: Handle, convolution: Convolution, algorithm: int | None) -> None:
        self._handle = handle
        self._destroyers: list[tuple[str, int]] = []
        scalar = ctypes.c_double if convolution.dtype == "float64" else c_float
        self._one, self._zero = scalar(1.0), scalar(0.0)
        self._alpha, self._beta = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        self._forward = library().cudnnConvolutionForward
        try:
            self._describe(convolution)
            self.algorithm = self._heuristic_choice() if algorithm is None else algorithm
            self.workspace_bytes = self._workspace_bytes()
        except CudnnError:
            self.close()
            raise

    def _describe(self, convolution: Convolution) -> None:
        data_type = DATA_TYPES[convolution.dtype]
        compute_type = FLOAT64 if convolution.dtype == "float64" else FLOAT32
        rank = len(convolution.input)
        self._x = self._tensor(data_type, convolution.input, convolution.layout)
        self._w = self._create("Filter")
        filters = FILTER_FORMATS[convolution.layout], rank, _integers(convolution.weight)
        _call("cudnnSetFilterNdDescriptor", self._w, data_type, *filters)
        self._conv = self._create("Convolution")
        _call(
            "cudnnSetConvolutionNdDescriptor", self._conv, rank - 2, _integers(convolution.padding),
            _integers(convolution.stride), _integers(convolution.dilation), CROSS_CORRELATION, compute_type,
        )  # fmt: skip
        _call("cudnnSetConvolutionGroupCount", self._conv, convolution.groups)
        _call("cudnnSetConvolutionMathType", self._conv, convolution.math_type)
        output = (c_int * rank)()
        _call("cudnnGetConvolutionNdForwardOutputDim", self._conv, self._x, self._w, rank, output)
        self.output_shape = tuple(output)
        self._y = self._tensor(data_type, self.output_shape, convolution.layout)

    def _create(self, kind: str) -> int:
        pointer = c_void_p()
        _call(f"cudnnCreate{kind}Descriptor", byref(pointer))
        address = pointer.value or 0
        self._destroyers.append((f"cudnnDestroy{kind}Descriptor", address))
        return address

    def _tensor(self, data_type: int, shape: Sequence[int], layout: str) -> int:
        descriptor = self._create("Tensor")
        sizes = _integers(shape), _integers(_strides(shape, layout))
        _call("cudnnSetTensorNdDescriptor", descriptor, data_type, len(shape), *sizes)
        return descriptor

    def _heuristic_choice(self) -> int:
        count, ranked = c_int(), (_AlgorithmPerformance * ALGORITHM_COUNT)()
        descriptors = self._handle.pointer, self._x, self._w, self._conv, self._y
        _call("cudnnGetConvolutionForwardAlgorithm_v7", *descriptors, ALGORITHM_COUNT, byref(count), ranked)
        usable = [entry.algorithm for entry in ranked[: count.value] if entry.status == 0]
        if not usable:
            raise NotSupportedError("cudnnGetConvolutionForwardAlgorithm_v7: no algorithm for this convolution")
        return int(usable[0])

    def _workspace_bytes(self) -> int:
        size = c_size_t()
        descriptors = self._handle.pointer, self._x, self._w, self._conv, self._y
        _call("cudnnGetConvolutionForwardWorkspaceSize", *descriptors, self.algorithm, byref(size))
        return size.value

    def run(self, x: int, w: int, y: int, workspace: int) -> None:
        """Launch on the handle's stream; `x`, `w`, `y` and `workspace` are device addresses.

        Raises:
            NotSupportedError: refused only now; some refusals come as late as this.
        """
        status = self._forward(
            self._handle.pointer, self._alpha, self._x, x, self._w, w, self._conv,
            self.algorithm, workspace, self.workspace_bytes, self._beta, self._y, y,
        )  # fmt: skip
        if status:
            check(status, "cudnnConvolutionForward")

    def close(self) -> None:
        """Destroy every descriptor; twice is once."""
        while self._destroyers:
            name, address = self._destroyers.pop()
            _call(name, address)


def _strides(shape: Sequence[int], layout: str) -> list[int]:
    """Return the strides, in elements, of a contiguous N × C × spatial tensor, channels second or last in memory."""
    order = [*range(len(shape))] if layout == "nchw" else [0, *range(2, len(shape)), 1]
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return strides


def _integers(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)
