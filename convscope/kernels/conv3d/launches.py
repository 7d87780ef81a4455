"""Launches: what the 3-D kernels take of a shape."""

from __future__ import annotations

from typing import Any

import torch
import triton

from convscope.cudnn.shape import Convolution
from convscope.kernels import following
from convscope.kernels.conv3d import layout
from convscope.kernels.conv3d.copies.inputs import channels_last
from convscope.kernels.conv3d.layout import Blocks3d

# What kernels take of a shape: one binary serves all sizes.
_OPTIONS = layout.by_axis("out", "kernel", "stride", "pad", "dil")
PLANAR_SIZES = ["channels", "kernels", "groups", "pixels", "w_rows", "w_pitch", *layout.by_axis("in"), *_OPTIONS]
CHANNELS_LAST_SIZES = [*PLANAR_SIZES, "window", "share", "pitch_n", *layout.by_axis("size", "pitch")]


def sizes_of(shape: Convolution) -> tuple[int, ...]:
    """Return what the kernels for N × C × D × H × W take: channels and filters of a group, sizes, taps, options."""
    numbers = shape.weight[1], shape.weight[0] // shape.groups, *shape.input[2:], *shape.output[2:]
    return (*numbers, *shape.weight[2:], *shape.stride, *shape.padding, *shape.dilation, shape.groups)


def of_ncdhw(
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


def of_channels_last(
    kernel: Any, x: torch.Tensor, packed: torch.Tensor, shape: Convolution, blocks: Blocks3d, *last: int
) -> torch.Tensor:
    """Convolve N × C × D × H × W by a kernel for channels-last memory; its program ids are (block, group, split).

    It takes the pitches and the window of `Problem` in units of 16 bytes, which all of them are, and after them `last`.
    """
    copied, y, seen = channels_last(x, shape), layout.split_output(x, shape, blocks.splits), layout.problem(shape)
    grid = triton.cdiv(seen.pixels, blocks.pixels) * triton.cdiv(seen.filters, blocks.filters)
    kernel[grid, seen.groups, blocks.splits](
        copied, packed, y, seen.groups, seen.filters, seen.channels, *seen.size, *seen.output, *seen.kernel,
        *seen.stride, *seen.padding, *seen.dilation, seen.pixels, packed.shape[1], packed.shape[2] // blocks.depth,
        *(count // layout.lanes(shape) for count in (*seen.pitch, seen.window)), *last, BLOCK_P=blocks.pixels,
        BLOCK_K=blocks.filters, BLOCK_C=blocks.depth, PRECISION=layout.precision(shape), LANES=layout.lanes(shape),
        VECTOR=layout.vector(shape), LAST=layout.is_last(shape), LONG=layout.is_long(copied, y[0]), FOLDED=seen.folded,
        num_warps=blocks.warps, num_stages=blocks.stages, **following.options(x),
    )  # fmt: skip
    return layout.add_splits(y, shape)
