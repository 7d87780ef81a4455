"""Costs of the parts of a call: weights, none below 0, with the smallest logarithms of ratios.

Calls of one arithmetic, engine, class of shapes and plan mostly run the same kernels, so they have weights of their
own, on each card. Weights of a narrower group begin with those of the wider one around it, as if some of the latter's
samples were its own: so few samples are enough (partial pooling). A wider group stands for a narrower one that was not
learned.

The mean absolute logarithm of predicted over measured times is made small by squares of relative errors, each counted
by what makes it such a logarithm (iteratively reweighted least squares), so that few odd samples change little.

Where the parts are those of the roofline alone (`by_call` false), weights are by arithmetic, and those of least squares
of relative errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC
from convscope.prediction.features import Features
from convscope.prediction.learners import threads
from convscope.prediction.shapes.sizes import Floats

EVERY = ""
"""Name of the group of all."""
FEWEST, FEWEST_OF_ARITHMETIC = 20, 50
"""Samples that a group needs, and an arithmetic where the parts are those of the roofline."""
BORROWED = 30
"""Samples that a group has of the wider one around it, at most."""
RIDGE = 1e-9
"""Share that is added to the squares of each part: those that are alike in all samples make no matrix singular."""
MOST = 1_500
"""Samples that the weights of a group are learned from at most, as far apart in the order of samples as can be."""
ROUNDS, LEAST = 3, 0.05
"""Rounds of reweighting, and the least logarithm of a ratio that squares are divided by."""
TINIEST = 1e-6
"""Ratio that stands for one of 0, whose logarithm has no end."""
FASTEST = 0.1
"""Share of the roofline's time that a call takes at least: caches are faster than the memory, and transforms save
operations, but not by more."""
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Costs:
    """Weights of parts.

    Attributes:
        by_call: the parts are those of `Features.parts_ms`; else of `Features.of_roofline_ms`.
        weights: by the name of a group and of a part; a part that is not there costs nothing.
    """

    by_call: bool
    weights: Mapping[str, Mapping[str, float]]

    def predict(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the logarithm of the sum of the parts' costs over the roofline's time, for each row."""
        parts = _parts(given, self.by_call)
        values, found_ms = parts.to_numpy(float), np.empty(len(frame))
        finest: splits.Labels = np.full(len(frame), EVERY, dtype=object)
        for level in _levels(given, frame, self.by_call):
            finest = np.where(pd.Series(level).isin(self.weights.keys()), level, finest)
        for name, rows in _rows_of(finest, np.arange(len(frame))):
            weights = self.weights[name]
            found_ms[rows] = values[rows] @ np.array([weights.get(str(part), 0.0) for part in parts])
        found: Floats = np.log(np.maximum(found_ms / given.roofline_ms, FASTEST if self.by_call else 0.0))
        return found


@dataclass(frozen=True)
class _Squares:
    """Sums over samples that the smallest squares follow from: products of parts, parts, and the number of samples."""

    products: Floats
    sums: Floats
    count: float

    @classmethod
    def of(cls, relative: Floats, counts: Floats | None = None) -> _Squares:
        """Return it for parts over the target, a row a sample, and how much each square counts; None: all alike."""
        counted = relative if counts is None else relative * (counts / counts.mean())[:, None]
        return cls(counted.T @ relative, counted.sum(axis=0), len(relative))

    def with_some(self, wider: _Squares) -> _Squares:
        """Return it with `BORROWED` samples at most of a wider group."""
        share = min(1.0, BORROWED / wider.count)
        products, sums = self.products + share * wider.products, self.sums + share * wider.sums
        return _Squares(products, sums, self.count + share * wider.count)

    def weights(self) -> Floats:
        """Return the weights, none below 0, with the smallest squares."""
        scale = np.sqrt(self.products.diagonal())
        is_there = scale > 0
        scale = scale[is_there]
        products = self.products[np.ix_(is_there, is_there)] / np.outer(scale, scale)
        lower = np.linalg.cholesky(products + RIDGE * np.eye(len(scale)))
        found = np.zeros(len(self.sums))
        found[is_there] = nnls(lower.T, solve_triangular(lower, self.sums[is_there] / scale, lower=True))[0] / scale
        return found


_Group = tuple[_Squares, Floats]
"""Sums and weights of a group."""


