"""Filters as kernels read them, rounded to TF32 where they are to be.

For kernels in channels-last memory they are [group, filter, taps · channels]. Where filters cannot be kept they are
packed in each call, so this is one kernel: it reads them in blocks of taps × channels that are turned over on the way.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from convscope.cudnn.shape import Convolution
from convscope.kernels import following
from convscope.kernels.conv3d import layout
from convscope.kernels.following import release, wait
from convscope.kernels.tf32 import rounded, rounded_block

_TAPS, _TERMS = 32, 64  # of a block, at most


@triton.jit(do_not_specialize=["filters", "rows", "group_channels", "taps", "terms", "aside"])
def pack_filters(
    weight, packed, filters, rows, group_channels, taps, terms, stride_k, stride_c, stride_t, aside,
    COPIED: tl.constexpr, ROW_TAPS: tl.constexpr, RUN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    ROUND: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write BLOCK_T taps × BLOCK_C terms of one row of `packed`; program ids are (row, terms, taps).

    Rows are those of all groups, `rows` of each: `filters` · RUN, and padding. A row has `terms` for each of `taps`.
    Terms are channels; in a folded layer (COPIED > 0) they are ROW_TAPS taps of a row with COPIED channels each, which
    begin `aside` taps further for each output of a run.
    """
    row, t = tl.program_id(0), tl.program_id(2) * BLOCK_T + tl.arange(0, BLOCK_T)
    term = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = row % rows // RUN
    if COPIED > 0:
        c, at = term % COPIED, term // COPIED - row % rows % RUN * aside
        there = (c < group_channels) & (at >= 0) & (at < ROW_TAPS)
        place = (c * stride_c + at * stride_t)[None, :] + (t * (ROW_TAPS * stride_t))[:, None]
    else:
        there = term < group_channels
        place = (term * stride_c)[None, :] + (t * stride_t)[:, None]
    source = weight + (row // rows * filters + k).to(tl.int64) * stride_k + place
    wait(EARLY)
    values = tl.load(source, mask=(t < taps)[:, None] & (there & (k < filters))[None, :], other=0.0)
    if ROUND:
        values = rounded_block(values)
    target = packed + row.to(tl.int64) * taps * terms + t[:, None] * terms + term[None, :]
    tl.store(target, values, mask=(t < taps)[:, None] & (term < terms)[None, :])
    release(EARLY)


def pack(weight: torch.Tensor, shape: Convolution, run: int = 1) -> torch.Tensor:
    """Lay filters K × C/G × KD × KH × KW out as [group, filters, taps · channels], filters and channels padded.

    With a run, each filter stands there once for each output of it, one behind another. A copy, on the current stream.
    """
    seen = layout.problem(shape, run)
    channels, *kernel = weight.shape[1:]
    taps = math.prod(kernel)
    stride_k, stride_c, *strides, stride_t = weight.stride()
    if strides != [kernel[1] * kernel[2] * stride_t, kernel[2] * stride_t]:
        # Not of the contiguous tensor: where an extent is 1 its stride may be any number.
        weight, stride_k, stride_c, stride_t = weight.contiguous(), channels * taps, taps, 1
    rows = layout.rounded_up(seen.filters, layout.FILTERS_PADDED)
    packed = torch.empty((seen.groups, rows, seen.taps * seen.channels), dtype=weight.dtype, device=weight.device)
    block_t, block_c = min(_TAPS, triton.next_power_of_2(seen.taps)), min(_TERMS, triton.next_power_of_2(seen.channels))
    grid = seen.groups * rows, triton.cdiv(seen.channels, block_c), triton.cdiv(seen.taps, block_t)
    pack_filters[grid](
        weight, packed, seen.filters // run, rows, channels, seen.taps, seen.channels, stride_k, stride_c, stride_t,
        shape.stride[2], COPIED=seen.copied if seen.folded else 0, ROW_TAPS=kernel[2] if seen.folded else 1, RUN=run,
        BLOCK_T=block_t, BLOCK_C=block_c, ROUND=layout.rounds(shape), num_warps=4, **following.options(weight),
    )  # fmt: skip
    return packed


def pack_ncdhw(
    weight: torch.Tensor, shape: Convolution, by_tap: bool, steps_of: int, exact: bool = False
) -> torch.Tensor:
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
