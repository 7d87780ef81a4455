"""Numbers of 8 bits: an integer between -127 and 127 times a step, the same for a tensor, or for each filter.

A step is the largest magnitude over 127, so that nothing is cut off. Rounding is to the nearest, ties to even. What is
not finite is lost: infinity becomes the largest number, NaN any.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.following import follow

LARGEST = 127
_BLOCK, _WARPS = 4096, 8
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 · 2^23: a float32 number added to it keeps no digits behind the point


def step_for(largest: float) -> float:
    """Return the step of numbers of this largest magnitude; 1 where all are 0."""
    return largest / LARGEST or 1.0


def step_of(x: torch.Tensor) -> float:
    """Return the step of a tensor."""
    return step_for(float(x.abs().max()))


def steps_of(weight: torch.Tensor) -> torch.Tensor:
    """Return the step of each filter (the first dimension), in float32; 1 where all of it is 0."""
    steps = weight.detach().float().flatten(1).abs().amax(1) / LARGEST
    return torch.where(steps == 0, 1.0, steps)


def rounded(x: torch.Tensor, step: float | torch.Tensor) -> torch.Tensor:
    """Return a tensor's numbers over a step, rounded, as int8; those beyond 127 become 127."""
    return (x.float() * (1 / step)).round().clamp(-LARGEST, LARGEST).to(torch.int8)


@triton.jit
def nearest(x, LEAST: tl.constexpr = -127.0):
    """Return float32 numbers, at least LEAST, rounded to the nearest, as int8; those beyond 127 become 127.

    The last digits of a float32 number of the size of the rounder are an integer: nothing is converted.
    """
    if LEAST < 0:
        x = tl.maximum(x, LEAST)
    return (tl.minimum(x, 127.0) + _ROUNDER).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit(do_not_specialize=["elements"])
def eight_bits(x, y, over, elements, EARLY: tl.constexpr, BLOCK: tl.constexpr):
    """Round BLOCK numbers; `over` is 1 over the step."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    follow(EARLY)
    values = tl.load(x + at, mask=at < elements, other=0.0).to(tl.float32)
    tl.store(y + at, nearest(values * over), mask=at < elements)


def to_eight_bits(x: torch.Tensor, step: float) -> torch.Tensor:
    """Return `rounded(x, step)` of a tensor on a GPU, by one kernel, in the same memory order."""
    y = torch.empty_like(x, dtype=torch.int8)
    grid = (triton.cdiv(x.numel(), _BLOCK),)
    eight_bits[grid](x, y, 1 / step, x.numel(), BLOCK=_BLOCK, num_warps=_WARPS, **following.options(x))
    return y
