#!/usr/bin/env python3
"""Whole passes of models by what `convscope select` chooses, beside simple choices. Prints, asserts nothing.

python benchmarks/selection.py choose data/h200/samples.parquet FOLDER     documents of choices; no GPU, minutes a kind
python benchmarks/selection.py measure FOLDER [--part 1/2]                 passes, on the GPU of the samples
python benchmarks/selection.py show FOLDER                                 the tables; no GPU

Each pass is one model in one setting, captured, all choices in turn in each of --rounds placements in memory. Choices:

- measured: `convscope select --samples`, which leaves a layer to PyTorch unless another is faster beyond the intervals.
- fastest measured: the same with --least.
- predicted: `convscope select --predictor --least --outside` by a predictor that learned neither from the model nor
  from others of its kind.
- single: the algorithm with the least sum over the model's samples, for all layers that can use it.
- torch, torch benchmark, guess: PyTorch's own choice, its search, cuDNN's legacy heuristic.

Processes that measure on the same GPU at the same time take turns; what is measured is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import itertools
import os
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models import settings_of

from convscope.atlas import turns
from convscope.atlas.turns import Turns
from convscope.cli.display import table
from convscope.convolution import algorithms, assignment
from convscope.convolution.operator import card_check, release
from convscope.convolution.reference import relative_distance
from convscope.convolution.sources.source import first_tensor
from convscope.dataset import calls, samples, splits
from convscope.dataset.calls import CallRow
from convscope.dataset.collect.request import family_of
from convscope.pinning import document, planned
from convscope.pinning.document import TORCH
from convscope.prediction import predictor
from convscope.prediction.predictor import Predictor
from convscope.prediction.processes import starmap
from convscope.selection import choice, network, selector, stack
from convscope.selection.candidates import Candidate, Measured, gathered, is_pinnable
from convscope.selection.choice import Choice, Rule
from convscope.selection.selector import Part, Selected, Selector, Work
from convscope.selection.stack import Stack
from convscope.storage.paths import slug
from convscope.timing import placement
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import paired_difference
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC, AssignmentSwap
from convscope.verification.evidence import Subject, open_subject
from convscope.verification.request import make_verification

MODELS = (
    *("alexnet", "vgg16", "resnet50", "resnet152", "densenet121", "googlenet"),
    *("torchvision:mobilenet_v2", "torchvision:convnext_tiny"),
)
SETTINGS, BATCHES, SIZE_PX = ("fp32", "tf32", "float16,nhwc"), (1, 32), 224
WAYS = ("measured", "fastest_measured", "predicted", "single")
PASSES, ROUNDS, CONFIDENCE = "passes.csv", 6, 0.99
COLUMNS = ("model", "setting", "batch_size", "way", "round", "pass_ms", "relative_error", "layers_changed", "layers")


def learned_beside(frame: pd.DataFrame, family: str, known: Sequence[CallRow]) -> pd.DataFrame:
    """Return the samples that a predictor may learn from which knows no network of this kind.

    Without the calls of whole models the kind's own are those whose samples name a model of it.
    """
    kept = predictor.usable(frame, "time")
    kept = kept[kept["algorithm"].map(is_pinnable)].reset_index(drop=True)
    divided = (each for each in splits.splits(kept, "family", known) if each.name == f"family {family}")
    rows = next((each.learned for each in divided), np.ones(len(kept), dtype=bool))
    return kept[rows].reset_index(drop=True)


def single(candidates: Sequence[Mapping[str, Candidate]]) -> str:
    """Return the algorithm with the least sum over these layers, PyTorch's times where one has none."""
    known = [by for by in candidates if TORCH in by]

    def total(name: str) -> float:
        return sum(by.get(name, by[TORCH]).values["time"].middle for by in known)

    return min(sorted({name for by in known for name in by}), key=total, default=TORCH)


def selections(work: Work, parts: Sequence[Part], here: Stack, measured: Measured, made: Predictor) -> dict[str, Any]:
    """Return what each way chooses for the layers of a model."""
    by_samples = partial(Selector, here, measured)
    works = by_samples().works([part.layer for part in parts], work)
    candidates = [{} if part.why_left else measured.candidates.get(works[part.layer], {}) for part in parts]
    name, own = single(candidates), Candidate(TORCH)
    alone = [Candidate(name) if name in by else own for by in candidates]
    return {
        "measured": by_samples().select(parts, work),
        "fastest_measured": by_samples(rule=Rule(least=True)).select(parts, work),
        "predicted": Selector(here, Measured({}, {}, 0), (made,), Rule(least=True, outside=True)).select(parts, work),
        "single": [Selected(part.layer, Choice(each, own, "")) for part, each in zip(parts, alone, strict=True)],
    }


