"""The cuDNN library: its path, its C signatures, its version and its errors."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import mmap
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from convscope.errors import CudnnError, CudnnMissingError, InputError, NotSupportedError

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
FLOAT32, FLOAT64 = DATA_TYPES["float32"], DATA_TYPES["float64"]
MATH_TYPES = {"tf32": 0, "fp32": 3}  # of float32: CUDNN_DEFAULT_MATH permits TF32, CUDNN_FMA_MATH forbids it
HALF_MATH_TYPE = 1  # CUDNN_TENSOR_OP_MATH: without it 16-bit types are computed by the CUDA cores
HALF_TYPES = ("float16", "bfloat16")
FILTER_FORMATS = {"nchw": 0, "nhwc": 1}  # cudnnTensorFormat_t
CROSS_CORRELATION = 1
ALGORITHM_COUNT = 8
NAMED = "CONVSCOPE_CUDNN"
"""Environment variable with the path of a cuDNN to ask about plans, in place of PyTorch's, which alone is measured."""
_ENGINES, _CUBLASLT = "libcudnn_engines_precompiled.so.9", b"libcublasLt.so."
"""File beside cuDNN's that opens cuBLASLt, and the prefix of the latter's file name."""

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


class AlgorithmPerformance(ctypes.Structure):
    """An entry of the heuristic's ranking (`cudnnConvolutionFwdAlgoPerf_t`)."""

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time_ms", c_float),
        ("memory_bytes", c_size_t),
        ("determinism", c_int),
        ("math_type", c_int),
        ("reserved", c_int * 3),
    )


def _library_path() -> str:
    """Return the path of cuDNN: the one that is named, that in PyTorch's wheels, or a bare name for the loader.

    The loader finds it in conda's environments, and where modules are loaded.
    """
    if named := os.environ.get(NAMED):
        return named
    paths = (folder / "lib" / "libcudnn.so.9" for folder in _wheels("nvidia.cudnn"))
    return str(next((path for path in paths if path.exists()), "libcudnn.so.9"))


def _wheels(package: str) -> list[Path]:
    """Return the folders of a package of NVIDIA's wheels, none where it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def _load_cublaslt(cudnn: Path) -> None:
    """Load the cuBLASLt that a cuDNN needs: a cuDNN that finds none ends the process.

    A cuDNN outside PyTorch's wheels does not find the one in these.

    Raises:
        CudnnMissingError: there is none of that name.
    """
    name = _cublaslt_of(cudnn.parent / _ENGINES)
    if name is None:
        return
    wheels = [*cudnn.absolute().parents[2:3], *_wheels("nvidia")]
    in_wheels = (found for folder in wheels for found in sorted(folder.glob(f"*/lib/{name}")))
    for path in (cudnn.parent / name, *in_wheels, name):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            continue
        return
    raise CudnnMissingError(f"{cudnn} needs {name}, which is not found: install it, or put it on LD_LIBRARY_PATH")


def _cublaslt_of(engines: Path) -> str | None:
    """Return the name by which cuDNN's engines open cuBLASLt, "libcublasLt.so.13"; None where they do not."""
    if not engines.exists():
        return None
    with engines.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(_CUBLASLT)
        return text[start : text.find(b"\0", start)].decode() if start >= 0 else None


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load cuDNN once; CudnnMissingError where this machine has none, or not what a named one needs."""
    if named := os.environ.get(NAMED):
        _load_cublaslt(Path(named))
    try:
        loaded = ctypes.CDLL(_library_path())
    except OSError as error:
        other = f"{NAMED} names it: let it name another, or unset it"
        usual = "install PyTorch's CUDA wheels, or put libcudnn.so.9 on LD_LIBRARY_PATH"
        raise CudnnMissingError(f"cuDNN 9 cannot be loaded ({error}): {other if named else usual}") from None
    for name, argument_types in _SIGNATURES.items():
        getattr(loaded, name).argtypes = argument_types
        getattr(loaded, name).restype = c_int
    loaded.cudnnGetVersion.restype = c_size_t
    loaded.cudnnGetErrorString.argtypes = [c_int]
    loaded.cudnnGetErrorString.restype = c_char_p
    return loaded


def version() -> str:
    """Return the library's version, "9.19.0"."""
    return _version_text(int(library().cudnnGetVersion()))


def check_same_as(pytorchs: int | None) -> None:
    """Compare the library with PyTorch's own cuDNN: two versions have other algorithms, kernels and times.

    Args:
        pytorchs: the number that `torch.backends.cudnn.version()` gives, None where PyTorch has no cuDNN.

    Raises:
        InputError: the two differ.
    """
    if pytorchs is not None and pytorchs != int(library().cudnnGetVersion()):
        theirs = _version_text(pytorchs)
        raise InputError(
            f"{_library_path()} is cuDNN {version()}, PyTorch runs {theirs}, and times of two versions do not compare: "
            f"install one of them only (pip install nvidia-cudnn-cu{{12,13}}=={theirs}.*), and look for another on "
            "LD_LIBRARY_PATH"
        )


def _version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check(status: int, call: str) -> None:
    """Raise the error of a status: NotSupportedError if the library refuses the request, else CudnnError."""
    if status == 0:
        return
    name = library().cudnnGetErrorString(status).decode()
    error = NotSupportedError if name.startswith("CUDNN_STATUS_NOT_SUPPORTED") else CudnnError
    raise error(f"{call}: {name}")


def call(name: str, *arguments: Any) -> None:
    """Call a C function and raise the error of its status."""
    check(getattr(library(), name)(*arguments), name)
