"""4 of 9. Direct, with the input channels reordered into tiles: the tile outside, the taps inside.

As the third, the loops exchanged. All taps of a tile of BLOCK_C channels follow one another, so that what neighbouring
taps share of the input, nearly all of it, is still in the L1 cache when the next one asks for it:

    for a tile of channels:
        for each tap (r, s, t):
            acc += x[channels, the pixels that the tap sees] · weight[filters, channels, r, s, t]

With taps outside, as before, a whole pass over the channels lies between two reads of the same numbers, and they come
from the L2 cache each time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.direct_buffered import default as default
from convscope.kernels.conv3d.direct_buffered import pack as pack
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import bits_inside, block_of, corner, place_of
from convscope.kernels.tf32 import rounded_block

NAME = "direct tiled"


@triton.jit(do_not_specialize=launches.PLANAR_SIZES)
def direct_tiled(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters; program ids are (block, group)."""
    group = tl.program_id(1)
    c = tl.arange(0, BLOCK_C)
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, VECTOR, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    depths, rows = bits_inside(depth, kernel_d, dil_d, in_d), bits_inside(row, kernel_h, dil_h, in_h)
    columns = bits_inside(column, kernel_w, dil_w, in_w)
    corners = (image * groups + group) * channels * plane + (depth * in_h + row) * in_w + column
    # Neighbouring threads are to take neighbouring pixels: the compiler goes by where elements are said to adjoin.
    seen = x + tl.max_contiguous(corners[:, None] + c[None, :] * plane, (2, 1))
    filters = w + (group * w_rows + c)[:, None] * w_pitch + k[None, :]
    taps, padded = kernel_d * kernel_h * kernel_w, tl.cdiv(channels, BLOCK_C) * BLOCK_C
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for start in range(0, channels, BLOCK_C):
        in_tile = start + c < channels
        for tap in range(taps):
            r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
            there = ((depths >> r) & (rows >> s) & (columns >> t) & 1) != 0
            shift = (r * dil_d * in_h + s * dil_h) * in_w + t * dil_w
            values = tl.load(seen + shift, mask=there[:, None] & in_tile[None, :], other=0.0)
            if ROUND:
                values = rounded_block(values)
            tile = tl.load(filters + (tap * padded + start) * w_pitch)
            acc = tl.dot(values, tile, acc, input_precision=PRECISION)
        seen += BLOCK_C * plane
    place = y + place_of((image * groups + group) * kernels * out_plane, at, k, out_plane, VECTOR)
    tl.store(place, acc, mask=wanted[:, None] & (k < kernels)[None, :])


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    return launches.of_ncdhw(direct_tiled, x, packed, shape, blocks, BLOCK_C=blocks.depth, **layout.of_products(shape))
