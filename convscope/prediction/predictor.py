"""Predictor of one target: fitted, asked, and corrected for a card."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC, SAMPLES, SHAPE
from convscope.errors import InputError
from convscope.prediction import calibration, core, intervals
from convscope.prediction.calibration import Correction
from convscope.prediction.core import Core
from convscope.prediction.features import CATEGORIES, Features, Floats, features

TARGETS: Mapping[str, tuple[str, str]] = {
    "time": ("mean_ms", "ms"), "energy": ("energy_j", "J"), "workspace": ("workspace_bytes", "bytes"),
}  # fmt: skip
"""Quantities that can be predicted, each with its column among the samples and its unit."""
OWN = "torch"
"""Algorithm that others are compared with: PyTorch's own choice."""
FEWEST = 100
"""Samples that a predictor is fitted to at least."""
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
        unit: what was held out for its intervals: one of `splits.KINDS`.
        widths: of its intervals, by algorithm.
        pairs: of intervals of the ratio to PyTorch's own choice (`OWN`) for the same work, by algorithm: an error that
            both share cancels.
        ranges: the least and largest value of each feature that was learned.
        corrections: by the card's name.
        cards: facts of cards that the catalogue does not have.
        learned: number of samples, their digest, cards and versions of cuDNN ("" for none).
    """

    target: str
    unit: str
    core: Core
    widths: intervals.Widths
    pairs: intervals.Widths
    ranges: Mapping[str, tuple[float, float]]
    corrections: Mapping[str, Correction]
    cards: Given
    learned: Mapping[str, Any]

    def predict(self, frame: pd.DataFrame, level: int = 90) -> Prediction:
        """Return the predictions for samples, whose times need not be there.

        Args:
            level: the share of cases in percent that the interval is to hold, one of `intervals.LEVELS`.

        Raises:
            InputError: a sample lacks a size, or its card is not known.
        """
        given = features(frame, self.cards)
        found = self.core.predict(given, frame)
        half = intervals.of_rows(self.widths, list(frame["algorithm"]), level)
        for name, correction in self.corrections.items():
            here = (frame["gpu_name"] == name).to_numpy()
            if here.any():
                plane = calibration.coordinates(given, found, self.core.effects_of(frame))[here]
                found[here] += correction.predict(plane)
                width = intervals.quantile(np.abs(np.array(correction.rests)), level / 100)
                half[here] = np.inf if width is None else width
        middle = given.roofline_ms * np.exp(found)
        learned = None if self.unit == "gpu" else [*self.learned["gpu_names"], *self.corrections]
        odd = outside(given, frame, self.ranges, self.core.levels, learned)
        return Prediction(middle, middle * np.exp(-half), middle * np.exp(half), odd)

    def against_own(self, frame: pd.DataFrame, level: int = 90) -> Floats:
        """Return for each sample half the width in the logarithm of the interval of its ratio to PyTorch's own choice.

        It is infinite where too few pairs were learned. Of a card that a correction is for it is that of the others.
        """
        return intervals.of_rows(self.pairs, list(frame["algorithm"]), level)

    def corrected(self, measured: pd.DataFrame) -> Predictor:
        """Return the predictor with a correction for the one card that these samples are of.

        Raises:
            InputError: they are of several cards, or too few.
        """
        names = sorted(measured["gpu_name"].unique())
        if len(names) != 1 or len(measured) < calibration.FEWEST:
            least = f"at least {calibration.FEWEST} samples of one card are needed"
            raise InputError(f"calibrate: {len(measured)} samples of {', '.join(names)}: {least}")
        kept = measured.iloc[np.linspace(0, len(measured) - 1, min(len(measured), calibration.MOST)).astype(int)]
        bare = dataclasses.replace(self, corrections={k: v for k, v in self.corrections.items() if k != names[0]})
        given = features(kept, self.cards)
        predicted = bare.core.predict(given, kept)
        missed = logarithms(kept, self.target, given) - predicted
        plane = calibration.coordinates(given, predicted, bare.core.effects_of(kept))
        learned = {**self.learned, "cudnn": sorted({*self.learned.get("cudnn", ()), *_versions(measured)})}
        corrections = {**bare.corrections, names[0]: calibration.fit(plane, missed)}
        return dataclasses.replace(bare, corrections=corrections, learned=learned)


def usable(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the samples that have the target, were measured and have sizes, in one order whatever the file's."""
    kept = frame[(frame["status"] == "ok") & frame[TARGETS[target][0]].notna() & frame["in_height_px"].notna()]
    return kept.sort_values([*SAMPLES.unique, TARGETS[target][0]], ignore_index=True)


