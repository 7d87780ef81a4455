"""Predictor of one target: fitted, asked, and corrected for a card.

Its estimate is a mean of two: trees (`core`), which begin with the costs of calls and are better far from what was
learned, and a Gaussian process (`process`), which begins with costs that are smooth and is better near it. The share of
the process is, for each engine, the one that misses least of what is held out for the intervals. Of PyTorch's search
the estimates of the plans that it tries say more (`search`). A card that was not learned is far from all that was: a
predictor for such (`unit` "gpu") has trees alone.

Energy follows from time: a predictor of energy has one of time, fitted to all samples that have a time, and learns what
energy is beside the time that it predicts; a sample with an energy alone goes by others of its work. Few samples have
energies, and power differs less between layers than time.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from convscope.cli.display import several
from convscope.dataset import choices, splits
from convscope.dataset.calls import CallRow
from convscope.dataset.samples import ARITHMETIC, SAMPLES, SHAPE, TARGETS, WORK
from convscope.errors import InputError
from convscope.prediction import calibration, held_out, intervals
from convscope.prediction.calibration import Correction
from convscope.prediction.features import CARD, Features, engine, features, outside
from convscope.prediction.held_out import FEWEST
from convscope.prediction.intervals import Growth
from convscope.prediction.learners import judged
from convscope.prediction.learners.core import Core
from convscope.prediction.learners.process import Mask, Process
from convscope.prediction.learners.search import Search, Tries
from convscope.prediction.shapes.sizes import Floats

TIME, ENERGY = "time", "energy"
OWN = "torch"
"""Algorithm that others are compared with: PyTorch's own choice."""
ADDED_LEVEL = 90
"""Level of the layers' intervals whose ends are added up; what is learned is the share of it that a sum misses."""
FAR = "far from all"
"""Stands among the features outside what was learned where a call is far from every other (`Growth.reach`)."""
Given = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Prediction:
    """Predictions for samples: the middle, the ends of the interval, and the features beyond what was learned."""

    middle: Floats
    low: Floats
    high: Floats
    outside: list[str]


