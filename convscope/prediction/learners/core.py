"""Estimate of a target from features: trees, and what they leave over of a card and of a kernel's peculiar shape.

The logarithm of a target over the roofline's time is the sum of
- that of the costs of a call's parts (`costs`): they go on beyond the sizes that were learned, where trees stay at
  their last value, and from card to card;
- what trees say of the features, of what this leaves; features stay within what was learned;
- a share of the card's clock headroom, the same for all: cards that reach their boost clock only under little work
  are slower than their peak says;
- for a card that was learned, its median rest;
- for work that was learned on another card, its rest there, shrunk by how much such rests agree between cards (their
  intraclass correlation): kernels are good or bad at a shape in the same way on several cards.
Trees are of five folds, each of which did not learn a fifth of the shapes; rests are of those (`fit` can leave out
folds). What they learn is left over by costs that did not learn a row's fifth of the shapes either (stacking). Work
with a known rest is estimated by the fold that did not learn its shape, so that the rest does not count twice; other
work by the mean of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import SHAPE, WORK
from convscope.errors import InputError
from convscope.prediction.features import CATEGORIES, Features
from convscope.prediction.learners import booster, costs, threads
from convscope.prediction.learners.booster import Booster
from convscope.prediction.learners.costs import Costs, Mask
from convscope.prediction.shapes.sizes import Floats

LINEAR: Mapping[str, Any] = {
    "objective": "huber", "alpha": 0.3, "linear_tree": True, "linear_lambda": 1.0, "learning_rate": 0.1,
    "num_leaves": 255, "max_bin": 63,
}  # fmt: skip
"""Settings of trees whose leaves are linear: they miss less of the layers of a card that was learned, and more of those
of another card. Many leaves are needed, for kernels differ by thresholds of many features at once."""
LINEAR_ROUNDS = 200
"""Number of such trees."""
JUDGING_FOLDS = 2
"""Folds that are enough to judge what an estimate misses of work that it learned nothing of: their mean
absolute error is 2 % larger than that of five together (RegNets held back, data of an H200)."""
HEADROOM_RIDGE = 0.02
"""Weight, as a squared difference of headrooms, of the assumption that none of it is lost."""


@dataclass(frozen=True)
class Core:
    """A fitted estimate.

    Attributes:
        ranges: the least and largest value of each feature that was learned.
        costs: of parts, learned from all shapes.
        folds: the trees of each fold.
        offsets: by the card's name.
        effects: by work.
    """

    names: tuple[str, ...]
    levels: Mapping[str, list[str]]
    ranges: Mapping[str, tuple[float, float]]
    costs: Costs
    folds: tuple[Booster, ...]
    headroom_share: float
    usual_headroom: float
    offsets: Mapping[str, float]
    effects: Mapping[str, float]

    def predict(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the logarithm of the target over the roofline's time in ms, for each row."""
        numbers = _within(booster.matrix(given.values, self.levels), self.names, self.ranges)
        by_fold = np.array([trees.predict(numbers) for trees in self.folds])
        known = np.flatnonzero([key in self.effects for key in splits.joined(frame, WORK)])
        found: Floats = by_fold.mean(axis=0)
        found[known] = by_fold[_folds(frame)[known], known]
        found += self.costs.predict(given, frame) + self.headroom(given)
        found += np.array([self.offsets.get(name, 0.0) for name in frame["gpu_name"]])
        return found + self.effects_of(frame)

    def smooth(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return what an estimate without trees begins with: costs that are smooth, and the card's headroom."""
        return self.costs.predict(given, frame, is_smooth=True) + self.headroom(given)

    def of_rows(self, given: Features, frame: pd.DataFrame, wanted: Floats, learned: Mask) -> Floats:
        """Return `smooth` as it would be if the costs had learned some rows alone."""
        found = costs.fit(given, frame, wanted, bool(self.costs.parts), learned)
        return found.predict(given, frame, is_smooth=True) + self.headroom(given)

    def headroom(self, given: Features) -> Floats:
        """Return the part of the estimate that the card's clock headroom has."""
        return self.headroom_share * _filled(given.headroom, self.usual_headroom)

    def effects_of(self, frame: pd.DataFrame) -> Floats:
        """Return what is known of the work of each row from other cards, 0 for nothing."""
        return np.array([self.effects.get(key, 0.0) for key in splits.joined(frame, WORK)])


@dataclass(frozen=True)
class Fitted:
    """An estimate, and what is left over of each row.

    Attributes:
        rests: by costs and trees that had not learned the row's shape; NaN where no trees of that fold were fitted.
        left: by smooth costs alone that had not.
    """

    core: Core
    rests: Floats
    left: Floats


def fit(
    given: Features, frame: pd.DataFrame, wanted: Floats, is_linear: bool = True, learned: Mask | None = None,
    folds: int = splits.PARTS,
) -> Fitted:  # fmt: skip
    """Fit an estimate of the logarithm of a target over the roofline's time, which is `wanted` for each row.

    Args:
        is_linear: the leaves of trees are (`LINEAR`), and costs are by calls' own parts, unless the target follows
            from the time of a call: for cards that were learned.
        learned: the rows that it is fitted to; the others have rests too. None: all.
        folds: number of folds that trees are fitted for, the first ones. Rows of the others have no rest, and work that
            was learned must not be asked for.

    Raises:
        InputError: the samples are of too few shapes to hold some of them back.
    """
    may = np.ones(len(frame), dtype=np.bool_) if learned is None else learned
    names = tuple(given.values.columns)
    levels = booster.levels(given.values[may])
    numbers = booster.matrix(given.values, levels)
    cards, work = frame["gpu_name"].to_numpy(dtype=object), splits.joined(frame, WORK)
    by_parts = is_linear and given.times_ms is None
    of_all = costs.fit(given, frame, wanted, by_parts, may)
    known_headroom = given.headroom[may]
    usual = float(np.nanmean(known_headroom)) if np.isfinite(known_headroom).any() else 0.0
    headroom = _filled(given.headroom, usual)
    over = wanted - of_all.predict(given, frame)
    share = _headroom_share(cards[may], work[may], headroom[may], over[may])
    number_of = _folds(frame)
    if len(np.unique(number_of[may])) < 2:
        raise InputError(f"samples of {len({*work[may]})} shapes are too few to hold some of them back: measure more")
    crossed = costs.crossed(given, frame, wanted, by_parts, number_of, may)
    left, left_by_smooth = (wanted - share * headroom - each for each in crossed)
    learns = [(number_of != number) & may for number in range(folds)]
    rounds, settings = (LINEAR_ROUNDS, LINEAR) if is_linear else (booster.ROUNDS, {})
    trees = threads.parallel_map(lambda rows: Booster.fit(names, numbers[rows], left[rows], rounds, **settings), learns)
    rests, ranges = np.full(len(left), np.nan), ranges_of(given.values[may])
    for number, each in enumerate(trees):
        out = number_of == number
        rests[out] = left[out] - each.predict(_within(numbers[out], names, ranges))
    has_rest = may & (number_of < folds)
    offsets = _offsets(cards[has_rest], rests[has_rest])
    rests -= np.array([offsets.get(name, 0.0) for name in cards])
    effects = _effects(work[has_rest], rests[has_rest])
    made = Core(names, levels, ranges, of_all, tuple(trees), share, usual, offsets, effects)
    return Fitted(made, rests, left_by_smooth)


def judging_folds(learned: pd.DataFrame, asked: pd.DataFrame) -> int:
    """Return the number of folds that judge what an estimate misses of rows that are asked for.

    All are needed where their work was learned on another card, whose rests count, and where a card has too few shapes.
    """
    cards, in_few = learned["gpu_name"].to_numpy(dtype=object), _folds(learned) < JUDGING_FOLDS
    is_new = {*splits.joined(learned, WORK)}.isdisjoint(splits.joined(asked, WORK))
    return JUDGING_FOLDS if is_new and {*cards[in_few]} == {*cards} else splits.PARTS


def _offsets(cards: splits.Labels, rests: Floats) -> dict[str, float]:
    """Return the median rest of each card; 0 of one alone."""
    found = {name: float(np.median(rests[cards == name])) for name in sorted({*cards})}
    return found if len(found) > 1 else dict.fromkeys(found, 0.0)


def ranges_of(values: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of each feature that is a number."""
    numbers = values.drop(columns=list(CATEGORIES))
    return {str(name): (float(numbers[name].min()), float(numbers[name].max())) for name in numbers}


def _within(numbers: Floats, names: Sequence[str], ranges: Mapping[str, tuple[float, float]]) -> Floats:
    """Return features with each number no further than the least and largest that was learned."""
    least, most = np.array([ranges.get(name, (-np.inf, np.inf)) for name in names]).T
    found: Floats = np.clip(numbers, least, most)  # what is NaN stays so
    return found


def _folds(frame: pd.DataFrame) -> npt.NDArray[np.intp]:
    """Return for each row the fold that does not learn its shape."""
    return np.array([splits.part(shape) for shape in splits.joined(frame, SHAPE)], dtype=np.intp)


def _filled(headroom: Floats, usual: float) -> Floats:
    return np.where(np.isfinite(headroom), headroom, usual)


def _headroom_share(cards: splits.Labels, work: splits.Labels, headroom: Floats, wanted: Floats) -> float:
    """Return which share of the clock headroom is lost, from the work that all cards did; 0 for fewer than two."""
    table = pd.DataFrame({"card": cards, "work": work, "wanted": wanted})
    both = table.pivot_table(index="work", columns="card", values="wanted").dropna()
    if both.shape[1] < 2 or len(both) < 2:
        return 0.0
    of_card = pd.Series(headroom, index=cards).groupby(level=0).first()
    x = of_card[both.columns].to_numpy(float)
    x, y = x - x.mean(), both.mean().to_numpy(float) - both.to_numpy(float).mean()
    return float(np.clip(x @ y / (x @ x + HEADROOM_RIDGE / 2), 0.0, 1.0))


def _effects(work: splits.Labels, rests: Floats) -> dict[str, float]:
    """Return for each work the part of its mean rest that another row of it would have."""
    agreement = intraclass_correlation(work, rests)
    groups = pd.Series(rests).groupby(work)
    counts, means = groups.count(), groups.mean()
    shrunk = means * counts * agreement / (1 + (counts - 1) * agreement)
    return {str(key): float(value) for key, value in shrunk.items()} if agreement > 0 else {}


def intraclass_correlation(groups: splits.Labels, values: npt.NDArray[np.float64]) -> float:
    """Return how much values of one group agree, 0 to 1: the correlation of two of them (one-way analysis of variance).

    Source: Fisher, Statistical Methods for Research Workers, chapter 7; unequal groups as in Donner (1986).
    """
    by_group = pd.Series(values).groupby(groups)
    counts = by_group.count().to_numpy(float)
    several = counts > 1
    if several.sum() < 2:
        return 0.0
    sizes, means = counts[several], by_group.mean().to_numpy(float)[several]
    within = float((by_group.var(ddof=0).to_numpy(float)[several] * sizes).sum() / (sizes - 1).sum())
    mean = float((means * sizes).sum() / sizes.sum())
    between = float((sizes * (means - mean) ** 2).sum() / (len(sizes) - 1))
    usual = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
    total = between + (usual - 1) * within
    return float(np.clip((between - within) / total, 0.0, 1.0)) if total > 0 else 0.0
