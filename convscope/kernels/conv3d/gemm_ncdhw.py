"""5 of 9. Implicit GEMM in NCDHW: one product of matrices, one of which is never built.

A convolution is the product of a matrix of filters with a matrix that has, for each output pixel, all C · KD · KH · KW
numbers that the pixel depends on. That second matrix would be 27 times the input for 3 × 3 × 3; here only the block
that a step needs exists, gathered from the input where it lies:

    for a block of q = (channel, tap), channels outside:
        X[BLOCK_P, BLOCK_Q] = x[channel of q, the pixel that the tap of q sees from each pixel]
        acc += X · W[BLOCK_Q, BLOCK_K]

Any number of channels fills the blocks, three as well as 64. The price is an address for each element: q is divided by
the number of taps, and each row of the block has a tap of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.copies import filters
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import block_of, corner, place_of
from convscope.kernels.tf32 import rounded_block

NAME = "gemm ncdhw"


@triton.jit(do_not_specialize=launches.PLANAR_SIZES)
def gemm_ncdhw(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_Q: tl.constexpr, PRECISION: tl.constexpr,
    VECTOR: tl.constexpr, LONG: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters; program ids are (block, group)."""
    group = tl.program_id(1)
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, VECTOR, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    seen = x + (image * groups + group) * channels * plane + (depth * in_h + row) * in_w + column
    q = tl.arange(0, BLOCK_Q)
    filters = w + (group * w_rows + q)[:, None] * w_pitch + k[None, :]
    taps = kernel_d * kernel_h * kernel_w
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for start in range(0, channels * taps, BLOCK_Q):
        channel, tap = (start + q) // taps, (start + q) % taps
        r, s = tap // (kernel_h * kernel_w) * dil_d, tap // kernel_w % kernel_h * dil_h
        t = tap % kernel_w * dil_w
        at_d, at_h, at_w = depth[:, None] + r[None, :], row[:, None] + s[None, :], column[:, None] + t[None, :]
        there = (at_d >= 0) & (at_d < in_d) & (at_h >= 0) & (at_h < in_h) & (at_w >= 0) & (at_w < in_w)
        shift = channel * plane + (r * in_h + s) * in_w + t
        mask = there & (start + q < channels * taps)[None, :]
        values = tl.load(tl.max_contiguous(seen[:, None] + shift[None, :], (2, 1)), mask=mask, other=0.0)
        if ROUND:
            values = rounded_block(values)
        acc = tl.dot(values, tl.load(filters), acc, input_precision=PRECISION)
        filters += BLOCK_Q * w_pitch
    place = y + place_of((image * groups + group) * kernels * out_plane, at, k, out_plane, VECTOR)
    tl.store(place, acc, mask=wanted[:, None] & (k < kernels)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("gathered", 64, 64, 16, 4, 3)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as [group, channels · taps, filters]."""
    return filters.pack_ncdhw(weight, shape, by_tap=False, steps_of=blocks.depth)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    return launches.of_ncdhw(gemm_ncdhw, x, packed, shape, blocks, BLOCK_Q=blocks.depth, **layout.of_products(shape))
