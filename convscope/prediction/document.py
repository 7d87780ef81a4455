"""A predictor as one JSON document: trees as LightGBM's text, the rest as numbers, and a few checks of itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm.basic import LightGBMError

from convscope.dataset import choices
from convscope.dataset.samples import WORK
from convscope.errors import InputError
from convscope.prediction import workspace
from convscope.prediction.calibration import Correction
from convscope.prediction.intervals import Growth
from convscope.prediction.learners.booster import Booster
from convscope.prediction.learners.core import Core
from convscope.prediction.learners.costs import Costs
from convscope.prediction.learners.forest import Forest
from convscope.prediction.learners.kernels import ByKernel
from convscope.prediction.learners.process import Process
from convscope.prediction.learners.search import Search
from convscope.prediction.predictor import Given, Predictor
from convscope.prediction.workspace import Estimate, WorkspacePredictor
from convscope.storage.table import write_atomically

FORM, VERSION = "convscope predictor", 21
"""No other version is read: trees of another have learned other features."""
ADVICE = "convscope predict fit writes one"
TESTED = 5
"""Samples whose prediction a document has, besides one of a search whose plans are known."""


def write(path: Path, predictor: Predictor | WorkspacePredictor, examples: pd.DataFrame) -> None:
    """Write a predictor with what it predicts for some samples, by which a reader checks itself.

    Raises:
        InputError: the file cannot be written.
    """
    columns = ["gpu_name", *WORK, *(name for name in ("cudnn", choices.COLUMN, choices.ABOUT) if name in examples)]
    some = [
        *range(min(TESTED, len(examples))),
        *np.flatnonzero(choices.resolved(examples)["algorithm"] == choices.SEARCHED)[:1],
    ]
    tested = json.loads(examples.iloc[sorted({*some})][columns].to_json(orient="records"))
    fields = _of_workspaces(predictor) if isinstance(predictor, WorkspacePredictor) else _of_times(predictor)
    expected = predictor.predict(pd.DataFrame(tested)).middle.tolist()
    document = {"form": FORM, "version": VERSION, **fields, "tested": tested, "expected": expected}
    document["sha256"] = digest(document)
    try:
        write_atomically(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None


def _plain(found: Predictor | WorkspacePredictor | Core | Process | Estimate) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}


def _of_times(predictor: Predictor) -> dict[str, Any]:
    folds, costs = [trees.text for trees in predictor.core.folds], dataclasses.asdict(predictor.core.costs)
    parts = {**_plain(predictor.core), "folds": folds, "costs": costs}
    corrections = {name: dataclasses.asdict(each) for name, each in predictor.corrections.items()}
    smooth = predictor.process and _of_process(predictor.process)
    times = predictor.time and _of_times(predictor.time)
    own = {name: dataclasses.asdict(getattr(predictor, name)) for name in ("growth", "search")}
    changed = {"core": parts, "process": smooth, "corrections": corrections, "time": times, **own}
    return {**_plain(predictor), **changed}


def _of_process(process: Process) -> dict[str, Any]:
    kernels = {name: dataclasses.asdict(each) for name, each in process.kernels.items()}
    return {**{name: each for name, each in _plain(process).items() if name != "cards"}, "kernels": kernels}


def _of_workspaces(predictor: WorkspacePredictor) -> dict[str, Any]:
    own = predictor.estimate
    trees = {name: each and each.text for name, each in (("is_some", own.is_some), ("ratio", own.ratio))}
    return {**_plain(predictor), "estimate": {**_plain(own), **trees}}


def digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a document has, but for its digest: LightGBM does not notice all damage."""
    kept = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _times(document: Mapping[str, Any]) -> Predictor:
    core = document["core"]
    folds = tuple(Booster.read(text) for text in core["folds"])
    parts = {**core, "folds": folds, "names": tuple(core["names"]), "costs": Costs(**core["costs"])}
    corrections = {name: Correction(**each) for name, each in document["corrections"].items()}
    own = {field.name: document[field.name] for field in dataclasses.fields(Predictor)}
    own["growth"], own["search"] = Growth(**document["growth"]), Search(**document["search"])
    smooth = document["process"] and _process(document["process"], document["cards"])
    times = document["time"] and _times(document["time"])
    return Predictor(**{**own, "core": Core(**parts), "process": smooth, "corrections": corrections, "time": times})


def _process(document: Mapping[str, Any], cards: Given) -> Process:
    kernels = {
        name: ByKernel(**{**each, "trees": Forest(**each["trees"])}) for name, each in document["kernels"].items()
    }
    return Process(**{**document, "kernels": kernels}, cards=cards)


def _workspaces(document: Mapping[str, Any]) -> WorkspacePredictor:
    parts = dict(document["estimate"])
    for name in ("is_some", "ratio"):
        parts[name] = None if parts[name] is None else Booster.read(parts[name])
    own = {field.name: document[field.name] for field in dataclasses.fields(WorkspacePredictor)}
    return WorkspacePredictor(**{**own, "estimate": Estimate(**parts)})


def read(path: Path) -> Predictor | WorkspacePredictor:
    """Read a predictor that `write` wrote, and check it on its examples.

    Raises:
        InputError: it is none, is damaged, or predicts other values here than where it was written.
    """
    try:
        document = json.loads(path.read_text())
        if document["form"] != FORM or document["version"] != VERSION:
            raise InputError(f"{path} is {document['form']} {document['version']}, not {FORM} {VERSION}: fit it again")
        if document["sha256"] != digest(document):
            raise InputError(f"{path} is damaged (its contents have another SHA-256 than it says): {ADVICE}")
        found = (_workspaces if document["target"] == workspace.TARGET else _times)(document)
        here = found.predict(pd.DataFrame(document["tested"])).middle
        expected = np.array(document["expected"], dtype=float)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): {ADVICE}") from None
    except (ValueError, KeyError, TypeError, AttributeError, LightGBMError) as error:
        raise InputError(f"{path} is no predictor, or a damaged one ({error!r}): {ADVICE}") from None
    if here.shape != expected.shape or not np.allclose(here, expected, rtol=1e-6, equal_nan=True):
        raise InputError(f"{path} predicts other values here than where it was written: fit it again")
    return found