@dataclass(frozen=True)
class Predictor:
    """A fitted predictor.

    Attributes:
        unit: what was held out for its intervals: one of `samples.SPLITS`.
        widths: of its intervals, by algorithm; `growth` says how they grow with the distance from what was learned.
        process: the smooth part of the estimate, beside the trees of `core`, None for none; `shares` are its shares, by
            engine (`judged.of_rows`).
        search: of what PyTorch's search takes, how much the least of its plans counts.
        pairs: of intervals of the ratio to PyTorch's own choice (`OWN`) for the same work, by algorithm: an error that
            both share cancels.
        totals: of intervals of sums over a model, by level: the share of the layers' added-up half width.
        corrections: by the card's name.
        cards: facts of cards that the catalogue does not have.
        learned: number of samples, their digest, cards and versions of cuDNN ("" for none), of corrections too, and the
            versions whose plans were learned (`plans_of`).
        time: of a predictor of energy, the one of time that its estimate begins with.
    """

    target: str
    unit: str
    core: Core
    process: Process | None
    shares: Mapping[str, float]
    search: Search
    widths: intervals.Widths
    growth: Growth
    pairs: intervals.Widths
    totals: Mapping[str, float | None]
    corrections: Mapping[str, Correction]
    cards: Given
    learned: Mapping[str, Any]
    time: Predictor | None = None

    def predict(self, frame: pd.DataFrame, level: int = 90) -> Prediction:
        """Return the predictions for samples, whose times need not be there.

        Args:
            level: the share of cases in percent that the interval is to hold, one of `intervals.LEVELS`.

        Raises:
            InputError: a sample lacks a size, or its card is not known.
        """
        asked, frame = frame, self.resolved(frame)
        timed = None if self.time is None else self.time.predict(asked, level)
        given = features(frame, self.cards, None if timed is None else timed.middle)
        found = self.estimated(given, frame)
        far = self._far(given, frame)
        half = intervals.of_rows(self.widths, list(frame["algorithm"]), level) * self.growth.at(far)
        for name, correction in self.corrections.items():
            here = (frame["gpu_name"] == name).to_numpy()
            if here.any():
                plane = calibration.coordinates(given, found, self.core.effects_of(frame))[here]
                found[here] += correction.predict(plane)
                width = intervals.quantile(np.abs(np.array(correction.rests)), level / 100)
                half[here] = np.inf if width is None else width
        middle = given.roofline_ms * np.exp(found)
        learned = None if self.unit == "gpu" else [*self.learned["gpu_names"], *self.corrections]
        odd = outside(given, asked, self.core.ranges, self.core.levels, learned)
        beyond = self.growth.is_beyond(far)
        odd = [_each_once(f"{names}, {FAR}") if out else names for names, out in zip(odd, beyond, strict=True)]
        if timed is not None:
            odd = [_each_once(f"{one}, {_but_card(other)}") for one, other in zip(odd, timed.outside, strict=True)]
        return Prediction(middle, middle * np.exp(-half), middle * np.exp(half), odd)

    @property
    def plans_of(self) -> Sequence[str]:
        """The versions of cuDNN whose plans were learned: a correction's may number engines otherwise."""
        found: Sequence[str] = self.learned["plans_of"]
        return found

    def resolved(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return samples by the plan that cuDNN would choose, where its engine was learned, in place of the choice."""
        found = choices.resolved(frame, self.plans_of)
        known = found["algorithm"].map(engine).isin(self.core.levels["engine"])
        return found.assign(algorithm=found["algorithm"].where(known, frame["algorithm"]))

    def features_of(self, frame: pd.DataFrame) -> Features:
        """Return the features of `resolved` samples that the estimate is made from.

        Raises:
            InputError: as `predict`.
        """
        times_ms = None if self.time is None else self.time.predict(frame).middle
        return features(frame, self.cards, times_ms)

    def with_cards(self, given: Given) -> Predictor:
        """Return the predictor with facts of further cards."""
        time = None if self.time is None else self.time.with_cards(given)
        return dataclasses.replace(self, cards={**self.cards, **given}, time=time)

    def estimated(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the logarithm of the target over the roofline's time in ms, without the correction for a card.

        Args:
            given: features of the rows of `frame`, as `features_of` returns them.
            frame: `resolved`.
        """
        found = self._by_both(given, frame)
        tried, of = choices.searched(frame, self.core.levels["engine"] if self.search.shares else ())
        if not len(tried):
            return found
        asked = features(tried, self.cards)
        tries = Tries.of_rows(asked, tried, of, len(frame), self.search.launches)
        return self.search.both(found, tries.least(self._by_both(asked, tried), self.search.hosts), frame)

    def _by_both(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return the estimate by trees and process."""
        by_trees = self.core.predict(given, frame)
        if self.process is None:
            return by_trees
        smooth = self.process.predict(given, frame) + self.core.smooth(given, frame)
        share = judged.of_rows(self.shares, given.values["engine"].to_numpy(dtype=object))
        return judged.both(share, by_trees, smooth)

    def _far(self, given: Features, frame: pd.DataFrame) -> Floats:
        """Return how far each row is from what was learned; 0 for a new card, far from which all is alike."""
        return np.zeros(len(frame)) if self.process is None else self.process.far(given, frame)

    def sums(self, frame: pd.DataFrame, keys: splits.Labels, level: int = 90) -> pd.DataFrame:
        """Return the sum of the predictions of each key, in the order of the keys, with its interval.

        Errors of layers of one model are alike in part: adding variances up would promise too much, and adding up the
        ends of the layers' intervals, as if they were wholly alike, is usually too wide. So the interval is a share of
        the latter, learned from sums over models that were held out as wholes (`intervals.shares`). It holds for a
        model drawn as those were. Where too few models were learned, or for a card with a correction, of which no
        sums are known, the ends are added up.

        Args:
            keys: of each row, the pass of a model that it belongs to.

        Returns: `middle`, `low`, `high`; `least` and `most`, the ends added up; `learned`, whether the interval is
            not just these.
        """
        found, wide = self.predict(frame, level), self.predict(frame, ADDED_LEVEL)
        columns = {"middle": found.middle, "least": found.low, "most": found.high, "wide": wide.high}
        table = pd.DataFrame(columns).groupby(keys).sum()
        share = self.totals.get(str(level))
        corrected = pd.Series(frame["gpu_name"].isin(self.corrections).to_numpy()).groupby(keys).any()
        table["learned"] = ~corrected & (share is not None)
        half = np.log(table["wide"] / table["middle"]) * (share or 0.0)
        table["low"] = table["least"].where(~table["learned"], table["middle"] * np.exp(-half))
        table["high"] = table["most"].where(~table["learned"], table["middle"] * np.exp(half))
        return table.drop(columns="wide")

    def against_own(self, frame: pd.DataFrame, level: int = 90) -> Floats:
        """Return for each sample half the width in the logarithm of the interval of its ratio to PyTorch's own choice.

        It is infinite where too few pairs were learned. Of a card that a correction is for it is that of the others.
        """
        frame = self.resolved(frame)
        far = self._far(self.features_of(frame), frame)
        return intervals.of_rows(self.pairs, list(frame["algorithm"]), level) * self.growth.at(far)

    def corrected(self, measured: pd.DataFrame) -> Predictor:
        """Return the predictor with a correction for the one card that these samples are of.

        Raises:
            InputError: they are of several cards, or too few.
        """
        names = sorted(measured["gpu_name"].unique())
        if len(names) != 1 or len(measured) < calibration.FEWEST:
            least = f"at least {calibration.FEWEST} samples of one card are needed"
            raise InputError(f"calibrate: {several(len(measured), 'sample')} of {', '.join(names)}: {least}")
        kept = measured.iloc[np.linspace(0, len(measured) - 1, min(len(measured), calibration.MOST)).astype(int)]
        kept = self.resolved(kept)
        bare = dataclasses.replace(self, corrections={k: v for k, v in self.corrections.items() if k != names[0]})
        given = self.features_of(kept)
        predicted = bare.estimated(given, kept)
        missed = logarithms(kept, self.target, given) - predicted
        plane = calibration.coordinates(given, predicted, bare.core.effects_of(kept))
        versions = sorted({*self.learned.get("cudnn", ()), *_versions(measured)})
        learned = {**self.learned, "cudnn": versions}
        corrections = {**bare.corrections, names[0]: calibration.fit(plane, missed)}
        return dataclasses.replace(bare, corrections=corrections, learned=learned)


def usable(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the samples that a predictor of the target learns from, in one order whatever the file's.

    They were measured, have sizes, and have the target; of energy, a time or an energy (`has`).
    """
    needed = [TARGETS[each][0] for each in ((TIME, ENERGY) if target == ENERGY else (target,))]
    kept = frame[(frame["status"] == "ok") & frame[needed].notna().any(axis=1) & frame["in_height_px"].notna()]
    return kept.sort_values([*SAMPLES.unique, TARGETS[target][0]], ignore_index=True)


def has(frame: pd.DataFrame, target: str) -> Mask:
    """Return which samples have the target."""
    return frame[TARGETS[target][0]].notna().to_numpy(dtype=np.bool_)


def logarithms(frame: pd.DataFrame, target: str, given: Features) -> Floats:
    """Return the logarithm of each sample's target over its roofline's time in ms."""
    found: Floats = np.log(frame[TARGETS[target][0]].to_numpy(float) / given.roofline_ms)
    return found


@threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
def fit(
    frame: pd.DataFrame, target: str, cards: Given, unit: str = "layer", calls: Sequence[CallRow] | None = ()
) -> Predictor:
    """Fit a predictor to samples (`usable`), each part by one thread: sums by several end in other digits.

    Args:
        unit: what its intervals are to hold for that was not learned: other rows, layers, families, sizes, cards.
        calls: of whole models: intervals of sums are learned from their passes (but for "size"), and those for
            another kind of network from kinds that are held out with all shapes of their models, where enough is
            left beside each. None: no intervals of sums are learned.

    Raises:
        InputError: there are too few, or they do not say what is held out.
    """
    _check_enough(has(frame, target), target)
    every = choices.with_plans(frame)  # `frame` and, behind it, what follows from it
    if target != ENERGY:
        made, _ = _fitted(every, target, features(every, cards), cards, unit, calls)
        return dataclasses.replace(made, learned=described(frame))
    _check_enough(has(frame, TIME), TIME)
    timed = every[has(every, TIME)].reset_index(drop=True)
    time, found_ms = _fitted(timed, TIME, features(timed, cards), cards, unit, calls)
    times_ms = _of_repeats(every, timed, found_ms)
    own = has(every, target) & np.isfinite(times_ms)
    _check_enough(own, f"{target}, and a time of the same work")
    kept = every[own].reset_index(drop=True)
    made, _ = _fitted(kept, target, features(kept, cards, times_ms[own]), cards, unit, calls)
    versions = {name: described(frame)[name] for name in ("cudnn", "plans_of")}
    learned = {**described(frame[own[: len(frame)]]), **versions}
    return dataclasses.replace(made, time=time, learned=learned)


def _check_enough(which: Mask, what: str) -> None:
    count = int(which.sum())
    if count < FEWEST:
        raise InputError(f"{several(count, 'sample')} with sizes and a measured {what}: at least {FEWEST} are needed")


def _of_repeats(frame: pd.DataFrame, timed: pd.DataFrame, times_ms: Floats) -> Floats:
    """Return the times that stand for samples of the same work on the same card; NaN where that has none."""
    work = *WORK, "gpu_name"
    known = pd.Series(times_ms, splits.joined(timed, work)).groupby(level=0).mean()
    return np.array(known.reindex(splits.joined(frame, work)), dtype=float)


def _fitted(
    frame: pd.DataFrame, target: str, given: Features, cards: Given, unit: str, calls: Sequence[CallRow] | None
) -> tuple[Predictor, Floats]:
    """Return a predictor, and what one that had not learned it, or its shape, would predict for each sample."""
    wanted, is_new_card = logarithms(frame, target, given), unit == "gpu"
    parts = held_out.by(frame, unit, calls or ())
    whole = [] if calls is None else held_out.by_model(frame, calls)
    models = whole if unit in ("rows", "layer") else parts
    # What a search tries is asked about as its own rows are, and learned by no part.
    tried, of = choices.searched(frame, () if is_new_card or target != TIME else {*given.values["engine"]})
    every = pd.concat([frame, tried], ignore_index=True) if len(tried) else frame
    of_every = features(every, cards) if len(tried) else given
    truth = np.concatenate([wanted, wanted[of]])
    known, tries = judged.judged(of_every, every, truth, cards, unit, parts, models, of)
    # Of a row that is held out others of its shape are learned: its distance says nothing of another layer's.
    asked = held_out.is_asked(frame, unit)
    growth = Growth() if unit == "rows" else intervals.growth(known.missed[asked], known.far[asked])
    names, scale = frame["algorithm"].to_numpy(dtype=object), growth.at(known.far)
    # Work beyond either end of the learned sizes may be asked for, and errors at one end are larger.
    ends = splits.labels(frame, unit)[asked] if unit == "size" else np.full(int(asked.sum()), unit)
    widths = intervals.widest((known.missed / scale)[asked], names[asked], ends)
    pairs = _pairs(frame[asked], known.missed[asked], scale[asked])
    half = intervals.of_rows(widths, list(names), ADDED_LEVEL)
    halves = [half * growth.at(each) for each in known.far_models]
    totals = held_out.totals(frame, TARGETS[target][0], models, known.missed_models, halves)
    made = Predictor(
        target, unit, known.core, known.process, known.shares, tries, widths, growth, pairs, totals, {}, cards,
        described(frame),
    )  # fmt: skip
    return made, given.roofline_ms * np.exp(wanted - known.every())


def described(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what a predictor says of the samples that it learned: `Predictor.learned`."""
    names, versions = sorted(frame["gpu_name"].unique()), _versions(frame)
    with_plans = frame[frame[choices.COLUMN].notna()] if choices.COLUMN in frame else frame[:0]
    plans_of = [each for each in _versions(with_plans) if each]
    return {
        "samples": len(frame), "digest": digest(frame), "gpu_names": names, "cudnn": versions, "plans_of": plans_of,
    }  # fmt: skip


def _but_card(names: str) -> str:
    """Return what is outside of a predictor of time without the card: that of energy knows a card by its energies."""
    return ", ".join(name for name in names.split(", ") if name != CARD)


def _each_once(names: str) -> str:
    """Return names that commas separate, without those that are empty or stand twice."""
    return ", ".join(dict.fromkeys(filter(None, names.split(", "))))


def _pairs(frame: pd.DataFrame, rests: Floats, scale: Floats) -> dict[str, dict[str, float | None]]:
    """Return widths for the ratio of each algorithm to PyTorch's own choice, from rests of the same work and card.

    Args:
        scale: of the widths, by row: how they grow with the distance from what was learned.
    """
    works = splits.joined(frame, ("gpu_name", "cudnn", *SHAPE, *ARITHMETIC))
    names = frame["algorithm"].to_numpy(dtype=object)
    own = pd.Series(rests[names == OWN]).groupby(works[names == OWN]).mean()
    between = (rests - np.array([own.get(work, np.nan) for work in works], dtype=np.float64)) / scale
    both = np.isfinite(between) & (names != OWN)
    return intervals.widths(between[both], names[both])


def _versions(frame: pd.DataFrame) -> list[str]:
    """Return the versions of cuDNN that samples are by, "" for none."""
    return sorted({"" if each is None or each != each else str(each) for each in frame["cudnn"]})


def digest(frame: pd.DataFrame) -> str:
    """Return sixteen hexadecimal digits that tell two sets of samples apart, whatever the order of their rows."""
    rows = sorted(splits.joined(frame, tuple(frame.columns)))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]
