"""Plans of a document for the layers of a model, as algorithms to profile and to verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from convscope.atlas import tuning
from convscope.convolution import algorithms
from convscope.convolution.assignment import Assignment
from convscope.convolution.layer import Layer
from convscope.cudnn import library
from convscope.errors import InputError
from convscope.pinning import document
from convscope.pinning.document import SHAPE, Pins
from convscope.profiling.request import Run
from convscope.storage.environment import processor_name

SAME_WORK = ("math", "dtype", "layout")
NO_PLAN = "the document, of {input_size} px and batch {batch_size}, has no plan of its name and shape"


def assignment(pins: Pins, run: Run, layers: Sequence[Layer]) -> Assignment:
    """Return the plan of each layer by name ("torch" where the document leaves it to PyTorch), or why it has none.

    Raises:
        InputError: the document is of another GPU, cuDNN, arithmetic, data type or layout.
    """
    if why := _why_not(pins, run):
        raise InputError(f"the plans are not for this run ({why}): export plans of the same, or change the run")
    by_name, batch_size = {pin.layer: pin for pin in pins.layers}, pins.settings["batch_size"]
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for layer in layers:
        pin, sizes = by_name.get(layer.name), layer.columns() | {"fused": layer.steps}
        fits = pin is not None and all(sizes[name] == pin.shape[name] for name in SHAPE)
        if pin is None or not fits or run.batch_size != batch_size:
            reasons[layer.name] = NO_PLAN.format(**pins.settings)
        else:
            found[layer.name] = pin.algorithm
    return Assignment(found, reasons)


def pins_in(algorithm: str, settings: Mapping[str, Any]) -> tuple[Pins | None, dict[str, Any]]:
    """Return the document whose file settings name by `plans`, and the settings with its digest in the file's place.

    Other algorithms than "planned" make no use of it: several can be measured by one call.

    Raises:
        InputError: the file is no document of plans.
    """
    rest = {name: value for name, value in settings.items() if name != "plans"}
    if "plans" not in settings or algorithms.find(algorithm).name != algorithms.PLANNED:
        return None, rest
    pins = document.read(Path(settings["plans"]))
    return pins, rest | {"plans_digest": pins.plans_digest}


def choosers(pins: Pins | None) -> dict[str, Any]:
    """Return what a `Sweep` chooses the algorithm of each layer by: these plans, or a race at each size."""
    return {"planned": pins and partial(assignment, pins), "race": tuning.raced}


def _why_not(pins: Pins, run: Run) -> str | None:
    """Return what sets a run apart from the one that a document was measured in, None for nothing."""
    if any(pin.shape["fused"] for pin in pins.layers):
        return "they are of a fused model: run convscope.pin on what convscope.fused returns"
    if run.device_type == "cuda":
        there: dict[str, str | None] = {"gpu_name": torch.cuda.get_device_name(run.device), "cudnn": library.version()}
    else:
        there = {"gpu_name": processor_name(), "cudnn": None}
    known = {**pins.settings, **pins.stack}
    pairs = [(name, known[name], value) for name, value in there.items()]
    pairs += [(name, known[name], getattr(run, name)) for name in SAME_WORK if name != "math" or run.dtype == "float32"]
    return "; ".join(f"{name} {then}, here {now}" for name, then, now in pairs if then != now) or None
