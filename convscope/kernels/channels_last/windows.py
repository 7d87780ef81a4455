"""Windows that slide over images with the channels last (NHWC): the parts of a kernel that are the same for each.

    y[n, i, j, c] of the taps (r, s) of x[n, row(i, r), col(j, s), c]
    row(i, r) = i · stride + r · dilation - padding, and so col

A program does BLOCK_P output pixels × BLOCK_C channels, and reads neighbouring channels together. The kernels are in
`depthwise` and `pooling`; `launch` is how both start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last.activations import DTYPES

_ELEMENTS, _WARPS = 1024, 4  # of a program
_SHORT = 2**31 - 1
NUMBERS = ["in_h", "in_w", "out_h", "out_w", "pixels", "stride_h", "stride_w", "pad_h", "pad_w"]
"""Arguments that a kernel is not compiled anew for."""


class Window(NamedTuple):
    """Size, stride, padding and dilation of a window, rows and columns each, as PyTorch takes them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@triton.jit
def block(channels, pixels, WHOLE: tl.constexpr, LONG: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the pixels and channels of this program, and the elements of both that there are (pixels × channels).

    WHOLE: BLOCK_C divides the channels, so that pixels need no mask for them.
    """
    blocks = tl.cdiv(channels, BLOCK_C)
    c = (tl.program_id(0) % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(0) // blocks
    if LONG:
        p = p.to(tl.int64)
    p = p * BLOCK_P + tl.arange(0, BLOCK_P)
    wanted = (p < pixels)[:, None]
    if not WHOLE:
        wanted = wanted & (c < channels)[None, :]
    return p, c, wanted


@triton.jit
def corner(p, out_h, out_w, stride_h, stride_w, pad_h, pad_w):
    """Return the image of each pixel, and the row and column where its window begins."""
    image, at = p // (out_h * out_w), p % (out_h * out_w)
    return image, at // out_w * stride_h - pad_h, at % out_w * stride_w - pad_w


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
    **constants: Any,
) -> torch.Tensor:  # fmt: skip
    """Return the output of a kernel, N × C × P × Q with the channels last.

    Args:
        kernel: takes x, weights, output, channels, the arguments of `NUMBERS` and dilations.
        x: N × C × H × W, as `takes` wants it.
        size: P and Q.
        block_c: channels of a program.
        constants: further constants of the kernel.
    """
    images, channels, in_h, in_w = x.shape
    y = torch.empty(images, channels, *size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    pixels, block_p = images * size[0] * size[1], _ELEMENTS // block_c
    kernel[(triton.cdiv(pixels, block_p) * triton.cdiv(channels, block_c),)](
        x, *weights, y, channels, in_h, in_w, *size, pixels, *window.stride, *window.padding, *window.dilation,
        KERNEL_H=window.kernel[0], KERNEL_W=window.kernel[1], WHOLE=channels % block_c == 0,
        LONG=max(x.numel(), y.numel()) > _SHORT - block_p * channels, BLOCK_P=block_p, BLOCK_C=block_c,
        num_warps=_WARPS, **constants,
    )  # fmt: skip
    return y
