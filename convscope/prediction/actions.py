"""Time, energy and workspace of convolutions from samples: the work of `convscope predict`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convscope.cli.display import or_dash, several, table
from convscope.cli.options import apart_from_inputs, at_least
from convscope.cli.parser import one_line
from convscope.dataset import calls, choices, ranked_plans, samples, totals
from convscope.dataset.calls import CallRow
from convscope.dataset.samples import TARGETS, WORK
from convscope.dataset.totals import TotalRow
from convscope.errors import InputError
from convscope.prediction import cards, document, evaluation, intervals, predictor, workspace
from convscope.prediction.evaluation import Score, WorkspaceScore
from convscope.prediction.predictor import Prediction, Predictor
from convscope.prediction.workspace import WorkspacePredictor
from convscope.storage.table import write_atomically

SCORES = (
    "held back",
    "by",
    "algorithm",
    "samples",
    "MAPE, %",
    "95 %",
    "median, %",
    "p95, %",
    "within 10 %",
    "covered, %",
    "outside, %",
)
OF_WORKSPACES = (
    *("held back", "by", "algorithm", "samples", "none, %", "none or some right, %"),
    *("both some", "within 1 %", "within 10 %", "median factor", "p95 factor", "covered, %", "fits, %", "outside, %"),
)
REST = "what is no convolution is not in it"
NOT_CORRECTED = "a workspace is not corrected for a card: fit it to samples of that card too"
SHOWN = {"ms": ("ms", 1.0), "J": ("J", 1.0), "bytes": ("MB", 1e-6)}
"""Unit that a table shows instead of each unit, and what it is multiplied by."""


def fit(options: argparse.Namespace) -> int:
    """Learn from samples and write what was learned; return 0, as all of these do."""
    apart_from_inputs(options.output, *options.samples)
    kept, given = predictor.usable(samples.read(options.samples), options.target), cards.parsed(options.card)
    known = calls.named_or_beside(options.calls, options.samples)
    if options.target == workspace.TARGET:
        return _fit_workspace(options, workspace.fit(kept, given, options.unit, known), kept)
    _note_ways(kept, options.target)
    made = predictor.fit(kept, options.target, given, options.unit, known)
    own = kept[predictor.has(kept, made.target)]
    document.write(options.output, made, own)
    half = made.widths[intervals.EVERY]["90"]
    factor = "" if half is None else f", 90 % within a factor of {np.exp(half):.2f} for another {made.unit}"
    of = f"{several(len(own), 'sample')} of {', '.join(made.learned['gpu_names'])}"
    print(f"{made.target} of {of}{factor}: {options.output}")
    return 0


def _note_ways(frame: pd.DataFrame, target: str) -> None:
    for line in samples.several_ways(frame) if target == "time" else ():
        print(one_line(line), file=sys.stderr)


def _fit_workspace(options: argparse.Namespace, made: WorkspacePredictor, kept: pd.DataFrame) -> int:
    document.write(options.output, made, kept)
    names = made.estimate.levels["algorithm"]
    never = sum(made.estimate.always.get(name) is False for name in names)
    kinds = f"of {len(names)} algorithms {never} never need any, {len(made.estimate.formulas)} follow a formula"
    cards_ = ", ".join(made.learned["gpu_names"])
    print(f"workspace of {several(len(kept), 'sample')} of {cards_}, {kinds}: {options.output}")
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print the errors of predictions of what was held back."""
    at_least("--calibrate", options.calibrate, 0)
    at_least("--processes", options.processes, 1)
    if options.calibrate and "gpu" not in options.split:
        raise InputError("evaluate: --calibrate needs --split gpu")
    frame, known = samples.read(options.samples), cards.parsed(options.card)
    known_calls = calls.named_or_beside(options.calls, options.samples)
    if options.target == workspace.TARGET:
        return _evaluate_workspace(options, frame, known_calls)
    _note_ways(frame, options.target)
    asked = options.target, options.split, known, options.calibrate, options.processes, known_calls
    found = [*evaluation.noise(frame, options.target), *evaluation.scores(frame, *asked)]
    if options.json:
        print(json.dumps([*map(dataclasses.asdict, found)], indent=1))
    else:
        print(table(SCORES, [*map(_cells, found)]))
    return 0


def _evaluate_workspace(options: argparse.Namespace, frame: pd.DataFrame, calls: Sequence[CallRow]) -> int:
    if options.calibrate:
        raise InputError(f"evaluate: --calibrate: {NOT_CORRECTED}")
    if options.processes > 1:
        raise InputError("evaluate: --processes: workspaces take seconds: leave it out")
    known = cards.parsed(options.card)
    found = [score for kind in options.split for score in evaluation.workspace_scores(frame, kind, known, calls)]
    if options.json:
        print(json.dumps([*map(dataclasses.asdict, found)], indent=1))
    else:
        print(table(OF_WORKSPACES, [*map(_workspace_cells, found)]))
    return 0


