"""Parts that the time of a convolution by Winograd's algorithm is a sum of.

An image is cut into tiles of outputs, whose inputs overlap by the kernel's side less 1. Of each tile the input is
transformed, multiplied over the channels, element by element, and the product transformed back. cuDNN's
`winograd nonfused` writes and reads what is transformed. Its tiles have 4 × 4 outputs, with a kernel of 5 × 5 they have
9 × 9, and it computes 16 images at least, as its workspace says: one image takes as long as 16. `winograd` keeps what
is transformed in registers, or writes it, and chooses between tiles of 2 × 2 and 4 × 4 by trial.

Source: the kernels and workspaces of cuDNN 9.19 on an H200 and an H100 (data/); `kernels.winograd`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from convscope.prediction.shapes.parts import Labels, Parts, Rates
from convscope.prediction.shapes.sizes import WINOGRAD, Floats, Sizes

NONFUSED = "winograd nonfused"
ALGORITHMS = ("winograd", NONFUSED)
IMAGES = 16
"""Images that are computed together by `NONFUSED`."""
(SMALL, LARGE), LARGEST = WINOGRAD, 9
"""Sides of tiles of outputs; the last of `NONFUSED` with a kernel of 5 × 5."""
BLOCK = 32
"""Tiles and filters of a block of the product."""


def are_used(sizes: Sizes, algorithms: Labels) -> npt.NDArray[np.bool_]:
    """Return the rows without groups by Winograd's algorithm: of groups these parts say less."""
    found: npt.NDArray[np.bool_] = np.isin(algorithms, ALGORITHMS) & (sizes.groups == 1)
    return found


def parts_ms(sizes: Sizes, algorithms: Labels, rates: Rates) -> Parts:
    """Return the parts of each row, none below 0; 0 for rows with groups, and by other algorithms."""
    together = np.where(algorithms == NONFUSED, IMAGES, 1)
    images = np.ceil(sizes.batch / together) * together
    is_used = are_used(sizes, algorithms)
    is_nonfused, is_of_5 = algorithms == NONFUSED, sizes.kernel.max(axis=1) == 5
    found: Parts = {}
    for name, side, may in (
        ("small", SMALL, is_used & ~is_nonfused), ("large", LARGE, is_used & ~(is_nonfused & is_of_5)),
        ("largest", LARGEST, is_used & is_nonfused & is_of_5),
    ):  # fmt: skip
        tiles = images * np.ceil(sizes.out[0] / side) * np.ceil(sizes.out[1] / side)
        numbers = (sizes.kernel.T - 1 + side).prod(axis=0)  # of a transformed tile
        of_tiles = {
            "input": rates.elements_ms(tiles * numbers * sizes.channels),
            "output": rates.elements_ms(tiles * numbers * sizes.filters),
            "filters": rates.elements_ms(numbers * sizes.filters * sizes.channels),
            "products": rates.products_ms(tiles * numbers * sizes.filters * sizes.channels),
            "waves": _waves_ms(sizes, tiles, numbers, rates),
        }
        found |= {f"{part} of {name} tiles": np.where(may, value, 0.0) for part, value in of_tiles.items()}
    return found


def _waves_ms(sizes: Sizes, tiles: Floats, numbers: Floats, rates: Rates) -> Floats:
    """Return the time of whole waves of blocks over the multiprocessors."""
    waves = np.ceil(np.ceil(tiles / BLOCK) * np.ceil(sizes.filters / BLOCK) / rates.multiprocessors)
    return rates.products_ms(waves * rates.multiprocessors * BLOCK**2 * numbers * sizes.channels)
