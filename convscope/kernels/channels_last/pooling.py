"""Maxima of windows in images that lie with the channels last (NHWC).

    y[n, i, j, c] = max over the taps (r, s) of x[n, row(i, r), col(j, s), c]
    row(i, r) = i · stride + r · dilation - padding, and so col

What lies outside the image is no part of the maximum; what is not a number makes the maximum one, as in PyTorch.

Cost of N × C × H × W with b bytes an element: b N C (H W + P Q) bytes at least. Windows overlap, and the caches are to
serve what is read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last import windows
from convscope.kernels.channels_last.windows import NUMBERS, Window, block, values_at
from convscope.kernels.following import follow

TAPS_MOST = 25  # each is unrolled
_CHANNELS, _TILE = 64, (4, 4)  # of a program


@triton.jit(do_not_specialize=NUMBERS)
def max_pool2d_last(
    x, y, channels, in_h, in_w, out_h, out_w, stride_h, pad_h, pad_w, dil_h,
    STRIDE_W: tl.constexpr, DIL_W: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, WHOLE: tl.constexpr,
    LONG: tl.constexpr, EARLY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels (`windows.block`)."""
    image, i, j, p, c, wanted = block(channels, out_h, out_w, WHOLE, LONG, ROWS, COLS, BLOCK_C)
    row, col = i * stride_h - pad_h, j * STRIDE_W - pad_w
    follow(EARLY)
    best = tl.full((ROWS * COLS, BLOCK_C), float("-inf"), x.dtype.element_ty)
    for r in tl.static_range(KERNEL_H):
        for s in tl.static_range(KERNEL_W):
            values = values_at(
                x, image, row + r * dil_h, col + s * DIL_W, c, in_h, in_w, channels, wanted, float("-inf")
            )
            best = tl.maximum(best, values, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + (p * channels)[:, None] + c[None, :], best, mask=wanted)


def takes(x: torch.Tensor, kernel: tuple[int, int]) -> bool:
    """Tell whether `max_pool2d` can do windows of this size in a tensor."""
    return windows.takes(x, kernel, TAPS_MOST)


def max_pool2d(
    x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int], size: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """Return the maxima of windows, N × C × P × Q with the channels last.

    Args:
        x: N × C × H × W, as `takes` wants it.
        kernel, stride, padding, dilation: rows and columns, as PyTorch's `max_pool2d` takes them.
        size: P and Q; of windows that begin outside the image there is none.
    """
    block_c = min(_CHANNELS, triton.next_power_of_2(x.shape[1]))
    return windows.launch(max_pool2d_last, x, (), Window(kernel, stride, padding, dilation), size, block_c, _TILE)