def _workspace_cells(score: WorkspaceScore) -> Sequence[str]:
    return (
        score.split, score.by, score.group or "all", str(score.samples), f"{score.none_pct:.0f}",
        f"{score.right_pct:.1f}", str(score.both), or_dash(score.exact_pct, ".0f"),
        or_dash(score.within_10_pct, ".0f"), or_dash(score.median_factor, ".2f"), or_dash(score.p95_factor, ".3g"),
        or_dash(score.covered_pct, ".1f"), or_dash(score.fits_pct, ".1f"),
        "-" if score.outside is None else f"{100 * score.outside / score.samples:.0f}",
    )  # fmt: skip


def _cells(score: Score) -> Sequence[str]:
    return (
        score.split, score.by, score.group or "all", str(score.samples), f"{score.mape_pct:.1f}",
        "-" if score.mape_low_pct is None else f"{score.mape_low_pct:.1f} to {score.mape_high_pct:.1f}",
        f"{score.median_pct:.1f}", f"{score.p95_pct:.1f}", f"{score.within_10_pct:.1f}",
        or_dash(score.covered_pct, ".1f"),
        "-" if score.outside is None else f"{100 * score.outside / score.samples:.0f}",
    )  # fmt: skip


def apply(options: argparse.Namespace) -> int:
    """Predict the layers of a model, or those of a file of samples."""
    others = [path for path in (options.samples, options.totals) if path]
    apart_from_inputs(options.output, options.predictor, *others)
    made = document.read(options.predictor)
    made = made.with_cards(cards.parsed(options.card))
    frame = _asked(made, options)
    measured = totals.read(options.totals) if options.totals else None
    found = made.predict(frame, options.level)
    if options.output:
        _write_predictions(options.output, frame, found, made, options.level)
    unit, scale = SHOWN[TARGETS[made.target][1]]
    shown = [
        (layer or "-", algorithm, *_shown(middle, low, high, scale), outside)
        for layer, algorithm, middle, low, high, outside in zip(
            frame["layer"], frame["algorithm"], found.middle, found.low, found.high, found.outside, strict=True
        )
    ]
    header = ("layer", "algorithm", f"{made.target}, {unit}", f"{options.level} % of cases", "outside what was learned")
    print(table(header, shown))
    if options.samples:
        return 0
    if isinstance(made, WorkspacePredictor):
        print("\n".join(_most(frame, found)))
    else:
        print("\n".join(_sums(made, frame, found, options.level, measured)))
    return 0


def _sums(
    made: Predictor, frame: pd.DataFrame, found: Prediction, level: int, measured: Sequence[TotalRow] | None
) -> Iterator[str]:
    """Yield the sum of each algorithm over the layers of a model, and its share of each measured total."""
    unit = TARGETS[made.target][1]
    names = frame["algorithm"].to_numpy(dtype=object)
    outside = Counter(name for name, text in zip(names, found.outside, strict=True) if text)
    for each in made.sums(frame, names, level).rename_axis("name").reset_index().to_dict("records"):
        odd = f"; outside what was learned: {several(outside[each['name']], 'layer')}" if outside[each["name"]] else ""
        said = f"{level} % of models" if each["learned"] else "ends added up, as if all layers erred alike"
        ends = f"{_short(each['low'])} to {_short(each['high'])} ({said})"
        yield f"{each['name']}: {_short(each['middle'])} {unit} in all, {ends}{odd}; {REST}"
        if measured is not None:
            yield from _shares(made, each, [row for row in measured if _is_of(row, frame, each["name"])])


def _shares(made: Predictor, sum_: Mapping[Hashable, Any], measured: Sequence[TotalRow]) -> Iterator[str]:
    """Yield a predicted sum as a share of each measured pass that it is of."""
    column, unit = TARGETS[made.target]
    known = [(row, value) for row in measured if (value := getattr(row, column)) is not None]
    for row, value in known:
        share, low, high = (f"{100 * sum_[name] / value:.0f}" for name in ("middle", "low", "high"))
        yield f"  measured whole pass: {_short(value)} {unit} ({row.run}); the sum is {share} % of it, {low} to {high}"
    if not known:
        yield f"  no measured {made.target} of such a pass: its card, size, batch and arithmetic have to be the same"


def _is_of(row: TotalRow, frame: pd.DataFrame, algorithm: str) -> bool:
    """Tell whether a measured total is of the pass whose layers these are."""
    asked = {**frame.iloc[0].to_dict(), "model": str(frame["model"].iloc[0]).lower(), "algorithm": algorithm}
    return all(getattr(row, name) == asked[name] for name in totals.WORK)


