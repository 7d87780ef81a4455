"""Filters of 3-D kernels as `convscope.kernels.conv3d.copies.filters` says that kernels read them, by PyTorch."""

from __future__ import annotations

import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.conv3d import layout


def packed(weight: torch.Tensor, shape: Convolution, run: int = 1) -> torch.Tensor:
    """Return what `filters.pack` returns, put there tap by tap."""
    seen = layout.problem(shape, run)
    grouped = (tf32.rounded(weight) if layout.rounds(shape) else weight).unflatten(0, (seen.groups, -1))
    channels, row_taps = grouped.shape[2], grouped.shape[-1]
    filters = layout.rounded_up(seen.filters, layout.FILTERS_PADDED)
    found = torch.zeros(seen.groups, filters, seen.taps, seen.channels, dtype=weight.dtype)
    for t, taps in enumerate(grouped.flatten(3, 4).unbind(-1)):  # groups, filters, channels, taps of other rows
        for output in range(run):
            rows = found[:, output : seen.filters : run]
            if seen.folded:
                begin = (t + output * shape.stride[2]) * seen.copied
                rows[..., begin : begin + channels] = taps.transpose(2, 3)
            else:
                rows[:, :, t::row_taps, :channels] = taps.transpose(2, 3)
    return found.flatten(2)
