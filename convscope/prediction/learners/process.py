"""Gaussian process over the features of samples: a smooth estimate between layers that were measured.

It is the better one of a layer with measured ones around it, and says nothing far from them, where trees are better.
Samples of one arithmetic (type, math, layout) and engine (of an algorithm by name, the name) are a process of their own
where there are enough of them; those of the other engines of an arithmetic share one. Two samples are alike by the
distance of their features (Matérn's kernel of order 3/2), more so if they are by the same engine, and most by the same
algorithm. What it misses of samples that are left out follows from the one inverse matrix of all, for any division.

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
from scipy import linalg
from scipy.spatial.distance import cdist

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC, WORK
from convscope.prediction.features import CATEGORIES, Features, Floats, features
from convscope.prediction.learners.weights import ALIKE, ALIKE_ALGORITHM, ALIKE_ENGINE, UNKNOWN, WEIGHTS

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
        cards: facts of cards that the catalogue does not have.
    """

    points: Mapping[str, list[object]]
    weights: Sequence[float]
    means: Mapping[str, float]
    center: Mapping[str, float]
    spread: Mapping[str, float]
    cards: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def predict(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the estimate of each row; NaN for a group that was not learned."""
        found, weights = np.full(len(frame), np.nan), np.array(self.weights)
        for name, rows, asked, points, places in self._by_group(given, frame):
            found[rows] = self.means[name] + asked.likeness(places) @ weights[points]
        return found

    def far(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the distance of each row from the nearest point of its group; infinite without a group."""
        found = np.full(len(frame), np.inf)
        for _, rows, asked, _, places in self._by_group(given, frame):
            found[rows] = asked.distances(places)
        return found

    def _by_group(self, given: Features, frame: pd.DataFrame) -> Iterator[tuple[str, Places, _Places, Places, _Places]]:
        """Yield for each group that is asked for its name, its rows and their places, its points and their places."""
        if not self.means:  # no group had enough
            return
        asked, (places, of_points) = _Places.of(given, self.center, self.spread), self._places
        mine = self._groups(given, frame)
        for name in sorted({*mine} & {*self.means}):
            rows, points = np.flatnonzero(mine == name), np.flatnonzero(of_points == name)
            yield name, rows, asked.rows(rows), points, places.rows(points)

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
        if not len(self.scaled) or not len(other.scaled):
            return np.full(len(self.scaled), np.inf)
        found: Floats = cdist(self.scaled, other.scaled).min(axis=1)
        return found

    def among(self, kept: Places) -> Floats:
        """Return how alike some of these are to each other."""
        own = self.rows(kept)
        return own.likeness(own)

    def likeness(self, other: _Places) -> Floats:
        """Return how alike each of these is to each of the others."""
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
    divisions: Sequence[tuple[Mask, Mask]] = (),
) -> Fitted:  # fmt: skip
    """Fit a process to samples.

    Args:
        wanted: what it is to give for each row.
        divisions: rows that are judged, and rows that are left out with them. Of a row that is not judged, or of a
            group with too few, the rest is NaN.
    """
    numbers = given.values.drop(columns=list(CATEGORIES))
    center, spread = numbers.mean(), numbers.std(ddof=0)
    weight_of = {name: WEIGHTS.get(name, UNKNOWN) for name in map(str, numbers) if spread[name] > 0}
    own = (
        {name: float(center[name]) for name in weight_of},
        {name: float(spread[name]) / weight for name, weight in weight_of.items()},
    )
    places, groups = _Places.of(given, *own), groups_of(given, frame)
    weights, points, means = list[float](), list[int](), dict[str, float]()
    rests, far = ([np.full(len(frame), unknown) for _ in divisions] for unknown in (np.nan, np.inf))
    for name in sorted({*groups}):
        rows = np.flatnonzero(groups == name)
        if len(rows) < FEWEST:
            continue
        chosen = rows[thinned(frame.iloc[rows], MOST)]
        noise = _noise(places, frame, wanted, chosen)
        found = _OfOne(places, wanted, rows, chosen, noise, places.among(chosen))
        means[name] = found.mean
        weights += found.weights.tolist()
        points += chosen.tolist()
        for (judged, out), rest, distances in zip(divisions, rests, far, strict=True):
            found.leave_out(judged, out, rest)
            asked, left = rows[judged[rows]], chosen[~out[chosen]]
            distances[asked] = places.rows(asked).distances(places.rows(left))
    columns = {name: frame[name].iloc[np.array(points, dtype=int)].tolist() for name in POINT}
    if given.times_ms is not None:
        columns[TIMES] = given.times_ms[points].tolist()
    return Fitted(Process(columns, weights, means, *own, cards), rests, far)


