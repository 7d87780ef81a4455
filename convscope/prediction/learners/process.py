"""Gaussian process over the features of samples: a smooth estimate between layers that were measured.

It is the better one of a layer with measured ones around it, and says nothing far from them, where trees are better.
Samples of one arithmetic (type, math, layout) and engine (of an algorithm by name, the name) are a process of their own
where there are enough of them; those of the other engines of an arithmetic share one. Two samples are alike by the
distance of their features (Matérn's kernel of order 3/2), more so if they are by the same engine, and most by the same
algorithm. Where an algorithm ran in several kernels, its process has an estimate by these besides (`kernels`). What is
missed of samples that are left out follows from the inverse matrix of all, for any division.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2, 4.2 and 5.4.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC, WORK
from convscope.prediction.features import CATEGORIES, Features, features
from convscope.prediction.learners import kernels, threads
from convscope.prediction.learners.kernels import ByKernel
from convscope.prediction.learners.matrices import inverse
from convscope.prediction.learners.weights import ALIKE, ALIKE_ALGORITHM, ALIKE_ENGINE, UNKNOWN, WEIGHTS
from convscope.prediction.shapes.sizes import Floats

POINT = ("gpu_name", *WORK)
"""Columns of a sample that its features follow from."""
TIMES = "times_ms"
"""Further column of points, where the target follows from times (`Features.times_ms`)."""
LENGTH = 20.0
"""Distance at which two samples are less than half as alike, in standard deviations of features by `WEIGHTS`."""
NOISES = (0.0025, 0.01, 0.04, 0.16, 0.64)
"""Variances of what is peculiar to a sample, in ascending order; the process has that of the sum of the shares."""
HARDLY_MORE = 1.01
"""Factor of errors that does not matter in the choice of a noise: of a part of the samples, more seems to be noise."""
ENOUGH, FEWEST = 300, 30
"""Samples of an engine from which on it has a process of its own, and those that any process needs. Engines tell little
of each other, and many small processes take a twentieth of the time of one."""
MOST, TRIED = 8_000, 2_000
"""Samples that a process is fitted to at most, for time grows with their third power, and those by which its noise is
chosen; whole shapes are left out."""
SHARES = np.linspace(0, 1, 11)
"""Shares of the other of two estimates that are tried."""
AT_ONCE = 2
"""Groups that are fitted at the same time at most: one of 8,000 samples needs 2.5 GB of memory."""
ROWS = 1_000
"""Rows that are compared with points at once: how alike these are is computed in several steps, each as large."""
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
"""Numbers of rows."""


@dataclass(frozen=True)
class Process:
    """A fitted process: its estimate is the mean of a group, and the likeness to each point times the weight of it.

    Attributes:
        points: the samples that it rests on, by column (`POINT`, and `TIMES` for a target that follows from them).
        weights: of each point.
        means: by group: an arithmetic and an engine, or an arithmetic for its other engines.
        center, spread: of features, which are taken off and divided by: the more a feature weighs, the smaller.
        kernels: by group, of those in which a call may run one of several: what is known of them.
        cards: facts of cards that the catalogue does not have.
    """

    points: Mapping[str, list[object]]
    weights: Sequence[float]
    means: Mapping[str, float]
    center: Mapping[str, float]
    spread: Mapping[str, float]
    kernels: Mapping[str, ByKernel] = field(default_factory=dict)
    cards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def predict(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the estimate of each row; NaN for a group that was not learned."""
        found, weights = np.full(len(frame), np.nan), np.array(self.weights)
        for name, rows, asked, points, places in self._by_group(given, frame):
            likeness = asked.likeness(places)
            found[rows] = self.means[name] + likeness @ weights[points]
            if name in self.kernels:
                known = self.kernels[name]
                by_kernel = known.estimate(likeness, asked.scaled)
                found[rows] += known.share * (by_kernel - found[rows])
        return found

    def far(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the distance of each row from the nearest point of its group; infinite without a group."""
        found = np.full(len(frame), np.inf)
        for _, rows, asked, _, places in self._by_group(given, frame):
            found[rows] = asked.distances(places)
        return found

    def _by_group(self, given: Features, frame: pd.DataFrame) -> Iterator[tuple[str, Places, _Places, Places, _Places]]:
        """Yield for each group its name, some of its rows at a time and their places, its points and their places."""
        if not self.means:  # no group had enough
            return
        asked, (places, of_points) = _Places.of(given, self.center, self.spread), self._places
        mine = self._groups(given, frame)
        for name in sorted({*mine} & {*self.means}):
            points = np.flatnonzero(of_points == name)
            near = places.rows(points)
            for rows in _some(np.flatnonzero(mine == name)):
                yield name, rows, asked.rows(rows), points, near

    def _groups(self, given: Features, frame: pd.DataFrame) -> splits.Labels:
        arithmetics, engines = splits.joined(frame, ARITHMETIC), _engines(given, frame)
        return np.where(pd.Series(engines).isin([*self.means]), engines, arithmetics).astype(object)

    @functools.cached_property
    def _places(self) -> tuple[_Places, splits.Labels]:
        frame = pd.DataFrame(dict(self.points))
        times_ms = frame[TIMES].to_numpy(float) if TIMES in frame else None
        given = features(frame, self.cards, times_ms)
        return _Places.of(given, self.center, self.spread), self._groups(given, frame)


@dataclass(frozen=True)
class _Places:
    """Places of samples: scaled features, and the names that likeness depends on besides."""

    scaled: Floats
    engines: npt.NDArray[np.object_]
    algorithms: npt.NDArray[np.object_]

    @classmethod
    def of(cls, given: Features, center: Mapping[str, float], spread: Mapping[str, float]) -> _Places:
        """Return the places of samples."""
        scaled = np.column_stack(
            [(given.values[name].to_numpy(float) - center[name]) / spread[name] for name in center]
        )
        names = (given.values[name].to_numpy(dtype=object) for name in ("engine", "algorithm"))
        return cls(scaled, *names)

    def rows(self, kept: Places) -> _Places:
        """Return the places of some."""
        return _Places(self.scaled[kept], self.engines[kept], self.algorithms[kept])

    def distances(self, other: _Places) -> Floats:
        """Return the distance of each of these to the nearest of the others; infinite if there are none."""
        found = np.full(len(self.scaled), np.inf)
        squares = (other.scaled**2).sum(axis=1)
        for rows in _some(np.arange(len(found))) if len(squares) else ():
            mine = self.scaled[rows]
            nearest = (squares - 2 * mine @ other.scaled.T).argmin(axis=1)  # less the same for all, by one product
            found[rows] = np.linalg.norm(mine - other.scaled[nearest], axis=1)
        return found

    def among(self, kept: Places) -> Floats:
        """Return how alike some of these are to each other."""
        own = self.rows(kept)
        return own.likeness(own)

    def likeness(self, other: _Places) -> Floats:
        """Return how alike each of these is to each of the others."""
        found = np.empty((len(self.scaled), len(other.scaled)))
        for rows in _some(np.arange(len(self.scaled))):
            found[rows] = self.rows(rows)._likeness(other)
        return found

    def _likeness(self, other: _Places) -> Floats:
        squares = (self.scaled**2).sum(axis=1)[:, None] + (other.scaled**2).sum(axis=1)
        squares -= 2 * self.scaled @ other.scaled.T
        far = np.sqrt(np.maximum(squares, 0, out=squares), out=squares)
        far *= np.sqrt(3) / LENGTH
        found: Floats = np.exp(-far)
        found *= np.add(far, 1, out=far)
        found *= ALIKE
        for one, of_other, factor in (
            (self.engines, other.engines, 1 + ALIKE_ENGINE / ALIKE),
            (self.algorithms, other.algorithms, 1 + ALIKE_ALGORITHM / (ALIKE + ALIKE_ENGINE)),
        ):
            for name in {*one} & {*of_other}:
                found[np.ix_(one == name, of_other == name)] *= factor
        return found


def _some(rows: Places) -> Iterator[Places]:
    """Yield rows, `ROWS` at a time."""
    for first in range(0, len(rows), ROWS):
        yield rows[first : first + ROWS]


@dataclass(frozen=True)
class Fitted:
    """A process, and what it misses of each row when others are left out together with it, by division.

    Attributes:
        far: the distance of each row from what is not left out, by division; infinite for a row that is not judged, or
            of a group with too few.
    """

    process: Process
    rests: Sequence[Floats]
    far: Sequence[Floats]


def fit(
    given: Features, frame: pd.DataFrame, wanted: Floats, cards: Mapping[str, Mapping[str, float]],
    divisions: Sequence[tuple[Mask, Mask]] = (), learned: Mask | None = None,
) -> Fitted:  # fmt: skip
    """Fit a process to samples.

    Args:
        wanted: what it is to give for each row.
        divisions: rows that are judged, and rows that are left out with them. Of a row that is not judged, or of a
            group with too few, the rest is NaN.
        learned: the rows that it is fitted to; the others may be judged. None: all.
    """
    may = np.ones(len(frame), dtype=np.bool_) if learned is None else learned
    numbers = given.values.loc[may].drop(columns=list(CATEGORIES))
    center, spread = numbers.mean(), numbers.std(ddof=0)
    weight_of = {name: WEIGHTS.get(name, UNKNOWN) for name in map(str, numbers) if spread[name] > 0}
    own = (
        {name: float(center[name]) for name in weight_of},
        {name: float(spread[name]) / weight for name, weight in weight_of.items()},
    )
    places, groups = _Places.of(given, *own), groups_of(given, frame, may)
    rests, far = ([np.full(len(frame), unknown) for _ in divisions] for unknown in (np.nan, np.inf))

    def fitted(rows: Places) -> _Group:
        known = rows[may[rows]]
        chosen = known[thinned(frame.iloc[known], MOST)]
        likeness = places.among(chosen)
        found = _OfOne(places, wanted, rows, chosen, _noise(places, frame, wanted, chosen), likeness)
        found.know_kernels(frame, likeness)
        for (judged, out), rest, distances in zip(divisions, rests, far, strict=True):  # a group writes its rows alone
            found.leave_out(judged, out, rest)
            asked, left = rows[judged[rows]], chosen[~out[chosen]]
            distances[asked] = places.rows(asked).distances(places.rows(left))
        by_kernel = None if found.by_kernel is None else found.by_kernel.fitted(found.share)
        return _Group(chosen, found.weights, found.mean, by_kernel)

    rows_of = {str(name): np.flatnonzero(groups == name) for name in {*groups}}
    names = [name for name in rows_of if may[rows_of[name]].sum() >= FEWEST]
    names.sort(key=lambda name: -len(rows_of[name]))
    of_name = dict(zip(names, threads.parallel_map(fitted, [rows_of[name] for name in names], AT_ONCE), strict=True))
    every = {name: of_name[name] for name in sorted(names)}
    points = [point for group in every.values() for point in group.points.tolist()]
    weights = [weight for group in every.values() for weight in group.weights.tolist()]
    means = {name: group.mean for name, group in every.items()}
    by_kernel = {name: group.by_kernel for name, group in every.items() if group.by_kernel is not None}
    return Fitted(Process(_kept(given, frame, points), weights, means, *own, by_kernel, cards), rests, far)


@dataclass(frozen=True)
class _Group:
    """A fitted group: the numbers of its points, their weights, its mean, its estimate by kernels."""

    points: Places
    weights: Floats
    mean: float
    by_kernel: ByKernel | None


def _kept(given: Features, frame: pd.DataFrame, points: Sequence[int]) -> dict[str, list[object]]:
    """Return of some rows the columns that features follow from."""
    columns = {name: frame[name].iloc[np.array(points, dtype=int)].tolist() for name in POINT}
    if given.times_ms is not None:
        columns[TIMES] = given.times_ms[points].tolist()
    return columns


def _engines(given: Features, frame: pd.DataFrame) -> splits.Labels:
    """Return the arithmetic and the engine of each row."""
    return splits.joined(frame.assign(engine=given.values["engine"].to_numpy()), (*ARITHMETIC, "engine"))


def groups_of(given: Features, frame: pd.DataFrame, learned: Mask | None = None) -> splits.Labels:
    """Return the group of each row: its arithmetic and engine, or the former where few rows of both are learned.

    Args:
        learned: rows that count; None: all.
    """
    engines = pd.Series(_engines(given, frame))
    counts = (engines if learned is None else engines[learned]).value_counts()
    has_enough = engines.isin(counts.index[counts >= ENOUGH])
    return np.where(has_enough, engines, splits.joined(frame, ARITHMETIC)).astype(object)


class _OfOne:
    """The process of one group, with the inverse of the likeness of its points."""

    def __init__(
        self, places: _Places, wanted: Floats, rows: Places, points: Places, noise: float, likeness: Floats
    ) -> None:
        """Fit it; `likeness` is that of the points to each other, without noise, and stays as it is."""
        self._places, self._wanted, self._rows, self._points, self._noise = places, wanted, rows, points, noise
        self.by_kernel: kernels.Fit | None = None
        self.share = 0.0
        self.mean = float(wanted[points].mean())
        diagonal = likeness.diagonal().copy()  # of a large matrix there is no room for a second one
        np.fill_diagonal(likeness, diagonal + noise)
        self._inverse = inverse(likeness)
        np.fill_diagonal(likeness, diagonal)
        self.weights: Floats = self._inverse @ (wanted[points] - self.mean)

    def know_kernels(self, frame: pd.DataFrame, likeness: Floats) -> None:
        """Have an estimate by kernels too, where samples of one algorithm ran in several, and it misses less.

        Args:
            likeness: as it was given for the fit.
        """
        mine = frame.iloc[self._points]
        labels = kernels.numbers(mine)
        if len(mine) < ENOUGH or mine["algorithm"].nunique() > 1 or len(np.unique(labels)) < 2:
            return
        known = kernels.Fit(
            likeness, self._places.scaled[self._points], self._wanted[self._points], labels, self._noise
        )
        number_of = np.full(len(frame), -1)
        number_of[self._points] = splits.folds(splits.labels(mine, "layer"))
        without, by_kernel = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
        for number in np.unique(number_of[self._points]):
            fold = number_of == number
            self.leave_out(fold, fold, without)
            by_kernel[fold] = self._wanted[fold] - known.without(np.flatnonzero(fold[self._points]))
        self.share = share(without, by_kernel)
        self.by_kernel = known if self.share > 0 else None

    def leave_out(self, judged: Mask, out: Mask, rests: Floats) -> None:
        """Write what the process misses of judged rows if it is fitted without those that are left out."""
        gone, others = np.flatnonzero(out[self._points]), np.setdiff1d(self._rows, self._points)
        others = others[judged[others]]
        if not len(gone) and not len(others):
            return
        alone = np.linalg.solve(self._inverse[np.ix_(gone, gone)], self.weights[gone])
        found, points = np.full(len(rests), np.nan), self._points[gone]
        found[points] = alone
        if self.by_kernel is not None and len(gone):
            found[points] += self.share * (self._wanted[points] - self.by_kernel.without(gone) - alone)
        if len(others):
            left = np.setdiff1d(np.arange(len(self._points)), gone)
            weights = np.zeros(len(self._points))
            weights[left] = self.weights[left] - self._inverse[np.ix_(left, gone)] @ alone
            near = self._places.rows(self._points)
            for rows in _some(others):
                asked = self._places.rows(rows)
                likeness = asked.likeness(near)
                estimates = self.mean + likeness @ weights
                if self.by_kernel is not None:
                    estimates += self.share * (self.by_kernel.without(gone, (likeness, asked.scaled)) - estimates)
                found[rows] = self._wanted[rows] - estimates
        known = judged & np.isfinite(found)
        rests[known] = found[known]


def _noise(places: _Places, frame: pd.DataFrame, wanted: Floats, rows: Places) -> float:
    """Return the least noise with which some of the rows, shapes left out, are missed by hardly more than by any."""
    some = rows[thinned(frame.iloc[rows], TRIED)]
    number_of = np.full(len(frame), -1)
    number_of[some] = splits.folds(splits.labels(frame.iloc[some], "layer"))
    likeness, missed = places.among(some), []
    for noise in NOISES:
        found, rests = _OfOne(places, wanted, some, some, noise, likeness), np.full(len(frame), np.nan)
        for number in np.unique(number_of[some]):
            found.leave_out(number_of == number, number_of == number, rests)
        missed.append(float(np.abs(rests[some]).mean()))
    return next(noise for noise, mean in zip(NOISES, missed, strict=True) if mean <= HARDLY_MORE * min(missed))


def share(one: Floats, other: Floats) -> float:
    """Return the share of the other in an estimate by both that misses least, by what each misses of some rows."""
    both = np.isfinite(one) & np.isfinite(other)
    if not both.any():
        return 0.0
    return least(missed_by_shares(one[both], other[both]).mean(axis=1))


def missed_by_shares(one: Floats, other: Floats) -> Floats:
    """Return what an estimate by both misses of each row (a column), for each of `SHARES` (a row)."""
    missed: Floats = np.abs(np.array([(1 - part) * one + part * other for part in SHARES]))
    return missed


def least(missed: Floats) -> float:
    """Return the one of `SHARES` with which least is missed."""
    return float(SHARES[int(np.argmin(missed))])


def thinned(frame: pd.DataFrame, most: int) -> Places:
    """Return the places of so many rows at most, of whole shapes that are drawn by their sizes alone."""
    shapes = pd.Series(splits.labels(frame, "layer"))
    if len(shapes) <= most:
        return np.arange(len(shapes))
    counts = shapes.value_counts()
    order = sorted(counts.index, key=lambda shape: zlib.crc32(shape.encode()))
    kept = {shape for shape, total in zip(order, np.cumsum(counts[order]), strict=True) if total <= most}
    return np.flatnonzero(shapes.isin(kept).to_numpy())
