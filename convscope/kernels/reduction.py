"""Adds up the partial results of a split reduction, always in the same order, and the bias where there is one.

    y[i] = bias[filter of i] + part[0, i] + part[1, i] + …

Parts and sums are of float32; y is rounded once, when it is stored in its own type. A program does BLOCK elements. It
moves 4 · splits bytes an element and those of y, mostly to and from the L2 cache, for `splits` additions: what it costs
is its launch and those bytes.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.following import follow

_BLOCK = 512


@triton.jit(do_not_specialize=["plane", "filters", "splits"])
def sum_splits(parts, bias, y, elements, plane, filters, splits, EARLY: tl.constexpr, BLOCK: tl.constexpr):
    """Do BLOCK elements; `plane` is how many elements of one filter follow one another."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wanted = at < elements
    total = tl.zeros((BLOCK,), tl.float32)
    follow(EARLY)
    if bias is not None:
        total += tl.load(bias + at // plane % filters, mask=wanted, other=0.0).to(tl.float32)
    part = parts + at
    for _ in range(splits):
        total += tl.load(part, mask=wanted, other=0.0)
        part += elements
    tl.store(y + at, total, mask=wanted)


def add(parts: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, last: bool = False) -> None:
    """Write the sum of parts (splits × N × K × …) over the splits, plus the bias of each filter, to y.

    Args:
        last: each part, and y, lies in memory with the filters last (NHWC).
    """
    elements, plane = y.numel(), 1 if last else math.prod(y.shape[2:])
    sum_splits[(triton.cdiv(elements, _BLOCK),)](
        parts, bias, y, elements, plane, y.shape[1], parts.shape[0], BLOCK=_BLOCK, **following.options(y)
    )


def total(parts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of float32 parts over their first axis, in a type of its own."""
    y = torch.empty_like(parts[0], dtype=dtype)
    add(parts, None, y)
    return y
