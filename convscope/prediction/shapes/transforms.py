"""Parts that the time of a convolution by Fourier transforms is a sum of.

`fft` transforms each image whole, at a side that is a power of two, of 16 at least. `fft tiling` cuts it into tiles of
32 × 32 inputs, of which 33 less the kernel's side are outputs along an axis; with a kernel of one pixel along an axis
it transforms lines of 32 instead (of a few images of about 200 pixels and more lines of 256, which are not in here).
All tiles of an image are computed one after another where its workspace is small. The spectra of input, filters and
output are complex numbers, written and read once, and multiplied over the channels.

Source: the kernels that cuDNN 9.19 ran on an H200 and an H100 (data/), by name, and how their time grows with sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from convscope.prediction.shapes.parts import Labels, Parts, Rates
from convscope.prediction.shapes.sizes import Floats, Sizes

WHOLE, TILING = "fft", "fft tiling"
SIDE_PX, LEAST_PX = 32, 16
"""Side of a tile, and of the transform of a whole image at least."""
OF_COMPLEX = 2
"""Elements that a complex number takes."""
NAMES = ("spectra of input", "spectra of output", "spectra of filters", "spectra's products", "tiles one by one")


@dataclass(frozen=True)
class Transforms:
    """Transforms of each row; what is said of rows by other algorithms means nothing.

    Attributes:
        numbers: complex numbers of a transform; those of real inputs are half of them.
        count: transforms of an image's channel.
        one_by_one: tiles of an image, 0 where it is not cut into them.
        kinds: "whole", "tiles" or "lines".
        are_used: rows by Fourier transforms.
    """

    numbers: Floats
    count: Floats
    one_by_one: Floats
    kinds: Labels
    are_used: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, sizes: Sizes, algorithms: Labels) -> Transforms:
        """Return those of rows of these sizes by these algorithms."""
        kinds = np.where(algorithms == WHOLE, "whole", "tiles").astype(object)
        kinds[(algorithms == TILING) & (sizes.kernel.min(axis=1) == 1)] = "lines"
        computed = [(out - 1) * step + 1 for out, step in zip(sizes.out, sizes.stride.T, strict=True)]
        high, wide = (
            np.ceil(outputs / np.maximum(SIDE_PX + 1 - taps, 1))
            for outputs, taps in zip(computed, sizes.kernel.T, strict=True)
        )
        lines = np.where(sizes.kernel[:, 0] == 1, computed[0] * wide, computed[1] * high)
        side = np.maximum(sizes.transform_side(), LEAST_PX)
        cases = [kinds == "whole", kinds == "lines"]
        return cls(
            numbers=np.select(cases, [_half(side) * side, _half(SIDE_PX)], _half(SIDE_PX) * SIDE_PX),
            count=np.select(cases, [1.0, lines], high * wide),
            one_by_one=np.where(kinds == "tiles", high * wide, 0.0),
            kinds=kinds,
            are_used=np.isin(algorithms, (WHOLE, TILING)),
        )

    def parts_ms(self, sizes: Sizes, rates: Rates) -> Parts:
        """Return the parts of each row by `NAMES`, none below 0."""
        of_images = sizes.batch * self.count * self.numbers
        of_filters = sizes.channels / sizes.groups * sizes.filters * self.numbers
        found = {
            **{
                name: rates.elements_ms(OF_COMPLEX * numbers)
                for name, numbers in zip(
                    NAMES[:3], (of_images * sizes.channels, of_images * sizes.filters, of_filters), strict=True
                )
            },
            NAMES[3]: rates.products_ms(OF_COMPLEX**2 * of_filters * sizes.batch * self.count),
            NAMES[4]: self.one_by_one,
        }
        return {name: np.where(self.are_used, value, 0.0) for name, value in found.items()}


def _half(side: Floats | int) -> Floats:
    """Return the complex numbers of a line of so many real ones."""
    return np.asarray(side / 2 + 1, dtype=np.float64)
