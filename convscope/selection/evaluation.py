"""Regret of a selection on layers that were not learned, against the fastest that was measured, beside simple choices.

Every shape is held back once, or with each kind of network that has it: the predictor learns from the others. What a
layer can be given is known without a time of it, so the candidates are those that were measured on the layer; their
times are not looked at but to judge. The optimum is the least of measured times, so that regrets rest on that noise.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.calls import AT_ANY_BATCH, MODEL_AT_SIZE, CallRow
from convscope.dataset.samples import ARITHMETIC, SHAPE, TARGETS
from convscope.dataset.splits import Split
from convscope.errors import InputError
from convscope.pinning.document import TORCH
from convscope.prediction import predictor
from convscope.prediction.evaluation import bootstrapped
from convscope.prediction.predictor import Given
from convscope.prediction.processes import starmap
from convscope.selection import choice
from convscope.selection.candidates import Candidate, gathered, is_pinnable, keys
from convscope.selection.choice import Rule
from convscope.selection.selector import predictions

PREDICTED_BEYOND = "predicted, beyond intervals"
PREDICTED_LEAST = "predicted, the least"
MEASURED_BEYOND = "measured, beyond intervals"
SINGLE = "best single algorithm"
ALWAYS = {TORCH: "always PyTorch", "torch benchmark": "always cudnn.benchmark", "guess": "always guess"}
MODEL = (*MODEL_AT_SIZE, "batch_size", *ARITHMETIC)

Truth = Mapping[str, Mapping[str, float]]
"""Measured target by work, then by algorithm."""


@dataclass(frozen=True)
class Regret:
    """Extra time or energy over the measured optimum of one way to choose.

    Attributes:
        by: the way: a constant of this module.
        layers: number of layers (shapes in one arithmetic) that are judged, each with every split that holds it back.
        changed_pct: layers that are not left to PyTorch.
        mean_pct: mean over layers of chosen / best - 1; `mean_low_pct` and `mean_high_pct` are its 95 % interval.
        models: number of models in one size, batch and arithmetic.
        models_mean_pct, models_p95_pct: of the sums over all calls of each model, or, where calls are not known, over
            the layers that name it.
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


@dataclass(frozen=True)
class Question:
    """Choice that is to be judged, and the way to judge it.

    Attributes:
        target: "time" or "energy".
        kind: what is held back together, each in turn: "layer", "family" or "size".
        cards: facts of cards that are not known.
        level: of the intervals of predictions, in percent.
        outside: as `Rule.outside`.
        calls: of whole models, for sums over all their calls, and for what belongs to a kind of network.
    """

    target: str = "time"
    kind: str = "layer"
    cards: Given = dataclasses.field(default_factory=dict)
    level: int = 95
    outside: bool = False
    calls: Sequence[CallRow] = ()


def regrets(frame: pd.DataFrame, asked: Question, processes: int = 1) -> list[Regret]:
    """Return the regret of each way to choose; arguments and errors as of `chosen`."""
    return summed_up(*chosen(frame, asked, processes), asked)


