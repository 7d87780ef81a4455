"""Features of a sample: its shape, how it fills tiles and multiprocessors, and where it lies on the card's roofline.

All but the categories are numbers of one row alone. Of a card only what it makes of a shape is used (waves of tiles
over its multiprocessors, compute over memory time, the roofline's time), so that what was learned on one can be said of
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.cli.display import several
from convscope.cudnn.shape import ELEMENT_BYTES, along
from convscope.dataset.samples import SHAPE, kernel_names
from convscope.errors import InputError
from convscope.prediction.cards import card
from convscope.verification import kernel_families

Floats = npt.NDArray[np.float64]
CATEGORIES = ("algorithm", "engine", "dtype", "math", "layout")
CARD = "card"
"""Stands among the features outside what was learned for a card that was not."""
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
SLOWNESS = "log_time_over_roofline"
"""Feature of a target that follows from the time: how far a call is from the card's limit."""


@dataclass(frozen=True)
class Features:
    """Features of samples, a row each.

    Attributes:
        values: a column a feature; of `CATEGORIES` the name itself.
        roofline_ms: the least time of each by its card's peaks.
        headroom: of each row's card; NaN where its clocks are not known.
        families: of the kernels that ran, "" where they are not known. No feature: who predicts does not know it.
        times_ms: of the calls, where the target follows from them (energy); None for another.
    """

    values: pd.DataFrame
    roofline_ms: Floats
    headroom: Floats
    families: npt.NDArray[np.object_]
    times_ms: Floats | None = None

    def rows(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Features:
        """Return the features of some rows, in their order."""
        kept = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        values = self.values.iloc[kept].reset_index(drop=True)
        times_ms = None if self.times_ms is None else self.times_ms[kept]
        return Features(values, self.roofline_ms[kept], self.headroom[kept], self.families[kept], times_ms)

    def parts_ms(self) -> Floats:
        """Return for each row what its cost grows with.

        That is 1 for the call, or its time where the target follows from it, and the times of its operations and of its
        bytes by the card's peaks.
        """
        ridge = self.values["ridge"].to_numpy(float)
        compute, memory = np.exp(np.minimum(ridge, 0)), np.exp(-np.maximum(ridge, 0))
        call = np.ones(len(ridge)) if self.times_ms is None else self.times_ms
        return np.stack([call, compute * self.roofline_ms, memory * self.roofline_ms], axis=1)


def features(frame: pd.DataFrame, given: Mapping[str, Mapping[str, float]], times_ms: Floats | None = None) -> Features:
    """Return the features of samples.

    Args:
        frame: as `samples.read` returns it; sizes must be there, times need not.
        given: facts of cards that the catalogue does not have, by their names.
        times_ms: of the calls, for a target that follows from them; they are predicted ones.

    Raises:
        InputError: a sample lacks a size, or is of a card that nothing is known of.
    """
    lacking = [name for name in SHAPE if frame[name].isna().any()]
    if lacking:
        without = several(int(frame[lacking].isna().any(axis=1).sum()), "sample")
        raise InputError(f"{without} without {', '.join(lacking)}: drop them")
    cards = {name: card(name, given) for name in frame["gpu_name"].unique()}
    of_row = [cards[name] for name in frame["gpu_name"]]
    shape = _Shape(frame)
    element_bytes = frame["dtype"].map(ELEMENT_BYTES).to_numpy(float)
    asked = zip(of_row, frame["dtype"], frame["math"], strict=True)
    tflops = np.array([each.tflops(dtype, arithmetic) for each, dtype, arithmetic in asked])
    compute_ms = shape.flops / tflops / 1e9
    memory_ms = shape.elements * element_bytes / np.array([each.bandwidth_gbps for each in of_row]) / 1e6
    values = {
        **shape.logarithms(),
        "ridge": np.log(compute_ms / memory_ms),
        "log_bytes": np.log(shape.elements * element_bytes),
        "log_roofline": np.log(np.maximum(compute_ms, memory_ms)),
        **shape.remainders(),
        **shape.vectors(),
        **shape.transforms(),
        **shape.tiles(np.array([each.sm_count for each in of_row], float)),
    }
    roofline_ms = np.maximum(compute_ms, memory_ms)
    if times_ms is not None:
        values[SLOWNESS] = np.log(times_ms / roofline_ms)
    columns = pd.DataFrame(values)
    categories = frame.assign(engine=frame["algorithm"].map(engine))
    for name in CATEGORIES:
        columns[name] = categories[name].to_numpy()
    headroom = np.array([np.nan if each.headroom is None else each.headroom for each in of_row])
    return Features(columns, roofline_ms, headroom, _families(frame), times_ms)


def engine(algorithm: str) -> str:
    """Return the kind and the engine of a plan, whatever its knobs: "plan:58"; of another algorithm, its name."""
    return ":".join(algorithm.split(":")[:2])


def _families(frame: pd.DataFrame) -> npt.NDArray[np.object_]:
    if "kernels" not in frame:  # of layers that were not measured
        return np.full(len(frame), "", dtype=object)
    column = frame["kernels"].fillna("")
    known = {text: kernel_families.main_family(kernel_names(text) or ()) for text in column.unique()}
    return np.array([known[text] for text in column], dtype=object)


class _Shape:
    """Sizes of samples as arrays."""

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
        """Return the side of the Fourier transform of a whole image, a power of two, and its ratio to the side needed.

        Needed are, along the longer axis, the outputs and what a filter reaches beyond one.
        """
        reach = (self.dilation * (self.kernel - 1)).T
        side = np.maximum(*(out + more for out, more in zip(self.out, reach, strict=True)))
        whole = 2 ** np.ceil(np.log2(side))
        return {"log_transform": np.log(whole), "transform_of_side": whole / side}

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
