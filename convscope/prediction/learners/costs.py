"""Costs of the parts of a call: weights, none below 0, of what its time is a sum of.

Each call has the roofline's parts: the launch, operations and bytes. Their weights are by arithmetic, the same for all
algorithms, by least squares of relative errors. They hold beyond the sizes that were learned, and for other cards.

In predictors for cards that were learned, calls by plans, by `direct`, and by the algorithms of Fourier's and
Winograd's transforms have parts of how they are computed instead (`shapes`): by the tile that a plan says, by
transforms, or by threads that each compute an output. Those of plans that say nothing, and of `direct`, are parts of a
usual tile. They are close to what was measured, but jump from size to size, so what is to be smooth begins with the
roofline's parts there. Calls of one arithmetic, engine, class of shapes and plan mostly run the same kernels, so they
have weights of their own, on each card. Weights of a narrower group begin with those of the wider one around it, as if
some of the latter's samples were its own, of times as long as its own: so few samples are enough (partial pooling). A
wider group stands for a narrower one that was not learned. What a narrower group says is no farther from what the wider
one does than it was for any of its samples: a part that is small in these may get a weight that makes it large in other
calls. The mean absolute logarithm of predicted over measured times is made small by squares of relative errors, each
counted by what makes it such a logarithm (iteratively reweighted least squares), so that few odd samples change little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import linalg
from scipy.optimize import nnls

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC
from convscope.prediction.features import Features
from convscope.prediction.learners import threads
from convscope.prediction.shapes import tiles
from convscope.prediction.shapes.sizes import Floats

EVERY = ""
"""Name of the costs of every arithmetic."""
BY_USUAL_TILE = ", by a usual tile"
"""Ends the name of the widest group of an arithmetic whose parts are those of a usual tile."""
FEWEST, FEWEST_OF_ARITHMETIC = 5, 50
"""Samples that a group needs, and an arithmetic that has weights of the roofline's parts of its own."""
BORROWED = 10
"""Samples that a group has of the wider one around it, at most."""
RIDGE = 1e-9
"""Share that is added to the squares of each part: those that are alike in all samples make no matrix singular."""
EXCHANGES, LEAST_SLOPE = 12, 1e-10
"""Times that parts are exchanged at most, and the slope of the squares from which a part is worth a weight."""
MOST = 1_500
"""Samples that the weights of a group are learned from at most, as far apart in the order of samples as can be."""
ROUNDS, LEAST = 3, 0.05
"""Rounds of reweighting, and the least logarithm of a ratio that squares are divided by."""
TINIEST = 1e-6
"""Ratio that stands for one of 0, whose logarithm has no end."""
SHORTEST_MS, WITHOUT_WIDER = 1e-9, (0.0, np.inf)
"""Time that a group says at least, and the ratios of one that has no wider one."""
FASTEST = 0.1
"""Share of the roofline's time that a call by parts takes at least: caches are faster than the memory, not by more."""
PACKING_ENGINES = frozenset(f"plan:{engine}" for engine in tiles.PACKING)
"""Names of the engines that compute narrow groups together."""
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Costs:
    """Weights of parts; a part that is not there costs nothing.

    Attributes:
        roofline: of the roofline's parts, by arithmetic; `EVERY` for others.
        parts: of the parts of how a call is computed, by the name of a group; nothing where all have the roofline's.
        ratios: by the name of a group, the least and largest ratio of what it says to what the wider one does.
    """

    roofline: Mapping[str, Mapping[str, float]]
    parts: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def predict(self, given: Features, frame: pd.DataFrame, is_smooth: bool = False) -> Floats:
        """Return the logarithm of the sum of the parts' costs over the roofline's time, for each row.

        Args:
            is_smooth: calls whose parts are those of a usual tile cost the roofline's.
        """
        names = splits.joined(frame, ARITHMETIC)
        by_roofline = np.where(pd.Series(names).isin(self.roofline.keys()), names, EVERY)
        found_ms = _weighted(given.of_roofline_ms(), self.roofline, by_roofline)
        rows = np.flatnonzero((given.are_own if is_smooth else given.has_parts) & bool(self.parts))
        own_ms = self._by_parts(given, frame, rows) if len(rows) else np.zeros(0)
        known = rows[~np.isnan(own_ms)]
        found_ms[known] = own_ms[~np.isnan(own_ms)]
        share = found_ms / given.roofline_ms
        share[known] = np.maximum(share[known], FASTEST)
        found: Floats = np.log(share)
        return found

    def _by_parts(self, given: Features, frame: pd.DataFrame, rows: Places) -> Floats:
        """Return the sum of the parts' costs of rows that have parts; NaN for one of no group."""
        parts, found_ms = given.parts_ms.iloc[rows], np.full(len(rows), np.nan)
        for level in _levels(given, frame, rows):
            known = np.flatnonzero(pd.Series(level).isin(self.parts.keys()))
            if not len(known):
                continue
            own_ms = np.maximum(_weighted(parts.iloc[known], self.parts, level[known]), SHORTEST_MS)
            least, most = np.array([self.ratios.get(name, WITHOUT_WIDER) for name in level[known]]).T
            wider_ms = found_ms[known]
            has_wider = np.isfinite(wider_ms)
            own_ms[has_wider] = np.clip(own_ms, least * wider_ms, most * wider_ms)[has_wider]
            found_ms[known] = own_ms
        return found_ms