def _engines(given: Features, frame: pd.DataFrame) -> splits.Labels:
    """Return the arithmetic and the engine of each row."""
    return splits.joined(frame.assign(engine=given.values["engine"].to_numpy()), (*ARITHMETIC, "engine"))


def groups_of(given: Features, frame: pd.DataFrame) -> splits.Labels:
    """Return the group of each row that is learned: its arithmetic and engine, or the former where engines are few."""
    engines = pd.Series(_engines(given, frame))
    return np.where(engines.map(engines.value_counts()) >= ENOUGH, engines, splits.joined(frame, ARITHMETIC)).astype(
        object
    )


class _OfOne:
    """The process of one group, with the inverse of the likeness of its points."""

    def __init__(
        self, places: _Places, wanted: Floats, rows: Places, points: Places, noise: float, likeness: Floats
    ) -> None:
        """Fit it; `likeness` is that of the points to each other, without noise, and stays as it is."""
        self._places, self._wanted, self._rows, self._points = places, wanted, rows, points
        self.mean = float(wanted[points].mean())
        diagonal = likeness.diagonal().copy()  # of a large matrix there is no room for a second one
        np.fill_diagonal(likeness, diagonal + noise)
        self._inverse = _inverse(likeness)
        np.fill_diagonal(likeness, diagonal)
        self.weights: Floats = self._inverse @ (wanted[points] - self.mean)

    def leave_out(self, judged: Mask, out: Mask, rests: Floats) -> None:
        """Write what the process misses of judged rows if it is fitted without those that are left out."""
        gone = np.flatnonzero(out[self._points])
        if not len(gone):
            return
        alone = np.linalg.solve(self._inverse[np.ix_(gone, gone)], self.weights[gone])
        of_points = np.full(len(rests), np.nan)
        of_points[self._points[gone]] = alone
        others = np.setdiff1d(self._rows, self._points)
        others = others[judged[others]]
        if len(others):
            left = np.setdiff1d(np.arange(len(self._points)), gone)
            weights = self.weights[left] - self._inverse[np.ix_(left, gone)] @ alone
            likeness = self._places.rows(others).likeness(self._places.rows(self._points[left]))
            of_points[others] = self._wanted[others] - self.mean - likeness @ weights
        known = judged & np.isfinite(of_points)
        rests[known] = of_points[known]


def _inverse(likeness: Floats) -> Floats:
    """Return the inverse of a symmetric matrix whose eigenvalues are above 0, by its Cholesky factor."""
    factor = linalg.cholesky(likeness, lower=True)
    found: Floats = np.asfortranarray(linalg.lapack.dpotri(factor, lower=1)[0])  # type: ignore[attr-defined]
    for row in range(len(found)):  # of which only the lower half is written
        found[row, row + 1 :] = found[row + 1 :, row]
    return np.asarray(found, dtype=np.float64)


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


def share(trees: Floats, process: Floats) -> float:
    """Return the share of the process in an estimate by both that misses least, by what each misses of some rows."""
    both = np.isfinite(trees) & np.isfinite(process)
    if not both.any():
        return 0.0
    tried = np.linspace(0, 1, 11)
    missed = [float(np.abs((1 - part) * trees[both] + part * process[both]).mean()) for part in tried]
    return float(tried[int(np.argmin(missed))])


def thinned(frame: pd.DataFrame, most: int) -> Places:
    """Return the places of so many rows at most, of whole shapes that are drawn by their sizes alone."""
    shapes = pd.Series(splits.labels(frame, "layer"))
    if len(shapes) <= most:
        return np.arange(len(shapes))
    counts = shapes.value_counts()
    order = sorted(counts.index, key=lambda shape: zlib.crc32(shape.encode()))
    kept = {shape for shape, total in zip(order, np.cumsum(counts[order]), strict=True) if total <= most}
    return np.flatnonzero(shapes.isin(kept).to_numpy())
