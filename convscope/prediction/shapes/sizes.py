"""Sizes of convolutions as arrays, and the features that follow from them alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.cudnn.shape import along
from convscope.errors import InputError

Floats = npt.NDArray[np.float64]
TILES = ((128, 128), (128, 64), (64, 64), (128, 32))
"""Tiles of output pixels × filters that kernels of implicit products have."""
WINOGRAD = (2, 4)
"""Sides of the output tiles of Winograd's algorithm."""
AXIS = ("kernel_size", "stride", "padding", "dilation")
"""Columns of a convolution's options along an axis, in the order in which `along` takes them."""
UNITS = (4, 8, 16, 32, 64, 128)
"""Numbers of channels and filters that kernels load or multiply together."""
UNITS_OF_ALL = (8, 16, 32, 64)
"""Numbers that the channels and filters of all groups together are a multiple of where kernels take groups at once."""
VECTORS = (2, 4, 8)
"""Numbers of neighbouring outputs that kernels load or store together."""
ROWS = (8, 32)
"""Outputs of a row that a kernel takes together."""


class Sizes:
    """Sizes of samples as arrays, a value a row.

    Attributes:
        out: height and width of the output.
        terms: of a sum, for one output.
        pixels: of all images' outputs.
        borders: of an image that padding reaches, 0 to 4.
        inputs: elements of the input.
        elements: of the input that a filter touches, of the filters that touch it, and of the output.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        sizes = {name: _pairs(frame[name]) for name in AXIS}
        self.batch, self.channels, self.filters, self.groups = (
            frame[name].to_numpy(float) for name in ("batch_size", "in_channels", "out_channels", "groups")
        )
        extents = [frame[name].to_numpy(float) for name in ("in_height_px", "in_width_px")]
        self.kernel, self.stride, self.dilation = sizes["kernel_size"], sizes["stride"], sizes["dilation"]
        self.out = [
            np.floor((extent + 2 * pad - dil * (kernel - 1) - 1) / step) + 1
            for extent, pad, dil, kernel, step in zip(
                extents, sizes["padding"].T, self.dilation.T, self.kernel.T, self.stride.T, strict=True
            )
        ]
        if min(each.min() for each in self.out) < 1:
            raise InputError("a sample has no output: its kernel is larger than its padded input")
        padding = sizes["padding"].T
        self.borders = sum(
            (pad > 0) * 1.0 + ((outputs - 1) * step + dil * (kernel - 1) + 1 > extent + pad)
            for outputs, extent, pad, dil, kernel, step in zip(
                self.out, extents, padding, self.dilation.T, self.kernel.T, self.stride.T, strict=True
            )
        )
        self.terms = self.channels / self.groups * self.kernel.prod(axis=1)
        self.pixels = self.batch * self.out[0] * self.out[1]
        self.flops = 2 * self.pixels * self.filters * self.terms
        self.inputs = self.batch * self.channels * extents[0] * extents[1]
        axes = [
            [extent.astype(int), *(sizes[name][:, at].astype(int) for name in AXIS)]
            for at, extent in enumerate(extents)
        ]
        (rows, row_taps), (columns, column_taps) = map(_read, axes)
        filters = self.filters * self.channels / self.groups * row_taps * column_taps
        self.elements = self.batch * self.channels * rows * columns + filters + self.pixels * self.filters

    def logarithms(self) -> dict[str, Floats]:
        """Return the sizes as logarithms."""
        sizes = {
            "batch": self.batch, "channels": self.channels, "filters": self.filters, "groups": self.groups,
            "out_side": np.sqrt(self.out[0] * self.out[1]), "taps": self.kernel.prod(axis=1),
            "stride": self.stride.prod(axis=1), "dilation": self.dilation.prod(axis=1), "terms": self.terms,
            "flops": self.flops, "elements": self.elements, "inputs": self.inputs, "pixels": self.pixels,
            "channels_of_group": self.channels / self.groups, "filters_of_group": self.filters / self.groups,
        }  # fmt: skip
        return {f"log_{name}": np.log(value) for name, value in sizes.items()}

    def remainders(self) -> dict[str, Floats]:
        """Return how well channels, filters and pixels fill the units that kernels take them in, and whether wholly.

        cuDNN has kernels for groups of some sizes, mostly powers of two; others take many times as long.
        """
        found = {}
        of_group = ("channels", self.channels / self.groups), ("filters", self.filters / self.groups)
        for unit in UNITS:
            for name, size in of_group:
                found[f"{name}_of_{unit}"] = np.ceil(size / unit) * unit / size
                found[f"{name}_in_{unit}"] = np.where(size % unit == 0, 1.0, 0.0)
        for unit in UNITS_OF_ALL:
            for name, size in (("channels", self.channels), ("filters", self.filters)):
                found[f"all_{name}_in_{unit}"] = np.where(size % unit == 0, 1.0, 0.0)
        for name, size in of_group:
            found[f"{name}_in_powers"] = np.where(np.frexp(size)[0] == 0.5, 1.0, 0.0)  # of two
        for unit in WINOGRAD:
            found[f"side_of_{unit}"] = np.ceil(self.out[0] / unit) * np.ceil(self.out[1] / unit) * unit**2
            found[f"side_of_{unit}"] /= self.out[0] * self.out[1]
        return found

    def vectors(self) -> dict[str, Floats]:
        """Return whether an image's outputs and their rows are whole vectors, and how well a row fills tiles."""
        found = {}
        for name, count in (("plane", self.out[0] * self.out[1]), ("width", self.out[1])):
            for unit in VECTORS:
                found[f"{name}_in_{unit}"] = np.where(count % unit == 0, 1.0, 0.0)
        for unit in ROWS:
            found[f"width_of_{unit}"] = np.ceil(self.out[1] / unit) * unit / self.out[1]
        return found

    def transforms(self) -> dict[str, Floats]:
        """Return the side of the Fourier transform of a whole image, and its ratio to the side needed."""
        whole = self.transform_side()
        return {"log_transform": np.log(whole), "transform_of_side": whole / self._reached()}

    def transform_side(self) -> Floats:
        """Return the side of the Fourier transform of a whole image, a power of two."""
        found: Floats = 2 ** np.ceil(np.log2(self._reached()))
        return found

    def _reached(self) -> Floats:
        """Return, along the longer axis, the outputs and what a filter reaches beyond one."""
        reach = (self.dilation * (self.kernel - 1)).T
        found: Floats = np.maximum(*(out + more for out, more in zip(self.out, reach, strict=True)))
        return found

    def tiles(self, multiprocessors: Floats) -> dict[str, Floats]:
        """Return for each tile the waves over the card, how full the last one is, and how full a tile."""
        found = {}
        filters = self.filters / self.groups
        for high, wide in TILES:
            name, count = f"{high}x{wide}", np.ceil(self.pixels / high) * np.ceil(filters / wide)
            waves = count * self.groups / multiprocessors
            found[f"waves_{name}"] = np.log(waves)
            found[f"last_wave_{name}"] = np.ceil(waves) / waves
            found[f"tile_{name}"] = count * high * wide / (self.pixels * filters)
        for side in WINOGRAD:
            tiles = np.ceil(self.out[0] / side) * np.ceil(self.out[1] / side) * self.batch
            products = (side + 2) ** 2 * np.ceil(filters / 64) * np.ceil(tiles / 64) * self.groups
            found[f"winograd_waves_{side}"] = np.log(products / multiprocessors)
        return found


def _read(axis: Sequence[npt.NDArray[np.int64]]) -> tuple[Floats, Floats]:
    """Return of each row the elements along an axis that a filter touches, and the taps that touch the input."""
    found = [along(*map(int, each)) for each in zip(*axis, strict=True)]
    return np.array([each.touched for each in found], float), np.array([each.taps for each in found], float)


def _pairs(column: pd.Series[str]) -> Floats:
    """Return texts like "3x1" as rows of two numbers.

    Raises:
        InputError: a text is no such pair.
    """
    known = {}
    for text in column.unique():
        parts = text.split("x")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            raise InputError(f"{column.name} is {text!r}: write height and width, 3x3")
        known[text] = [float(part) for part in parts]
    return np.array([known[text] for text in column])
