"""7 of 9. Implicit GEMM with software-pipelined buffers: the loads of the next steps run while this one multiplies.

As the sixth, with `stages` buffers in shared memory: asynchronous copies fill the ones ahead. The compiler pipelines
the innermost loop, so taps and channels are one loop here, and it must be cheap to know where step + 3 reads from:
the walk through (tap, channel) is a carry, not a division, and whether a tap sees zeros is a bit worked out before.

    for each step (tap, block of channels):
        fetch X and W of step + stages - 1
        acc += X · Wᵀ of step, which have arrived

A program may be given a share of the steps only; the eighth file uses that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.gemm_tiled import pack as pack
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import are_filters, bits_inside, block_of, corner, next_step, place_in
from convscope.kernels.following import follow

NAME = "gemm pipelined"


@triton.jit(do_not_specialize=launches.CHANNELS_LAST_SIZES)
def gemm_pipelined(
    x, w, y, groups, kernels, channels, size_d, size_h, size_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, pixels, w_rows, w_pitch,
    pitch_n, pitch_d, pitch_h, pitch_w, window, share,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
    LANES: tl.constexpr, VECTOR: tl.constexpr, LAST: tl.constexpr, LONG: tl.constexpr, FOLDED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters over `share` steps of the sum; program ids are (block, group, split)."""
    group, split = tl.program_id(1), tl.program_id(2)
    c = tl.arange(0, BLOCK_C)
    out_plane = out_d * out_h * out_w
    PIXELS: tl.constexpr = 1 if LAST else VECTOR
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, PIXELS, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    depths, rows = bits_inside(depth, kernel_d, dil_d, size_d), bits_inside(row, kernel_h, dil_h, size_h)
    columns = bits_inside(column, kernel_w, dil_w, size_w)
    seen = (image * pitch_n + depth * pitch_d + row * pitch_h + column * pitch_w) * LANES
    seen = x + tl.multiple_of(group * channels, LANES) + seen[:, None] + c[None, :]
    blocks = channels // BLOCK_C
    first = split * share
    last = min(first + share, kernel_d * kernel_h * kernel_w * blocks)
    filters = w + (group * w_rows + k).to(tl.int64)[:, None] * (w_pitch * BLOCK_C) + (first * BLOCK_C + c)[None, :]
    tap, start = first // blocks, first % blocks
    r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    follow(EARLY)
    for _ in range(first, last):
        there = ((depths >> r) & (rows >> s) & (columns >> t) & 1) != 0
        shift = (r * dil_d * pitch_d + s * dil_h * pitch_h + t * dil_w * pitch_w) * LANES + start * BLOCK_C
        mask = there[:, None]
        if FOLDED:
            mask = mask & (start * (BLOCK_C // LANES) + c // LANES < window)[None, :]
        values = tl.load(seen + shift, mask=mask, other=0.0)
        acc = tl.dot(values, tl.trans(tl.load(filters)), acc, input_precision=PRECISION)
        filters += BLOCK_C
        r, s, t, start = next_step(r, s, t, start, 1, blocks, kernel_h, kernel_w)
    y += tl.multiple_of(split.to(tl.int64) * pixels * kernels * groups, VECTOR)
    place = y + place_in(image, group, groups, at, k, kernels, out_plane, VECTOR, LAST)
    tl.store(place, acc, mask=wanted[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("pipelined", 128, 64, layout.depth_of(shape), 4, 4)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream; adds up the splits where there are some."""
    share = triton.cdiv(packed.shape[2] // blocks.depth, blocks.splits)
    return launches.of_channels_last(gemm_pipelined, x, packed, shape, blocks, share)
