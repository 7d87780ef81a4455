"""Bias and activation behind a convolution in one kernel, in place, channels last: y[i] = f(y[i] + bias[filter of i]).

PyTorch adds the bias of a convolution, and computes its activation, by a kernel each: both read and write the whole
output. Sums are of float32, rounded once when they are stored. A program does BLOCK elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last import following
from convscope.kernels.channels_last.following import follow

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_BLOCK = 1024
_SHORT = 2**31 - _BLOCK


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Return an activation of float32 numbers by its name in PyTorch; "" is none."""
    if KIND == "relu":
        x = tl.where(x < 0, 0.0, x)  # a maximum would make 0 of what is not a number
    if KIND == "relu6":
        x = tl.where(x < 0, 0.0, tl.where(x > 6, 6.0, x))
    if KIND == "hardsigmoid":
        x = tl.where(x < -3, 0.0, tl.where(x > 3, 1.0, x / 6 + 0.5))
    if KIND == "hardswish":
        x = tl.where(x < -3, 0.0, tl.where(x > 3, x, x * (x + 3) / 6))
    if KIND == "sigmoid":
        x = 1 / (1 + tl.exp(-x))
    if KIND == "silu":
        x = x / (1 + tl.exp(-x))
    if KIND == "gelu":
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return x


@triton.jit
def finish(
    y, bias, elements, filters, KIND: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr
):
    """Do BLOCK elements."""
    first = tl.program_id(0)
    if LONG:
        first = first.to(tl.int64)
    at = first * BLOCK + tl.arange(0, BLOCK)
    wanted = at < elements
    follow(EARLY)
    total = tl.load(y + at, mask=wanted, other=0.0).to(tl.float32)
    total += tl.load(bias + at % filters, mask=wanted, other=0.0).to(tl.float32)
    tl.store(y + at, activated(total, KIND), mask=wanted)


def takes(y: torch.Tensor) -> bool:
    """Tell whether `do` can do a tensor."""
    is_last = y.dim() == 4 and y.is_contiguous(memory_format=torch.channels_last)
    return is_last and y.dtype in DTYPES and y.numel() > 0


def do(y: torch.Tensor, bias: torch.Tensor, kind: str) -> torch.Tensor:
    """Add the bias and compute the activation in place; return y (N × K × P × Q), as `takes` wants it."""
    finish[(triton.cdiv(y.numel(), _BLOCK),)](
        y, bias, y.numel(), y.shape[1], KIND=kind, LONG=y.numel() > _SHORT, BLOCK=_BLOCK, **following.options(y)
    )
    return y
