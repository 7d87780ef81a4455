"""Splits of samples into those that are learned from and those that are held back, so that nothing leaks between them.

`rows`: rows drawn at random, which lets neighbours of a layer stand on both sides. `layer`: shapes that were not
learned, on any card and by any algorithm. `family`: kinds of network. `size`: the smallest fifth by work, and the
largest. `gpu`: cards; their shapes are learned on the others. A shape that is held back by layer, family or size is
learned nowhere. A sample names one of the models that have its shape: where the calls of whole models are given, a
split by family holds back all shapes that models of the kind have. Samples of no kind of network are learned, but for
those whose shape is held back. A split is a function of what samples and calls say, not of their order: the same rows
are held back from a file in another order.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_numeric_dtype

from convscope.dataset.calls import AT_ANY_BATCH, MODEL_AT_SIZE, CallRow
from convscope.dataset.calls import frame as calls_frame
from convscope.dataset.samples import SHAPE, WORK
from convscope.errors import InputError

PARTS = 5
NO_FAMILY = ""
"""Label of samples that name no network: none of them is held back for its own sake."""
Labels = npt.NDArray[np.object_]


@dataclass(frozen=True)
class Split:
    """One way to divide samples.

    Attributes:
        held_back: true for a row that is judged.
        learned: true for a row that is learned from; false for both where its shape is among those held back.
    """

    name: str
    held_back: npt.NDArray[np.bool_]
    learned: npt.NDArray[np.bool_]


def joined(frame: pd.DataFrame, names: tuple[str, ...]) -> Labels:
    """Return for each row the text of these columns; a whole number has the same text as an int and as a float."""
    texts = [_texts(frame[name]) for name in names]
    return np.array([" ".join(cells) for cells in zip(*texts, strict=True)], dtype=object)


def _texts(column: pd.Series) -> Labels:
    numbers, values = pd.factorize(column, use_na_sentinel=False)
    if is_numeric_dtype(column):
        return np.array([f"{value:.17g}" for value in values], dtype=object)[numbers]
    return np.array([str(None if pd.isna(value) else value) for value in values], dtype=object)[numbers]


def part(text: str) -> int:
    """Return the part, 0 to 4, that a text falls into: the same on every machine."""
    return zlib.crc32(text.encode()) % PARTS


def labels(frame: pd.DataFrame, kind: str) -> Labels:
    """Return for each row what a split of this kind keeps together.

    Raises:
        InputError: the samples do not say it.
    """
    return _LABELS[kind](frame)


def splits(frame: pd.DataFrame, kind: str, calls: Sequence[CallRow] = ()) -> Iterator[Split]:
    """Yield the splits of a kind: one where a fifth is held back, one a label where each is held back in turn.

    Args:
        calls: of whole models. With them a split by family holds back every shape that a model of that kind has,
            at any batch size and whichever model a sample of it names.

    Raises:
        InputError: the samples do not say what they would be divided by, or there is only one of it.
    """
    found = labels(frame, kind)
    if kind in ("rows", "layer"):
        yield _split(frame, kind, kind, np.array([part(label) == 0 for label in found]))
        return
    names = sorted({*found} - {NO_FAMILY})
    if len(names) < 2:
        whose = "all samples" if len({*found}) == 1 else f"all samples that name a {kind}"
        raise InputError(f"split by {kind}: {whose} are of {names[0]}: at least two are needed")
    shared = _shapes_by_family(calls) if kind == "family" else {}
    shapes = pd.Series(joined(frame, AT_ANY_BATCH)) if shared else None
    for name in in_turn(names, kind):
        held_back = found == name
        if shapes is not None:
            held_back |= shapes.isin(shared.get(name, ())).to_numpy()
        yield _split(frame, kind, f"{kind} {name}", held_back)


def each_in_turn(frame: pd.DataFrame, kind: str, calls: Sequence[CallRow] = ()) -> Iterator[Split]:
    """Yield splits of a kind that hold back all labels in turn: as `splits` by family, else one a fold.

    Raises:
        InputError: as of `splits`.
    """
    if kind == "family":
        yield from splits(frame, kind, calls)
        return
    found = labels(frame, kind)
    number_of = folds(found)
    if len({*number_of}) < 2:
        raise InputError(f"split by {kind}: all samples are of {found[0]}: at least two are needed")
    for number in np.unique(number_of):
        yield _split(frame, kind, f"{kind}, fold {number}", number_of == number)


def called(rows: Sequence[CallRow]) -> pd.DataFrame:
    """Return calls as a data frame.

    Returns: a row for each; besides its columns `shape`, the text that `joined` makes of a sample's at any batch size,
        and `calls`, the number of calls in its pass.
    """
    frame = calls_frame(rows)
    frame["shape"] = joined(frame, AT_ANY_BATCH)
    frame["calls"] = frame.groupby([*MODEL_AT_SIZE])["layer"].transform("size")
    return frame


def _shapes_by_family(rows: Sequence[CallRow]) -> dict[str, Labels]:
    if not rows:
        return {}
    return {str(name): each["shape"].to_numpy() for name, each in called(rows).groupby("family")}


def in_turn(names: Sequence[str], kind: str) -> list[str]:
    """Return the labels, of all in order, that are held back in turn: of sizes both ends, for others lie between."""
    return [names[0], names[-1]] if kind == "size" else [*names]


def _split(frame: pd.DataFrame, kind: str, name: str, held_back: npt.NDArray[np.bool_]) -> Split:
    return Split(name, held_back, beside(frame, kind, held_back))


def beside(frame: pd.DataFrame, kind: str, held_back: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return true for each row that may be learned from when these are held back by a split of this kind."""
    if kind in ("rows", "gpu"):
        return ~held_back
    shapes = pd.Series(joined(frame, SHAPE))
    return np.asarray(~held_back & ~shapes.isin(shapes[held_back]).to_numpy(), dtype=np.bool_)


def folds(found: Labels) -> npt.NDArray[np.intp]:
    """Return for each row the number of its fold, at most five: rows of one label are in one fold."""
    names = sorted({*found})
    if len(names) <= PARTS:
        return np.array([names.index(label) for label in found], dtype=np.intp)
    return np.array([part(label) for label in found], dtype=np.intp)


def _rows(frame: pd.DataFrame) -> Labels:
    return joined(frame, (*WORK, "gpu_name", "run", "mean_ms"))


def _families(frame: pd.DataFrame) -> Labels:
    if frame["family"].isna().all():
        raise InputError("split by family: no sample names one: choose another split")
    return frame["family"].fillna(NO_FAMILY).to_numpy(dtype=object)


def _sizes(frame: pd.DataFrame) -> Labels:
    """Label each row by the fifth that its multiplications are in, those at the borders of the image counted whole."""
    whole = frame[["batch_size", "in_channels", "out_channels", "in_height_px", "in_width_px"]].prod(axis=1)
    taps, steps = (frame[name].map(_product) for name in ("kernel_size", "stride"))
    work = (whole * taps / steps / frame["groups"]).to_numpy(float)
    bounds = np.quantile(work, np.arange(1, PARTS) / PARTS)
    return np.array([f"fifth {number + 1}" for number in np.searchsorted(bounds, work, side="right")], dtype=object)


def _product(sizes: str) -> int:
    return math.prod(map(int, sizes.split("x")))


_LABELS: Mapping[str, Callable[[pd.DataFrame], Labels]] = {
    "rows": _rows,
    "layer": lambda frame: joined(frame, SHAPE),
    "family": _families,
    "size": _sizes,
    "gpu": lambda frame: frame["gpu_name"].to_numpy(dtype=object),
}