def fit(given: Features, frame: pd.DataFrame, wanted: Floats, by_call: bool, learned: Mask | None = None) -> Costs:
    """Fit weights to the logarithm of a target over the roofline's time, which is `wanted` for each row.

    Args:
        by_call: the parts are those of each call (`Costs`).
        learned: the rows that they are fitted to; None: all.
    """
    parts = _parts(given, by_call)
    relative = parts.to_numpy(float) / (np.exp(wanted) * given.roofline_ms)[:, None]
    levels = _levels(given, frame, by_call)
    fewest = FEWEST if by_call else FEWEST_OF_ARITHMETIC
    found = dict[str, dict[str, float]]()

    def narrow(name: str, rows: Places, wider: _Group | None, depth: int) -> None:
        some = relative[rows[:: -(-len(rows) // MOST)]]
        mine = _learned(some, wider) if by_call else _alone(relative[rows])
        found[name] = {str(part): value for part, value in zip(parts, mine[1].tolist(), strict=True) if value > 0}
        while depth < len(levels):
            inner, depth = [*_rows_of(levels[depth], rows)], depth + 1
            if len(inner) > 1:  # else they are the same rows by a longer name
                for own, of_own in inner:
                    if len(of_own) >= fewest:
                        narrow(own, of_own, mine, depth)
                return

    narrow(EVERY, np.arange(len(frame)) if learned is None else np.flatnonzero(learned), None, 0)
    return Costs(by_call, found)


def crossed(given: Features, frame: pd.DataFrame, wanted: Floats, by_call: bool, number_of: Places) -> Floats:
    """Return for each row what costs say that did not learn its fold, as `Costs.predict` does.

    Args:
        number_of: of each row, the number of its fold.
    """
    numbers = np.unique(number_of)

    def without(number: int) -> Floats:
        out = number_of == number
        return fit(given, frame, wanted, by_call, ~out).predict(given.rows(out), frame[out])

    found = np.empty(len(frame))
    for number, values in zip(numbers, threads.parallel_map(without, numbers.tolist()), strict=True):
        found[number_of == number] = values
    return found


def _alone(relative: Floats) -> _Group:
    """Return the sums and the weights of a group, with the smallest squares."""
    found = _Squares.of(relative)
    return found, found.weights()


def _learned(relative: Floats, wider: _Group | None) -> _Group:
    """Return the sums of a group as they were counted last, and its weights, beside some samples of the wider one."""
    found, weights = wider or _alone(relative)
    for _ in range(ROUNDS):
        found = _Squares.of(relative, _counts(relative @ weights))
        weights = (found.with_some(wider[0]) if wider else found).weights()
    return found, weights


def _counts(ratios: Floats) -> Floats:
    """Return what turns squares of `ratios - 1` into absolute logarithms of the ratios."""
    past, logarithms = ratios - 1, np.log(np.maximum(ratios, TINIEST))
    is_near = np.abs(past) < TINIEST
    to_squares = np.where(is_near, 1.0, logarithms / np.where(is_near, 1.0, past)) ** 2
    found: Floats = to_squares / np.maximum(np.abs(logarithms), LEAST)
    return found


def relative_squares(parts_ms: Floats, target: Floats) -> Floats:
    """Return a cost of each part, none below 0, with the smallest squares of relative errors.

    Args:
        parts_ms: a row a sample.
        target: of each row, what the sum over its parts is to be.
    """
    return _Squares.of(parts_ms / target[:, None]).weights()


def _parts(given: Features, by_call: bool) -> pd.DataFrame:
    return given.parts_ms if by_call else given.of_roofline_ms()


def _levels(given: Features, frame: pd.DataFrame, by_call: bool) -> list[splits.Labels]:
    """Return names of groups of each row, each narrower than the one before."""
    found = [splits.joined(frame, ARITHMETIC)]
    engine, algorithm = (given.values[name].to_numpy(dtype=object) for name in ("engine", "algorithm"))
    card = frame["gpu_name"].to_numpy(dtype=object)
    for labels in (engine, *given.classes, algorithm, card) if by_call else ():
        found.append(np.array([f"{wide}, {own}" for wide, own in zip(found[-1], labels, strict=True)], dtype=object))
    return found


def _rows_of(labels: splits.Labels, rows: Places) -> Iterator[tuple[str, Places]]:
    """Yield each label of some rows, with the rows that have it."""
    if not len(rows):
        return
    numbers, names = pd.factorize(labels[rows], sort=True)
    order = np.argsort(numbers, kind="stable")
    for name, places in zip(names, np.split(order, np.cumsum(np.bincount(numbers))[:-1]), strict=True):
        yield str(name), rows[places]
