"""Predictor of workspaces: the bytes that an algorithm needs beside its tensors, which for many are exactly 0.

First it is decided whether there is a workspace: by what the algorithm always does, else by trees. Its bytes are near
a sum of sizes: the matrix of patches for `gemm`, the transformed tiles for Winograd. The weights of that sum are
learned, none below 0, by the least relative errors. Where it fits nearly every sample it is the prediction; elsewhere
trees learn the logarithm of the ratio to it. Intervals are split-conformal (`intervals`), each side by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from convscope.cli import programs
from convscope.cli.display import several
from convscope.cli.options import LEVELS
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset.calls import CallRow
from convscope.dataset.splits import Labels
from convscope.errors import InputError
from convscope.prediction import intervals, predictor
from convscope.prediction.features import Features, features, outside
from convscope.prediction.held_out import FEWEST, by, is_asked
from convscope.prediction.learners import booster, core
from convscope.prediction.learners.booster import Booster
from convscope.prediction.predictor import Given, Prediction
from convscope.prediction.shapes.sizes import Floats

TARGET, COLUMN = "workspace", "workspace_bytes"
SIZES = ("1", "input", "output", "filters", "patches", "tiles of the input", "tiles of the output")
"""Sizes in bytes that workspaces are sums of; tiles are Winograd's of 6×6, which give 4×4 outputs each."""
LOGARITHMS = (*("log_batch", "log_channels", "log_filters", "log_groups", "log_out_side", "log_terms", "log_inputs"),)
NEAR, MOSTLY, ENOUGH = 0.01, 0.9, 20
"""A sum of sizes is a formula where this share of at least 20 samples is within 1 %; fewer fit any sum."""
ROUNDS = 30
"""Rounds of the reweighted least squares, which end in least absolute errors."""
BINARY: Mapping[str, Any] = {"objective": "binary"}
NOISELESS: Mapping[str, Any] = {"min_data_in_leaf": 2, "feature_fraction": 1.0, "bagging_fraction": 1.0}
"""Settings of trees: of a probability, and of values that are the same each time, which need no averaging."""
Ends = Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]
NONE, SOME = "none", "some"
"""Kinds of predictions: no workspace, and some."""


