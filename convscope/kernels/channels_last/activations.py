"""Bias, addition, activation and factors of channels behind a convolution, in one kernel, channels last.

    y[i] = f(y[i] + bias[filter of i] + added[i])        in place
    y[n, i] = x[n, i] · factors[n, channel of i]

PyTorch adds the bias of a convolution, and computes its activation, by a kernel each: both read and write the whole
output. Sums are of float32, rounded once when they are stored. A program does pixels × channels, so that no element has
to find its channel by a division.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.following import follow

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ELEMENTS, _WARPS = 2048, 4  # of a program
_CHANNELS = {64: 1.0, 32: 1.15, 16: 1.6}  # of a program, and about how much longer each then takes
_SHORT = 2**30
_GRID_MOST = 2**16  # in the second direction


@triton.jit
def _gelu(x):
    """Return x · Φ(x), Φ by formula 7.1.26 of Abramowitz and Stegun: its error is at most 7.5e-8.

    Half as many instructions as by `tl.erf`, which takes longer than the memory. Of -∞ it is no number, as PyTorch's.
    """
    size = tl.minimum(tl.abs(x), 64.0)  # Φ(-64) is 0: the product is 0 for ∞ too
    root = tl.rsqrt(1 + size * 0.2316418882)
    t = root * root
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    return 0.5 * (x + tl.abs(x)) - size * (tail * tl.exp2(x * x * -0.7213475204444817))


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
        x = _gelu(x)
    return x


@triton.jit
def _tile(pixels, channels, LONG: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the channels of this program's block of pixels × channels, where its elements lie, and which there are."""
    blocks = tl.cdiv(channels, BLOCK_C)
    c = tl.program_id(0) % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(0) // blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    wanted = (p < pixels)[:, None] & (c < channels)[None, :]
    if LONG:
        p = p.to(tl.int64)
    return c, (p * channels)[:, None] + c[None, :], wanted


@triton.jit(do_not_specialize=["pixels"])
def finish(
    y, bias, added, pixels, channels, ADD: tl.constexpr, KIND: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_C channels."""
    c, at, wanted = _tile(pixels, channels, LONG, BLOCK_P, BLOCK_C)
    follow(EARLY)
    total = tl.load(y + at, mask=wanted, other=0.0).to(tl.float32)
    total += tl.load(bias + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]
    if ADD:
        total += tl.load(added + at, mask=wanted, other=0.0).to(tl.float32)
    tl.store(y + at, activated(total, KIND), mask=wanted)


@triton.jit(do_not_specialize=["pixels"])
def scale(
    x, factors, y, pixels, channels, LONG: tl.constexpr, EARLY: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_C channels of an image; program ids are (block, image)."""
    c, at, wanted = _tile(pixels, channels, LONG, BLOCK_P, BLOCK_C)
    image = tl.program_id(1)
    if LONG:
        image = image.to(tl.int64)
    at += image * pixels * channels
    follow(EARLY)
    factor = tl.load(factors + image * channels + c, mask=c < channels, other=0.0).to(tl.float32)[None, :]
    tl.store(y + at, tl.load(x + at, mask=wanted, other=0.0).to(tl.float32) * factor, mask=wanted)


def block_of_channels(channels: int) -> int:
    """Return the channels of a program: many, of which few are masked."""
    return min(_CHANNELS, key=lambda each: _CHANNELS[each] * each * triton.cdiv(channels, each))


def takes(y: torch.Tensor, added: torch.Tensor | None = None) -> bool:
    """Tell whether `do` can do a tensor, and an addition to it."""
    is_last = y.dim() == 4 and y.is_contiguous(memory_format=torch.channels_last)
    fits = is_last and y.dtype in DTYPES and y.numel() > 0
    return fits and (added is None or is_like(added, y))


def is_like(added: Any, y: torch.Tensor) -> bool:
    """Tell whether something is a tensor of the size, type and layout of a channels-last one, on the same device."""
    same = isinstance(added, torch.Tensor) and added.shape == y.shape and added.dtype == y.dtype
    return same and added.device == y.device and added.is_contiguous(memory_format=torch.channels_last)


def do(y: torch.Tensor, bias: torch.Tensor, kind: str, added: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias, and what else is to be added, and compute the activation in place; return y.

    Args:
        y: N × K × P × Q, as `takes` wants it.
        added: of the same size, type and layout.
    """
    pixels, channels = y.numel() // y.shape[1], y.shape[1]
    finish[_blocks(y, pixels),](y, bias, added, pixels, channels, ADD=added is not None, KIND=kind, **_options(y))
    return y


def takes_factors(x: torch.Tensor, factors: torch.Tensor) -> bool:
    """Tell whether `scaled` can do a tensor and its factors."""
    fits = (
        takes(x) and factors.dtype == x.dtype and factors.shape == (*x.shape[:2], 1, 1) and x.device == factors.device
    )
    return fits and len(x) < _GRID_MOST


def scaled(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return x (N × C × H × W) times factors of images and channels (N × C × 1 × 1), as `takes_factors` wants them."""
    y, pixels = torch.empty_like(x), x.shape[2] * x.shape[3]
    scale[_blocks(x, pixels), len(x)](x, factors, y, pixels, x.shape[1], **_options(x))
    return y


def _blocks(x: torch.Tensor, pixels: int) -> int:
    block_c = block_of_channels(x.shape[1])
    blocks: int = triton.cdiv(pixels, _ELEMENTS // block_c) * triton.cdiv(x.shape[1], block_c)
    return blocks


def _options(x: torch.Tensor) -> dict[str, Any]:
    block_c = block_of_channels(x.shape[1])
    blocks = {"BLOCK_P": _ELEMENTS // block_c, "BLOCK_C": block_c, "num_warps": _WARPS}
    return {"LONG": x.numel() > _SHORT, **blocks, **following.options(x)}
