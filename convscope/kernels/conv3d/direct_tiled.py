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
from convscope.kernels.conv3d import layout
from convscope.kernels.conv3d.layout import Blocks3d, bits_inside, corner, place_of

NAME = "direct tiled"


@triton.jit(do_not_specialize=[*layout.PLANAR_SIZES, "w_rows", "w_pitch"])
def direct_tiled(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters; program ids are (block, group)."""
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    group = tl.program_id(1)
    p = tl.program_id(0) // k_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    k = tl.program_id(0) % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    c = tl.arange(0, BLOCK_C)
    wanted = p // VECTOR < pixels // VECTOR
    p = p % pixels
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    image, at = p // out_plane, p % out_plane
    if LONG:
        image = image.to(tl.int64)
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
            tile = tl.load(filters + (tap * padded + start) * w_pitch)
            acc = tl.dot(values, tile, acc, input_precision=PRECISION)
        seen += BLOCK_C * plane
    place = y + place_of((image * groups + group) * kernels * out_plane, at, k, out_plane, VECTOR)
    tl.store(place, acc, mask=wanted[:, None] & (k < kernels)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("merged", 64, 64, 16, 4, 3)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as [group, taps · channels, filters]."""
    return layout.pack_planar(weight, shape, by_tap=True, steps_of=blocks.depth)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    y = layout.empty_output(x, shape)
    pixels = y.shape[0] * y[0, 0].numel()
    grid = triton.cdiv(pixels, blocks.pixels) * triton.cdiv(shape.weight[0] // shape.groups, blocks.filters)
    direct_tiled[grid, shape.groups](
        x, packed, y, *layout.planar_sizes(shape), pixels, packed.shape[1], packed.shape[2],
        BLOCK_P=blocks.pixels, BLOCK_K=blocks.filters, BLOCK_C=blocks.depth, PRECISION=layout.precision(shape),
        VECTOR=layout.vector(y.shape[2:]), LONG=layout.is_long(x, y), num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return y
