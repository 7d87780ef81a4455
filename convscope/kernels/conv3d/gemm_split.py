"""8 of 9. Implicit GEMM, split-K: several programs share the sum of one block.

A deep layer has few pixels and a long sum: 512 filters over 256 channels at 8³, batch 4, make 128 blocks of
128 × 64 for 132 multiprocessors, and 27 · 256 terms each; at batch 1, 32 blocks. So the steps of a block are split
between programs. Each writes its partial sum, and they are added up afterwards, always in the same order: results are
the same every time.

    part[split] = Σ over the split's steps of X · Wᵀ            the kernel of the seventh file, with a third grid axis
    y = Σ part

The price is (splits + 1) · 4 bytes an output, mostly to and from the L2 cache, and one more launch.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import gemm_pipelined, layout
from convscope.kernels.conv3d.gemm_pipelined import convolve as convolve
from convscope.kernels.conv3d.gemm_tiled import pack as pack
from convscope.kernels.conv3d.layout import Blocks3d

NAME = "gemm split-k"
MULTIPROCESSORS = 132  # where there is no card
_LEAST_STEPS = 8  # of a split, so that its pipeline is filled


def default(shape: Convolution) -> Blocks3d:
    """Return the block shape of the seventh file, split so that the programs fill the card about twice."""
    blocks = gemm_pipelined.default(shape)
    seen = layout.problem(shape)
    programs = triton.cdiv(seen.pixels, blocks.pixels) * triton.cdiv(seen.filters, blocks.filters) * seen.groups
    steps = seen.taps * seen.channels // blocks.depth
    return dataclasses.replace(blocks, splits=max(1, min(steps // _LEAST_STEPS, 2 * multiprocessors() // programs)))


def multiprocessors() -> int:
    """Return the number of multiprocessors of the current card."""
    if not torch.cuda.is_available():
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