@dataclass(frozen=True)
class Estimate:
    """A fitted estimate of workspaces.

    Attributes:
        levels: names of each category that were learned.
        always: for an algorithm that always or never had a workspace, whether it has one.
        weights: of `SIZES`, by algorithm, for those that ever had a workspace.
        formulas: algorithms whose workspace is the sum alone.
        is_some, ratio: trees of whether there is a workspace, and of the logarithm of its ratio to the sum; None where
            no algorithm needs them.
    """

    levels: Mapping[str, list[str]]
    always: Mapping[str, bool]
    weights: Mapping[str, Sequence[float]]
    formulas: Sequence[str]
    is_some: Booster | None
    ratio: Booster | None

    def predict(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return whole bytes for each row; NaN for an algorithm that was not learned."""
        names = frame["algorithm"].to_numpy(dtype=object)
        numbers = booster.matrix(given.values, self.levels)
        found = _sums(self.weights, names, sizes(given, frame))
        if self.ratio is not None:
            corrected = ~np.isin(names, list(self.formulas))
            found[corrected] *= np.exp(self.ratio.predict(numbers[corrected])) if corrected.any() else 1.0
        some = np.array([self.always.get(name, False) for name in names])
        undecided = np.array([name in self.weights and name not in self.always for name in names])
        if self.is_some is not None and undecided.any():
            some[undecided] = self.is_some.predict(numbers[undecided]) > 0.5
        known = np.isin(names, self.levels["algorithm"])
        return np.where(known, np.where(some, np.rint(found), 0.0), np.nan)


@dataclass(frozen=True)
class WorkspacePredictor:
    """A fitted predictor of workspaces; the fields are those of `predictor.Predictor` where they have the same names.

    Attributes:
        ends: of its intervals, by kind of prediction (`NONE`, `SOME`), algorithm and level: of `NONE` 0 and the bytes
            of the upper end, of `SOME` the logarithms that the ends are below and above the middle. None is no end: 0
            below, infinite above.
    """

    target: str
    unit: str
    estimate: Estimate
    ends: Ends
    ranges: Mapping[str, tuple[float, float]]
    cards: Given
    learned: Mapping[str, Any]

    def with_cards(self, given: Given) -> WorkspacePredictor:
        """Return the predictor with facts of further cards."""
        return dataclasses.replace(self, cards={**self.cards, **given})

    def predict(self, frame: pd.DataFrame, level: int = 90) -> Prediction:
        """Return the predictions in bytes for samples, whose workspaces need not be there; NaN where none is known.

        Args:
            level: the share of cases in percent that the interval is to hold, one of `LEVELS`.

        Raises:
            InputError: a sample lacks a size, or its card is not known.
        """
        given = features(frame, self.cards)
        middle = self.estimate.predict(given, frame)
        pairs = [self._ends(value, name, level) for value, name in zip(middle, frame["algorithm"], strict=True)]
        low, high = (np.array(each, dtype=np.float64) for each in zip(*pairs, strict=True))
        learned = None if self.unit == "gpu" else self.learned["gpu_names"]
        return Prediction(middle, low, high, outside(given, frame, self.ranges, self.estimate.levels, learned))

    def _ends(self, middle: float, algorithm: str, level: int) -> tuple[float, float]:
        if np.isnan(middle):
            return 0.0, np.inf
        by_algorithm = self.ends[SOME if middle else NONE]
        below, above = by_algorithm.get(algorithm, by_algorithm[intervals.EVERY])[str(level)]
        if not middle:
            return 0.0, np.inf if above is None else above
        low = 0.0 if below is None else np.floor(middle * np.exp(-below))
        return low, np.inf if above is None else np.ceil(middle * np.exp(above))


def fit(frame: pd.DataFrame, cards: Given, unit: str = "layer", calls: Sequence[CallRow] = ()) -> WorkspacePredictor:
    """Fit a predictor of workspaces to samples (`predictor.usable`).

    Args:
        unit: what its intervals are to hold for that was not learned, one of `samples.SPLITS`.
        calls: of whole models: with them a kind of network is held out with all shapes of its models, where enough is
            left beside each.

    Raises:
        InputError: no sample has a workspace, there are too few, or they do not say what is held out.
    """
    check(frame)
    if len(frame) < FEWEST:
        raise InputError(
            f"{several(len(frame), 'sample')} with sizes and a measured {TARGET}: at least {FEWEST} are needed"
        )
    given = features(frame, cards)
    held_out, asked = np.full(len(frame), np.nan), is_asked(frame, unit)
    for division in by(frame, unit, calls):
        out, may = division.own & asked, ~division.gone
        if out.any():
            held_out[out] = estimate(given.rows(may), frame[may]).predict(given.rows(out), frame[out])
    ends = ends_of(held_out, frame[COLUMN].to_numpy(float), frame["algorithm"].to_numpy(dtype=object))
    learned = predictor.described(frame)
    ranges = core.ranges_of(given.values)
    return WorkspacePredictor(TARGET, unit, estimate(given, frame), ends, ranges, cards, learned)


def check(frame: pd.DataFrame) -> None:
    """Raise InputError where none of the samples has a workspace."""
    if frame.empty:
        advice = f"{programs.called('run_dataset')} measures some on a GPU; imported samples have none"
        raise InputError(f"no sample has a workspace (column {COLUMN}) and sizes: {advice}")


def estimate(given: Features, frame: pd.DataFrame) -> Estimate:
    """Fit an estimate to samples."""
    names, truth = frame["algorithm"].to_numpy(dtype=object), frame[COLUMN].to_numpy(float)
    levels = booster.levels(given.values)
    numbers, parts = booster.matrix(given.values, levels), sizes(given, frame)
    some = {name: truth[names == name] > 0 for name in levels["algorithm"]}
    always = {name: bool(each[0]) for name, each in some.items() if each.all() or not each.any()}
    weights, formulas = {}, []
    for name in (name for name, each in some.items() if each.any()):
        here = (names == name) & (truth > 0)
        weights[name] = weights_of(parts[here], truth[here]).tolist()
        off = np.abs(parts[here] @ weights[name] / truth[here] - 1)
        if here.sum() >= ENOUGH and (off <= NEAR).mean() >= MOSTLY:
            formulas.append(name)
    columns = tuple(given.values.columns)
    undecided = ~np.isin(names, list(always))
    is_some = _trees(columns, numbers, (truth > 0).astype(float), undecided, BINARY)
    wanted = np.log(np.maximum(truth, 1.0)) - np.log(np.maximum(_sums(weights, names, parts), 1.0))
    ratio = _trees(columns, numbers, wanted, (truth > 0) & ~np.isin(names, formulas), NOISELESS)
    return Estimate(levels, always, weights, formulas, is_some, ratio)


def _trees(
    columns: Sequence[str], numbers: Floats, wanted: Floats, rows: npt.NDArray[np.bool_], changed: Mapping[str, Any]
) -> Booster | None:
    return Booster.fit(columns, numbers[rows], wanted[rows], **changed) if rows.any() else None


def _sums(weights: Mapping[str, Sequence[float]], names: Labels, parts: Floats) -> Floats:
    """Return the weighted sum of sizes of each row, 0 for an algorithm without weights."""
    none = (0.0,) * len(SIZES)
    found: Floats = (parts * np.array([weights.get(name, none) for name in names])).sum(axis=1)
    return found


def sizes(given: Features, frame: pd.DataFrame) -> Floats:
    """Return a row for each sample with a column in bytes for each of `SIZES`."""
    values = {name: np.exp(given.values[name].to_numpy(float)) for name in LOGARITHMS}
    pixels = values["log_batch"] * values["log_out_side"] ** 2
    filters, outputs = values["log_filters"] * values["log_terms"], pixels * values["log_filters"]
    tiles = 36 / 16 * pixels * given.values["side_of_4"].to_numpy(float)
    counts = [
        values["log_inputs"], outputs, filters,
        pixels * values["log_terms"] * values["log_groups"], tiles * values["log_channels"],
        tiles * values["log_filters"],
    ]  # fmt: skip
    element_bytes = frame["dtype"].map(ELEMENT_BYTES).to_numpy(float)
    return np.column_stack([np.ones(len(frame)), *(element_bytes * count for count in counts)])


def weights_of(parts: Floats, truth: Floats) -> Floats:
    """Return weights, none below 0, whose sums of sizes are near workspaces above 0.

    They are those of the least sum of relative errors, by reweighted non-negative least squares, or of the one size
    whose ratio scatters least: where an algorithm has several formulas, a sum is drawn to the smallest of them, and
    few samples fit any sum.
    """
    relative = parts / truth[:, None]
    candidates = [*np.diag(np.exp(-np.median(np.log(relative), axis=0)))]
    if len(truth) >= ENOUGH:
        candidates = [*_weighted(relative), *candidates]
    off = [float(np.minimum(np.abs(np.log(relative @ each)), 1.0).mean()) for each in candidates]
    best: Floats = candidates[int(np.argmin(off))]
    return best


def _weighted(relative: Floats) -> list[Floats]:
    """Return the weights of the sum that is nearest to 1 in absolute terms; none where the solver finds none."""
    scale, rows = np.linalg.norm(relative, axis=0), np.ones(len(relative))
    found: Floats = np.zeros(relative.shape[1])
    with contextlib.suppress(RuntimeError):  # too many steps: the round before has the weights
        for _ in range(ROUNDS):
            found = nnls(relative / scale * rows[:, None], rows)[0] / scale
            rows = 1 / np.sqrt(np.maximum(np.abs(1 - relative @ found), 1e-4))
    return [found] if found.any() else []


def ends_of(held_out: Floats, truth: Floats, names: Labels) -> dict[str, dict[str, Any]]:
    """Return the ends of intervals, as `WorkspacePredictor` has them.

    Args:
        held_out: bytes predicted for rows that were not learned; NaN for a row that counts in no interval.
        truth: the bytes that were measured.
        names: the algorithm of each row.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, rows in ((NONE, held_out == 0), (SOME, held_out > 0)):
        by_algorithm = {intervals.EVERY: _levels(kind, held_out[rows], truth[rows])}
        for name in sorted({*names[rows]}):
            here = rows & (names == name)
            if here.sum() >= intervals.FEWEST:
                by_algorithm[str(name)] = _levels(kind, held_out[here], truth[here])
        found[kind] = by_algorithm
    return found


def _levels(kind: str, middle: Floats, truth: Floats) -> dict[str, list[float | None]]:
    """Return both ends by level; of a prediction above 0 half of what is missed may be on each side."""
    if kind == NONE:
        return {str(level): [0.0, intervals.quantile(truth, level / 100)] for level in LEVELS}
    with np.errstate(divide="ignore"):
        over = np.log(middle) - np.log(truth)  # infinite where there is no workspace
    return {str(level): [_end(over, level), _end(-over, level)] for level in LEVELS}


def _end(missed: Floats, level: int) -> float | None:
    found = intervals.quantile(missed, (1 + level / 100) / 2)
    return None if found is None or found == np.inf else max(found, 0.0)
