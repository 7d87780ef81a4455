"""2 of 9. Direct, with depth, height and width merged into one index of pixels.

As the first, but a program's BLOCK_P pixels are numbered through all rows and planes of all images, so that only the
last block has idle lanes, whatever the shape:

    acc[BLOCK_P, BLOCK_K] = 0
    for each channel c, for each tap (r, s, t):
        acc += x[c, the pixel that the tap sees from each pixel] ⊗ weight[filters, c, r, s, t]

Depth, row and column of a pixel are worked out once, by division; whether a tap falls outside the input is a bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches
from convscope.kernels.conv3d.direct import pack as pack
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import bits_inside, block_of, corner, place_of

NAME = "direct merged"


@triton.jit(do_not_specialize=launches.PLANAR_SIZES)
def direct_merged(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters; program ids are (block, group)."""
    group = tl.program_id(1)
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, VECTOR, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    depths, rows = bits_inside(depth, kernel_d, dil_d, in_d), bits_inside(row, kernel_h, dil_h, in_h)
    columns = bits_inside(column, kernel_w, dil_w, in_w)
    seen = x + (image * groups + group) * channels * plane + (depth * in_h + row) * in_w + column
    filters = w + group * w_rows * w_pitch + k
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for _ in range(channels):
        for r in range(kernel_d):
            for s in range(kernel_h):
                for t in range(kernel_w):
                    there = ((depths >> r) & (rows >> s) & (columns >> t) & 1) != 0
                    tap = (r * dil_d * in_h + s * dil_h) * in_w + t * dil_w
                    values = tl.load(seen + tap, mask=there, other=0.0).to(tl.float32)
                    acc += values[:, None] * tl.load(filters).to(tl.float32)[None, :]
                    filters += w_pitch
        seen += plane
    place = y + place_of((image * groups + group) * kernels * out_plane, at, k, out_plane, VECTOR)
    tl.store(place, acc, mask=wanted[:, None] & (k < kernels)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("merged", 64, 32, 1, 4, 1)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    return launches.of_ncdhw(direct_merged, x, packed, shape, blocks)
