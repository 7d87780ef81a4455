"""Mean of each channel's pixels, and fully connected layers of few rows: a kernel each.

    mean[n, c] = sum over the pixels of x[n, i, j, c] / pixels
    y[n, k] = f(bias[k] + sum over c of w[k, c] · x[n, c])

The end of a classifier, and what weighs the channels in a block of EfficientNet (squeeze and excitation). With one
image both are bound by the launch and by how fast all multiprocessors together can read: the libraries' kernels are
made for more images. Sums are of float32, rounded once when they are stored. The pixels of a mean are shared by several
programs where there are few channels and images (`shares`).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.channels_last.activations import DTYPES, activated
from convscope.kernels.channels_last.shares import Shares, add_up
from convscope.kernels.following import follow

ROWS_MOST = 4  # of a fully connected layer: each reads the weights anew
IMAGES_MOST = 2**16 - 1  # of a mean
_IMAGES_FEW = 16
_PIXELS, _CHANNELS = 64, 32
_OUTPUTS, _DEPTH = 4, 1024
_WARPS = 4
_PROGRAMS = 264  # of a mean, for which pixels are shared: two for each multiprocessor of a large card
_LONG = 2**31


@triton.jit(do_not_specialize=["pixels", "parts"])
def mean_last(
    x, y, stored, arrived, pixels, channels, parts, EARLY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Do BLOCK_C channels of one image, or a part of its pixels; program ids are (channels, image, part)."""
    block, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = block * BLOCK_C + tl.arange(0, BLOCK_C)
    steps = tl.cdiv(pixels, BLOCK_P)
    several = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    follow(EARLY)
    for step in range(part * steps // parts, (part + 1) * steps // parts):
        p = step * BLOCK_P + tl.arange(0, BLOCK_P)
        wanted = (p < pixels)[:, None] & (c < channels)[None, :]
        place = (image * pixels + p)[:, None] * channels + c[None, :]
        several += tl.load(x + place, mask=wanted, other=0.0).to(tl.float32)
    number, element = image * tl.num_programs(0) + block, tl.arange(0, BLOCK_C)
    total, is_last = add_up(tl.sum(several, 0), stored, arrived, number, part, parts, element, BLOCK_C)
    if is_last:
        tl.store(y + image * channels + c, total / pixels, mask=c < channels)


@triton.jit(do_not_specialize=["outputs"])
def linear_rows(
    x, w, bias, y, outputs, depth,
    KIND: tl.constexpr, EARLY: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_K outputs of one row of x; program ids are (outputs, row)."""
    k, row = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K), tl.program_id(1)
    total = tl.zeros((BLOCK_K, BLOCK_C), tl.float32)
    follow(EARLY)
    for first in range(0, depth, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        values = tl.load(x + row * depth + c, mask=c < depth, other=0.0).to(tl.float32)
        wanted = (k < outputs)[:, None] & (c < depth)[None, :]
        factors = tl.load(w + k[:, None] * depth + c[None, :], mask=wanted, other=0.0).to(tl.float32)
        total += values[None, :] * factors
    found = tl.sum(total, 1) + tl.load(bias + k, mask=k < outputs, other=0.0).to(tl.float32)
    tl.store(y + row * outputs + k, activated(found, KIND), mask=k < outputs)


def takes_images(x: torch.Tensor) -> bool:
    """Tell whether `Mean` is for a tensor: of many images of few pixels PyTorch's kernel is faster."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    is_slower = len(x) > _IMAGES_FEW and math.prod(x.shape[2:]) < 2 * _PIXELS
    return is_last and not is_slower and x.dtype in DTYPES and 0 < len(x) <= IMAGES_MOST and 0 < x.numel() < _LONG


class Mean:
    """Mean of each channel's pixels, at one place of a model, where its runs follow one another."""

    def __init__(self) -> None:
        self._shares = Shares()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the means, N × C × 1 × 1, of a tensor that `takes_images` wants."""
        images, channels, *size = x.shape
        pixels, blocks = math.prod(size), triton.cdiv(channels, _CHANNELS)
        parts = max(1, min(triton.cdiv(_PROGRAMS, images * blocks), pixels // (2 * _PIXELS)))
        y = x.new_empty(images, channels)
        shared = self._shares.memory(images * blocks, parts, _CHANNELS, x.device)
        mean_last[blocks, images, parts](
            x, y, *shared, pixels, channels, parts, BLOCK_P=_PIXELS, BLOCK_C=_CHANNELS,
            num_warps=_WARPS, **following.options(x),
        )  # fmt: skip
        return y[:, :, None, None]


def takes_rows(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether `linear` is for these rows and weights (outputs × depth)."""
    fits = x.dim() == 2 and 0 < len(x) <= ROWS_MOST and x.is_contiguous() and weight.is_contiguous()
    return fits and x.dtype == weight.dtype and x.dtype in DTYPES and 0 < weight.numel() < _LONG


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, kind: str = "") -> torch.Tensor:
    """Return activation(x · weightᵀ + bias), rows × outputs, of tensors that `takes_rows` wants."""
    outputs, depth = weight.shape
    y = x.new_empty(len(x), outputs)
    linear_rows[triton.cdiv(outputs, _OUTPUTS), len(x)](
        x, weight, bias, y, outputs, depth, KIND=kind, BLOCK_K=_OUTPUTS,
        BLOCK_C=min(_DEPTH, triton.next_power_of_2(depth)), num_warps=_WARPS, **following.options(x),
    )  # fmt: skip
    return y
