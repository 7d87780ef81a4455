"""Depthwise convolution with bias and activation in one kernel, images with the channels last (NHWC).

    y[n, i, j, c] = f(bias[c] + sum over the taps (r, s) of w[r, s, c] · x[n, row(i, r), col(j, s), c])
    row(i, r) = i · stride + r · dilation - padding, and so col

Each channel has one filter, so there is no product of matrices in it: the bound is the memory. A program sums in
float32 and stores once, activation included.

A program's pixel is four outputs in a row, which share what they read; where there are many, eight, in two rows.

Cost of N × C × H × W with b bytes an element: b N C (H W + P Q) bytes at least, and 2 N C P Q R S operations. Windows
overlap; the caches serve what is read again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.kernels.channels_last import windows
from convscope.kernels.channels_last.activations import activated, block_of_channels
from convscope.kernels.channels_last.windows import NUMBERS, Window, block, values_at
from convscope.kernels.following import follow

TAPS_MOST = 49  # those of a row are unrolled
_BY_TWO_TILE, _BY_TWO_CHANNELS, _BY_TWO_CHANNELS_A_THREAD = (4, 2), 32, 4  # of a program of pixels that are two rows
_MANY = 32 * 132  # such programs, small ones, on a large card


@triton.jit
def _stored(y, total, start, j, out_w, channels, c, wanted, KIND: tl.constexpr):
    """Store the activations of the outputs in column j."""
    place = start + (j * channels)[:, None] + c[None, :]
    tl.store(y + place, activated(total, KIND), mask=wanted & (j < out_w)[:, None])


@triton.jit(do_not_specialize=NUMBERS)
def depthwise2d_last(
    x, taps, bias, y, channels, in_h, in_w, out_h, out_w, stride_h, pad_h, pad_w, dil_h,
    STRIDE_W: tl.constexpr, DIL_W: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, KIND: tl.constexpr,
    WHOLE: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels (`windows.block`), where a pixel is four in a row."""
    image, i, j, _, c, wanted = block(channels, out_h, tl.cdiv(out_w, 4), WHOLE, LONG, ROWS, COLS, BLOCK_C)
    row, col = i * stride_h - pad_h, j * (4 * STRIDE_W) - pad_w
    known = c < channels
    follow(EARLY)
    first = tl.zeros((ROWS * COLS, BLOCK_C), tl.float32)
    first += tl.load(bias + c, mask=known, other=0.0).to(tl.float32)[None, :]
    second, third, fourth = first, first, first
    for r in range(KERNEL_H):  # a loop: all taps at once would not fit the registers
        h = row + r * dil_h
        for s in tl.static_range(KERNEL_W):
            tap = tl.load(taps + (r * KERNEL_W + s) * channels + c, mask=known, other=0.0).to(tl.float32)[None, :]
            # The compiler loads a column once, though up to four outputs see it.
            first += tap * values_at(x, image, h, col + s * DIL_W, c, in_h, in_w, channels, wanted, 0.0)
            second += tap * values_at(x, image, h, col + (s * DIL_W + STRIDE_W), c, in_h, in_w, channels, wanted, 0.0)
            third += tap * values_at(
                x, image, h, col + (s * DIL_W + 2 * STRIDE_W), c, in_h, in_w, channels, wanted, 0.0
            )
            fourth += tap * values_at(
                x, image, h, col + (s * DIL_W + 3 * STRIDE_W), c, in_h, in_w, channels, wanted, 0.0
            )
    start = ((image * out_h + i) * out_w * channels)[:, None]
    _stored(y, first, start, j * 4, out_w, channels, c, wanted, KIND)
    _stored(y, second, start, j * 4 + 1, out_w, channels, c, wanted, KIND)
    _stored(y, third, start, j * 4 + 2, out_w, channels, c, wanted, KIND)
    _stored(y, fourth, start, j * 4 + 3, out_w, channels, c, wanted, KIND)


