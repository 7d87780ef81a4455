"""Algorithms or plans for the convolutions of a model, as a document, and their regret: work of `convscope select`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from convscope.cli.display import or_dash, several, table
from convscope.cli.options import apart_from_inputs, at_least, parse_bytes
from convscope.cli.parser import one_line
from convscope.dataset import calls, choices, samples
from convscope.errors import InputError
from convscope.prediction import cards
from convscope.selection import selector, stack
from convscope.selection.candidates import Measured, Value, gain, gathered, is_pinnable
from convscope.selection.choice import Rule
from convscope.selection.objectives import OBJECTIVES, UNITS
from convscope.selection.selector import Selected, Selector, Work
from convscope.selection.stack import Stack
from convscope.storage.table import write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from convscope.prediction.predictor import Predictor
    from convscope.selection.evaluation import Regret

REGRETS = (
    *("chosen", "layers", "not PyTorch, %", "regret, mean %", "95 %", "p95, %"),
    *("models", "sum, mean %", "sum, p95 %"),
)


def select(options: argparse.Namespace) -> int:
    """Choose for each convolution of a model and write the document; return 0."""
    at_least("--input-size", options.size, 1)
    at_least("--batch-size", options.batch, 1)
    apart_from_inputs(options.output, *(options.samples or ()), *(options.predictor or ()))
    rule = _rule(options)
    predictors = _predictors(options)
    here, measured = _measured(options, predictors)
    for each in predictors:
        stack.check(each, here)
    from convscope.selection import network  # PyTorch, last: its import takes seconds

    work, parts = network.parts(
        Work(options.model, options.size, options.batch, options.math, options.dtype, options.layout)
    )
    found = Selector(here, measured, predictors, rule, options.level, options.predict_plans).select(parts, work)
    pins = selector.pins(found, work, here)
    try:
        write_atomically(options.output, pins.text())
    except OSError as error:
        raise InputError(f"{options.output} cannot be written ({error.strerror}): name another file") from None
    unit = UNITS[rule.objective][0]
    header = "layer", "chosen", "by", f"{rule.objective}, {unit}", f"gain, {unit}", "workspace, MB", "remark"
    print(table(header, [_cells(each, rule.objective) for each in found]))
    print("\n".join(_sums(found, rule.objective)))
    if measured.contradictions:
        print(
            f"repeats of {measured.contradictions} candidates contradict each other: their interval holds all of them"
        )
    where = f"{here.gpu_name}, {f'cuDNN {here.cudnn}' if here.cudnn else 'no cuDNN'}"
    print(f"{several(len(pins.layers), 'layer')} for {where}: {options.output}")
    return 0


def _rule(options: argparse.Namespace) -> Rule:
    if options.max_error is not None and not 0 < options.max_error < math.inf:
        raise InputError(f"--max-error {options.max_error}: say a relative error above 0, such as 1e-3")
    most = None if options.max_workspace is None else parse_bytes("--max-workspace", options.max_workspace)
    return Rule(options.objective, most, options.max_error, options.outside, options.least)


def _predictors(options: argparse.Namespace) -> list[Predictor]:
    """Return the predictors of what is to be least, one a target."""
    if not options.predictor:
        return []
    from convscope.prediction import document  # LightGBM, which samples alone do without
    from convscope.prediction.workspace import WorkspacePredictor

    given = cards.parsed(options.card)
    found: dict[str, Predictor] = {}
    for path in options.predictor:
        made = document.read(path)
        if isinstance(made, WorkspacePredictor):
            raise InputError(f"{path} predicts workspaces, which nothing is chosen by: give one of time or energy")
        if made.target in found:
            raise InputError(f"{path}: another predictor of {made.target}: give one of each target")
        if not any(map(is_pinnable, made.core.levels["algorithm"])):
            known = ", ".join(choices.can_be_asked_for(made.core.levels["algorithm"]))
            raise InputError(f"{path} knows {known} alone, which is nothing that a layer can be given")
        found[made.target] = dataclasses.replace(made, cards={**made.cards, **given})
    return [*found.values()]


def _measured(options: argparse.Namespace, predictors: Sequence[Predictor]) -> tuple[Stack, Measured]:
    """Return the card and cuDNN that is selected for, and what was measured on it in the arithmetic asked for."""
    if not options.samples and not predictors:
        raise InputError("say --samples FILE, --predictor FILE, or both")
    frame = samples.read(options.samples) if options.samples else None
    if frame is None or (predictors and not stack.has(frame, options.gpu)):
        return stack.of_predictors(predictors, options.gpu, options.cudnn), Measured({}, {}, 0)
    here, mine = stack.narrowed(frame, options.gpu, options.cudnn)
    alike = _alike(mine, options)
    if alike.empty and not predictors:
        every = sorted({*map(", ".join, zip(mine["dtype"], mine["math"], mine["layout"], strict=True))})
        asked = f"{options.dtype}, {options.math}, {options.layout}"
        raise InputError(f"no sample of {here.gpu_name} is in {asked}: there are {'; '.join(every)}")
    return here, gathered(alike)


def _alike(frame: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    kept = (frame["dtype"] == options.dtype) & (frame["layout"] == options.layout)
    if options.dtype == "float32":
        kept &= frame["math"] == options.math
    found: pd.DataFrame = frame[kept]
    return found


def _cells(each: Selected, objective: str) -> tuple[str, ...]:
    chosen, own = each.choice.chosen, each.choice.own
    value, its = chosen.value(objective), own.value(objective)
    saved = _interval(*gain(value, its), objective) if value and its and each.choice.is_changed else "-"
    workspace = None if chosen.workspace_bytes is None else chosen.workspace_bytes / 1e6
    return (
        each.layer.name, chosen.algorithm, value.by if value else "-",
        _interval(value.middle, value.low, value.high, objective) if value else "-", saved,
        or_dash(workspace, ".1f"), each.choice.remark,
    )  # fmt: skip


def _interval(middle: float, low: float, high: float, objective: str) -> str:
    shown = [f"{UNITS[objective][1] * each:.3g}" if math.isfinite(each) else "?" for each in (middle, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _sums(found: Sequence[Selected], objective: str) -> Iterator[str]:
    """Yield sums of time and energy over the layers where both sides are known, and the count of the rest."""
    for target in dict.fromkeys((*OBJECTIVES[objective], *UNITS)):
        pairs = [
            (one, other)
            for each in found
            if (one := each.choice.chosen.values.get(target)) and (other := each.choice.own.values.get(target))
        ]
        if target in ("time", "energy") and pairs:
            chosen, own = (_added(side) for side in zip(*pairs, strict=True))
            saved, low, high = map(sum, zip(*(gain(one, other) for one, other in pairs), strict=True))
            percent = 100 * saved / own[0]
            more = f": {_interval(saved, low, high, target)} less, {percent:.1f} %" if low != high else ""
            every = several(len(found), "convolution")
            among = every if len(pairs) == len(found) else f"{len(pairs)} of {every}"
            yield (
                f"{target} of {among}: {_interval(*chosen, target)} {UNITS[target][0]}, "
                f"PyTorch's {_interval(*own, target)}{more}"
            )
    values = [each.choice.chosen.value(objective) for each in found]
    counts = [sum(value is not None and value.by == by for value in values) for by in ("measured", "predicted")]
    changed = sum(each.choice.is_changed for each in found)
    yield (
        f"{several(changed, 'layer')} changed, {len(found) - changed} left to PyTorch; by {counts[0]} measured, "
        f"{counts[1]} predicted, {values.count(None)} unknown; ends of intervals are added up; "
        "no other kinds of layers are in it"
    )


def _added(values: Sequence[Value]) -> tuple[float, float, float]:
    return sum(v.middle for v in values), sum(v.low for v in values), sum(v.high for v in values)


def evaluate(options: argparse.Namespace) -> int:
    """Print the regret of the choice on layers that were held back; return 0."""
    from convscope.selection import evaluation
    from convscope.selection.evaluation import Question

    at_least("--processes", options.processes, 1)
    here, mine = stack.narrowed(samples.read(options.samples), options.gpu, options.cudnn)
    for line in samples.several_ways(mine) if options.target == "time" else ():
        print(one_line(line), file=sys.stderr)
    asked = Question(
        options.target, cards=cards.parsed(options.card), level=options.level, outside=options.outside,
        calls=calls.named_or_beside(options.calls, options.samples),
    )  # fmt: skip
    kinds = [dataclasses.replace(asked, kind=kind) for kind in options.split]
    found = [each for one in kinds for each in evaluation.regrets(mine, one, options.processes)]
    if options.json:
        print(json.dumps([*map(dataclasses.asdict, found)], indent=1))
        return 0
    for kind in options.split:
        cudnn = f"cuDNN {here.cudnn}" if here.cudnn else "no cuDNN"
        print(f"{options.target}, {here.gpu_name}, {cudnn}, held back by {kind}:")
        print(table(REGRETS, [_regret_cells(each) for each in found if each.split == kind]))
    return 0


def _regret_cells(each: Regret) -> tuple[str, ...]:
    low, high = each.mean_low_pct, each.mean_high_pct
    return (
        each.by, str(each.layers), f"{each.changed_pct:.0f}", f"{each.mean_pct:.1f}",
        "-" if low is None else f"{low:.1f} to {high:.1f}", f"{each.p95_pct:.1f}", str(each.models or "-"),
        or_dash(each.models_mean_pct, ".1f"), or_dash(each.models_p95_pct, ".1f"),
    )  # fmt: skip
