"""Regret of a selection on layers that were not learned, against the fastest that was measured, beside simple choices.

Every shape is held back once: the predictor learns from the others. What a layer can be given is known without a time
of it, so the candidates are those that were measured on the layer; their times are not looked at but to judge. The
optimum is the least of measured times, so that regrets rest on that noise too.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import SHAPE, TARGETS
from convscope.errors import InputError
from convscope.pinning.document import TORCH
from convscope.prediction import predictor
from convscope.prediction.evaluation import bootstrapped
from convscope.prediction.predictor import Given
from convscope.selection import choice
from convscope.selection.candidates import Candidate, gathered, is_pinnable, keys
from convscope.selection.choice import Rule
from convscope.selection.selector import predictions

PREDICTED_BEYOND = "predicted, beyond intervals"
PREDICTED_LEAST = "predicted, the least"
MEASURED_BEYOND = "measured, beyond intervals"
SINGLE = "best single algorithm"
ALWAYS = {TORCH: "always PyTorch", "torch benchmark": "always cudnn.benchmark", "guess": "always guess"}
MODEL = ("model", "input_size", "batch_size", "dtype", "math", "layout")

Truth = Mapping[str, Mapping[str, float]]
"""Measured target by work, then by algorithm."""


@dataclass(frozen=True)
class Regret:
    """Extra time or energy over the measured optimum of one way to choose.

    Attributes:
        by: the way: a constant of this module.
        layers: number of layers (shapes in one arithmetic) that are judged.
        changed_pct: layers that are not left to PyTorch.
        mean_pct: mean over layers of chosen / best - 1; `mean_low_pct` and `mean_high_pct` are its 95 % interval.
        models: number of models in one size, batch and arithmetic.
        models_mean_pct, models_p95_pct: of the sums over the layers that the samples have of each model.
    """

    by: str
    target: str
    split: str
    layers: int
    changed_pct: float
    mean_pct: float
    mean_low_pct: float | None
    mean_high_pct: float | None
    p95_pct: float
    models: int
    models_mean_pct: float | None
    models_p95_pct: float | None


def regrets(
    frame: pd.DataFrame, target: str, kind: str, cards: Given, level: int, outside: bool = False
) -> list[Regret]:
    """Return the regret of each way to choose; arguments and errors as of `chosen`."""
    taken, about = chosen(frame, target, kind, cards, level, outside)
    return [_regret(each, taken[taken["by"] == each], about, target, kind) for each in dict.fromkeys(taken["by"])]


def chosen(
    frame: pd.DataFrame, target: str, kind: str, cards: Given, level: int, outside: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what each way chooses for each layer, and a sample of each layer, by its work.

    Args:
        frame: samples of one card and cuDNN.
        kind: what is held back together: one of `samples.SPLITS` but "gpu".
        level: of the intervals of predictions, in percent.
        outside: as `Rule.outside`.

    Returns: columns `by` (the way), `work`, `algorithm`, `taken` and `best`, its target and the least one.

    Raises:
        InputError: too few samples, or no layer with PyTorch's choice and another candidate.
    """
    kept = predictor.usable(frame, target)
    kept = kept.assign(work=keys(kept)) if len(kept) else kept.assign(work="")
    own = kept[predictor.has(kept, target)]
    truth = _truth(own, target)
    judged = {work for work, by in truth.items() if TORCH in by and sum(map(is_pinnable, by)) > 1}
    if not judged:
        raise InputError(
            "no layer has samples of PyTorch's own choice (torch) and of another algorithm: nothing to judge"
        )
    rule = Rule(target, outside=outside)
    taken = pd.concat(_of_fold(kept, truth, judged, rule, kind, cards, level))
    measured = gathered(frame).candidates
    beyond = {
        work: choice.choose([*measured[work].values()], rule).chosen.algorithm for work in judged if work in measured
    }
    taken = pd.concat([taken, _taken(MEASURED_BEYOND, beyond, truth)], ignore_index=True)
    return taken, own.drop_duplicates("work").set_index("work")


def _truth(frame: pd.DataFrame, target: str) -> dict[str, dict[str, float]]:
    """Return the median of repeats by work and algorithm."""
    values: dict[tuple[str, str], list[float]] = {}
    for work, name, value in zip(frame["work"], frame["algorithm"], frame[TARGETS[target][0]], strict=True):
        values.setdefault((work, name), []).append(float(value))
    truth: dict[str, dict[str, float]] = {}
    for (work, name), repeats in values.items():
        truth.setdefault(work, {})[name] = statistics.median(repeats)
    return truth


