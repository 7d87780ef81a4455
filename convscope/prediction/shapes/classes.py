"""Classes of calls, a coarse and a finer one: calls of one are mostly computed by the same kernels.

The coarse class is of the groups and of what an engine tells apart besides, or of the variants of `direct`. The finer
one is of how groups are computed as well, and of the multiples that channels and filters are where the tile is known:
without it, classes of few samples say what is not so of channels that are no multiples (ShuffleNet's).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convscope.dataset.ranked_plans import CUBLASLT
from convscope.prediction.shapes.parts import PADDED, SEVERAL, Labels, Tiled
from convscope.prediction.shapes.sizes import Floats, Sizes
from convscope.prediction.shapes.tiles import THREADED

LINE_CHANNELS, LEAST_PIXELS = 64, 26
"""Channels whose pixels in 16 bits begin at whole lines of memory, and pixels of an image from which that makes threads
that each compute an output slower, 1.7 times in most cases."""
THIN, STEP = 16, 16
"""Of `kernels.direct`: filters of a group from which it multiplies matrices, and channels of a step by taps."""
WORD = 4
"""Elements that cuBLASLt reads at once where rows of a matrix are multiples of it."""
Mask = npt.NDArray[np.bool_]


def classes(
    sizes: Sizes, tiled: Tiled, engines: npt.NDArray[np.int64], is_direct: Mask, is_last: Mask
) -> tuple[Labels, Labels]:
    """Return the two classes of each row.

    Instead of the kinds of groups stand groups that a plan transposes one after another, and sums whose slices are
    added up in several buffers.

    Args:
        engines: of plans, -1 for what is none.
        is_direct: rows by `direct`.
        is_last: rows whose channels lie last (NHWC).
    """
    groups = _groups(sizes)
    groups[tiled.is_transposed] = "transposed"
    groups[tiled.buffers >= SEVERAL] = "in buffers"
    groups += np.where(engines == THREADED, _by_threads(sizes, is_last), "").astype(object)
    groups += np.where((engines == CUBLASLT) & ~is_last, _by_planes(sizes), "").astype(object)
    coarse = np.where(is_direct, _variants(sizes), groups).astype(object)
    together = np.array([f"{count:.0f} together" for count in tiled.together], dtype=object)
    multiples = [_multiple(each) for each in (sizes.channels, sizes.filters)]
    more = [(groups, is_direct), (together, tiled.is_packed), *((each, tiled.is_known) for each in multiples)]
    words = [coarse, *(np.where(is_said, each, "") for each, is_said in more)]
    return coarse, np.array([", ".join(filter(None, each)) for each in zip(*words, strict=True)], dtype=object)


def _groups(sizes: Sizes) -> Labels:
    """Return the kinds of groups.

    These are: none; depthwise; of a channel and several filters; as wide as a power of two, the same in and out, or
    another; of a multiple of eight channels and filters; of others; and whether they are of one image, of which the
    channels of a group lie together in memory.
    """
    channels, filters = sizes.channels / sizes.groups, sizes.filters / sizes.groups
    in_power, out_power = (np.frexp(each)[0] == 0.5 for each in (channels, filters))
    in_eights = (channels % PADDED == 0) & (filters % PADDED == 0)
    kinds = np.select(
        [
            sizes.groups == 1, (channels == 1) & (filters == 1), channels == 1, in_power & (channels == filters),
            in_power & out_power, in_eights,
        ],
        ["dense", "depthwise", "of one channel", "powers alike", "powers", "eights"],
        "uneven",
    ).astype(object)  # fmt: skip
    found: Labels = kinds + np.where((sizes.groups > 1) & (sizes.batch == 1), ", one image", "").astype(object)
    return found


def _by_threads(sizes: Sizes, is_last: Mask) -> Labels:
    """Return what takes threads longer that each compute an output, or less: lines of memory; one pixel in all."""
    plane = sizes.out[0] * sizes.out[1]
    has_lines = is_last & (sizes.channels % LINE_CHANNELS == 0) & (plane >= LEAST_PIXELS)
    cases = [(plane == 1) & (sizes.batch == 1), has_lines]
    return np.select(cases, [", by threads, a pixel", ", by threads, lines"], ", by threads").astype(object)


def _by_planes(sizes: Sizes) -> Labels:
    """Return what cuBLASLt tells apart in the matrices of images: vectors, and rows of whole words."""
    plane = sizes.out[0] * sizes.out[1]
    cases = [(plane == 1) & (sizes.batch == 1), plane == 1, plane % WORD == 0]
    return np.select(cases, [", vectors", ", pixels", ", planes of words"], ", planes").astype(object)


def _variants(sizes: Sizes) -> Labels:
    """Return the variants of `direct`, and whether there are groups."""
    is_grouped = sizes.groups > 1
    by_tap = sizes.channels / sizes.groups % STEP == 0
    variants = np.select([is_grouped & (sizes.filters / sizes.groups < THIN), by_tap], ["thin", "taps"], "gathered")
    found: Labels = variants.astype(object) + np.where(is_grouped, ", groups", "").astype(object)
    return found


def _multiple(count: Floats) -> Labels:
    return np.select([count % 8 == 0, count % 4 == 0], ["8", "4"], "1").astype(object)
