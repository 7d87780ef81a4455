"""Tile of the output that a block of a kernel computes: of a plan by its knobs, or its engine, and of `direct`.

Knobs are numbered as `cudnnBackendKnobType_t` has them. Which tile a value stands for is what the names of the kernels
say that plans ran (cuDNN 9.19, H100 and H200: `tests/prediction/test_tiles.py` compares them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from convscope.cudnn.graph.plan import Plan
from convscope.dataset.ranked_plans import CUBLASLT
from convscope.errors import InputError

TILE_SIZE, K_BLOCK, TILE_K, BUFFERS, SLICES, CLUSTER_PIXELS, CLUSTER_FILTERS = 2, 5, 13, 12, 17, 27, 28
"""Knobs: of the tile, of the terms of a step (two, of which a plan has one or none), of how sums are split among blocks
(`CUDNN_KNOB_TYPE_SPLIT_K_BUF`, `…_SLC`), and of blocks in a cluster."""
SIZES: Mapping[int, tuple[int, int]] = {
    0: (128, 128), 1: (128, 64), 2: (128, 32), 3: (256, 128), 4: (256, 64), 5: (64, 64), 6: (128, 256), 7: (64, 128),
    8: (64, 32), 9: (64, 256), 12: (32, 32), 15: (128, 16), 16: (256, 32), 18: (64, 192), 19: (128, 192), 20: (256, 96),
}  # fmt: skip
"""Output pixels and filters of a tile, by the value of `TILE_SIZE`."""
TERMS: Mapping[int, Mapping[int, int]] = {TILE_K: {0: 32, 1: 64, 2: 16}, K_BLOCK: {2: 16, 3: 32, 4: 64}}
"""Terms of a step by the values of knobs that say them."""
TERMS_OF: Mapping[int, int] = {70: 8}
"""Terms of a step by engine, where no knob says them."""
TILED = frozenset({22, 23, 27, 35, 38, 41, 45, 46, 47, 48, 62, 67, 70})
"""Engines whose tile the knob says."""
DIRECT = "direct"
"""The algorithm of `kernels.direct`."""
PLAN = re.compile(r"plan(?:\+\w+)?:(.*)")
TRANSPOSING = frozenset({46})
"""Engines that transpose each group's tensors by themselves in 16 bits, which takes most of the time."""
PACKING = frozenset({22, 62, 67})
"""Engines that compute narrow groups together, each as wide as a power of two."""
THREADED, BORDERING, FOURIER, FIXED = 0, 1, 3, 71
"""Engines: one whose threads each compute an output (`shapes.rounds`), one that computes outputs at each border of an
image by a kernel of its own, one by Fourier transforms of several kinds, and one whose kernels all have one tile."""


@dataclass(frozen=True)
class Tile:
    """A tile of the output, and how the blocks that compute tiles go together.

    Attributes:
        pixels, filters: of the tile.
        terms: that a step adds to each of its outputs.
        cluster_pixels, cluster_filters: blocks of a cluster along each side: whole clusters are launched.
        packs: narrow groups are computed together.
        transposes: groups are transposed one after another in 16 bits.
        is_known: its name or its engine says it.
        slices: that the terms of a sum are split into, each by a block of its own.
        buffers: that slices are added up in; 0 where the name says none.
        fits: no tile has more filters than the power of two that holds a group's, of 32 at least.
        by_image: in NCHW a tile has pixels of one image alone.
        step_bytes: of the terms of a step, where these are the same for all types; 0: `terms` are.
        borders: outputs that padding reaches are computed by kernels of their own, one for each border and group.
    """

    pixels: int
    filters: int
    terms: int
    cluster_pixels: int = 1
    cluster_filters: int = 1
    packs: bool = False
    transposes: bool = False
    is_known: bool = False
    slices: int = 1
    buffers: int = 0
    fits: bool = False
    by_image: bool = False
    step_bytes: int = 0
    borders: bool = False


USUAL = Tile(128, 64, 32)
"""Tile that stands for that of an algorithm which does not say it."""
OF_DIRECT = Tile(64, 64, 16, fits=True)
"""One of those that `direct` is timed with (`kernels.direct`)."""
OF_ENGINE: Mapping[int, Tile] = {
    BORDERING: Tile(USUAL.pixels, USUAL.filters, USUAL.terms, borders=True),
    CUBLASLT: Tile(64, 64, 32, by_image=True),
    FIXED: Tile(128, 128, 32, step_bytes=64, is_known=True),
}
"""Tiles of engines that no knob says: of `FIXED` the one in the names of all its kernels; of cuBLASLt, which chooses
its tile itself, the one that it takes most often in tf32 (64 × 16 in 16 bits)."""


def tile_of(algorithm: str) -> Tile:
    """Return the tile of an algorithm by its name, "plan:62:k2=5,k13=1"; the usual one for what does not say it."""
    plan = _plan_of(algorithm)
    if plan is None:
        return OF_DIRECT if algorithm == DIRECT else USUAL
    values = dict(plan.knobs)
    size = SIZES.get(values.get(TILE_SIZE, -1))
    if plan.engine not in TILED or size is None:
        return OF_ENGINE.get(plan.engine, USUAL)
    said = (TERMS[knob].get(values[knob]) for knob in TERMS if knob in values)
    terms = next((each for each in said if each), TERMS_OF.get(plan.engine, USUAL.terms))
    along, across = (max(1, values.get(knob, 1)) for knob in (CLUSTER_PIXELS, CLUSTER_FILTERS))
    kind = {"packs": plan.engine in PACKING, "transposes": plan.engine in TRANSPOSING}
    slices, buffers = max(1, values.get(SLICES, 1)), max(0, values.get(BUFFERS, 0))
    return Tile(*size, terms, along, across, **kind, is_known=True, slices=slices, buffers=buffers)


def engine_of(algorithm: str) -> int | None:
    """Return the number of the engine that an algorithm is a plan of; None for no plan."""
    plan = _plan_of(algorithm)
    return None if plan is None else plan.engine


def _plan_of(algorithm: str) -> Plan | None:
    """Return the plan that an algorithm is, None where its name is of none."""
    matched = PLAN.fullmatch(algorithm)
    try:
        return Plan.named(matched[1]) if matched else None
    except InputError:  # a name that another program has given
        return None
