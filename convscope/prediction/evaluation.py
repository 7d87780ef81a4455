"""Errors of a predictor on samples that it did not learn from, beside baselines and the noise of repeats."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.calls import CallRow
from convscope.dataset.samples import TARGETS, WORK
from convscope.dataset.splits import Labels, Split
from convscope.errors import InputError
from convscope.prediction import calibration, held_out, predictor, workspace
from convscope.prediction.features import features
from convscope.prediction.intervals import FEWEST
from convscope.prediction.learners.baselines import BASELINES, nearest
from convscope.prediction.learners.process import Mask
from convscope.prediction.predictor import Given, Predictor, has, logarithms, usable
from convscope.prediction.processes import starmap
from convscope.prediction.shapes.sizes import Floats

DRAWS = 200
"""Draws of the bootstrap, of whole shapes."""
LEVEL = 90
"""Share of samples in percent that the intervals which are judged are to hold."""
CHOICES = 10
"""Choices of the samples for a calibration, each with another seed."""
PREDICTOR, NOISE = "predictor", "a repeat"
OF_MODELS = f"{PREDICTOR}, layers of models"
"""Samples of a model, where others are of shapes that no model has."""
SUM_OF_MODEL, SUM_OF_LAYERS = "sum of a model", "sum of layers"
ADDED = ", ends added up"
"""Sums over all calls of a model, and over the layers of a pass that are held back, whatever else it has; and what is
behind either's name where its interval has the ends of the layers' intervals added up."""


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


@dataclass(frozen=True)
class WorkspaceScore:
    """Errors of predicted workspaces, over the samples of one split that were held back.

    A factor is the larger of predicted and measured bytes over the smaller. None stands for figures without a sample.

    Attributes:
        samples: predictions that are judged.
        none_pct: samples that were measured to need no workspace.
        right_pct: samples of which it is right that they need one, or none.
        both: number of samples that need a workspace and are predicted to; the next four figures are of them.
        exact_pct, within_10_pct: those that are within 1 % and within 10 %.
        covered_pct: samples inside the interval that is to hold `level` percent; `fits_pct`: below its upper end.
    """

    target: str
    split: str
    by: str
    group: str
    samples: int
    none_pct: float
    right_pct: float
    both: int
    exact_pct: float | None
    within_10_pct: float | None
    median_factor: float | None
    p95_factor: float | None
    covered_pct: float | None = None
    fits_pct: float | None = None
    level: int | None = None
    outside: int | None = None


def workspace_scores(
    frame: pd.DataFrame, kind: str, cards: Given, calls: Sequence[CallRow] = ()
) -> Iterator[WorkspaceScore]:
    """Yield the scores of predicted workspaces and of the nearest layer's, split by split, algorithm by algorithm.

    Args:
        frame: samples; those without a workspace or without sizes are left out.
        kind: one of `samples.SPLITS`.
        calls: as `splits.splits` takes them.

    Raises:
        InputError: no sample has a workspace, they cannot be divided so, or are too few.
    """
    kept = usable(frame, workspace.TARGET)
    workspace.check(kept)
    given = features(kept, cards)
    for split in splits.splits(kept, kind, calls):
        learned, held_back = (kept[rows].reset_index(drop=True) for rows in (split.learned, split.held_back))
        found = workspace.fit(learned, cards, _unit(learned, kind), calls).predict(held_back, LEVEL)
        names = held_back["algorithm"].to_numpy(dtype=object)
        truth = held_back[workspace.COLUMN].to_numpy(float)
        for group, here in _groups(names):
            about = (workspace.TARGET, split.name, PREDICTOR, group)
            covered = (found.low <= truth) & (truth <= found.high)
            yield dataclasses.replace(
                _workspace_score(about, found.middle[here], truth[here]), level=LEVEL,
                covered_pct=100 * float(covered[here].mean()), fits_pct=100 * float((truth <= found.high)[here].mean()),
                outside=sum(found.outside[row] != "" for row in np.flatnonzero(here)),
            )  # fmt: skip
        bytes_of = learned[workspace.COLUMN].to_numpy(float)
        near = nearest(given.rows(split.learned), bytes_of, given.rows(split.held_back))
        yield _workspace_score((workspace.TARGET, split.name, "nearest layer", ""), near, truth)


def _workspace_score(about: tuple[str, str, str, str], middle: Floats, truth: Floats) -> WorkspaceScore:
    both = (middle > 0) & (truth > 0)
    factor = np.exp(np.abs(np.log(middle[both] / truth[both])))
    off = np.abs(middle[both] / truth[both] - 1)
    exact, within, median, p95 = None, None, None, None
    if both.any():
        exact, within = 100 * float((off <= 0.01).mean()), 100 * float((off <= 0.1).mean())
        median, p95 = float(np.median(factor)), float(np.quantile(factor, 0.95))
    same = ((truth > 0) == (middle > 0)) & ~np.isnan(middle)
    none, right = 100 * float((truth == 0).mean()), 100 * float(same.mean())
    return WorkspaceScore(*about, len(truth), none, right, int(both.sum()), exact, within, median, p95)


def _groups(names: Labels) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield the rows of all and, if there are several algorithms, of each that has enough of them."""
    yield "", np.ones(len(names), dtype=np.bool_)
    every = sorted({*names})
    for name in every if len(every) > 1 else ():
        here = np.asarray(names == name, dtype=np.bool_)
        if here.sum() >= FEWEST:
            yield name, here