def _of_fold(
    kept: pd.DataFrame, truth: Truth, judged: set[str], rule: Rule, kind: str, cards: Given, level: int
) -> Iterator[pd.DataFrame]:
    """Yield what each way takes of the layers of one fold after another, held back in turn."""
    number_of = splits.folds(splits.labels(kept, kind))
    if len(np.unique(number_of)) < 2:
        raise InputError(f"all samples are of one {kind}: at least two are needed to hold one back")
    pinnable, own = kept["algorithm"].map(is_pinnable).to_numpy(dtype=bool), predictor.has(kept, rule.objective)
    for number in np.unique(number_of):
        out = number_of == number
        may = splits.beside(kept, kind, out)
        made = predictor.fit(kept[may & pinnable].reset_index(drop=True), rule.objective, cards)
        asked = kept[out & own & pinnable & kept["work"].isin(judged).to_numpy()]
        asked = asked.drop_duplicates(["work", "algorithm"]).reset_index(drop=True)
        if asked.empty:
            continue
        candidates: dict[str, list[Candidate]] = {}
        for work, name, value in zip(asked["work"], asked["algorithm"], predictions(made, asked, level), strict=True):
            candidates.setdefault(work, []).append(Candidate(name, {rule.objective: value}))
        yield from _ways(candidates, truth, {*kept["work"][may & own]}, rule)


def _ways(
    candidates: Mapping[str, Sequence[Candidate]], truth: Truth, learned: set[str], rule: Rule
) -> Iterator[pd.DataFrame]:
    """Yield what each way takes of these layers."""
    beyond = {work: choice.choose(every, rule).chosen.algorithm for work, every in candidates.items()}
    yield _taken(PREDICTED_BEYOND, beyond, truth)
    bold = dataclasses.replace(rule, least=True)
    least = {work: choice.choose(every, bold).chosen.algorithm for work, every in candidates.items()}
    yield _taken(PREDICTED_LEAST, least, truth)
    single = best_single({work: truth[work] for work in learned})
    yield _taken(SINGLE, dict.fromkeys(candidates, single), truth)
    for name, title in ALWAYS.items():
        if any(name in truth[work] for work in candidates):
            yield _taken(title, dict.fromkeys(candidates, name), truth)


def best_single(truth: Truth) -> str:
    """Return the algorithm with the least mean regret where it runs wherever it can, and PyTorch elsewhere."""
    known = [by for by in truth.values() if TORCH in by]
    names = sorted({name for by in known for name in by if is_pinnable(name)})
    best = [min(value for name, value in by.items() if is_pinnable(name)) for by in known]

    def mean(name: str) -> float:
        return statistics.fmean(by.get(name, by[TORCH]) / least for by, least in zip(known, best, strict=True))

    return min(names, key=mean, default=TORCH)


def _taken(by: str, chosen: Mapping[str, str], truth: Truth) -> pd.DataFrame:
    """Return what each layer takes by an algorithm, PyTorch's where it has none of that name, and the least."""
    rows = [
        (
            *(by, work, name if name in truth[work] else TORCH, truth[work].get(name, truth[work][TORCH])),
            min(value for each, value in truth[work].items() if is_pinnable(each)),
        )
        for work, name in chosen.items()
    ]
    return pd.DataFrame(rows, columns=["by", "work", "algorithm", "taken", "best"])


def _regret(by: str, taken: pd.DataFrame, about: pd.DataFrame, target: str, split: str) -> Regret:
    of_layers = 100 * (taken["taken"] / taken["best"] - 1).to_numpy(float)
    rows = taken.join(about[[*dict.fromkeys((*MODEL, *SHAPE))]], on="work")
    low, high = bootstrapped(of_layers, splits.labels(rows, "layer"))
    sums = rows[rows["model"].notna()].groupby([*MODEL], dropna=False)[["taken", "best"]].sum()
    of_models = 100 * (sums["taken"] / sums["best"] - 1).to_numpy(float)
    return Regret(
        by, target, split, len(rows), 100 * float((taken["algorithm"] != TORCH).mean()), float(of_layers.mean()), low,
        high, float(np.quantile(of_layers, 0.95)), len(of_models), float(of_models.mean()) if len(of_models) else None,
        float(np.quantile(of_models, 0.95)) if len(of_models) else None,
    )  # fmt: skip
