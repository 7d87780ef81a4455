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
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset.samples import SHAPE, kernel_names
from convscope.errors import InputError
from convscope.prediction.cards import card
from convscope.prediction.shapes import parts, rounds, tiles, winograd
from convscope.prediction.shapes.classes import classes
from convscope.prediction.shapes.parts import Rates, Tiled
from convscope.prediction.shapes.sizes import Floats, Sizes
from convscope.prediction.shapes.transforms import Transforms
from convscope.verification import kernel_families

CATEGORIES = ("algorithm", "engine", "dtype", "math", "layout")
CARD = "card"
"""Stands among the features outside what was learned for a card that was not."""
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
        parts_ms: that the time of each is a sum of (`shapes`), a column a part.
        has_parts: rows whose time goes by these parts, and those of them that `are_own`: some follow from the kernels
            that compute the row. Others have those of a usual tile alone; Winograd's and threads' rows have these too.
        classes: of each, by the kernels that compute it: a coarse and a fine one (`shapes.classes`).
        times_ms: of the calls, where the target follows from them (energy); None for another.
    """

    values: pd.DataFrame
    roofline_ms: Floats
    headroom: Floats
    families: npt.NDArray[np.object_]
    parts_ms: pd.DataFrame
    has_parts: npt.NDArray[np.bool_]
    are_own: npt.NDArray[np.bool_]
    classes: tuple[parts.Labels, parts.Labels]
    times_ms: Floats | None = None

    def rows(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Features:
        """Return the features of some rows, in their order."""
        kept = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        values = self.values.iloc[kept].reset_index(drop=True)
        times_ms = None if self.times_ms is None else self.times_ms[kept]
        coarse, fine = (labels[kept] for labels in self.classes)
        return Features(
            values, self.roofline_ms[kept], self.headroom[kept], self.families[kept],
            self.parts_ms.iloc[kept].reset_index(drop=True), self.has_parts[kept], self.are_own[kept], (coarse, fine),
            times_ms,
        )  # fmt: skip

    def of_roofline_ms(self) -> pd.DataFrame:
        """Return for each row the three parts that any algorithm's cost grows with.

        That is 1 for the call, or its time where the target follows from it, and the times of its operations and of its
        bytes by the card's peaks.
        """
        ridge = self.values["ridge"].to_numpy(float)
        compute, memory = np.exp(np.minimum(ridge, 0)), np.exp(-np.maximum(ridge, 0))
        call = np.ones(len(ridge)) if self.times_ms is None else self.times_ms
        of_all = {"call": call, "operations": compute * self.roofline_ms, "bytes": memory * self.roofline_ms}
        return pd.DataFrame(of_all)


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
    shape = Sizes(frame)
    asked = zip(of_row, frame["dtype"], frame["math"], strict=True)
    rates = Rates(
        tflops=np.array([each.tflops(dtype, arithmetic) for each, dtype, arithmetic in asked]),
        bandwidth_gbps=np.array([each.bandwidth_gbps for each in of_row]),
        multiprocessors=np.array([each.sm_count for each in of_row], float),
        element_bytes=np.array([float(ELEMENT_BYTES[dtype]) for dtype in frame["dtype"]]),
    )
    known = {name: tiles.tile_of(name) for name in frame["algorithm"].unique()}
    is_last = (frame["layout"] == "nhwc").to_numpy(dtype=np.bool_)
    tiled = Tiled.of(shape, [known[name] for name in frame["algorithm"]], rates.element_bytes, is_last)
    compute_ms, memory_ms = rates.products_ms(shape.flops / 2), rates.elements_ms(shape.elements)
    values = {
        **shape.logarithms(),
        "ridge": np.log(compute_ms / memory_ms),
        "log_bytes": np.log(shape.elements * rates.element_bytes),
        "log_roofline": np.log(np.maximum(compute_ms, memory_ms)),
        **shape.remainders(),
        **shape.vectors(),
        **shape.transforms(),
        **shape.tiles(rates.multiprocessors),
        **tiled.features(shape, rates.multiprocessors),
    }
    roofline_ms = np.maximum(compute_ms, memory_ms)
    if times_ms is not None:
        values[SLOWNESS] = np.log(times_ms / roofline_ms)
    columns = pd.DataFrame(values)
    categories = frame.assign(engine=frame["algorithm"].map(engine))
    for name in CATEGORIES:
        columns[name] = categories[name].to_numpy()
    headroom = np.array([np.nan if each.headroom is None else each.headroom for each in of_row])
    return Features(
        columns, roofline_ms, headroom, _families(frame), *_parts(frame, shape, tiled, rates, is_last), times_ms
    )


def _parts(
    frame: pd.DataFrame, shape: Sizes, tiled: Tiled, rates: Rates, is_last: npt.NDArray[np.bool_]
) -> tuple[pd.DataFrame, npt.NDArray[np.bool_], npt.NDArray[np.bool_], tuple[parts.Labels, parts.Labels]]:
    """Return the parts of each row, whether its time goes by them, whether some are its own, and its classes."""
    algorithms = frame["algorithm"].to_numpy(dtype=object)
    of_name = {name: tiles.engine_of(name) for name in frame["algorithm"].unique()}
    engines = np.array([-1 if of_name[name] is None else of_name[name] for name in algorithms], dtype=np.int64)
    transforms, is_threaded = Transforms.of(shape, algorithms), engines == tiles.THREADED
    is_direct = algorithms == tiles.DIRECT
    of_tiles = {
        name: np.where(transforms.are_used & (name not in parts.OF_ANY), 0.0, value)
        for name, value in parts.parts_ms(shape, tiled, rates).items()
    }
    by_tiles = classes(shape, tiled, engines, is_direct, is_last)
    coarse, fine = (np.where(transforms.are_used, transforms.kinds, each) for each in by_tiles)
    of_call = {
        **of_tiles, **transforms.parts_ms(shape, rates), **winograd.parts_ms(shape, algorithms, rates),
        **rounds.parts_ms(shape, is_threaded, rates),
    }  # fmt: skip
    are_own = tiled.is_known | transforms.are_used | winograd.are_used(shape, algorithms) | is_threaded
    has_parts = are_own | is_direct | (engines >= 0) & (engines != tiles.FOURIER)
    return pd.DataFrame(of_call), has_parts, are_own, (coarse, fine)


def engine(algorithm: str) -> str:
    """Return the kind and the engine of a plan, whatever its knobs: "plan:58"; of another algorithm, its name."""
    return ":".join(algorithm.split(":")[:2])


def outside(
    given: Features, frame: pd.DataFrame, ranges: Mapping[str, tuple[float, float]],
    levels: Mapping[str, Sequence[str]], learned: Sequence[str] | None,
) -> list[str]:  # fmt: skip
    """Return for each row what was never learned: the card, features with such a value; "" for nothing.

    Args:
        given: of the rows, those of choices as of the plans that they take.
        frame: the rows as they were asked for.
        ranges: the least and largest value of each number that was learned.
        levels: the names of each category that were learned.
        learned: the cards; None where any card counts as learned.
    """
    lists: list[list[str]] = [[] if learned is None or name in learned else [CARD] for name in frame["gpu_name"]]
    for name in given.values:
        column = given.values[name]
        if name in CATEGORIES:
            odd = ~column.isin(levels[str(name)]).to_numpy()
            if name == "engine":  # which of anything but a plan is the algorithm's name
                odd &= (column != given.values["algorithm"]).to_numpy()
            elif name == "algorithm":  # not a choice that was learned, whose very plan was not
                odd &= ~frame["algorithm"].isin(levels[str(name)]).to_numpy()
        else:
            low, high = ranges[str(name)]
            odd = ((column < low) | (column > high)).to_numpy()
        for row in np.flatnonzero(odd):
            lists[row].append(str(name))
    return [", ".join(names) for names in lists]


def _families(frame: pd.DataFrame) -> npt.NDArray[np.object_]:
    if "kernels" not in frame:  # of layers that were not measured
        return np.full(len(frame), "", dtype=object)
    column = frame["kernels"].fillna("")
    known = {text: kernel_families.main_family(kernel_names(text) or ()) for text in column.unique()}
    return np.array([known[text] for text in column], dtype=object)
