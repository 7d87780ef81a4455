"""End of a classifier with few images: mean of each channel's pixels, and a fully connected layer, a kernel each.

    mean[n, c] = sum over the pixels of x[n, i, j, c] / pixels
    y[n, k] = bias[k] + sum over c of w[k, c] · x[n, c]

With one image both are bound by the launch and by how fast the card's multiprocessors can read weights together: the
libraries' kernels are made for more. Sums are of float32, rounded once when they are stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last import following
from convscope.kernels.channels_last.activations import DTYPES
from convscope.kernels.channels_last.following import follow

ROWS_MOST = 4  # of a fully connected layer: each reads the weights anew
IMAGES_MOST = 16  # of a mean
_PIXELS, _CHANNELS = 64, 32
_OUTPUTS, _DEPTH = 4, 1024
_WARPS = 4
_LONG = 2**31


@triton.jit(do_not_specialize=["pixels"])
def mean_last(x, y, pixels, channels, EARLY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Do BLOCK_C channels of one image; program ids are (channels, image)."""
    c, image = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C), tl.program_id(1)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    follow(EARLY)
    for first in range(0, pixels, BLOCK_P):
        p = first + tl.arange(0, BLOCK_P)
        wanted = (p < pixels)[:, None] & (c < channels)[None, :]
        place = (image * pixels + p)[:, None] * channels + c[None, :]
        total += tl.load(x + place, mask=wanted, other=0.0).to(tl.float32)
    tl.store(y + image * channels + c, tl.sum(total, 0) / pixels, mask=c < channels)


@triton.jit(do_not_specialize=["outputs"])
def linear_rows(x, w, bias, y, outputs, depth, EARLY: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr):
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
    tl.store(y + row * outputs + k, found, mask=k < outputs)


def takes_images(x: torch.Tensor) -> bool:
    """Tell whether `mean` is for a tensor."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and x.dtype in DTYPES and 0 < len(x) <= IMAGES_MOST and 0 < x.numel() < _LONG


def mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of the pixels, N × C × 1 × 1, of a tensor that `takes_images` wants."""
    images, channels, *size = x.shape
    y = x.new_empty(images, channels)
    mean_last[triton.cdiv(channels, _CHANNELS), images](
        x, y, size[0] * size[1], channels, BLOCK_P=_PIXELS, BLOCK_C=_CHANNELS, num_warps=_WARPS, **following.options(x)
    )
    return y[:, :, None, None]


def takes_rows(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Tell whether `linear` is for these rows and weights (outputs × depth)."""
    fits = x.dim() == 2 and 0 < len(x) <= ROWS_MOST and x.is_contiguous() and weight.is_contiguous()
    return fits and x.dtype == weight.dtype and x.dtype in DTYPES and 0 < weight.numel() < _LONG


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return x · weightᵀ + bias, rows × outputs, of tensors that `takes_rows` wants."""
    outputs, depth = weight.shape
    y = x.new_empty(len(x), outputs)
    linear_rows[triton.cdiv(outputs, _OUTPUTS), len(x)](
        x, weight, bias, y, outputs, depth, BLOCK_K=_OUTPUTS, BLOCK_C=_DEPTH, num_warps=_WARPS, **following.options(x)
    )
    return y
