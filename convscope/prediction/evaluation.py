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
from convscope.prediction import calibration, predictor
from convscope.prediction.baselines import BASELINES
from convscope.prediction.features import Floats, features
from convscope.prediction.intervals import FEWEST
from convscope.prediction.predictor import TARGETS, Given, Predictor, logarithms, usable

DRAWS = 200
"""Draws of the bootstrap, of whole shapes."""
PREDICTOR, NOISE = "predictor", "a repeat"


@dataclass(frozen=True)
class Score:
    """Errors of one way to predict, over the samples of one split that were held back.

    Attributes:
        group: the algorithm that the samples are of, "" for all.
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
            learned as a correction; neither they nor repeats of them are judged.

    Raises:
        InputError: the samples cannot be divided so, or are too few.
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
    yield from judged(made, held_back, split.name)
    given = features(frame, cards)
    wanted = logarithms(frame, target, given)
    truth, asked = wanted[split.held_back], given.rows(split.held_back)
    for name, baseline in BASELINES.items():
        errors = np.expm1(baseline(given.rows(split.learned), wanted[split.learned], asked) - truth)
        yield _score((target, split.name, name, ""), errors, splits.labels(held_back, "layer"))
    if calibrated and kind == "gpu":
        rows = choose(made, held_back, calibrated)
        work = pd.Series(splits.joined(held_back, WORK))
        rest = held_back[~work.isin(work[rows])].reset_index(drop=True)
        yield from judged(made.corrected(held_back.iloc[rows]), rest, f"{split.name}, {len(rows)} samples of it")


def _fitted(learned: pd.DataFrame, target: str, cards: Given, kind: str) -> Predictor:
    """Fit with intervals for what the split holds back, or for another layer where only one of it was learned."""
    several = len({*splits.labels(learned, kind)}) > 1
    return predictor.fit(learned, target, cards, kind if several else "layer")


def choose(made: Predictor, frame: pd.DataFrame, count: int) -> npt.NDArray[np.intp]:
    """Return the rows that are worth measuring on their card, of samples whose times need not be there."""
    given = features(frame, made.cards)
    plane = calibration.coordinates(given, made.core.predict(given, frame), made.core.effects_of(frame))
    return calibration.chosen(plane, count)


def judged(made: Predictor, held_back: pd.DataFrame, name: str, level: int = 90) -> Iterator[Score]:
    """Yield the scores of a predictor over samples, of all and of each algorithm that has enough of them."""
    found = made.predict(held_back, level)
    truth = held_back[TARGETS[made.target][0]].to_numpy(float)
    errors = found.middle / truth - 1
    inside = (found.low <= truth) & (truth <= found.high)
    outside = np.array([bool(text) for text in found.outside])
    shapes = splits.labels(held_back, "layer")
    algorithms = held_back["algorithm"].to_numpy(dtype=object)
    of_enough = [
        name for name, count in zip(*np.unique(algorithms, return_counts=True), strict=True) if count >= FEWEST
    ]
    for group in ["", *(of_enough if len({*algorithms}) > 1 else [])]:
        here = np.ones(len(truth), bool) if group == "" else algorithms == group
        score = _score((made.target, name, PREDICTOR, str(group)), errors[here], shapes[here])
        covered = 100 * float(inside[here].mean())
        yield dataclasses.replace(score, covered_pct=covered, level=level, outside=int(outside[here].sum()))


def _score(about: tuple[str, str, str, str], errors: Floats, shapes: Labels) -> Score:
    sizes = 100 * np.abs(errors)
    low, high = _bootstrapped(sizes, shapes)
    return Score(
        *about, len(sizes), float(sizes.mean()), low, high, float(np.median(sizes)), float(np.quantile(sizes, 0.95)),
        100 * float((sizes <= 10).mean()),
    )  # fmt: skip


def _bootstrapped(sizes: Floats, shapes: Sequence[object] | Labels) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the mean, drawing whole shapes; None for a single one."""
    table = pd.DataFrame({"size": sizes}).groupby(np.asarray(shapes, dtype=object))["size"].agg(["sum", "count"])
    if len(table) < 2:
        return None, None
    draws = np.random.default_rng(0).integers(len(table), size=(DRAWS, len(table)))
    means = table["sum"].to_numpy()[draws].sum(axis=1) / table["count"].to_numpy()[draws].sum(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