def choose(asked: argparse.Namespace) -> int:
    """Write a document for each model, setting, batch size and way."""
    frame = samples.read(asked.samples)
    here, mine = stack.narrowed(frame, None, None)
    known = calls.read(path for each in asked.samples for path in calls.beside(each))
    work = [(family,) for family in sorted({*map(family_of, asked.models)})]
    for lines in starmap(partial(chosen, asked, here, mine, known), work, asked.processes):
        print(*lines, sep="\n", flush=True)
    return 0


def chosen(
    asked: argparse.Namespace, here: Stack, mine: pd.DataFrame, known: Sequence[CallRow], family: str
) -> list[str]:
    """Write the documents of the models of a kind; return a line for each."""
    made, lines = predictor.fit(learned_beside(mine, family, known), "time", {}), []
    models = [model for model in asked.models if family_of(model) == family]
    for setting, batch, model in itertools.product(asked.settings, asked.batch_sizes, models):
        kind = {"math": "tf32", "dtype": "float32", "layout": "nchw", **settings_of(setting)}
        work, parts = network.parts(Work(model, SIZE_PX, batch, **kind))
        alike = mine[(mine["dtype"] == work.dtype) & (mine["layout"] == work.layout) & (mine["math"] == work.math)]
        folder = asked.folder / f"{slug(model)}_{setting.replace(',', '_')}_b{batch}"
        folder.mkdir(parents=True, exist_ok=True)
        for way, found in selections(work, parts, here, gathered(alike), made).items():
            (folder / f"{way}.json").write_text(selector.pins(found, work, here).text())
            said = [each.choice.remark for each in found]
            unknown = sum("never measured" in remark or choice.UNKNOWN in remark for remark in said)
            changed = sum(each.choice.is_changed for each in found)
            note = f", {unknown} unknown" if unknown else ""
            lines.append(f"{folder.name} {way}: {changed} of {len(found)} changed{note}")
    return lines


def assignments_of(subject: Subject, folder: Path) -> dict[str, dict[str, str]]:
    """Return the algorithm of each layer by way: those of the documents of a folder, and the simple choices."""
    run, layers = subject.run, subject.layers
    own = dict.fromkeys((layer.name for layer in layers), HEURISTIC)
    given = run.device_type, card_check(subject.device, dtype=run.dtype), run.dtype, run.layout
    reasons = assignment.why_not_each(algorithms.find(GUESS), layers, *given)
    guessed = {layer.name: GUESS for layer, why in zip(layers, reasons, strict=True) if why is None}
    found: dict[str, dict[str, str]] = {HEURISTIC: own, BENCHMARK: own, GUESS: own | guessed}
    for way in WAYS:
        found[way] = own | dict(planned.assignment(document.read(folder / f"{way}.json"), run, layers).algorithms)
    return found


def rows_of(folder: Path, rounds: int, place: Turns) -> list[dict[str, Any]]:
    """Measure the passes of a folder's documents; return a row for each way and round."""
    pins = document.read(folder / f"{WAYS[0]}.json")
    kind = {name: pins.settings[name] for name in ("math", "dtype", "layout", "batch_size")}
    request = make_verification(pins.settings["model"], "torch", pins.settings["input_size"], **kind)
    with open_subject(request) as subject, contextlib.closing(AssignmentSwap(subject, print)) as swapped:
        swapped.assignments = assignments_of(subject, folder)
        doubled = [given.double() for given in subject.inputs]
        exact = first_tensor(copy.deepcopy(subject.model).double()(*doubled))
        errors = {}
        for way in swapped.assignments:
            place.give_way()
            outcome = swapped.tried(way, lambda: first_tensor(subject.model(*subject.inputs)))
            errors[way] = None if outcome is None else relative_distance(outcome, exact)
        with place.alone():
            times = timed(subject, swapped, [way for way, error in errors.items() if error is not None], rounds)
        setting = request.dtype if request.dtype != "float32" else request.math
        changed = {way: sum(map(HEURISTIC.__ne__, by.values())) for way, by in swapped.assignments.items()}
        own = request.model, setting, request.batch_size
        return [
            dict(zip(COLUMNS, (*own, way, index, ms, errors[way], changed[way], len(subject.layers)), strict=True))
            for way, all_ms in times.items()
            for index, ms in enumerate(all_ms)
        ]


