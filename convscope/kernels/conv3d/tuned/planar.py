"""Kernel for the FMA units: N × C × D × H × W, pixels and filters contiguous (`gemm`)."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import launches, layout
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.places import are_filters, bits_inside, block_of, corner, next_step, place_in


@triton.jit(do_not_specialize=[name for name in launches.PLANAR_SIZES if name != "w_pitch"] + ["blocks", "share"])
def gemm_planar(
    x, w, y, channels, kernels, in_d, in_h, in_w, out_d, out_h, out_w, kernel_d, kernel_h, kernel_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dil_d, dil_h, dil_w, groups, pixels, w_rows, w_pitch,
    blocks, share, outputs,
    BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BY_ROW: tl.constexpr, VECTOR: tl.constexpr,
    LAST: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Do BLOCK_P pixels × BLOCK_K filters over `share` steps, in float32; program ids are (block, group, split).

    `blocks` are the steps of a tap, BY_ROW of the taps of a row; `outputs` the elements of a split.
    """
    group, split = tl.program_id(1), tl.program_id(2)
    c = tl.arange(0, BLOCK_C)
    out_plane, plane = out_d * out_h * out_w, in_d * in_h * in_w
    k, wanted, image, at = block_of(kernels, pixels, out_plane, BLOCK_P, BLOCK_K, 1 if LAST else VECTOR, LONG)
    depth, row, column = corner(at, out_h, out_w, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w)
    depths, rows = bits_inside(depth, kernel_d, dil_d, in_d), bits_inside(row, kernel_h, dil_h, in_h)
    columns = bits_inside(column, kernel_w, dil_w, in_w)
    corners = (image * groups + group) * channels * plane + (depth * in_h + row) * in_w + column
    first = split * share
    last = min(first + share, w_rows // BLOCK_C)
    filters = w + (group * w_rows + first * BLOCK_C + c)[:, None] * w_pitch + k[None, :]
    width = 1 if BY_ROW else kernel_w
    tap, start = first // blocks, first % blocks * BLOCK_C
    r, s, t = tap // (kernel_h * width), tap // width % kernel_h, tap % width
    acc = tl.zeros((BLOCK_P, BLOCK_K), tl.float32)
    for _ in range(first, last):
        there = (depths >> r) & (rows >> s)
        shift = (r * dil_d * in_h + s * dil_h) * in_w
        if BY_ROW:
            q = start + c
            seen = corners[:, None] + (q % channels * plane + q // channels * dil_w)[None, :]
            bits = there[:, None] & (columns[:, None] >> (q // channels)[None, :])
            mask = ((bits & 1) != 0) & (q < channels * kernel_w)[None, :]
        else:
            shift += t * dil_w + start * plane
            seen = corners[:, None] + (c * plane)[None, :]
            mask = ((there & (columns >> t) & 1) != 0)[:, None]
        # Neighbouring threads are to take neighbouring pixels: the compiler goes by where elements are said to adjoin.
        values = tl.load(x + shift + tl.max_contiguous(seen, (2, 1)), mask=mask, other=0.0)
        acc = tl.dot(values, tl.load(filters), acc, input_precision="ieee")
        filters += BLOCK_C * w_pitch
        r, s, t, start = next_step(r, s, t, start, BLOCK_C, blocks * BLOCK_C, kernel_h, width)
    place = place_in(image, group, groups, at, k, kernels, out_plane, VECTOR, LAST)
    y += tl.multiple_of(split.to(tl.int64) * outputs, VECTOR)
    tl.store(y + place, acc, mask=wanted[:, None] & are_filters(k, kernels, VECTOR, LAST)[None, :])


@triton.jit(do_not_specialize=["pixels"])
def copy_planar(x, y, channels, pixels, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr):
    """Copy BLOCK_S pixels × BLOCK_C channels of one image from channels last; ids are (pixels, channels, image)."""
    at = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64) * channels * pixels
    there = (at < pixels)[:, None] & (c < channels)[None, :]
    values = tl.load(x + image + at[:, None].to(tl.int64) * channels + c[None, :], mask=there)
    tl.store(y + image + c[:, None].to(tl.int64) * pixels + at[None, :], tl.trans(values), mask=tl.trans(there))


def pack(weight: torch.Tensor, shape: Convolution, steps_of: int) -> torch.Tensor:
    """Lay filters out as [group, rows, filters] for `gemm_planar`: rows are taps · channels, padded for each step.

    Where the channels fill no step, the taps of a row and their channels are padded together (`_is_by_row`).
    """
    grouped = weight.unflatten(0, (shape.groups, -1)).movedim(2, -1)  # G, K / G, KD, KH, KW, C / G
    if _is_by_row(shape, steps_of):
        grouped = grouped.flatten(4)
    grouped = torch.nn.functional.pad(grouped, (0, -grouped.shape[-1] % steps_of))
    rows = grouped.flatten(2).transpose(1, 2)
    return torch.nn.functional.pad(rows, (0, -rows.shape[2] % layout.FILTERS_PADDED)).contiguous()


def _is_by_row(shape: Convolution, steps_of: int) -> bool:
    """Tell whether steps of so many terms are filled better by the channels of all taps of a row than of each tap."""
    return shape.weight[1] % steps_of != 0


def _contiguous(x: torch.Tensor, shape: Convolution) -> torch.Tensor:
    """Return the input as N × C × D × H × W, contiguous; a copy, on the current stream, where it lies otherwise."""
    if not layout.is_last(shape):
        return x
    images, channels, *size = x.shape
    copy = torch.empty((images, channels, *size), dtype=x.dtype, device=x.device)
    pixels = math.prod(size)
    block_c = min(32, triton.next_power_of_2(channels))
    block_s = min(inputs.COPY_BLOCK // block_c, triton.next_power_of_2(pixels))
    grid = triton.cdiv(pixels, block_s), triton.cdiv(channels, block_c), images
    copy_planar[grid](x, copy, channels, pixels, BLOCK_S=block_s, BLOCK_C=block_c, num_warps=4)
    return copy


def convolve(x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d) -> torch.Tensor:
    """Convolve N × C × D × H × W on the current stream; filters as `pack` has them."""
    copied, y = _contiguous(x, shape), layout.split_output(x, shape, blocks.splits)
    pixels, filters = shape.output[0] * math.prod(shape.output[2:]), shape.weight[0] // shape.groups
    steps, by_row = packed.shape[1] // blocks.depth, _is_by_row(shape, blocks.depth)
    grid = triton.cdiv(pixels, blocks.pixels) * triton.cdiv(filters, blocks.filters)
    gemm_planar[grid, shape.groups, blocks.splits](
        copied, packed, y, *launches.sizes_of(shape), pixels, packed.shape[1], packed.shape[2],
        steps // math.prod(shape.kernel[: 2 if by_row else 3]), triton.cdiv(steps, blocks.splits), y[0].numel(),
        BLOCK_P=blocks.pixels, BLOCK_K=blocks.filters, BLOCK_C=blocks.depth, BY_ROW=by_row,
        VECTOR=layout.vector(shape), LAST=layout.is_last(shape), LONG=layout.is_long(copied, y[0]),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return layout.add_splits(y, shape)