def _weighted(parts: pd.DataFrame, weights: Mapping[str, Mapping[str, float]], groups: splits.Labels) -> Floats:
    """Return of each row the sum of its parts by the weights of its group."""
    values, found = parts.to_numpy(float), np.empty(len(parts))
    for name, rows in _rows_of(groups, np.arange(len(parts))):
        found[rows] = values[rows] @ np.array([weights[name].get(str(part), 0.0) for part in parts])
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

    def with_targets_over(self, share: float) -> _Squares:
        """Return it for targets that are divided by a share."""
        return _Squares(self.products * share**2, self.sums * share, self.count)

    def with_some(self, wider: _Squares) -> _Squares:
        """Return it with `BORROWED` samples at most of a wider group."""
        share = min(1.0, BORROWED / wider.count)
        products, sums = self.products + share * wider.products, self.sums + share * wider.sums
        return _Squares(products, sums, self.count + share * wider.count)

    def weights(self, near: Floats | None = None) -> Floats:
        """Return the weights, none below 0, with the smallest squares.

        Args:
            near: weights that those of the same parts may be above 0 as these are; None: nothing is known.
        """
        scale = np.sqrt(self.products.diagonal())
        there = np.flatnonzero(scale > 0)
        scale = scale[there]
        products = self.products[there][:, there] / scale / scale[:, None]
        products.flat[:: len(there) + 1] += RIDGE
        found = np.zeros(len(self.sums))
        is_likely = np.full(len(there), True) if near is None else near[there] > 0
        found[there] = _none_below_0(products, self.sums[there] / scale, is_likely) / scale
        return found


def _none_below_0(products: Floats, sums: Floats, is_above: Mask) -> Floats:
    """Return the weights, none below 0, with the smallest squares.

    Some parts have a weight, the others 0. Those whose weight would be below 0, and those of the others that are worth
    one, are exchanged all at once until there are none (block principal pivoting): two or three times for most. Where
    that goes round in circles, an active set finds them.

    Args:
        products, sums: of parts, scaled alike; the matrix is positive definite.
        is_above: the parts that have a weight at first.

    Source: Kim and Park, Fast nonnegative matrix factorization, SIAM Journal on Scientific Computing 33 (2011).
    """
    for _ in range(EXCHANGES):
        above = np.flatnonzero(is_above)
        weights = _solved(products[above][:, above], sums[above])
        slope = sums - products[:, above] @ weights
        slope[above] = 0
        is_wrong = slope > LEAST_SLOPE
        is_wrong[above] = weights < 0
        if not is_wrong.any():
            found = np.zeros(len(sums))
            found[above] = weights
            return found
        is_above = is_above ^ is_wrong
    lower = np.linalg.cholesky(products)
    by_set: Floats = nnls(lower.T, linalg.solve_triangular(lower, sums, lower=True))[0]
    return by_set


def _solved(products: Floats, sums: Floats) -> Floats:
    """Return the solution of equations whose matrix is positive definite."""
    if not len(sums):
        return sums
    _, found, fault = linalg.lapack.dposv(products, sums)  # type: ignore[attr-defined]
    if fault:
        raise np.linalg.LinAlgError(f"no positive definite matrix of {len(sums)} parts: {fault}")
    return np.asarray(found, dtype=np.float64)


_Group = tuple[_Squares, Floats]
"""Sums and weights of a group."""


def fit(given: Features, frame: pd.DataFrame, wanted: Floats, by_parts: bool, learned: Mask | None = None) -> Costs:
    """Fit weights to the logarithm of a target over the roofline's time, which is `wanted` for each row.

    Args:
        by_parts: calls that have parts of how they are computed cost these.
        learned: the rows that they are fitted to; None: all.
    """
    kept = np.arange(len(frame)) if learned is None else np.flatnonzero(learned)
    took_ms = (np.exp(wanted) * given.roofline_ms)[:, None]
    parts, arithmetics = given.of_roofline_ms(), splits.joined(frame, ARITHMETIC)
    relative = parts.to_numpy(float) / took_ms
    of_arithmetic = ((name, rows) for name, rows in _rows_of(arithmetics, kept) if len(rows) >= FEWEST_OF_ARITHMETIC)
    roofline = {
        name: _named(parts, _Squares.of(relative[rows]).weights()) for name, rows in [(EVERY, kept), *of_arithmetic]
    }
    rows = kept[given.has_parts[kept]]
    return Costs(roofline, *(_by_parts(given, frame, took_ms, rows) if by_parts and len(rows) >= FEWEST else ({}, {})))