def timed(subject: Subject, swapped: AssignmentSwap, ways: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Return the times of captured passes in ms by way, a round after the other."""
    stopwatch, model = Stopwatch(subject.device), subject.model
    found: dict[str, list[float]] = {way: [] for way in ways}

    def pass_ms(index: int) -> float:
        with placement.moved(model, subject.inputs, index) as there:
            return stopwatch.pass_ms(partial(model, *there))

    for index in range(rounds):
        for way in random.Random(index).sample(list(found), len(found)):
            ms = swapped.tried(way, partial(pass_ms, index))
            release(subject.device)
            if ms is None:
                del found[way]
            else:
                found[way].append(ms)
    return found


def measure(asked: argparse.Namespace) -> int:
    """Measure each folder that has no passes yet."""
    number, count = map(int, asked.part.split("/"))
    gpu = str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else "cpu"
    place = Turns(turns.file_of(gpu))  # one of this process: it would wait for another of its own
    place.join()
    for folder in sorted(path.parent for path in asked.folder.glob(f"*/{WAYS[0]}.json"))[number - 1 :: count]:
        if (folder / PASSES).exists():
            continue
        rows = rows_of(folder, asked.rounds, place)
        part = folder / f"{PASSES}.part"
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(part, folder / PASSES)
        print(folder.name, flush=True)
    return 0


def show(asked: argparse.Namespace) -> int:
    """Print the passes, and how often a choice is slower than a simple one."""
    frame = pd.concat(map(pd.read_csv, sorted(asked.folder.rglob(PASSES))), ignore_index=True)
    times: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for (model, setting, batch, way), rows in frame.groupby([*COLUMNS[:4]]):
        times.setdefault((model, setting, batch), {})[str(way)] = rows.sort_values("round")["pass_ms"].tolist()
    ways = [way for way in (HEURISTIC, BENCHMARK, GUESS, *WAYS[::-1]) if any(way in by for by in times.values())]
    lines: list[tuple[str, ...]] = []
    for work, by in times.items():
        lines.append((*map(str, work), *(f"{fmean(by[way]):.4f}" if way in by else "-" for way in ways)))
    print(table(("model", "setting", "batch", *ways), lines), end="\n\n")
    lines = []
    for way, other in itertools.product(WAYS[:3], ways):
        both = {work: (by[other], by[way]) for work, by in times.items() if way in by and other in by}
        if way == other or not both:
            continue
        less = [paired_difference(*pair, CONFIDENCE) for pair in both.values()]
        slower = sum(each.mean_ms + each.half_width_ms < 0 for each in less)
        faster = sum(each.mean_ms - each.half_width_ms > 0 for each in less)
        ratios = {work: fmean(theirs) / fmean(ours) for work, (theirs, ours) in both.items()}
        worst = min(ratios, key=lambda work: ratios[work])
        shown = f"{ratios[worst]:.3f} {' '.join(map(str, worst))}"
        gain = f"{geometric_mean(ratios.values()):.3f}"
        lines.append((way, other, str(len(both)), str(faster), str(slower), gain, f"{max(ratios.values()):.2f}", shown))
    header = "choice", "beside", "passes", "faster", "slower", "times as fast, geometric mean", "most", "least"
    print(table(header, lines))
    return 0


def main() -> int:
    """Do one step."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = options.add_subparsers(required=True, dest="step")
    of_choose, of_measure, of_show = (steps.add_parser(name) for name in ("choose", "measure", "show"))
    of_choose.add_argument("samples", type=Path, nargs="+")
    of_choose.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    of_choose.add_argument("--settings", nargs="+", default=SETTINGS, metavar="TYPE[,LAYOUT]")
    of_choose.add_argument("--batch-sizes", nargs="+", type=int, default=BATCHES, metavar="N")
    kinds = "kinds of networks at once, up to 8 GB each"
    of_choose.add_argument("--processes", type=int, default=1, metavar="N", help=kinds)
    of_measure.add_argument("--part", default="1/1", metavar="I/N", help="measure every Nth, from the Ith")
    of_measure.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="placements of each pass")
    for step in (of_choose, of_measure, of_show):
        step.add_argument("folder", type=Path)
    asked = options.parse_args()
    return {"choose": choose, "measure": measure, "show": show}[asked.step](asked)


if __name__ == "__main__":
    sys.exit(main())
