"""Samples that are held out of a fit, so that its errors of what was not learned are known: parts, and whole models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.calls import AT_ANY_BATCH, MODEL_AT_SIZE, CallRow
from convscope.dataset.samples import ARITHMETIC, WORK
from convscope.errors import InputError
from convscope.prediction import intervals
from convscope.prediction.learners.process import Mask, Places
from convscope.prediction.shapes.sizes import Floats

FEWEST = 100
"""Samples that a predictor is fitted to at least."""
SUM = ("gpu_name", "cudnn", "model", "input_size", "batch_size", *ARITHMETIC, "algorithm")
"""Columns that all calls of one pass of a model by one algorithm have in common."""
PASS = ("run", *SUM)
"""Columns that samples of one pass, measured together, have in common."""
FEWEST_MODELS = 4
"""Models that intervals of sums are learned from at least: they give a level of 80 %; 9 give 90 %, and 19 95 %."""


@dataclass(frozen=True)
class Division:
    """Rows that are held out together.

    Attributes:
        own: rows of what is held out; each is in one division at most.
        out: rows that are predicted: `own`, and others of shapes that the held out models have.
        gone: rows that are not learned: `out`, and others of shapes that may not be.
        calls: all calls of the models that are held out; none where they are not known.
    """

    own: Mask
    out: Mask
    gone: Mask
    calls: Sequence[CallRow] = ()

    def with_more(self, of: Places) -> Division:
        """Return it with further rows, each of which goes with one that it has; `of`: the number of that one."""
        own, out, gone = (np.concatenate([rows, rows[of]]) for rows in (self.own, self.out, self.gone))
        return dataclasses.replace(self, own=own, out=out, gone=gone)


Divisions = Sequence[Division]


def passes(frame: pd.DataFrame) -> splits.Labels:
    """Return for each row the pass of a model that it is of; "" without a model, and for a pass of one row alone."""
    found = pd.Series(splits.joined(frame, PASS))
    several = found.map(found.value_counts()) > 1
    return np.where(several & frame["model"].notna().to_numpy(), found, "").astype(object)


def of_models(frame: pd.DataFrame, calls: Sequence[CallRow], value: str) -> pd.DataFrame:
    """Return a sample for each call of each pass of a model whose every shape has one, with the pass as its `key`.

    A pass is of one card, cuDNN, batch size, arithmetic and algorithm.

    Args:
        value: a column; where a sample was measured again it is the mean.
    """
    work = ["gpu_name", "cudnn", *WORK]
    known = frame.assign(shape=splits.joined(frame, AT_ANY_BATCH))
    known[value] = frame.groupby(work, dropna=False)[value].transform("mean")
    known = known.drop_duplicates(work).drop(columns=[*MODEL_AT_SIZE, "family", "layer", *AT_ANY_BATCH])
    found = splits.called(calls).merge(known, on="shape").drop(columns="shape")
    found["key"] = splits.joined(found, SUM)
    return found[found.groupby("key")["layer"].transform("size") == found["calls"]].drop(columns="calls")


def by_model(frame: pd.DataFrame, calls: Sequence[CallRow] = ()) -> Divisions:
    """Return divisions that hold out whole models; none where models are too few, or too little is left beside some.

    Args:
        calls: of whole models: with them all shapes of a model are held out, whichever one their samples name, where
            enough is left beside each.
    """
    has = (frame["model"].notna() if calls else passes(frame) != "") & frame["model"].notna().to_numpy()
    if frame["model"][has].nunique() < FEWEST_MODELS:
        return []
    labels = np.where(has, frame["model"], splits.NO_FAMILY)
    found = [*_divided(frame, labels, "family", calls, lambda call: call.model)]
    if all(_leaves_enough(frame, each) for each in found):
        return found
    return by_model(frame) if calls else []


def _leaves_enough(frame: pd.DataFrame, division: Division) -> bool:
    """Tell whether an estimate can be fitted to what is left."""
    may = ~division.gone
    return may.sum() >= FEWEST and len({splits.part(shape) for shape in splits.labels(frame[may], "layer")}) > 1


def by(frame: pd.DataFrame, unit: str, calls: Sequence[CallRow] = ()) -> Divisions:
    """Return divisions that hold out parts of the labels of a kind one after another, and what goes with them.

    Args:
        calls: of whole models: with them all shapes of a kind of network are held out, where enough is left beside
            each. Of another card all models are.

    Raises:
        InputError: there is only one label.
    """
    labels, known = splits.labels(frame, unit), calls if unit == "family" else ()
    found = [*_divided(frame, labels, unit, known, lambda call: call.family)]
    if known and not all(_leaves_enough(frame, each) for each in found):
        found = [*_divided(frame, labels, unit)]
    if unit == "gpu":
        found = [dataclasses.replace(each, calls=calls) for each in found]
    if len(found) < 2 or any(each.gone.all() for each in found):
        raise InputError(f"intervals for another {unit} need samples of at least two")
    return found


def _divided(
    frame: pd.DataFrame, labels: splits.Labels, unit: str, calls: Sequence[CallRow] = (),
    label_of: Callable[[CallRow], str] = str,
) -> Iterator[Division]:  # fmt: skip
    """Yield divisions by the folds of labels, of which "" is none; `label_of` says which one a call is of."""
    shapes = pd.Series(splits.joined(frame, AT_ANY_BATCH)) if calls else None
    is_one = labels != splits.NO_FAMILY
    number_of = np.full(len(labels), -1)
    number_of[is_one] = splits.folds(labels[is_one])
    for number in np.unique(number_of[is_one]):
        own = number_of == number
        names = {*labels[own]}
        out, theirs = own, [call for call in calls if label_of(call) in names]
        if shapes is not None and theirs:
            out = own | shapes.isin(splits.called(theirs)["shape"]).to_numpy()
        yield Division(own, out, ~splits.beside(frame, unit, out), theirs)


def is_asked(frame: pd.DataFrame, unit: str) -> Mask:
    """Tell which rows, held out by their label of a kind, are like what will be asked for.

    Of sizes those at both ends: what is asked for is smaller or larger than all that was learned. The fifths between
    were predicted from smaller and larger ones. What is of no kind of network is in none that will be asked for.
    """
    found = splits.labels(frame, unit)
    return np.isin(found.astype(str), splits.in_turn(sorted({*found} - {splits.NO_FAMILY}), unit))


def together(divisions: Divisions, values: Iterable[Floats], unknown: float = np.nan) -> Floats:
    """Return for each row the value of its own division, `unknown` for a row of none."""
    found: Floats = np.full(len(divisions[0].own), unknown)
    for division, own in zip(divisions, values, strict=True):
        found[division.own] = own[division.own]
    return found


def totals(
    frame: pd.DataFrame, value: str, divisions: Divisions, missed: Sequence[Floats], halves: Sequence[Floats]
) -> dict[str, float | None]:
    """Return by level shares of the added-up half width of layers, for sums over models that were held out.

    They are learned from whole passes, where all calls of models are known, and for levels that these models are too
    few for from what was measured of a pass together. Without enough models there is none.

    Args:
        value: the column that is added up.
        missed: by division, the measured logarithm less the predicted one; NaN where no prediction is.
        halves: of each row's interval in the logarithm, half the width.
    """
    if not divisions:
        return {}
    own, whole = [], []
    for division, rests, half in zip(divisions, missed, halves, strict=True):
        middle = frame[value] * np.exp(-rests)
        rows, known = frame.assign(middle=middle, wide=middle * np.exp(half)), np.isfinite(rests)
        own.append(rows[division.own & known])
        whole += [of_models(rows[division.out & known], division.calls, value)] if division.calls else []
    together = pd.concat(own)
    by_parts = _shares(together.assign(key=passes(together)), value)
    by_whole = _shares(pd.concat(whole), value) if whole else {}
    return {**by_parts, **{level: share for level, share in by_whole.items() if share is not None}}


def _shares(rows: pd.DataFrame, value: str) -> dict[str, float | None]:
    """Return by level the share that sums over the rows of each `key` but "" miss; nothing for too few models."""
    kept = rows[rows["key"] != ""]
    found = kept.groupby("key").agg({value: "sum", "middle": "sum", "wide": "sum", "model": "first"})
    if found["model"].nunique() < FEWEST_MODELS:
        return {}
    sizes = np.abs(np.log(found[value] / found["middle"])) / np.log(found["wide"] / found["middle"])
    return intervals.shares(sizes.to_numpy(float), found["model"].to_numpy(dtype=object))