def _most(frame: pd.DataFrame, found: Prediction) -> Iterator[str]:
    """Yield the largest workspace of each algorithm: layers that run one after another can share it."""
    for name, rows in pd.DataFrame({"middle": found.middle, "high": found.high}).groupby(frame["algorithm"].to_numpy()):
        if rows["middle"].isna().any():
            yield f"{name}: the largest workspace is not known"
            continue
        middle, high = (_short(float(rows[each].max()) * SHOWN["bytes"][1]) for each in ("middle", "high"))
        yield f"{name}: at most {middle} MB at a time, with the largest upper end {high} MB"


def _shown(middle: float, low: float, high: float, scale: float) -> tuple[str, str]:
    """Return a value and its interval as a table has them."""
    value, *ends = (_short(each * scale) for each in (middle, low, high))
    return value, " to ".join(ends)


def _short(value: float) -> str:
    if not np.isfinite(value):
        return "?"
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def _names(made: Predictor | WorkspacePredictor) -> Sequence[str]:
    """Return the algorithms that were learned and can be asked for."""
    learned = (made.estimate if isinstance(made, WorkspacePredictor) else made.core).levels["algorithm"]
    return choices.can_be_asked_for(learned)


def _asked(made: Predictor | WorkspacePredictor, options: argparse.Namespace) -> pd.DataFrame:
    """Return the samples whose target is asked for: of a file, or of a model's layers."""
    if options.totals and isinstance(made, WorkspacePredictor):
        raise InputError("apply: --totals needs a predictor of time or energy")
    if options.samples:
        frame = samples.read([options.samples])
        return frame.assign(gpu_name=options.gpu or frame["gpu_name"])
    if not options.model or not options.gpu:
        raise InputError("apply: say --samples FILE, or --model M with --gpu NAME")
    at_least("--batch-size", options.batch_size, 1)
    from convscope.prediction import network  # PyTorch, which a file of samples does without

    wanted = network.named(options.algorithm, _names(made)) if options.algorithm else _names(made)
    learned = made.plans_of if isinstance(made, Predictor) else made.learned.get("cudnn", ())
    plans = isinstance(made, Predictor) and any(name.startswith(choices.PLAN) for name in _names(made))
    if plans and {*wanted} & {*choices.CHOOSERS} and (reason := ranked_plans.why_not(options.gpu, learned)):
        print(one_line(f"predicted without the plans that cuDNN would choose: {reason}"), file=sys.stderr)
    return network.samples(
        options.model, options.input_size, options.batch_size, options.gpu, wanted, options.dtype, options.math,
        options.layout, ranked_plans.same_as_here(learned),
    )  # fmt: skip


def _write_predictions(
    path: Path, frame: pd.DataFrame, found: Prediction, made: Predictor | WorkspacePredictor, level: int
) -> None:
    unit = TARGETS[made.target][1]
    columns = {f"predicted_{unit}": found.middle, f"low{level}_{unit}": found.low, f"high{level}_{unit}": found.high}
    kept = frame[["gpu_name", *WORK, "model", "layer", "input_size"]]
    text = kept.assign(**columns, outside=found.outside).to_csv(index=False)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None


def calibrate(options: argparse.Namespace) -> int:
    """Correct a predictor by samples of another card, or print those that are most worth measuring."""
    apart_from_inputs(options.output, *options.samples)
    made = document.read(options.predictor)
    if isinstance(made, WorkspacePredictor):
        raise InputError(f"calibrate: {NOT_CORRECTED}")
    made = made.with_cards(cards.parsed(options.card))
    frame = samples.read(options.samples)
    if options.choose is not None:
        at_least("--choose", options.choose, 1)
        kept = frame[frame["in_height_px"].notna()].assign(gpu_name=options.gpu or frame["gpu_name"])
        kept = kept.drop_duplicates([*WORK, "gpu_name"]).reset_index(drop=True)
        rows = evaluation.choose(made, kept, options.choose)
        _print_chosen(kept.iloc[rows])
        return 0
    measured = predictor.usable(frame, made.target)
    measured = measured[predictor.has(measured, made.target)].reset_index(drop=True)
    corrected = made.corrected(measured)
    document.write(options.output or options.predictor, corrected, measured)
    name = measured["gpu_name"].iloc[0]
    rests = np.abs(np.expm1(np.array(corrected.corrections[name].rests)))
    off = f"{100 * float(np.mean(rests)):.1f} % off where each is left out"
    print(f"{name}: corrected by {several(len(rests), 'sample')}, {off}: {options.output or options.predictor}")
    return 0


def _print_chosen(frame: pd.DataFrame) -> None:
    names = ["model", "layer", *WORK]
    cells = [["-" if cell is None else str(cell) for cell in row] for row in frame[names].itertuples(index=False)]
    print(table(names, cells))
