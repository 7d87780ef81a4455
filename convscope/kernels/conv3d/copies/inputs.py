"""Input for kernels in channels-last memory, as `layout.problem` has it: where it lies, or a copy."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import descriptors, following
from convscope.kernels.conv3d import layout
from convscope.kernels.conv3d.layout import Problem
from convscope.kernels.following import release, wait
from convscope.kernels.tf32 import rounded_block, rounded_copy

COPY_BLOCK = 2048  # numbers that a program copies
_COPY_SIZES = ["channels", "group_channels", "width", "rows", "left", "planes", "copied", "pixels", "depth", "height"]


@triton.jit(do_not_specialize=[*_COPY_SIZES, *layout.by_axis("skip")])
def copy_channels_last(
    x, y, channels, group_channels, depth, height, width, rows, left, planes, copied, pixels, skip_d, skip_h, skip_w,
    BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr, LANES: tl.constexpr, LAST: tl.constexpr, ROUND: tl.constexpr,
    UNSTRIDED: tl.constexpr, PHASES: tl.constexpr, SAME_CHANNELS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK_S pixels × BLOCK_C channels of one image; program ids are (pixels, channels, image).

    Of an image of `pixels` pixels `depth` × `height` × `width` are copied. The copy has `planes` rows in all planes,
    `rows` pixels in a row, and `copied` channels, in units of LANES. Unless UNSTRIDED, planes, rows and pixels are read
    at a distance of `skip` pixels and written into PHASES. SAME_CHANNELS says that an input in channels last has the
    channels of the copy, none of them padding: then they are read LANES at a time. From other memory neighbouring
    threads are to read neighbouring pixels: the compiler goes by what is said to adjoin.
    """
    copied *= LANES
    at = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(2).to(tl.int64)
    column = at % rows - left
    padded = copied // tl.cdiv(channels, group_channels)
    channel = c // padded * group_channels + c % padded
    inside = at < planes * rows
    there = inside & (column >= 0) & (column < width)
    real = (c % padded < group_channels) & (c < copied)
    if UNSTRIDED:
        pixel = at // rows * width + column
        place = image * planes * rows + at
    else:
        tall = tl.cdiv(height, PHASES[1]) * PHASES[1]
        d, h = at // rows // tall, at // rows % tall
        there = there & (d < depth) & (h < height)
        pixel = d * skip_d + h * skip_h + column * skip_w
        phase = (d % PHASES[0] * PHASES[1] + h % PHASES[1]) * PHASES[2] + at % rows % PHASES[2]
        row = d // PHASES[0] * (tall // PHASES[1]) + h // PHASES[1]
        place = (phase * tl.num_programs(2) + image) * (planes * rows // (PHASES[0] * PHASES[1] * PHASES[2]))
        place += row * (rows // PHASES[2]) + at % rows // PHASES[2]
    source = x + image * pixels * (copied if SAME_CHANNELS else channels)
    wait(EARLY)
    if SAME_CHANNELS:
        source += pixel[:, None].to(tl.int64) * copied + c[None, :]
        values = tl.load(source, mask=there[:, None] & (c // LANES < copied // LANES)[None, :], other=0.0)
    elif LAST:
        source += pixel[:, None].to(tl.int64) * channels + channel[None, :]
        values = tl.load(source, mask=there[:, None] & real[None, :], other=0.0)
    else:
        source += channel[:, None].to(tl.int64) * pixels + pixel[None, :]
        source = tl.max_contiguous(source, (1, 2))
        values = tl.trans(tl.load(source, mask=real[:, None] & there[None, :], other=0.0))
    if ROUND:
        values = rounded_block(values)
    place = y + place[:, None].to(tl.int64) * copied + c[None, :]
    tl.store(place, values, mask=inside[:, None] & (c // LANES < copied // LANES)[None, :])
    release(EARLY)


class Fetched(NamedTuple):
    """An input as the copy engine fetches it: `values` lie as `problem` says, and are yet `to_round` to TF32 or not."""

    values: torch.Tensor
    problem: Problem
    to_round: bool


def is_copied(shape: Convolution, by_engine: bool = False) -> bool:
    """Tell whether an input whose memory is aligned is copied before the current GPU reads it.

    Args:
        by_engine: the copy engine fetches it, not pointers.
    """
    if by_engine:
        return not is_in_place(shape)
    return layout.rounds(shape) or not _is_in_order(shape, in_phases=False)


def is_in_place(shape: Convolution, device: torch.device | None = None) -> bool:
    """Tell whether the copy engine, by default the current GPU's, fetches an input where it lies."""
    return layout.lies_in_phases(shape) and (not layout.rounds(shape) or descriptors.can_round(device))


def _is_in_order(shape: Convolution, in_phases: bool) -> bool:
    """Tell whether the numbers of an input lie as its `problem` has them."""
    seen = layout.problem(shape, in_phases=in_phases)
    as_it_is = (seen.copied, seen.rows, seen.folded) == (shape.input[1], shape.input[-1], False)
    return layout.is_last(shape) and seen.unstrided and as_it_is


def channels_last(x: torch.Tensor, shape: Convolution, run: int = 1, in_phases: bool = False) -> torch.Tensor:
    """Return the input as `problem` has it, flat, rounded where it is to be; a copy, on the current stream.

    What lies so already, and needs no rounding, is returned itself.
    """
    seen = layout.problem(shape, run, in_phases)
    images, channels, _, height, width = x.shape
    if _is_in_order(shape, in_phases):
        lies = _as_it_lies(x)
        return rounded_copy(lies) if layout.rounds(shape) else _aligned(lies)
    copy = torch.empty(seen.elements, dtype=x.dtype, device=x.device)
    rows = seen.rows * seen.phases[2]
    planes = seen.pitch[0] * math.prod(seen.phases) // (seen.copied * rows)
    block_c = min(32, triton.next_power_of_2(seen.copied))
    block_s = min(COPY_BLOCK // block_c, triton.next_power_of_2(planes * rows))
    grid = (triton.cdiv(planes * rows, block_s), triton.cdiv(seen.copied, block_c), images)
    together = math.gcd(seen.copied, layout.lanes(shape))
    by_d, by_h, by_w = seen.sampled
    copy_channels_last[grid](
        x, copy, channels, channels // shape.groups, *layout.each_divided(shape.input[2:], seen.sampled), rows,
        seen.left, planes, seen.copied // together, math.prod(x.shape[2:]), by_d * height * width, by_h * width, by_w,
        BLOCK_S=block_s, BLOCK_C=block_c, LANES=together, LAST=layout.is_last(shape), ROUND=layout.rounds(shape),
        UNSTRIDED=seen.unstrided, PHASES=seen.phases,
        SAME_CHANNELS=layout.is_last(shape) and seen.copied == channels, num_warps=4, **following.options(x),
    )  # fmt: skip
    return copy


def fetched(x: torch.Tensor, shape: Convolution, run: int = 1) -> Fetched:
    """Return the input for the copy engine, in phases: where it lies, or a copy on the current stream."""
    if not is_in_place(shape, x.device):
        return Fetched(channels_last(x, shape, run, in_phases=True), layout.problem(shape, run, in_phases=True), False)
    return Fetched(_aligned(_as_it_lies(x)), layout.problem(shape, run, in_place=True), layout.rounds(shape))


def _as_it_lies(x: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor in channels last in their order in memory."""
    return x.permute(0, 2, 3, 4, 1).view(-1)


def _aligned(values: torch.Tensor) -> torch.Tensor:
    """Return values, or a copy of them, that begin at a multiple of 16 bytes."""
    return values if values.data_ptr() % layout.ALIGNED_BYTES == 0 else values.clone()
