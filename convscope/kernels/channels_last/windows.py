"""Windows that slide over images with the channels last (NHWC): the parts of a kernel that are the same for each.

    y[n, i, j, c] of the taps (r, s) of x[n, row(i, r), col(j, s), c]
    row(i, r) = i · stride + r · dilation - padding, and so col

A program does ROWS × COLS output pixels of an image × BLOCK_C channels, and reads neighbouring channels together.
Windows overlap in both directions, so that of a square of pixels fewer elements are read twice than of a line. The
kernels are in `depthwise` and `pooling`; `launch` is how both start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from convscope.kernels import following
from convscope.kernels.channels_last.activations import DTYPES

_THREAD_BYTES = 16  # that a thread reads together
_SHORT = 2**31 - 1
NUMBERS = ["in_h", "in_w", "out_h", "out_w", "stride_h", "pad_h", "pad_w", "dil_h"]
"""Arguments that a kernel is not compiled anew for."""


class Window(NamedTuple):
    """Size, stride, padding and dilation of a window, rows and columns each, as PyTorch takes them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@triton.jit
def block(
    channels, out_h, out_w, WHOLE: tl.constexpr, LONG: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Return this program's image, the rows, columns and numbers of its pixels, its channels, and which there are.

    The last is pixels × channels. WHOLE: BLOCK_C divides the channels, so that pixels need no mask for them.
    """
    blocks = tl.cdiv(channels, BLOCK_C)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    tile, across = tl.program_id(0) // blocks, tl.cdiv(out_w, COLS)
    tiles = tl.cdiv(out_h, ROWS) * across
    image, tile = tile // tiles, tile % tiles
    pixel = tl.arange(0, ROWS * COLS)
    i, j = tile // across * ROWS + pixel // COLS, tile % across * COLS + pixel % COLS
    wanted = ((i < out_h) & (j < out_w))[:, None]
    if not WHOLE:
        wanted = wanted & (c < channels)[None, :]
    if LONG:
        image = image.to(tl.int64)
    return image, i, j, (image * out_h + i) * out_w + j, c, wanted


@triton.jit
def values_at(x, image, i, j, c, in_h, in_w, channels, wanted, other):
    """Return the elements of x at row i and column j (pixels × channels); `other` outside the image."""
    inside = (i >= 0) & (i < in_h) & (j >= 0) & (j < in_w)
    start = ((image * in_h + i) * in_w + j) * channels
    return tl.load(x + start[:, None] + c[None, :], mask=wanted & inside[:, None], other=other)


def takes(x: torch.Tensor, kernel: tuple[int, int], taps_most: int) -> bool:
    """Tell whether windows of this size can slide over a tensor."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and x.dtype in DTYPES and kernel[0] * kernel[1] <= taps_most and x.numel() > 0


def launch(
    kernel: Any, x: torch.Tensor, weights: Sequence[torch.Tensor], window: Window, size: tuple[int, int], block_c: int,
    tile: tuple[int, int], joined: tuple[int, int] = (1, 1), thread_bytes: int = _THREAD_BYTES, **constants: Any,
) -> torch.Tensor:  # fmt: skip
    """Return the output of a kernel, N × C × P × Q with the channels last.

    Args:
        kernel: takes x, weights, output, channels and the arguments of `NUMBERS`.
        x: N × C × H × W, as `takes` wants it.
        size: P and Q.
        block_c: channels of a program.
        tile: rows and columns of its pixels.
        joined: so many rows and columns of neighbours are one of these pixels.
        thread_bytes: that a thread reads of one of them.
        constants: further constants of the kernel.
    """
    images, channels, in_h, in_w = x.shape
    y = torch.empty(images, channels, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    rows, cols = tile
    tiles = images * math.prod(triton.cdiv(size[axis], tile[axis] * joined[axis]) for axis in (0, 1))
    warps = min(8, max(1, rows * cols * block_c * x.element_size() // (thread_bytes * 32)))
    kernel[(tiles * triton.cdiv(channels, block_c),)](
        x, *weights, y, channels, in_h, in_w, *size, window.stride[0], *window.padding, window.dilation[0],
        STRIDE_W=window.stride[1], DIL_W=window.dilation[1], KERNEL_H=window.kernel[0], KERNEL_W=window.kernel[1],
        WHOLE=channels % block_c == 0, LONG=max(x.numel(), y.numel()) > _SHORT - math.prod((*tile, *joined, channels)),
        ROWS=rows, COLS=cols, BLOCK_C=block_c, num_warps=warps, **following.options(x), **constants,
    )  # fmt: skip
    return y
