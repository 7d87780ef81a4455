"""Families of GPU kernels, told from a kernel's name, and those that an algorithm may have.

The names are those that CUPTI records of cuDNN 8 and 9, cuBLAS, CUTLASS and PyTorch; each pattern has a recorded name
in `tests/verification/test_kernel_families.py`. Pure text: a table of results can be judged on a machine without a GPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from convscope.timing.shares import short_name as short_name

IMPLICIT = "implicit GEMM"
PRECOMPUTED = "precomputed implicit GEMM"
DIRECT = "direct"
IM2COL = "im2col + GEMM"
FFT = "FFT"
WINOGRAD = "Winograd"
PRODUCT = "matrix product"
LAYOUT = "layout change"
OTHER = "other"

# The first pattern that is found in a name decides. cuDNN keeps implicit_convolve_* for kernels that compute their
# indices as they go; its XMMA and CUTLASS "fprop" kernels are the ones with indices or descriptors computed before.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (LAYOUT, r"nchwToNhwc|nhwcToNchw|[Ff]oldedN[hc]|AddPadding|transpose_readWrite|tensorTransform|convertTensor"),
    (WINOGRAD, r"winograd"),
    (FFT, r"fft|flip_filter|cgemm|cf32cf32|(gemv|gemm|region_transform).*float2"),
    (IM2COL, r"im2col|explicit_convolve"),
    (DIRECT, r"grouped_direct|convolve_common_engine|conv_depthwise|direct_conv|conv2d_c1_k1"),
    (IMPLICIT, r"implicit_convolve"),
    (PRECOMPUTED, r"precomputed_convolve|fprop|implicit_gemm|[hs]\d*cudnn|computeOffsets"),
    (PRODUCT, r"gemm|gemv|splitK|nvjet|dot_kernel|reduce_1Block"),
)
# Shapes of a matrix instruction are written without signs (16×8×16 is 16816): h adds in 16 bits, s in 32. The nvjet
# kernels of cuBLAS are of Hopper and later, and compute on tensor cores alone.
_TENSOR_CORE = re.compile(
    r"tensorop|tensor\d|[hs](884|1684|1688|16816|161616)(?!\d)|tf32|hmma|wmma|gmma|warpgroup|nvjet", re.IGNORECASE
)


@dataclass(frozen=True)
class Allowed:
    """The families that prove an algorithm, one of which a layer must show, and those that may stand beside them."""

    proof: frozenset[str]
    beside: frozenset[str] = frozenset()


_ALLOWED: Mapping[str, Allowed] = {
    "gemm": Allowed(frozenset({IM2COL}), frozenset({PRODUCT})),
    "implicit gemm": Allowed(frozenset({IMPLICIT})),
    "implicit precomp gemm": Allowed(frozenset({PRECOMPUTED, IMPLICIT})),
    "direct": Allowed(frozenset({DIRECT})),
    "fft": Allowed(frozenset({FFT}), frozenset({PRODUCT})),
    "fft tiling": Allowed(frozenset({FFT}), frozenset({PRODUCT})),
    "winograd": Allowed(frozenset({WINOGRAD})),
    "winograd nonfused": Allowed(frozenset({WINOGRAD}), frozenset({PRODUCT})),
}
# The input of a 1×1 convolution with stride 1 is its own im2col matrix: there a bare matrix product is all there is.
_PRODUCT_IS_PROOF = ("gemm", "implicit precomp gemm")


@functools.lru_cache(maxsize=4096)  # tables have the same names many times
def family(kernel: str) -> str:
    """Return the family of a kernel by its name."""
    return next((name for name, pattern in _PATTERNS if re.search(pattern, kernel)), OTHER)


def main_family(kernels: Iterable[str]) -> str:
    """Return the family that names the work of some kernels together: Winograd's are beside matrix products, say."""
    found = {family(kernel) for kernel in kernels}
    return next((name for name, _ in _PATTERNS if name in found and name != LAYOUT), OTHER if found else "")


@functools.lru_cache(maxsize=4096)
def uses_tensor_cores(kernel: str) -> bool:
    """Tell whether a kernel's name says that it computes on tensor cores (float32 data in TF32, or 16-bit data)."""
    return _TENSOR_CORE.search(kernel) is not None


def allowed(algorithm: str, *, pointwise: bool) -> Allowed | None:
    """Return the families of an algorithm, None where its name promises none (guess, torch).

    Args:
        pointwise: the layer is 1×1 with stride 1.
    """
    known = _ALLOWED.get(algorithm)
    if known and pointwise and algorithm in _PRODUCT_IS_PROOF:
        return Allowed(known.proof | {PRODUCT}, known.beside)
    return known


def stranger(algorithm: str, kernels: Iterable[str], *, pointwise: bool) -> str | None:
    """Return the kernel that this algorithm may not have launched for a layer; None where all is as it should be.

    Where no kernel proves the algorithm and none is out of place either, "" is returned: nothing shows what ran.
    """
    known = allowed(algorithm, pointwise=pointwise)
    if known is None:
        return None
    families = {kernel: family(kernel) for kernel in kernels}
    welcome = known.proof | known.beside | {LAYOUT, OTHER}
    odd = sorted(kernel for kernel, of in families.items() if of not in welcome)
    if odd:
        return odd[0]
    return None if known.proof & set(families.values()) else ""


def shown(algorithm: str, kernels: Iterable[str], *, pointwise: bool) -> str:
    """Return the algorithm that kernels show: the one that was asked for unless they prove another.

    cuDNN's call by the name "gemm" launches a direct kernel for some layers; that is "direct".
    """
    names = [*kernels]
    if not names or stranger(algorithm, names, pointwise=pointwise) is None:
        return algorithm
    return next((each for each in _ALLOWED if stranger(each, names, pointwise=pointwise) is None), algorithm)


def working(kernels: Mapping[str, int]) -> Mapping[str, int]:
    """Return the kernels that do the convolution itself: two algorithms with the same ones are the same work."""
    return {kernel: count for kernel, count in kernels.items() if family(kernel) not in (LAYOUT, OTHER)}


def of_library(kernels: Mapping[str, int]) -> Mapping[str, int]:
    """Return the kernels without those that PyTorch adds to a call of cuDNN (a bias, a copy); they convolve nothing."""
    working_ones = working(kernels)
    return {name: count for name, count in kernels.items() if name in working_ones or "at::native::" not in name}