def scores(
    frame: pd.DataFrame, target: str, kinds: Sequence[str], cards: Given, calibrated: int = 0, processes: int = 1,
    calls: Sequence[CallRow] = (),
) -> Iterator[Score]:  # fmt: skip
    """Yield the scores of a predictor and of the baselines, split by split, algorithm by algorithm.

    Args:
        frame: samples; those without the target or without sizes are left out.
        kinds: of `samples.SPLITS`.
        calibrated: for "gpu", the number of samples of the held-back card that are chosen, measured and
            learned as a correction; neither they nor repeats of them are judged. What is chosen depends on a seed:
            all is done with ten, and the scores are over all ten.
        processes: of splits at once; their number changes no score.
        calls: of whole models, for sums over all their calls and for what a split by family holds back.

    Raises:
        InputError: the samples cannot be divided so, are too few, or `calibrated` leaves none to judge by; or a
            process was ended.
    """
    kept = usable(frame, target)
    if not has(kept, target).any():
        raise InputError(f"no sample has sizes and a measured {target}")
    each = functools.partial(_of_split, kept, target, cards, calibrated, calls)
    work = [(kind, split) for kind in kinds for split in splits.splits(kept, kind, calls)]
    for found in starmap(each, work, processes):
        yield from found


def noise(frame: pd.DataFrame, target: str) -> Iterator[Score]:
    """Yield how far repeats of the same work on the same kind of card are apart, where there are any."""
    again = repeats(frame, target)
    if len(again):
        errors = np.expm1(again["error"].to_numpy(float))
        yield _score((target, "all", NOISE, ""), errors, again["work"].to_numpy(dtype=object))


