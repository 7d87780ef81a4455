"""Errors of a predictor on samples that it did not learn from, beside baselines and the noise of repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import WORK
from convscope.dataset.splits import Labels, Split
from convscope.errors import InputError
from convscope.prediction import calibration, predictor
from convscope.prediction.baselines import BASELINES
from convscope.prediction.features import Floats, features
from convscope.prediction.intervals import FEWEST
from convscope.prediction.predictor import TARGETS, Given, Predictor, logarithms, usable

DRAWS = 200
"""Draws of the bootstrap, of whole shapes."""
LEVEL = 90
"""Share of samples in percent that the intervals which are judged are to hold."""
CHOICES = 10
"""Choices of the samples for a calibration, each with another seed."""
PREDICTOR, NOISE = "predictor", "a repeat"


@dataclass(frozen=True)
class Score:
    """Errors of one way to predict, over the samples of one split that were held back.

    Attributes:
        group: the algorithm that the samples are of, "" for all.
        samples: predictions that are judged; after a calibration those of ten.
        mape_pct: mean of |predicted / measured - 1|; `mape_low_pct` and `mape_high_pct` are its 95 % interval.
        covered_pct: samples inside the interval that is to hold `level` percent; None for a baseline.
        outside: number of samples with a card or a feature outside what was learned; None for a baseline.
    """

    target: str
    split: str
    by: str
    group: str
    samples: int
    mape_pct: float
    mape_low_pct: float | None
    mape_high_pct: float | None
    median_pct: float
    p95_pct: float
    within_10_pct: float
    covered_pct: float | None = None
    level: int | None = None
    outside: int | None = None


def scores(frame: pd.DataFrame, target: str, kind: str, cards: Given, calibrated: int = 0) -> Iterator[Score]:
    """Yield the scores of a predictor and of the baselines, split by split, algorithm by algorithm.

    Args:
        frame: samples; those without the target or without sizes are left out.
        kind: one of `splits.KINDS`.
        calibrated: with `kind` "gpu", the number of samples of the held-back card that are chosen, measured and
            learned as a correction; neither they nor repeats of them are judged. What is chosen depends on a seed:
            all is done with ten, and the scores are over all ten.

    Raises:
        InputError: the samples cannot be divided so, are too few, or `calibrated` leaves none to judge by.
    """
    kept = usable(frame, target)
    for split in splits.splits(kept, kind):
        yield from _of_split(kept, target, kind, split, cards, calibrated)


def noise(frame: pd.DataFrame, target: str) -> Iterator[Score]:
    """Yield how far repeats of the same work on the same kind of card are apart, where there are any."""
    frame = usable(frame, target)
    groups = pd.Series(splits.joined(frame, (*WORK, "gpu_name", "cudnn", "ran_algorithm")))
    values = np.log(frame[TARGETS[target][0]].to_numpy(float))
    several = (groups.map(groups.value_counts()) > 1).to_numpy()
    if several.any():
        first = pd.Series(values[several]).groupby(groups[several].to_numpy()).transform("first").to_numpy()
        again = (groups[several].duplicated()).to_numpy()
        errors = np.expm1(values[several] - first)[again]
        yield _score((target, "all", NOISE, ""), errors, groups[several].to_numpy(dtype=object)[again])


def _of_split(
    frame: pd.DataFrame, target: str, kind: str, split: Split, cards: Given, calibrated: int
) -> Iterator[Score]:
    learned, held_back = (frame[rows].reset_index(drop=True) for rows in (split.learned, split.held_back))
    made = _fitted(learned, target, cards, kind)
    yield from judged(outcomes(made, held_back), target, split.name)
    given = features(frame, cards)
    wanted = logarithms(frame, target, given)
    truth, asked = wanted[split.held_back], given.rows(split.held_back)
    for name, baseline in BASELINES.items():
        errors = np.expm1(baseline(given.rows(split.learned), wanted[split.learned], asked) - truth)
        yield _score((target, split.name, name, ""), errors, splits.labels(held_back, "layer"))
    if calibrated and kind == "gpu":
        yield from judged(_calibrated(made, held_back, calibrated), target, f"{split.name}, {calibrated} samples of it")


def _fitted(learned: pd.DataFrame, target: str, cards: Given, kind: str) -> Predictor:
    """Fit with intervals for what the split holds back, or for another layer where only one of it was learned."""
    several = len({*splits.labels(learned, kind)}) > 1
    return predictor.fit(learned, target, cards, kind if several else "layer")


def choose(made: Predictor, frame: pd.DataFrame, count: int, seed: int = 0) -> npt.NDArray[np.intp]:
    """Return the rows that are worth measuring on their card, of samples whose times need not be there."""
    given = features(frame, made.cards)
    plane = calibration.coordinates(given, made.core.predict(given, frame), made.core.effects_of(frame))
    return calibration.chosen(plane, count, seed)


def outcomes(made: Predictor, held_back: pd.DataFrame) -> pd.DataFrame:
    """Return for each sample the error of its prediction, whether the interval holds it, whether it is outside."""
    found = made.predict(held_back, LEVEL)
    truth = held_back[TARGETS[made.target][0]].to_numpy(float)
    columns = {
        "error": found.middle / truth - 1, "covered": (found.low <= truth) & (truth <= found.high),
        "outside": [text != "" for text in found.outside], "shape": splits.labels(held_back, "layer"),
        "algorithm": held_back["algorithm"].to_numpy(dtype=object),
    }  # fmt: skip
    return pd.DataFrame(columns)


def judged(found: pd.DataFrame, target: str, name: str) -> Iterator[Score]:
    """Yield the scores of outcomes, of all and, if there are several, of each algorithm that has enough of them."""
    counts = found["algorithm"].value_counts().sort_index()
    groups = [str(each) for each, count in counts.items() if count >= FEWEST] if len(counts) > 1 else []
    for group in ["", *groups]:
        here = found if group == "" else found[found["algorithm"] == group]
        about = (target, name, PREDICTOR, group)
        score = _score(about, here["error"].to_numpy(float), here["shape"].to_numpy(dtype=object))
        covered, outside = 100 * float(here["covered"].mean()), int(here["outside"].sum())
        yield dataclasses.replace(score, covered_pct=covered, level=LEVEL, outside=outside)


def _calibrated(made: Predictor, held_back: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the outcomes after a calibration by `count` samples, of several choices of them one after another."""
    work, found = pd.Series(splits.joined(held_back, WORK)), []
    for seed in range(CHOICES):
        rows = choose(made, held_back, count, seed)
        rest = held_back[~work.isin(work[rows])].reset_index(drop=True)
        if rest.empty:
            raise InputError(
                f"{count} of {len(held_back)} samples leave none to judge the calibration by: choose fewer"
            )
        found.append(outcomes(made.corrected(held_back.iloc[rows]), rest))
    return pd.concat(found, ignore_index=True)


def _score(about: tuple[str, str, str, str], errors: Floats, shapes: Labels) -> Score:
    sizes = 100 * np.abs(errors)
    low, high = bootstrapped(sizes, shapes)
    return Score(
        *about, len(sizes), float(sizes.mean()), low, high, float(np.median(sizes)), float(np.quantile(sizes, 0.95)),
        100 * float((sizes <= 10).mean()),
    )  # fmt: skip


def bootstrapped(sizes: Floats, shapes: Sequence[object] | Labels) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the mean of sizes, drawing whole shapes; None for a single one."""
    table = pd.DataFrame({"size": sizes}).groupby(np.asarray(shapes, dtype=object))["size"].agg(["sum", "count"])
    if len(table) < 2:
        return None, None
    draws = np.random.default_rng(0).integers(len(table), size=(DRAWS, len(table)))
    means = table["sum"].to_numpy()[draws].sum(axis=1) / table["count"].to_numpy()[draws].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