def logarithms(frame: pd.DataFrame, target: str, given: Features) -> Floats:
    """Return the logarithm of each sample's target over its roofline's time in ms."""
    found: Floats = np.log(frame[TARGETS[target][0]].to_numpy(float) / given.roofline_ms)
    return found


def fit(frame: pd.DataFrame, target: str, cards: Given, unit: str = "layer") -> Predictor:
    """Fit a predictor to samples (`usable`).

    Args:
        unit: what its intervals are to hold for that was not learned: other rows, layers, families, sizes, cards.

    Raises:
        InputError: there are too few, or they do not say what is held out.
    """
    if len(frame) < FEWEST:
        raise InputError(f"{len(frame)} samples with sizes and a measured {target}: at least {FEWEST} are needed")
    given = features(frame, cards)
    wanted = logarithms(frame, target, given)
    fitted = core.fit(given, frame, wanted)
    rests = fitted.rests if unit == "layer" else _held_out(given, frame, wanted, unit)
    widths, pairs = intervals.widths(rests, frame["algorithm"].to_numpy(dtype=object)), _pairs(frame, rests)
    return Predictor(target, unit, fitted.core, widths, pairs, ranges_of(given), {}, cards, described(frame))


def ranges_of(given: Features) -> dict[str, tuple[float, float]]:
    """Return the least and largest value of each feature that is a number."""
    numbers = given.values.drop(columns=list(CATEGORIES))
    return {str(name): (float(numbers[name].min()), float(numbers[name].max())) for name in numbers}


def described(frame: pd.DataFrame) -> dict[str, Any]:
    """Return what a predictor says of the samples that it learned: `Predictor.learned`."""
    names, versions = sorted(frame["gpu_name"].unique()), _versions(frame)
    return {"samples": len(frame), "digest": digest(frame), "gpu_names": names, "cudnn": versions}


def outside(
    given: Features, frame: pd.DataFrame, ranges: Mapping[str, tuple[float, float]],
    levels: Mapping[str, Sequence[str]], learned: Sequence[str] | None,
) -> list[str]:  # fmt: skip
    """Return for each row what was never learned: the card, features with such a value; "" for nothing.

    Args:
        ranges: the least and largest value of each number that was learned.
        levels: the names of each category that were learned.
        learned: the cards; None where any card counts as learned.
    """
    lists: list[list[str]] = [[] if learned is None or name in learned else ["card"] for name in frame["gpu_name"]]
    for name in given.values:
        column = given.values[name]
        if name in CATEGORIES:
            odd = ~column.isin(levels[str(name)]).to_numpy()
        else:
            low, high = ranges[str(name)]
            odd = ((column < low) | (column > high)).to_numpy()
        for row in np.flatnonzero(odd):
            lists[row].append(str(name))
    return [", ".join(names) for names in lists]


def _pairs(frame: pd.DataFrame, rests: Floats) -> dict[str, dict[str, float | None]]:
    """Return widths for the ratio of each algorithm to PyTorch's own choice, from rests of the same work and card."""
    works = splits.joined(frame, ("gpu_name", "cudnn", *SHAPE, *ARITHMETIC))
    names = frame["algorithm"].to_numpy(dtype=object)
    own = pd.Series(rests[names == OWN]).groupby(works[names == OWN]).mean()
    between = rests - np.array([own.get(work, np.nan) for work in works], dtype=np.float64)
    both = np.isfinite(between) & (names != OWN)
    return intervals.widths(between[both], names[both])


def _versions(frame: pd.DataFrame) -> list[str]:
    """Return the versions of cuDNN that samples are by, "" for none."""
    return sorted({"" if each is None or each != each else str(each) for each in frame["cudnn"]})


def _held_out(given: Features, frame: pd.DataFrame, wanted: Floats, unit: str) -> Floats:
    """Return for each row what an estimate misses that was fitted without all that is of its label."""
    number_of = splits.folds(splits.labels(frame, unit))
    rests = np.full(len(frame), np.nan)
    for number in np.unique(number_of):
        out = number_of == number
        if out.all():
            raise InputError(f"intervals for another {unit} need samples of at least two")
        may = splits.beside(frame, unit, out)
        learned = core.fit(given.rows(may), frame[may], wanted[may]).core
        rests[out] = wanted[out] - learned.predict(given.rows(out), frame[out])
    return rests


def digest(frame: pd.DataFrame) -> str:
    """Return sixteen hexadecimal digits that tell two sets of samples apart, whatever the order of their rows."""
    rows = sorted(splits.joined(frame, tuple(frame.columns)))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]
