"""Rounding to TF32, the 19 bits of a float32 that the matrix unit reads, in a kernel and on the host.

The matrix unit cuts the other 13 bits off. Cutting makes every product a little too small, which adds up from layer to
layer; rounding errors do not. So both factors are rounded to the nearest such number before: half of the last digit
that stays is added to the bits, and those below it are cleared. A NaN is no number to add to: 0x7fffffff, the NaN that
a GPU computes, would become -0, and one with low bits only an infinity. It stays a NaN, one that cutting leaves one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.following import release, wait

_HALF = tl.constexpr(0x1000)
_KEPT = tl.constexpr(-0x2000)
_BLOCK = 1024  # numbers that a program copies


@triton.jit
def rounded_block(v):
    """Round a block of float32 numbers."""
    nearest = ((v.to(tl.int32, bitcast=True) + _HALF) & _KEPT).to(tl.float32, bitcast=True)
    return tl.where(v == v, nearest, float("nan"))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Round a tensor of float32 numbers."""
    nearest = ((values.view(torch.int32) + _HALF.value) & _KEPT.value).view(torch.float32)
    return torch.where(values.isnan(), torch.nan, nearest)


@triton.jit
def copy_rounded(x, y, elements, EARLY: tl.constexpr, BLOCK: tl.constexpr):
    """Round BLOCK float32 numbers; the program id counts blocks."""
    wait(EARLY)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, rounded_block(tl.load(x + at, mask=at < elements)), mask=at < elements)
    release(EARLY)


def rounded_copy(values: torch.Tensor) -> torch.Tensor:
    """Round a contiguous tensor of float32 numbers by a kernel on the current stream."""
    copy = torch.empty_like(values)
    grid = (triton.cdiv(values.numel(), _BLOCK),)
    copy_rounded[grid](values, copy, values.numel(), BLOCK=_BLOCK, **following.options(values))
    return copy
