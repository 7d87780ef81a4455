"""Samples that are held out of a fit, so that its errors of what was not learned are known: parts, and whole models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC
from convscope.errors import InputError
from convscope.prediction.features import Features, Floats
from convscope.prediction.learners import core
from convscope.prediction.learners.process import Mask

FEWEST = 100
"""Samples that a predictor is fitted to at least."""
SUM = ("gpu_name", "cudnn", "model", "input_size", "batch_size", *ARITHMETIC, "algorithm")
"""Columns that all calls of one pass of a model by one algorithm have in common."""
PASS = ("run", *SUM)
"""Columns that samples of one pass, measured together, have in common."""
FEWEST_MODELS = 4
"""Models that intervals of sums are learned from at least: they give a level of 80 %; 9 give 90 %, and 19 95 %."""
Divisions = Sequence[tuple[Mask, Mask]]
"""Pairs of rows that are held out and judged, and of all rows that are left out with them."""


def passes(frame: pd.DataFrame) -> splits.Labels:
    """Return for each row the pass of a model that it is of; "" without a model, and for a pass of one row alone."""
    found = pd.Series(splits.joined(frame, PASS))
    several = found.map(found.value_counts()) > 1
    return np.where(several & frame["model"].notna().to_numpy(), found, "").astype(object)


def by_model(frame: pd.DataFrame) -> Divisions:
    """Return divisions that hold out whole models; none where models are too few, or too little is left beside some."""
    has = (passes(frame) != "") & frame["model"].notna().to_numpy()
    if frame["model"][has].nunique() < FEWEST_MODELS:
        return []
    number_of = np.full(len(frame), -1)
    number_of[has] = splits.folds(frame["model"][has].to_numpy(dtype=object))
    found = []
    for number in np.unique(number_of[has]):
        out = number_of == number
        may = splits.beside(frame, "family", out)
        if may.sum() < FEWEST or len({splits.part(shape) for shape in splits.labels(frame[may], "layer")}) < 2:
            return []
        found.append((out, ~may))
    return found


def by(frame: pd.DataFrame, unit: str) -> Divisions:
    """Return divisions that hold out parts of the labels of a kind one after another, and what goes with them.

    Raises:
        InputError: there is only one label.
    """
    labels = splits.labels(frame, unit)
    is_of_one = labels != splits.NO_FAMILY
    number_of = splits.folds(labels)
    found = []
    for number in np.unique(number_of[is_of_one]):
        out = is_of_one & (number_of == number)
        if out.all():
            raise InputError(f"intervals for another {unit} need samples of at least two")
        found.append((out, ~splits.beside(frame, unit, out)))
    return found


def is_asked(frame: pd.DataFrame, unit: str) -> Mask:
    """Tell which rows, held out by their label of a kind, are like what will be asked for.

    Of sizes those at both ends: what is asked for is smaller or larger than all that was learned. The fifths between
    were predicted from smaller and larger ones. What is of no kind of network is in none that will be asked for.
    """
    found = splits.labels(frame, unit)
    return np.isin(found.astype(str), splits.in_turn(sorted({*found} - {splits.NO_FAMILY}), unit))


def missed_by_trees(
    given: Features, frame: pd.DataFrame, wanted: Floats, divisions: Divisions, is_linear: bool
) -> Floats:
    """Return for each row what trees miss that were fitted without it and what goes with it; NaN for a row in none."""
    rests = np.full(len(frame), np.nan)
    for out, beside in divisions:
        learned = core.fit(given.rows(~beside), frame[~beside], wanted[~beside], is_linear).core
        rests[out] = wanted[out] - learned.predict(given.rows(out), frame[out])
    return rests