def _by_parts(
    given: Features, frame: pd.DataFrame, took_ms: Floats, having: Places
) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
    """Return the weights of groups of the rows that have such parts, and their ratios (`Costs.ratios`)."""
    values_ms = given.parts_ms.to_numpy(float)[having]
    relative = values_ms / took_ms[having]
    levels = _levels(given, frame, having)
    found, ratios, said_ms = dict[str, dict[str, float]](), dict[str, tuple[float, float]](), np.empty(len(having))

    waiting: list[tuple[str, Places, _Group | None, int]]
    waiting = [(name, rows, None, 1) for name, rows in _rows_of(levels[0], np.arange(len(having)))]
    while waiting:  # a function that calls itself would keep all of this until the next collection of garbage
        name, rows, wider, depth = waiting.pop()
        if len(rows) < FEWEST:
            continue
        mine = _learned(relative[rows[:: -(-len(rows) // MOST)]], wider)
        found[name] = _named(given.parts_ms, mine[1])
        own_ms = np.maximum(values_ms[rows] @ mine[1], SHORTEST_MS)
        if wider is not None:
            apart = own_ms / said_ms[rows]
            ratios[name] = float(apart.min()), float(apart.max())
        said_ms[rows] = own_ms
        for level in range(depth, len(levels)):
            inner = [*_rows_of(levels[level], rows)]
            if len(inner) > 1:  # else they are the same rows by a longer name
                waiting += [(own, of_own, mine, level + 1) for own, of_own in inner]
                break
    return found, ratios


def _named(parts: pd.DataFrame, weights: Floats) -> dict[str, float]:
    return {str(part): value for part, value in zip(parts, weights.tolist(), strict=True) if value > 0}


def crossed(
    given: Features, frame: pd.DataFrame, wanted: Floats, by_parts: bool, number_of: Places, learned: Mask | None = None
) -> tuple[Floats, Floats]:
    """Return for each row what costs say that did not learn its fold, and what is smooth (`Costs.predict`).

    Args:
        number_of: of each row, the number of its fold.
        learned: as for `fit`.
    """
    numbers, may = np.unique(number_of), np.ones(len(frame), dtype=np.bool_) if learned is None else learned

    def without(number: int) -> list[Floats]:
        out = number_of == number
        found, rows = fit(given, frame, wanted, by_parts, ~out & may), given.rows(out)
        return [found.predict(rows, frame[out], is_smooth) for is_smooth in (False, True)]

    both = np.empty(len(frame)), np.empty(len(frame))
    for number, values in zip(numbers, threads.parallel_map(without, numbers.tolist()), strict=True):
        for found, of_fold in zip(both, values, strict=True):
            found[number_of == number] = of_fold
    return both


def _learned(relative: Floats, wider: _Group | None) -> _Group:
    """Return the sums of a group as they were counted last, and its weights, beside some samples of the wider one.

    These count as if their times were to what the wider group says as the group's own are: calls by a slow engine have
    the parts of others, not their times.
    """
    if wider is None:
        borrowed, weights = None, _Squares.of(relative).weights()
    else:
        share = max(float(np.median(relative @ wider[1])), TINIEST)
        borrowed, weights = wider[0].with_targets_over(share), wider[1] / share
    for _ in range(ROUNDS):
        mine = _Squares.of(relative, _counts(relative @ weights))
        weights = (mine.with_some(borrowed) if borrowed else mine).weights(weights)
    return mine, weights


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


def _levels(given: Features, frame: pd.DataFrame, rows: Places) -> list[splits.Labels]:
    """Return names of groups of some rows, each narrower than the one before.

    By engine, and then by whether there are groups, and one image, before their kinds: what a kind has no samples of is
    so estimated from other groups of the engine, never from calls without groups. Engines that pack groups share the
    kernels around the product, which depend on the kind, so they are told apart after it.
    """
    arithmetics = splits.joined(frame.iloc[rows], ARITHMETIC)
    found = [arithmetics + np.where(given.are_own[rows], "", BY_USUAL_TILE).astype(object)]
    engine, algorithm = (given.values[name].to_numpy(dtype=object) for name in ("engine", "algorithm"))
    kin = np.where(pd.Series(engine).isin(PACKING_ENGINES), "packing", engine).astype(object)
    coarse, fine = given.classes
    is_grouped = (frame["groups"] > 1).to_numpy()
    is_one = is_grouped & (frame["batch_size"] == 1).to_numpy()
    either, one = np.where(is_grouped, "groups", "dense"), np.where(is_one, "one image", "images")
    for labels in (kin, either, one, coarse, engine, algorithm, fine, frame["gpu_name"].to_numpy(dtype=object)):
        found.append(np.array([f"{wide}, {own}" for wide, own in zip(found[-1], labels[rows], strict=True)], object))
    return found


def _rows_of(labels: splits.Labels, rows: Places) -> Iterator[tuple[str, Places]]:
    """Yield each label of some rows, with the rows that have it."""
    if not len(rows):
        return
    numbers, names = pd.factorize(labels[rows], sort=True)
    order = np.argsort(numbers, kind="stable")
    for name, places in zip(names, np.split(order, np.cumsum(np.bincount(numbers))[:-1]), strict=True):
        yield str(name), rows[places]
