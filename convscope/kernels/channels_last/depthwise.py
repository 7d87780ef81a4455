"""Depthwise convolution with bias and activation in one kernel, images with the channels last (NHWC).

    y[n, i, j, c] = f(bias[c] + sum over the taps (r, s) of w[r, s, c] · x[n, row(i, r), col(j, s), c])
    row(i, r) = i · stride + r · dilation - padding, and so col

Each channel has one filter, so there is no product of matrices in it: the bound is the memory. A program sums in
float32 and stores once, activation included.

Cost of N × C × H × W with b bytes an element: b N C (H W + P Q) bytes at least, and 2 N C P Q R S operations. Windows
overlap; the caches serve what is read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last import windows
from convscope.kernels.channels_last.activations import activated
from convscope.kernels.channels_last.following import follow
from convscope.kernels.channels_last.windows import NUMBERS, Window, block, values_at

TAPS_MOST = 49  # those of a row are unrolled
_CHANNELS, _TILE = (64, 32, 16), (8, 8)  # of a program


@triton.jit(do_not_specialize=NUMBERS)
def depthwise2d_last(
    x, taps, bias, y, channels, in_h, in_w, out_h, out_w, stride_h, stride_w, pad_h, pad_w, dil_h, dil_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, KIND: tl.constexpr, WHOLE: tl.constexpr, LONG: tl.constexpr,
    EARLY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels (`windows.block`)."""
    image, i, j, p, c, wanted = block(channels, out_h, out_w, WHOLE, LONG, ROWS, COLS, BLOCK_C)
    row, col = i * stride_h - pad_h, j * stride_w - pad_w
    known = c < channels
    follow(EARLY)
    total = tl.zeros((ROWS * COLS, BLOCK_C), tl.float32)
    total += tl.load(bias + c, mask=known, other=0.0).to(tl.float32)[None, :]
    for r in range(KERNEL_H):  # a loop: all taps at once would not fit the registers
        for s in tl.static_range(KERNEL_W):
            values = values_at(x, image, row + r * dil_h, col + s * dil_w, c, in_h, in_w, channels, wanted, 0.0)
            tap = tl.load(taps + (r * KERNEL_W + s) * channels + c, mask=known, other=0.0)
            total += values.to(tl.float32) * tap.to(tl.float32)[None, :]
    tl.store(y + (p * channels)[:, None] + c[None, :], activated(total, KIND), mask=wanted)


def takes(x: torch.Tensor, kernel: tuple[int, int]) -> bool:
    """Tell whether `convolve` can do filters of this size over a tensor."""
    return windows.takes(x, kernel, TAPS_MOST)


def convolve(
    x: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], size: tuple[int, int], kind: str = "",
) -> torch.Tensor:  # fmt: skip
    """Return activation(convolution + bias), N × C × P × Q with the channels last.

    Args:
        x: N × C × H × W, as `takes` wants it.
        taps: the filters R S × C.
        kernel, stride, padding, dilation: rows and columns, as PyTorch's `conv2d` takes them.
        size: P and Q.
        kind: an activation of `activations.activated`.
    """
    channels = x.shape[1]
    block_c = min(_CHANNELS, key=lambda least: triton.cdiv(channels, least) * least)  # the least that are masked
    window = Window(kernel, stride, padding, dilation)
    return windows.launch(depthwise2d_last, x, (taps, bias), window, size, block_c, _TILE, KIND=kind)
