"""Filters and launches of the kernels that read N × C × D × H × W where it lies."""

from __future__ import annotations

from typing import Any

import torch
import triton

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import layout
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.tf32 import rounded


def sizes_of(shape: Convolution) -> tuple[int, ...]:
    """Return what the kernels for N × C × D × H × W take: channels and filters of a group, sizes, taps, options."""
    numbers = shape.weight[1], shape.weight[0] // shape.groups, *shape.input[2:], *shape.output[2:]
    return (*numbers, *shape.weight[2:], *shape.stride, *shape.padding, *shape.dilation, shape.groups)


def pack(weight: torch.Tensor, shape: Convolution, by_tap: bool, steps_of: int, exact: bool = False) -> torch.Tensor:
    """Lay filters out as [group, rows, filters]: rows are taps · channels (`by_tap`) or channels · taps, padded.

    Args:
        exact: do not round them: they are multiplied in float32.
    """
    grouped = weight.unflatten(0, (shape.groups, -1))  # G, K / G, C / G, KD, KH, KW
    if by_tap:
        grouped = torch.nn.functional.pad(grouped.movedim(2, -1), (0, -weight.shape[1] % steps_of))
    rows = grouped.flatten(2).transpose(1, 2)
    rows = rounded(rows) if layout.rounds(shape) and not exact else rows
    missing = -rows.shape[1] % steps_of, -rows.shape[2] % layout.FILTERS_PADDED
    return torch.nn.functional.pad(rows, (0, missing[1], 0, missing[0])).contiguous()


def launch(
    kernel: Any, x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d, **constants: Any
) -> torch.Tensor:
    """Convolve N × C × D × H × W by a kernel for such memory; its program ids are (block, group)."""
    y = torch.empty(shape.output, dtype=x.dtype, device=x.device)
    pixels = y.shape[0] * y[0, 0].numel()
    grid = triton.cdiv(pixels, blocks.pixels) * triton.cdiv(shape.weight[0] // shape.groups, blocks.filters)
    kernel[grid, shape.groups](
        x, packed, y, *sizes_of(shape), pixels, packed.shape[1], packed.shape[2],
        BLOCK_P=blocks.pixels, BLOCK_K=blocks.filters, VECTOR=layout.vector(shape), LONG=layout.is_long(x, y),
        num_warps=blocks.warps, num_stages=blocks.stages, **constants,
    )  # fmt: skip
    return y
