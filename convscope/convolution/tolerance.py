"""Error allowed for a convolution: tolerances derived from the arithmetic, not from results.

Errors here are ‖output − reference‖ / ‖reference‖ (Euclidean norms) against float64. Rounding errors of a sum of n
terms are taken as independent, so that they grow with √n (Higham, "Accuracy and Stability of Numerical Algorithms",
section 2.8).
"""

from __future__ import annotations

import math as mathematics
from collections.abc import Iterable

from convscope.convolution.layer import Layer

WRONG = "wrong"
"""Status of a result that was computed and is beyond its tolerance."""

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11}
STORAGE_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # added where the result is stored in fewer bits
_STORED = 2  # roundings to a 16-bit type: of the result, and of a partial sum or of the result before its bias
_FIXED, _GROWING = 16, 8  # of the unit roundoff: for transforms and products, and for each √n of a sum
# Error that the transforms of Winograd's algorithm add, in multiples of _FIXED by extent of the kernel. They round each
# factor, and their numbers grow exponentially with the tile: 4×4 for 3×3 kernels, 9×9 for 5×5 ones in cuDNN (Barabasz
# et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4),
# 2020). A 9×9 tile in float32 errs by 200 to 70,000 unit roundoffs, according to the points it interpolates at.
_WINOGRAD_GROWTH = {3: 8.0, 5: 1024.0}


def fp32_tolerance(layer: Layer, algorithm: str) -> float:
    """Return the largest error to be expected of a layer that multiplies and adds in float32.

    PyTorch ("torch") may choose Winograd's algorithm where the stride is 1, and does so on older cards.
    """
    may_transform = algorithm.startswith("winograd") or (algorithm == "torch" and set(layer.stride) == {1})
    growth = _WINOGRAD_GROWTH.get(max(layer.kernel), 1.0) if may_transform else 1.0
    return UNIT_ROUNDOFF["fp32"] * (growth * _FIXED + _GROWING * mathematics.sqrt(layer.terms))


def why_wrong(error: float | None, allowed: float) -> str | None:
    """Return why a result with this relative error is wrong, None where it is within its tolerance or not known."""
    if error is None or error <= allowed:  # not a number is wrong too
        return None
    infinite = "" if mathematics.isfinite(error) else ": numbers of this layer are not finite"
    return f"relative error {error:.2g}, tolerance {allowed:.1g}{infinite}"


def tolerance(layer: Layer, algorithm: str, math: str, dtype: str = "float32") -> float:
    """Return the largest error to be expected of a layer, against float64 of the same input and weights.

    TF32 rounds both factors of each product; how many are summed up does not change the relative error of the result.
    The product of two 16-bit numbers is exact in float32, in which they are added up, in either math mode; what is
    stored is rounded. Winograd's algorithm for 3×3 kernels may round both transformed factors too, which enlarges their
    errors; for larger kernels no digit would be left, so that nothing is allowed for it.

    Args:
        math: "fp32" or "tf32", of float32.
        dtype: the data type of input, weights and output.
    """
    exact = fp32_tolerance(layer, algorithm)
    if dtype in STORAGE_ROUNDOFF:
        rounds = algorithm.startswith("winograd") and max(layer.kernel) == 3
        return exact + (_STORED + (2 * _WINOGRAD_GROWTH[3] if rounds else 0)) * STORAGE_ROUNDOFF[dtype]
    return exact if math == "fp32" else exact + 2 * UNIT_ROUNDOFF["tf32"]


def stored_tolerance(layer: Layer, dtype: str, math: str) -> float:
    """Return the largest error of a layer kept in `dtype` against the same layer in float32, or more bits.

    Fewer bits round both factors of each product and the result; the sums are of float32 all the same.
    """
    if dtype in STORAGE_ROUNDOFF:
        return fp32_tolerance(layer, "") + 3 * STORAGE_ROUNDOFF[dtype]
    return tolerance(layer, "", math)


def whole_model_tolerance(tolerances: Iterable[float]) -> float:
    """Return the largest error to be expected of a model's output: its layers' errors, taken as independent."""
    return mathematics.sqrt(sum(tolerance**2 for tolerance in tolerances))


_TERMS_A_STEP = 8  # that a matrix instruction adds at once, at least
_FFT_GROWTH = 16.0  # of what is fixed: both transforms and their inverse


def elementwise_tolerance(terms: int, arithmetic: str, dtype: str = "float32", transformed: bool = False) -> float:
    """Return the largest elementwise error to be expected of a sum of products, relative to `spread` + |result|.

    `spread` is the root of the sum of the products' squares: what independent errors of the products add up to, and
    what one product left out stands against as 1 / √terms. Everything is eight standard deviations or the worst case:

    - adding in float32: 8 √terms unit roundoffs, and a fixed few;
    - the matrix unit drops digits where it adds, always towards zero: a rounding of 2^-23 for every 8 terms;
    - TF32 as Hopper's matrix unit takes it from memory: both factors cut off after 10 digits, 2^-10 each. That is 2^-10
      of the result on average, and a deviation of 0.4 · 2^-10 a product;
    - a result that is stored in half precision: its rounding.

    Args:
        arithmetic: "fp32", "tf32" or "fp16" (products are exact, sums in float32).
        transformed: computed by Fourier transforms.
    """
    growth = _FFT_GROWTH if transformed else 1.0
    sums = UNIT_ROUNDOFF["fp32"] * (growth * _FIXED + _GROWING * mathematics.sqrt(terms))
    dropped = 0.0 if arithmetic == "fp32" else terms / _TERMS_A_STEP * 2.0**-23
    factors = 4 * 2.0**-10 if arithmetic == "tf32" else 0.0
    return sums + dropped + factors + STORAGE_ROUNDOFF.get(dtype, 0.0)
