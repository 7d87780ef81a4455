"""Block shapes: the division of a convolution into programs, and an estimate of the time of each.

`ranked` orders many block shapes by a crude estimate of their time, so that only the best few have to be timed
(`autotune`). Pure arithmetic: no torch, no triton.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from convscope.cudnn.shape import Convolution, dimensions

LONG_ELEMENTS = 2**31  # from here on, addresses need 64 bits
_LAUNCH_US = 2.5  # one more kernel in a graph, and the ends of its programs
_FMA_PER_US = 512 * 1000  # of one multiprocessor, well fed: 128 lanes, 1.7 GHz, 4 bytes of overhead forgotten
_SPLIT_BYTES_PER_US = 2e6  # partial sums go to the L2 cache and back
_BUSY_WARPS = 8  # that a multiprocessor needs to keep its units busy


@dataclass(frozen=True)
class Blocks2d:
    """A block shape of a 2-D kernel: the variant, the block of one program, and the splits of the reduction.

    `points` are pixels of the output (direct) or tiles of it (Winograd); `splits` programs share the channels of one
    block and their results are added up afterwards. With a `chunk` transforms and products are kernels of their own,
    which do so many tiles after one another (`winograd.nonfused`).
    """

    variant: str
    filters: int
    points: int
    channels: int
    warps: int
    stages: int
    splits: int = 1
    chunk: int = 0

    def __str__(self) -> str:
        block = f"{self.variant} {self.filters}x{self.points}x{self.channels}, {self.warps} warps, {self.stages} stages"
        block += f", {self.splits} splits" if self.splits > 1 else ""
        return block + (f", nonfused by {self.chunk} tiles" if self.chunk else "")


@dataclass(frozen=True)
class Blocks3d:
    """A block shape of a 3-D kernel: the division of a convolution into programs.

    A program computes `pixels` × `filters` outputs, `depth` terms of the sum a step, `stages` steps of loads in flight;
    `splits` programs share the sum of one block. With "boxes" and "slices" the pixels are a `box` of depth × height ×
    width. With a `run` above 1 a pixel is so many outputs of a row, and each of them has filters of its own
    (`conv3d.layout`).
    """

    variant: str
    pixels: int
    filters: int
    depth: int
    warps: int
    stages: int
    splits: int = 1
    box: tuple[int, ...] = (1, 1, 1)
    run: int = 1

    def __str__(self) -> str:
        box = f" {dimensions(self.box)}" if self.box != (1, 1, 1) else ""
        size = f"{self.pixels}x{self.filters}x{self.depth}"
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        run = f", runs of {self.run}" if self.run > 1 else ""
        return f"{self.variant}{box} {size}{run}, {self.warps} warps, {self.stages} stages{splits}"


@dataclass(frozen=True)
class Candidate:
    """A block shape and the numbers that its time depends on: programs before splitting, steps, work of a step.

    `resident` programs fit on a multiprocessor at once; `efficiency` is the share of the FMA units' peak that their
    inner loop reaches, above 1 on the matrix unit.
    """

    blocks: Blocks2d
    programs: int
    steps: int
    fma_per_step: float
    resident: int
    efficiency: float


def is_float32(shape: Convolution) -> bool:
    """Tell whether tensors are of float32; the other types have the matrix unit at all times."""
    return shape.dtype == "float32"


def partial_bytes(shape: Convolution, blocks: Blocks2d) -> int:
    """Return the memory for partial sums, 0 where the reduction is not split."""
    return 0 if blocks.splits == 1 else 4 * blocks.splits * math.prod(shape.output)


def lanes(element_bytes: int, count: int) -> int:
    """Return how many neighbours of `count` in a row always lie together within 16 aligned bytes."""
    return math.gcd(16 // element_bytes, count)


def ranked(candidates: Iterable[Candidate], multiprocessors: int, output_bytes: int, most: int) -> list[Blocks2d]:
    """Return the `most` block shapes with the shortest estimated time, the shortest first."""
    in_order = sorted(candidates, key=lambda candidate: _expected_us(candidate, multiprocessors, output_bytes))
    return [candidate.blocks for candidate in in_order[:most]]


def _expected_us(candidate: Candidate, multiprocessors: int, output_bytes: int) -> float:
    splits = candidate.blocks.splits
    rounds = -(-candidate.programs * splits // multiprocessors)
    warps = min(rounds, candidate.resident) * candidate.blocks.warps
    rate = _FMA_PER_US * candidate.efficiency * min(1.0, warps / _BUSY_WARPS)
    time_us = rounds * -(-candidate.steps // splits) * candidate.fma_per_step / rate
    return time_us if splits == 1 else time_us + _LAUNCH_US + 2 * splits * output_bytes / _SPLIT_BYTES_PER_US


def splits_for(programs: int, steps: int, multiprocessors: int, least_steps: int) -> list[int]:
    """Return the numbers of splits of the reduction worth trying, 1 first: only 1 where the programs fill the card."""
    most = min(steps // least_steps, 4 * multiprocessors // programs)
    return [1, *(count for count in (2, 3, 4, 6, 8, 12, 16, 24, 32) if count <= most)]