def repeats(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Return the repeats among samples: of work that was measured before on the same kind of card.

    Returns: their rows; besides the columns of samples `work`, a text that they share with the first, and `error`, the
        logarithm of what was measured over the first.
    """
    frame = usable(frame, target)
    frame = frame[has(frame, target)].reset_index(drop=True)
    work = pd.Series(splits.joined(frame, (*WORK, "gpu_name", "cudnn", "ran_algorithm")), dtype=object)
    values = pd.Series(np.log(frame[TARGETS[target][0]].to_numpy(float)))
    return frame.assign(work=work, error=values - values.groupby(work).transform("first"))[work.duplicated()]


def _of_split(
    frame: pd.DataFrame, target: str, cards: Given, calibrated: int, calls: Sequence[CallRow], kind: str, split: Split
) -> list[Score]:
    own = has(frame, target)
    if not (split.held_back & own).any():
        return []
    learned = frame[split.learned].reset_index(drop=True)
    made = predictor.fit(learned, target, cards, _unit(learned[has(learned, target)], kind), calls)
    frame, split = frame[own].reset_index(drop=True), Split(split.name, split.held_back[own], split.learned[own])
    held_back = frame[split.held_back].reset_index(drop=True)
    judged_here = outcomes(made, held_back)
    found = [*judged(judged_here, target, split.name)]
    found += [_judged(judged_here[rows], (target, split.name, by, "")) for by, rows in _parts(held_back)]
    found += _of_sums(made, held_out.of_models(held_back, calls, TARGETS[target][0]), split.name, SUM_OF_MODEL)
    found += _of_sums(made, held_back.assign(key=held_out.passes(held_back)), split.name, SUM_OF_LAYERS)
    given = features(frame, cards)
    wanted = logarithms(frame, target, given)
    truth, asked = wanted[split.held_back], given.rows(split.held_back)
    for name, baseline in BASELINES.items():
        errors = np.expm1(baseline(given.rows(split.learned), wanted[split.learned], asked) - truth)
        found.append(_score((target, split.name, name, ""), errors, splits.labels(held_back, "layer")))
    if calibrated and kind == "gpu":
        name = f"{split.name}, {calibrated} samples of it"
        found += judged(_calibrated(made, held_back, calibrated), target, name)
    return found


def _of_sums(made: Predictor, held_back: pd.DataFrame, name: str, what: str) -> Iterator[Score]:
    """Yield the scores of the sums over the samples of each `key` but "", by both intervals."""
    kept = held_back[held_back["key"] != ""].reset_index(drop=True)
    if kept.empty:
        return
    keys = kept["key"].to_numpy(dtype=object)
    found = made.sums(kept, keys, LEVEL)
    truth = kept[TARGETS[made.target][0]].groupby(keys).sum()
    models = kept["model"].groupby(keys).first().to_numpy(dtype=object)
    errors = (found["middle"] / truth - 1).to_numpy(float)
    ends = {what: ("low", "high"), what + ADDED: ("least", "most")}
    for by in ends if found["learned"].all() else (what + ADDED,):
        low, high = (found[each] for each in ends[by])
        covered = 100 * float(((low <= truth) & (truth <= high)).mean())
        score = _score((made.target, name, by, ""), errors, models)
        yield dataclasses.replace(score, covered_pct=covered, level=LEVEL)


def _unit(learned: pd.DataFrame, kind: str) -> str:
    """Return what intervals are to hold for: what the split holds back, or a layer where only one of it was learned."""
    several = learned["family"].nunique() if kind == "family" else len({*splits.labels(learned, kind)})
    return kind if several > 1 else "layer"


def choose(made: Predictor, frame: pd.DataFrame, count: int, seed: int = 0) -> npt.NDArray[np.intp]:
    """Return the rows that are worth measuring on their card, of samples whose times need not be there."""
    frame = made.resolved(frame)
    given = made.features_of(frame)
    plane = calibration.coordinates(given, made.estimated(given, frame), made.core.effects_of(frame))
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
    for group, rows in _groups(found["algorithm"].to_numpy(dtype=object)):
        yield _judged(found[rows], (target, name, PREDICTOR, group))


def _judged(found: pd.DataFrame, about: tuple[str, str, str, str]) -> Score:
    score = _score(about, found["error"].to_numpy(float), found["shape"].to_numpy(dtype=object))
    covered, outside = 100 * float(found["covered"].mean()), int(found["outside"].sum())
    return dataclasses.replace(score, covered_pct=covered, level=LEVEL, outside=outside)


def _parts(held_back: pd.DataFrame) -> Iterator[tuple[str, Mask]]:
    """Yield the samples of each card where there are several, and those of models where others are of none."""
    cards, of_models = sorted(held_back["gpu_name"].unique()), held_back["model"].notna().to_numpy(dtype=np.bool_)
    for name in cards if len(cards) > 1 else ():
        yield f"{PREDICTOR}, {name}", (held_back["gpu_name"] == name).to_numpy(dtype=np.bool_)
    if of_models.any() and not of_models.all():
        yield OF_MODELS, of_models


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
