"""3 of 9. Direct, merged, with blocks of input and filters buffered in shared memory.

The two before read one number an output for each product. Here BLOCK_C channels are read a step, so that a step is a
product of two blocks in shared memory, and the next blocks are on their way while this one is computed:

    for each tap (r, s, t):
        for a block of channels:
            X[BLOCK_P, BLOCK_C] = x[channels, the pixels that the tap sees]        3 steps of these in flight
            W[BLOCK_C, BLOCK_K] = weight[filters, channels, r, s, t]
            acc += X · W

`tl.dot` multiplies: FMA, or the matrix unit where TF32 or half precision is permitted. The channel, which is summed
over, is not contiguous in NCDHW, which Hopper's widest matrix instruction asks of TF32: see `gemm_tiled`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.copies import filters
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import bits_inside, block_of, corner, place_of
from convscope.kernels.tf32 import rounded_block

NAME = "direct merged buffered"


@triton.jit(do_not_specialize=launches.PLANAR_SIZES)
def direct_buffered(
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
    taps = kernel_d * kernel_h * kernel_w
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for tap in range(taps):
        r, s, t = tap // (kernel_h * kernel_w), tap // kernel_w % kernel_h, tap % kernel_w
        there = ((depths >> r) & (rows >> s) & (columns >> t) & 1) != 0
        shift = (r * dil_d * in_h + s * dil_h) * in_w + t * dil_w
        for start in range(0, channels, BLOCK_C):
            mask = there[:, None] & (start + c < channels)[None, :]
            values = tl.load(seen + shift + start * plane, mask=mask, other=0.0)
            if ROUND:
                values = rounded_block(values)
            acc = tl.dot(values, tl.load(filters), acc, input_precision=PRECISION)
            filters += BLOCK_C * w_pitch
    place = y + place_of((image * groups + group) * kernels * out_plane, at, k, out_plane, VECTOR)
    tl.store(place, acc, mask=wanted[:, None] & (k < kernels)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("merged", 64, 64, 16, 4, 3)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as [group, taps · channels, filters]."""
    return filters.pack_ncdhw(weight, shape, by_tap=True, steps_of=blocks.depth)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    return launches.of_ncdhw(
        direct_buffered, x, packed, shape, blocks, BLOCK_C=blocks.depth, **layout.of_products(shape)
    )
