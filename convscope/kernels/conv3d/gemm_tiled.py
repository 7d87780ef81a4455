"""6 of 9. Implicit GEMM in channels-last memory, tiled only: load a block, multiply, load the next.

The input is copied to N × D × H × W × C first (`layout`, inside what is timed). A row of a block of X is then
BLOCK_C neighbouring numbers: one wide load in place of BLOCK_C scattered ones, and one address for the row, since a
step stays within one tap:

    for each tap (r, s, t):
        for a block of channels:
            X[BLOCK_P, BLOCK_C] = x[the pixels that the tap sees, channels]
            acc += X · W[filters, tap, channels]ᵀ

Both blocks have the summed index contiguous, which is what Hopper's `wgmma` asks of float32 factors (TF32). Loads are
not overlapped with products here: while one runs, the other waits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.copies import filters
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import are_filters, block_of, corner, place_in
from convscope.kernels.following import follow

NAME = "gemm tiled"


@triton.jit(do_not_specialize=launches.CHANNELS_LAST_SIZES)
def gemm_tiled(
    x, w, y, groups, kernels, channels, size_d, size_h, size_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, pixels, w_rows, w_pitch,
    pitch_n, pitch_d, pitch_h, pitch_w, window,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
    LANES: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr, LONG: tl.constexpr, FOLDED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters; program ids are (block, group). Pitches are in units of LANES elements."""
    group = tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    out_plane = out_d * out_h * out_w
    PIXELS: tl.constexpr = 1 if LAST else VECTOR
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, PIXELS, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    seen = (image * pitch_n + depth * pitch_d + row * pitch_h + column * pitch_w) * LANES
    x += tl.multiple_of(group * channels, LANES)
    filters = w + (group * w_rows + k).to(tl.int64)[:, None] * (w_pitch * BLOCK_C) + c[None, :]
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    follow(EARLY)
    for tap in range(kernel_d * kernel_h * kernel_w):
        r, s = tap // (kernel_h * kernel_w) * dil_d, tap // kernel_w % kernel_h * dil_h
        t = tap % kernel_w * dil_w
        there = (depth + r >= 0) & (depth + r < size_d) & (row + s >= 0) & (row + s < size_h)
        there = there & (column + t >= 0) & (column + t < size_w)
        tap_at = seen + (r * pitch_d + s * pitch_h + t * pitch_w) * LANES
        for start in range(0, channels, BLOCK_C):
            mask = there[:, None]
            if FOLDED:
                mask = mask & (start // LANES + c // LANES < window)[None, :]
            values = tl.load(x + tap_at[:, None] + (start + c)[None, :], mask=mask, other=0.0)
            acc = tl.dot(values, tl.trans(tl.load(filters)), acc, input_precision=PRECISION)
            filters += BLOCK_C
    place = y + place_in(image, group, groups, at, k, kernels, out_plane, VECTOR, LAST)
    tl.store(place, acc, mask=wanted[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    if layout.precision(shape) == "ieee":  # by FMA, which holds both factors in registers
        return Blocks3d("tiled", 64, 64, layout.LEAST_CHANNELS, 4, 1)
    return Blocks3d("tiled", 128, 64, layout.depth_of(shape), 4, 1)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as [group, filters, taps · channels]."""
    return filters.pack(weight, shape)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    return launches.of_channels_last(gemm_tiled, x, packed, shape, blocks)