@triton.jit
def _seen(x, start, j, c, in_w, channels, there, known, WHOLE: tl.constexpr):
    """Return the elements of a row of x at column j (pixels × channels), 0 outside, in float32."""
    inside = (there & (j >= 0) & (j < in_w))[:, None]
    if not WHOLE:
        inside = inside & known[None, :]
    return tl.load(x + start[:, None] + (j * channels)[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _with_row(
    upper, lower, x, taps, image, h, col, c, in_h, in_w, channels, known, r,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DIL_W: tl.constexpr, KERNEL_W: tl.constexpr, WHOLE: tl.constexpr,
    UPPER: tl.constexpr, LOWER: tl.constexpr,
):  # fmt: skip
    """Add row h of x to two rows of outputs: it is row r of the upper windows, r - STRIDE_H of the lower ones."""
    there = (h >= 0) & (h < in_h)
    start = (image * in_h + h) * in_w * channels
    for s in tl.static_range(KERNEL_W):
        values = ()
        for number in tl.static_range(4):
            column = col + (s * DIL_W + number * STRIDE_W)
            values = values + (_seen(x, start, column, c, in_w, channels, there, known, WHOLE),)
        if UPPER:
            tap = tl.load(taps + (r * KERNEL_W + s) * channels + c, mask=known, other=0.0).to(tl.float32)[None, :]
            upper = _with_products(upper, tap, values)
        if LOWER:
            place = taps + ((r - STRIDE_H) * KERNEL_W + s) * channels + c
            lower = _with_products(lower, tl.load(place, mask=known, other=0.0).to(tl.float32)[None, :], values)
    return upper, lower


@triton.jit
def _with_products(sums, tap, values):
    return (
        sums[0] + tap * values[0], sums[1] + tap * values[1], sums[2] + tap * values[2], sums[3] + tap * values[3]
    )  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def depthwise2d_last_by_two(
    x, taps, bias, y, channels, in_h, in_w, out_h, out_w, stride_h, pad_h, pad_w, dil_h,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DIL_W: tl.constexpr, KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr, KIND: tl.constexpr, WHOLE: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Do one block of pixels × channels, where a pixel is two rows of four; without dilation of rows."""
    image, i, j, _, c, _ = block(channels, tl.cdiv(out_h, 2), tl.cdiv(out_w, 4), WHOLE, LONG, ROWS, COLS, BLOCK_C)
    i, j, known = i * 2, j * 4, c < channels
    row, col = i * STRIDE_H - pad_h, j * STRIDE_W - pad_w
    follow(EARLY)
    first = tl.zeros((ROWS * COLS, BLOCK_C), tl.float32)
    first += tl.load(bias + c, mask=known, other=0.0).to(tl.float32)[None, :]
    upper = (first, first, first, first)
    lower = upper
    for r in tl.static_range(STRIDE_H):
        upper, lower = _with_row(
            upper, lower, x, taps, image, row + r, col, c, in_h, in_w, channels, known, r,
            STRIDE_H, STRIDE_W, DIL_W, KERNEL_W, WHOLE, True, False,
        )  # fmt: skip
    for r in range(STRIDE_H, KERNEL_H):
        upper, lower = _with_row(
            upper, lower, x, taps, image, row + r, col, c, in_h, in_w, channels, known, r,
            STRIDE_H, STRIDE_W, DIL_W, KERNEL_W, WHOLE, True, True,
        )  # fmt: skip
    for r in tl.static_range(KERNEL_H, KERNEL_H + STRIDE_H):
        upper, lower = _with_row(
            upper, lower, x, taps, image, row + r, col, c, in_h, in_w, channels, known, r,
            STRIDE_H, STRIDE_W, DIL_W, KERNEL_W, WHOLE, False, True,
        )  # fmt: skip
    start = ((image * out_h + i) * out_w * channels)[:, None]
    for number in tl.static_range(4):
        wanted = (i < out_h)[:, None] & known[None, :]
        _stored(y, upper[number], start, j + number, out_w, channels, c, wanted, KIND)
        wanted = (i + 1 < out_h)[:, None] & known[None, :]
        _stored(y, lower[number], start + out_w * channels, j + number, out_w, channels, c, wanted, KIND)


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
        taps: the filters R S × C, in float32: each tap is read for four outputs only.
        kernel, stride, padding, dilation: rows and columns, as PyTorch's `conv2d` takes them.
        size: P and Q.
        kind: an activation of `activations.activated`.
    """
    channels, window = x.shape[1], Window(kernel, stride, padding, dilation)
    if dilation[0] == 1 and kernel[0] >= stride[0] and _are_many(x, size):
        return windows.launch(
            depthwise2d_last_by_two, x, (taps, bias), window, size, _BY_TWO_CHANNELS, _BY_TWO_TILE, (2, 4),
            _BY_TWO_CHANNELS_A_THREAD * x.element_size(), STRIDE_H=stride[0], KIND=kind,
        )  # fmt: skip
    block_c, tile = block_of_channels(channels), _tile(kernel, stride, size)
    return windows.launch(depthwise2d_last, x, (taps, bias), window, size, block_c, tile, joined=(1, 4), KIND=kind)


def _are_many(x: torch.Tensor, size: tuple[int, int]) -> bool:
    """Tell whether programs of eight outputs a pixel fill a card several times."""
    rows, cols = _BY_TWO_TILE
    tiles = len(x) * triton.cdiv(size[0], 2 * rows) * triton.cdiv(size[1], 4 * cols)
    programs: int = tiles * triton.cdiv(x.shape[1], _BY_TWO_CHANNELS)
    return programs >= _MANY


def _tile(kernel: tuple[int, int], stride: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows of a program, and the columns by fours: as was the fastest on an H200 (`benchmarks`)."""
    if size[1] <= 8 or kernel[1] >= 7:
        return 8, 2
    return (4, 2) if stride[1] > 1 and kernel[1] <= 3 else (4, 4)
