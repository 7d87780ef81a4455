"""What follows a convolution in one kernel, channels last: bias and activation, and factors of channels.

    y[i] = f(y[i] + bias[filter of i])                   in place
    y[n, i] = x[n, i] · factors[n, channel of i]

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
_GRID_MOST = 2**16  # in the second direction


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
        x = tl.fdiv(1.0, 1 + tl.exp2(x * -1.4426950408889634))
    if KIND == "silu":
        x = tl.fdiv(x, 1 + tl.exp2(x * -1.4426950408889634))
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


@triton.jit
def scale(x, factors, y, elements, channels, LONG: tl.constexpr, EARLY: tl.constexpr, BLOCK: tl.constexpr):
    """Do BLOCK elements of an image; program ids are (elements, image)."""
    image = tl.program_id(1)
    if LONG:
        image = image.to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = at < elements
    follow(EARLY)
    factor = tl.load(factors + image * channels + at % channels, mask=wanted, other=0.0).to(tl.float32)
    values = tl.load(x + image * elements + at, mask=wanted, other=0.0).to(tl.float32)
    tl.store(y + image * elements + at, values * factor, mask=wanted)


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


def takes_factors(x: torch.Tensor, factors: torch.Tensor) -> bool:
    """Tell whether `scaled` can do a tensor and its factors."""
    fits = (
        takes(x) and factors.dtype == x.dtype and factors.shape == (*x.shape[:2], 1, 1) and x.device == factors.device
    )
    return fits and len(x) < _GRID_MOST and x[0].numel() < _SHORT


def scaled(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return x (N × C × H × W) times factors of images and channels (N × C × 1 × 1), as `takes_factors` wants them."""
    y, elements = torch.empty_like(x), x[0].numel()
    scale[triton.cdiv(elements, _BLOCK), len(x)](
        x, factors, y, elements, x.shape[1], LONG=x.numel() > _SHORT, BLOCK=_BLOCK, **following.options(x)
    )
    return y
