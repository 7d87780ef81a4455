"""Block shapes of the tuned 3-D kernel (`gemm`), and those worth timing for a shape.

`candidates` ranks all block shapes by a crude estimate of L2 traffic, operations and waves, and keeps a few of each
variant for the card to decide between (`autotune`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from convscope.cudnn.shape import Convolution
from convscope.kernels.blocks import LONG_ELEMENTS
from convscope.kernels.conv3d import gemm_split, layout
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.layout import Blocks3d, Problem, Triple

TRIED = {"boxes": 5, "slices": 4, "pipelined": 3, "planar": 6}  # block shapes that are timed for a shape


class _Template(NamedTuple):
    """Block shapes to consider; `slices` of `pixels` each. At most `resident` fit on a multiprocessor of Hopper.

    `planar` ones are for outputs in N × C × D × H × W alone, those `in_runs` for outputs in runs.
    """

    variant: str
    slices: int
    pixels: int
    filters: int
    halves: int  # of a step of 128 bytes
    warps: int
    stages: int
    resident: int
    planar: bool = False
    in_runs: bool = False


# Chosen by what the assembler does not serialise (tests/kernels/test_hopper.py).
_MATRIX = (
    _Template("boxes", 1, 256, 128, 1, 8, 3, 1),
    _Template("boxes", 1, 256, 128, 1, 8, 4, 1),
    _Template("boxes", 1, 128, 256, 1, 8, 4, 1),
    _Template("boxes", 1, 64, 256, 1, 4, 4, 1),
    _Template("boxes", 1, 128, 128, 1, 8, 4, 1),
    _Template("boxes", 1, 128, 128, 1, 4, 3, 2),
    _Template("boxes", 1, 256, 64, 1, 4, 3, 1),
    _Template("boxes", 1, 128, 64, 1, 4, 4, 2),
    _Template("boxes", 1, 256, 32, 1, 4, 4, 2, planar=True),
    _Template("boxes", 1, 128, 32, 1, 4, 4, 4),
    _Template("slices", 2, 64, 128, 2, 8, 3, 1),
    _Template("slices", 2, 64, 128, 2, 4, 2, 2),
    _Template("slices", 2, 128, 64, 2, 4, 2, 2),
    _Template("slices", 2, 64, 64, 1, 4, 2, 2),
    _Template("slices", 4, 64, 64, 1, 4, 2, 2),
    _Template("slices", 4, 64, 64, 2, 4, 2, 2),
    _Template("slices", 2, 128, 32, 2, 4, 2, 2),
    _Template("slices", 4, 64, 32, 2, 4, 3, 2),
    _Template("slices", 2, 64, 32, 2, 4, 3, 3),
    _Template("slices", 4, 64, 64, 1, 4, 3, 2, in_runs=True),
    _Template("slices", 2, 128, 64, 1, 4, 3, 2, in_runs=True),
    _Template("pipelined", 1, 256, 128, 1, 8, 3, 1),
    _Template("pipelined", 1, 128, 128, 1, 8, 3, 2),
    _Template("pipelined", 1, 256, 64, 1, 8, 3, 1),
    _Template("pipelined", 1, 128, 64, 1, 4, 4, 2),
    _Template("pipelined", 1, 64, 64, 1, 4, 4, 4),
    _Template("pipelined", 1, 256, 32, 1, 8, 4, 2),
    _Template("pipelined", 1, 128, 32, 1, 4, 4, 2),
)
_FMA = (
    _Template("planar", 1, 128, 128, 1, 4, 3, 1),
    _Template("planar", 1, 64, 128, 1, 4, 4, 2),
    _Template("planar", 1, 128, 64, 1, 4, 4, 2),
    _Template("planar", 1, 64, 64, 1, 2, 3, 5),
    _Template("planar", 1, 256, 32, 1, 4, 3, 3),
    _Template("planar", 1, 128, 32, 1, 2, 3, 5),
)
_COPY_MOST = 2  # times the input, of a copy for a stride: whole phases of a small image are mostly padding
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_LEAST_STEPS = 8  # of a split
# Rates of one multiprocessor, roughly an H200's: they only rank, and the card decides.
_CACHE_BYTES_PER_NS, _MATRIX_FLOPS_PER_NS, _FMA_FLOPS_PER_NS = 42.0, 2600.0, 300.0
_MEMORY_BYTES_PER_NS = 4000.0  # of the card
_PROGRAM_NS, _LAUNCH_NS, _SPLIT_BYTES_PER_NS = 1500.0, 2500.0, 2000.0


def candidates(shape: Convolution) -> list[Blocks3d]:
    """Return the block shapes worth timing, the likeliest first."""
    ranked = _ranked(shape)
    best = [[blocks for blocks in ranked if blocks.variant == variant][:most] for variant, most in TRIED.items()]
    return sorted((blocks for some in best for blocks in some), key=ranked.index)


def _ranked(shape: Convolution) -> list[Blocks3d]:
    """Return each block shape once, split as it is likely to be fastest, the likeliest first."""
    best: dict[Blocks3d, Blocks3d] = {}
    for _, blocks in sorted(_estimated(shape), key=lambda pair: pair[0]):
        best.setdefault(dataclasses.replace(blocks, splits=1), blocks)
    return list(best.values())


def samples(shape: Convolution) -> list[Blocks3d]:
    """Return block shapes that a convolution can have, for a test of many shapes.

    The same few small ones for all, and each that tuning considers, with its sum split or not by turns.
    """
    depth = layout.LEAST_CHANNELS
    every = (
        Blocks3d("pipelined", 64, 64, depth, 4, 3),
        Blocks3d("pipelined", 64, 64, depth, 4, 3, splits=2),
        Blocks3d("boxes", 64, 64, depth, 4, 3, splits=2, box=(1, 4, 16)),
        Blocks3d("boxes", 64, 32, depth, 4, 3, box=(2, 4, 8)),
        *(Blocks3d("boxes", 64, 32, depth, 4, 3, box=(2, 4, 8), run=run) for run in layout.runs(shape)[1:]),
        Blocks3d("slices", 128, 32, depth, 4, 3, box=(2, 4, 16)),
        Blocks3d("slices", 128, 64, depth, 4, 3, splits=2, box=(2, 8, 8)),
        Blocks3d("planar", 64, 64, depth, 4, 3),
        Blocks3d("planar", 64, 32, depth, 4, 3, splits=2),
    )
    usable, runs = variants(shape), layout.runs(shape)
    large: list[Blocks3d | None] = []
    for place, each in enumerate(_FMA + _MATRIX):
        possible = [run for run in runs if each in _templates(shape, run)]
        if possible:
            large.append(_blocks(shape, each, 1 + place % 2, possible[place % len(possible)]))
    return [*(blocks for blocks in every if blocks.variant in usable), *(blocks for blocks in large if blocks)]


def _templates(shape: Convolution, run: int) -> list[_Template]:
    """Return the block shapes to consider for the arithmetic and the layout of a convolution, and a run of outputs."""
    usable = variants(shape)
    possible = [each for each in _FMA + _MATRIX if each.variant in usable]
    possible = [each for each in possible if not (each.planar and layout.is_last(shape))]
    return [each for each in possible if (each.variant != "pipelined" if run > 1 else not each.in_runs)]


def _blocks(shape: Convolution, template: _Template, splits: int, run: int = 1) -> Blocks3d | None:
    """Return a block shape for a convolution, None where its output is too small for slices of so many pixels."""
    seen = layout.problem(shape, run)
    if template.variant == "planar":
        return Blocks3d("planar", template.pixels, template.filters, layout.LEAST_CHANNELS, template.warps,
                        template.stages, splits)  # fmt: skip
    plane = best_box((1, *seen.output[1:]), template.pixels)
    if template.variant == "slices" and plane[0] != 1:
        return None
    box = (template.slices, *plane[1:]) if template.variant == "slices" else best_box(seen.output, template.pixels)
    depth = max(layout.LEAST_CHANNELS, layout.depth_of(shape, run) // template.halves)
    return Blocks3d(
        template.variant, template.slices * template.pixels, template.filters, depth, template.warps, template.stages,
        splits, (1, 1, 1) if template.variant == "pipelined" else box, run,
    )  # fmt: skip


def variants(shape: Convolution) -> tuple[str, ...]:
    """Return the variants that can do a shape."""
    if layout.precision(shape) == "ieee":
        return ("planar",)
    seen, whole = layout.problem(shape, in_phases=True), layout.problem(shape)
    if seen.elements > min(_COPY_MOST * whole.elements, seen.images * seen.copied * LONG_ELEMENTS):
        return ("pipelined",)
    neighbours = seen.phases[0] == seen.dilation[0] == 1  # in depth, of the taps
    return ("boxes", "pipelined", *(["slices"] if neighbours and seen.kernel[0] in (2, 3) else []))


def _estimated(shape: Convolution) -> Iterator[tuple[float, Blocks3d]]:
    """Yield each block shape with a crude estimate of its time in ns."""
    for run in layout.runs(shape):
        seen = layout.problem(shape, run)
        for template in _templates(shape, run):
            if _suits(template.filters, seen.filters):
                yield from _split(shape, seen, template, run)


def _split(shape: Convolution, seen: Problem, template: _Template, run: int) -> Iterator[tuple[float, Blocks3d]]:
    """Yield a block shape, its sum split in as many parts as may be worth it, with estimates of the time in ns."""
    processors = gemm_split.multiprocessors()
    for splits in _SPLITS:
        blocks = _blocks(shape, template, splits, run)
        if blocks is None:
            return
        programs = programs_of(seen, blocks)
        steps = seen.taps * seen.channels // blocks.depth // (seen.kernel[0] if template.variant == "slices" else 1)
        full_before = programs * (splits - 1) >= processors * template.resident
        if splits > 1 and (steps // splits < _LEAST_STEPS or full_before):
            return
        yield _time_ns(shape, seen, template, blocks, programs, processors), blocks


def _suits(block: int, filters: int) -> bool:
    """Tell whether a block of filters is neither mostly empty nor so small that the input is read again for each."""
    return (block == 32 or block < 2 * filters) and (block >= 64 or filters < 64)


def programs_of(seen: Problem, blocks: Blocks3d) -> int:
    """Return the number of blocks, before splitting."""
    pointers = blocks.variant in ("pipelined", "planar")
    tiles = -(-seen.pixels // blocks.pixels) if pointers else seen.images * count(seen.output, blocks.box)
    return tiles * -(-seen.filters // blocks.filters) * seen.groups


def _time_ns(
    shape: Convolution, seen: Problem, template: _Template, blocks: Blocks3d, programs: int, processors: int
) -> float:
    terms = seen.taps * seen.channels
    reads = template.slices + seen.kernel[0] - 1 if template.variant == "slices" else seen.kernel[0]
    rows = (reads * template.pixels + seen.kernel[0] * template.filters) / seen.kernel[0]
    bytes_read = rows * terms * 16 / layout.lanes(shape)
    flops = 2 * blocks.pixels * template.filters * terms
    rate = _FMA_FLOPS_PER_NS if layout.precision(shape) == "ieee" else _MATRIX_FLOPS_PER_NS
    each = max(bytes_read / _CACHE_BYTES_PER_NS, flops / rate) / blocks.splits + _PROGRAM_NS / template.resident
    time = -(-programs * blocks.splits // (processors * template.resident)) * template.resident * each
    if inputs.is_copied(shape, by_engine=template.variant in ("boxes", "slices")):
        time += _LAUNCH_NS + 2 * seen.elements * 16 / layout.lanes(shape) / _MEMORY_BYTES_PER_NS
    if blocks.splits == 1:
        return time
    output_bytes = 4 * seen.pixels * seen.filters * seen.groups
    return time + _LAUNCH_NS + 2 * blocks.splits * output_bytes / _SPLIT_BYTES_PER_NS


def count(output: Triple, box: Triple) -> int:
    """Return how many boxes cover the output of an image."""
    return -(-output[0] // box[0]) * -(-output[1] // box[1]) * -(-output[2] // box[2])


def best_box(output: Triple, pixels: int) -> Triple:
    """Return depth × height × width of this many pixels (a power of two) that covers an output with the fewest boxes.

    Of equals the widest: its rows are the longest pieces of memory that are written.
    """
    powers = [2**i for i in range(pixels.bit_length())]
    boxes = [(pixels // h // w, h, w) for h in powers for w in powers if h * w <= pixels and w <= 256 and h <= 256]
    return min((box for box in boxes if box[0] <= 256), key=lambda box: (count(output, box), -box[2], -box[1]))
