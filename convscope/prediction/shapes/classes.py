"""Classes of calls, a coarse and a finer one: calls of one are mostly computed by the same kernels.

The coarse class is of the groups, and of what an engine tells apart besides; the finer one is of the multiples that
channels and filters are as well, where a kernel depends on these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convscope.prediction.shapes.parts import PADDED, SEVERAL, Labels, Tiled
from convscope.prediction.shapes.sizes import Floats, Sizes

LINE_CHANNELS, LEAST_PIXELS = 64, 26
"""Channels whose pixels in 16 bits begin at whole lines of memory, and pixels of an image from which that makes threads
that each compute an output slower, 1.7 times in most cases."""


def classes(
    sizes: Sizes, tiled: Tiled, is_threaded: npt.NDArray[np.bool_], is_last: npt.NDArray[np.bool_]
) -> tuple[Labels, Labels]:
    """Return the two classes of each row.

    Groups are: none; depthwise; of a channel and several filters; as wide as a power of two, the same in and out, or
    another; of a multiple of eight channels and filters; of others; and whether they are of one image, of which the
    channels of a group lie together in memory. Instead of these stand groups that the plan transposes one after
    another, and sums whose slices are added up in several buffers.

    Args:
        is_threaded: rows by threads that each compute an output (`shapes.rounds`).
        is_last: rows whose channels lie last (NHWC).
    """
    channels, filters = sizes.channels / sizes.groups, sizes.filters / sizes.groups
    in_power, out_power = (np.frexp(each)[0] == 0.5 for each in (channels, filters))
    in_eights = (channels % PADDED == 0) & (filters % PADDED == 0)
    groups = np.select(
        [
            sizes.groups == 1, (channels == 1) & (filters == 1), channels == 1, in_power & (channels == filters),
            in_power & out_power, in_eights,
        ],
        ["dense", "depthwise", "of one channel", "powers alike", "powers", "eights"],
        "uneven",
    ).astype(object)  # fmt: skip
    groups += np.where((sizes.groups > 1) & (sizes.batch == 1), ", one image", "").astype(object)
    groups[tiled.is_transposed] = "transposed"
    groups[tiled.buffers >= SEVERAL] = "in buffers"
    plane = sizes.out[0] * sizes.out[1]
    has_lines = is_last & (sizes.channels % LINE_CHANNELS == 0) & (plane >= LEAST_PIXELS)
    groups += np.where(is_threaded, _threads(plane, sizes.batch, has_lines), "").astype(object)
    multiples = [_multiple(each) for each in (sizes.channels, sizes.filters)]
    fine = np.array([", ".join(each) for each in zip(groups, *multiples, strict=True)], dtype=object)
    return groups, np.where(is_threaded, groups, fine)


def _threads(plane: Floats, batch: Floats, has_lines: npt.NDArray[np.bool_]) -> Labels:
    """Return what takes threads longer that each compute an output, or less: lines of memory; one pixel in all."""
    cases = [(plane == 1) & (batch == 1), has_lines]
    return np.select(cases, [", by threads, a pixel", ", by threads, lines"], ", by threads").astype(object)


def _multiple(count: Floats) -> Labels:
    return np.select([count % 8 == 0, count % 4 == 0], ["8", "4"], "1").astype(object)
