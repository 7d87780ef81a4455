"""1 of 9. Direct 3-D convolution in NCDHW: the definition, a block of outputs in registers.

    y[n, k, d, h, w] = Σ_c Σ_r Σ_s Σ_t  weight[k, c, r, s, t] · x[n, c, d·stride + r·dilation - padding, …]

One program computes BLOCK_K filters × BLOCK_P pixels of one output row, one product of the sum at a time:

    acc[BLOCK_P, BLOCK_K] = 0
    for each channel c, for each tap (r, s, t):
        acc += x[c, the pixels that the tap sees] ⊗ weight[filters, c, r, s, t]

Fused multiply-adds in float32 whatever the type of the tensors: no matrix unit. Rows shorter than BLOCK_P leave lanes
idle, which the next file mends.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches
from convscope.kernels.conv3d.copies import filters
from convscope.kernels.conv3d.layout import Blocks3d

NAME = "direct"


@triton.jit(do_not_specialize=launches.PLANAR_SIZES)
def direct(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, w_rows, w_pitch,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels of a row × BLOCK_K filters; program ids are (row of all planes, block, image · group)."""
    k_blocks = tl.cdiv(kernels, BLOCK_K)
    d, h = tl.program_id(0) // out_h, tl.program_id(0) % out_h
    column = tl.program_id(1) // k_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    k = tl.program_id(1) % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    group = tl.program_id(2) % groups
    row, plane = h * stride_h - pad_h, d * stride_d - pad_d
    x += tl.program_id(2).to(tl.int64) * channels * in_d * in_h * in_w
    filters = w + group * w_rows * w_pitch + k
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for _ in range(channels):
        for r in range(kernel_d):
            for s in range(kernel_h):
                at_d, at_h = plane + r * dil_d, row + s * dil_h
                in_row = (at_d >= 0) & (at_d < in_d) & (at_h >= 0) & (at_h < in_h)
                for t in range(kernel_w):
                    at_w = column * stride_w - pad_w + t * dil_w
                    there = in_row & (at_w >= 0) & (at_w < in_w)
                    seen = tl.load(x + (at_d * in_h + at_h) * in_w + at_w, mask=there, other=0.0)
                    acc += seen.to(tl.float32)[:, None] * tl.load(filters).to(tl.float32)[None, :]
                    filters += w_pitch
        x += in_d * in_h * in_w
    y += (tl.program_id(2).to(tl.int64) * kernels * out_d + d) * out_h * out_w + h * out_w
    place = y + column[:, None] + k[None, :].to(tl.int64) * out_d * out_h * out_w
    tl.store(place, acc, mask=(column < out_w)[:, None] & (k < kernels)[None, :])


def default(shape: Convolution) -> Blocks3d:
    """Return the one block shape of this implementation."""
    return Blocks3d("rows", 64, 32, 1, 4, 1)


def pack(weight: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Lay the filters out as [group, channels · taps, filters]."""
    return filters.pack_ncdhw(weight, shape, by_tap=False, steps_of=blocks.depth, exact=True)


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W with packed filters on the current stream."""
    y = torch.empty(shape.output, dtype=x.dtype, device=x.device)
    images, filters, out_d, out_h, out_w = y.shape
    across = triton.cdiv(out_w, blocks.pixels) * triton.cdiv(filters // shape.groups, blocks.filters)
    direct[out_d * out_h, across, images * shape.groups](
        x, packed, y, *launches.sizes_of(shape), packed.shape[1], packed.shape[2],
        BLOCK_P=blocks.pixels, BLOCK_K=blocks.filters, num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return y
