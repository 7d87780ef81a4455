"""Estimate by trees and a process, with what it misses of samples that are held out of it: parts, and whole models.

Plans that a search tried are asked about as the search's own samples are, and learned by nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.prediction import held_out
from convscope.prediction.features import Features
from convscope.prediction.held_out import Division, Divisions
from convscope.prediction.learners import core, process, search, threads
from convscope.prediction.learners.core import Core
from convscope.prediction.learners.process import Mask, Places, Process
from convscope.prediction.learners.search import Search, Tries
from convscope.prediction.shapes.sizes import Floats

EVERY, OF_ALL = "", 300
"""Name of the share of engines without rows, and rows of all engines that count as each one's own."""


@dataclass(frozen=True)
class Judged:
    """A fitted estimate, and what it misses of rows that are held out: the measured logarithm less the estimated one.

    Attributes:
        rests: of each row, by what had not learned its shape.
        process, shares: as in `Predictor`.
        missed: of each row with its part; NaN for a row of none.
        far: the distance of each from what is left, in the process.
        missed_models, far_models: the same by model.
    """

    core: Core
    rests: Floats
    process: Process | None
    shares: Mapping[str, float]
    missed: Floats
    far: Floats
    missed_models: Sequence[Floats]
    far_models: Sequence[Floats]

    def every(self) -> Floats:
        """Return what is missed of each row; what is in no part is of no kind of network."""
        return np.where(np.isnan(self.missed), self.rests, self.missed)

    def with_search(self, given: Features, frame: pd.DataFrame, wanted: Floats, of: Places) -> tuple[Judged, Search]:
        """Return it for the rows before those that searches tried, those of searches judged by their plans too.

        Args:
            of: of each of the last rows, the number of that which tried it.
        """
        count, asked = len(frame) - len(of), np.unique(of)
        is_tried = np.arange(len(frame)) >= count
        launches = search.launches(given.rows(~is_tried), frame[~is_tried]) if len(of) else {}
        tries = Tries.of_rows(given.rows(is_tried), frame[is_tried], of, count, launches)
        took, frame = wanted[:count], frame[~is_tried]
        hosts = tries.hosts(wanted[count:] - self.missed[count:], took) if len(of) else {}

        def by_least(missed: Floats) -> Floats:
            return took - tries.least(wanted[count:] - missed[count:], hosts)

        found = search.fit(self.missed[asked], by_least(self.missed)[asked], frame.iloc[asked], launches, hosts)

        def of_both(missed: Floats) -> Floats:
            return -found.both(-missed[:count], -by_least(missed), frame)

        cut = dataclasses.replace(
            self, rests=of_both(self.rests), missed=of_both(self.missed), far=self.far[:count],
            missed_models=[of_both(each) for each in self.missed_models],
            far_models=[each[:count] for each in self.far_models],
        )  # fmt: skip
        return cut, found


def judged(
    given: Features, frame: pd.DataFrame, wanted: Floats, cards: Mapping[str, Mapping[str, float]], unit: str,
    parts: Divisions, models: Divisions, of: Places,
) -> tuple[Judged, Search]:  # fmt: skip
    """Fit an estimate to all rows but the last ones, which searches tried, and judge it by what is held out.

    Returns: it for the rows that it is fitted to, and how the estimates of searches follow from those of their plans.

    Args:
        of: of each of the last rows, the number of the row that tried it.
        parts, models: of the rows before them.
    """
    is_linear, is_one = unit != "gpu", models is parts
    learned = np.arange(len(frame)) < len(frame) - len(of)
    fitted = core.fit(given, frame, wanted, is_linear, learned)
    parts = [each.with_more(of) for each in parts]
    models = parts if is_one else [each.with_more(of) for each in models]
    by_trees = partial(_missed_by_trees, given, frame, wanted, learned, is_linear)
    missed_parts = [fitted.rests] * len(parts) if unit == "layer" else by_trees(parts)
    missed_models = missed_parts if is_one else by_trees(models)
    missed, far = held_out.together(parts, missed_parts), np.zeros(len(frame))
    if not is_linear:
        by_trees_alone = Judged(fitted.core, fitted.rests, None, {}, missed, far, missed_models, [far] * len(models))
        return by_trees_alone.with_search(given, frame, wanted, of)
    divided = [*parts, *(() if is_one else models)]
    found = process.fit(given, frame, fitted.left, cards, [(each.out, each.gone) for each in divided], learned)

    def over(division: Division) -> Floats:
        """Return how much more costs leave over that did not learn what is held out than those that are learned."""
        return wanted - fitted.core.of_rows(given, frame, wanted, learned & ~division.gone) - fitted.left

    of_shapes = len(parts) if unit == "layer" else 0  # costs of the folds did not learn a row's shape either
    by_process = [*found.rests[:of_shapes], *(
        rests + over(each) for rests, each in zip(found.rests[of_shapes:], divided[of_shapes:], strict=True)
    )]  # fmt: skip
    near, last = held_out.together(parts, by_process[: len(parts)]), len(divided) - len(models)
    engines = given.values["engine"].to_numpy(dtype=object)
    shares = _shares(engines[learned], missed[learned], near[learned])
    share = of_rows(shares, engines)
    return Judged(
        fitted.core, fitted.rests, found.process, shares, both(share, missed, near),
        held_out.together(parts, found.far[: len(parts)], np.inf),
        [both(share, *each) for each in zip(missed_models, by_process[last:], strict=True)], found.far[last:],
    ).with_search(given, frame, wanted, of)  # fmt: skip


def _shares(engines: splits.Labels, trees: Floats, smooth: Floats) -> dict[str, float]:
    """Return the share of the process that misses least, by what both miss.

    Each engine has one by its own rows, as if `OF_ALL` rows of all were its own too; an engine without rows has that
    of all.
    """
    known = np.isfinite(trees) & np.isfinite(smooth)
    if not known.any():
        return {EVERY: 0.0}
    engines, trees, smooth = (each[known] for each in (engines, trees, smooth))
    missed = process.missed_by_shares(trees, smooth)
    of_all = missed.mean(axis=1)
    of_each = {name: missed[:, engines == name].sum(axis=1) + OF_ALL * of_all for name in sorted({*engines})}
    return {name: process.least(each) for name, each in {EVERY: of_all, **of_each}.items()}


def of_rows(shares: Mapping[str, float], engines: splits.Labels) -> Floats:
    """Return the share of the process in the estimate of each row."""
    other = shares.get(EVERY, 0.0)
    return np.array([shares.get(name, other) for name in engines], dtype=np.float64)


def both(share: Floats, trees: Floats, smooth: Floats) -> Floats:
    """Return what an estimate by both says, or misses, by what each of them does."""
    return np.where(np.isnan(smooth), trees, (1 - share) * trees + share * smooth)


def _missed_by_trees(
    given: Features, frame: pd.DataFrame, wanted: Floats, learned: Mask, is_linear: bool, divisions: Divisions
) -> list[Floats]:
    """Return for each division what trees miss that were fitted without it, by row; NaN for a row not in it.

    Args:
        learned: rows that any trees are fitted to.
    """

    def missed(each: Division) -> Floats:
        left = ~each.gone & learned
        folds = core.judging_folds(frame[left], frame[each.out])
        made = core.fit(given.rows(left), frame[left], wanted[left], is_linear, folds=folds).core
        rests = np.full(len(frame), np.nan)
        rests[each.out] = wanted[each.out] - made.predict(given.rows(each.out), frame[each.out])
        return rests

    return threads.parallel_map(missed, divisions)