def chosen(frame: pd.DataFrame, asked: Question, processes: int = 1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what each way chooses for each layer that is held back, and a sample of each layer, by its work.

    Args:
        frame: samples of one card and cuDNN.
        processes: of splits at once; their number changes nothing else.

    Returns: columns `split` (what was held back), `by` (the way), `work`, `algorithm`, `taken` and `best`, its target
        and the least one. A layer that several kinds of network have is held back with each of them.

    Raises:
        InputError: too few samples, or no layer with PyTorch's choice and another candidate; or a process was ended.
    """
    kept = predictor.usable(frame, asked.target)
    kept = kept.assign(work=keys(kept)) if len(kept) else kept.assign(work="")
    own = kept[predictor.has(kept, asked.target)]
    truth = _truth(own, asked.target)
    judged = {work for work, by in truth.items() if TORCH in by and sum(map(is_pinnable, by)) > 1}
    if not judged:
        raise InputError(
            "no layer has samples of PyTorch's own choice (torch) and of another algorithm: nothing to judge"
        )
    rule = Rule(asked.target, outside=asked.outside)
    measured = gathered(frame).candidates
    beyond = {
        work: choice.choose([*measured[work].values()], rule).chosen.algorithm for work in judged if work in measured
    }
    each = functools.partial(_of_split, kept, truth, judged, beyond, rule, asked)
    work = [(split,) for split in splits.each_in_turn(kept, asked.kind, asked.calls)]
    taken = [one for one in starmap(each, work, processes) if one is not None]
    if not taken:
        raise InputError(f"split by {asked.kind}: no layer that it holds back can be judged: choose another split")
    return pd.concat(taken, ignore_index=True), own.drop_duplicates("work").set_index("work")


def summed_up(taken: pd.DataFrame, about: pd.DataFrame, asked: Question) -> list[Regret]:
    """Return the regret of each way to choose, from what `chosen` returned."""
    return [_regret(each, taken[taken["by"] == each], about, asked) for each in dict.fromkeys(taken["by"])]


def _truth(frame: pd.DataFrame, target: str) -> dict[str, dict[str, float]]:
    """Return the median of repeats by work and algorithm."""
    values: dict[tuple[str, str], list[float]] = {}
    for work, name, value in zip(frame["work"], frame["algorithm"], frame[TARGETS[target][0]], strict=True):
        values.setdefault((work, name), []).append(float(value))
    truth: dict[str, dict[str, float]] = {}
    for (work, name), repeats in values.items():
        truth.setdefault(work, {})[name] = statistics.median(repeats)
    return truth


def _of_split(
    kept: pd.DataFrame, truth: Truth, judged: set[str], beyond: Mapping[str, str], rule: Rule, asked: Question,
    split: Split,
) -> pd.DataFrame | None:  # fmt: skip
    """Return what each way takes of the layers that one split holds back; None where none of them is judged."""
    pinnable, own = kept["algorithm"].map(is_pinnable).to_numpy(dtype=bool), predictor.has(kept, rule.objective)
    wanted = kept[split.held_back & own & pinnable & kept["work"].isin(judged).to_numpy()]
    wanted = wanted.drop_duplicates(["work", "algorithm"]).reset_index(drop=True)
    if wanted.empty:
        return None
    known = kept[split.learned & pinnable].reset_index(drop=True)
    made = predictor.fit(known, rule.objective, asked.cards, calls=None)
    candidates: dict[str, list[Candidate]] = {}
    values = predictions(made, wanted, asked.level)
    for work, name, value in zip(wanted["work"], wanted["algorithm"], values, strict=True):
        candidates.setdefault(work, []).append(Candidate(name, {rule.objective: value}))
    ways = [*_ways(candidates, truth, {*kept["work"][split.learned & own]}, rule)]
    if measured := {work: beyond[work] for work in candidates if work in beyond}:
        ways.append(_taken(MEASURED_BEYOND, measured, truth))
    return pd.concat(ways, ignore_index=True).assign(split=split.name)


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


def _regret(by: str, taken: pd.DataFrame, about: pd.DataFrame, asked: Question) -> Regret:
    of_layers = 100 * (taken["taken"] / taken["best"] - 1).to_numpy(float)
    rows = taken.join(about[[*dict.fromkeys((*MODEL, *SHAPE))]], on="work")
    low, high = bootstrapped(of_layers, splits.labels(rows, "layer"))
    sums = _of_models(rows, asked)
    of_models = 100 * (sums["taken"] / sums["best"] - 1).to_numpy(float)
    return Regret(
        by, asked.target, asked.kind, len(rows), 100 * float((taken["algorithm"] != TORCH).mean()),
        float(of_layers.mean()), low, high, float(np.quantile(of_layers, 0.95)), len(of_models),
        float(of_models.mean()) if len(of_models) else None,
        float(np.quantile(of_models, 0.95)) if len(of_models) else None,
    )  # fmt: skip


def _of_models(rows: pd.DataFrame, asked: Question) -> pd.DataFrame:
    """Return the sums of `taken` and `best` of models: over all their calls, where every one of them was judged.

    Without calls of whole models they are over the layers that name the model.
    """
    if not asked.calls:
        return rows[rows["model"].notna()].groupby([*MODEL], dropna=False)[["taken", "best"]].sum()
    kept = rows[["split", "batch_size", *ARITHMETIC, "taken", "best"]].assign(shape=splits.joined(rows, AT_ANY_BATCH))
    calls = splits.called(asked.calls)[[*MODEL_AT_SIZE, "family", "calls", "shape"]]
    found = calls.merge(kept, on="shape")
    if asked.kind == "family":
        found = found[found["split"] == "family " + found["family"]]
    passes = found.groupby([*MODEL], dropna=False)
    return passes[["taken", "best"]].sum()[passes.size() == passes["calls"].first()]
