"""Document of plans, `plans.json`: for each layer of a model the plan of cuDNN's graph API that was chosen for it.

Numbers of engines belong to a version of cuDNN and times to a card, so that the document names both. Needs no PyTorch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.atlas.rows import PLANS, PlanLayerRow, PlanRow
from convscope.convolution import algorithms
from convscope.errors import InputError
from convscope.storage.paths import MODEL_DIGEST
from convscope.storage.store import Store

FORM, VERSION = "convscope plans", 1
FASTEST, TORCH = "fastest", "torch"
SETTINGS = ("model", "input_size", "batch_size", "math", "dtype", "layout")
STACK = ("gpu_name", "driver", "cudnn")
SHAPE = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"),
    *("in_height_px", "in_width_px", "fused"),
)
SIZES = ("kernel_size", "stride", "padding", "dilation")
FIGURES = ("outcome", "mean_ms", "std_ms", "rounds", "workspace_bytes", "relative_error")


@dataclass(frozen=True)
class Pin:
    """One layer with the plan that was chosen for it; `algorithm` is "torch" where it is left to PyTorch.

    Attributes:
        shape: columns of `SHAPE`, by name.
        figures: columns of `FIGURES`, by name.
        kernels: that it launches, counted by name; empty where they are not known.
    """

    layer: str
    algorithm: str
    shape: Mapping[str, Any]
    figures: Mapping[str, Any]
    kernels: Mapping[str, int]


@dataclass(frozen=True)
class Pins:
    """The layers of a model, and what their plans depend on: columns of `SETTINGS` and `STACK`, by name.

    Of a CPU `gpu_name` is the processor's name, and there is no cuDNN.
    """

    settings: Mapping[str, Any]
    stack: Mapping[str, Any]
    digest: str | None
    layers: Sequence[Pin]

    @property
    def plans_digest(self) -> str:
        """Sixteen hexadecimal digits that tell the plans of two documents apart; times and the like do not count."""
        plans = [*self.stack.values(), *((pin.layer, pin.algorithm, *_sizes(pin.shape)) for pin in self.layers)]
        return hashlib.sha256(json.dumps(plans).encode()).hexdigest()[:16]

    def text(self) -> str:
        """Return the document as JSON."""
        head = {"form": FORM, "version": VERSION, **self.settings, MODEL_DIGEST: self.digest, **self.stack}
        return json.dumps(head | {"layers": [*map(dataclasses.asdict, self.layers)]}, indent=1) + "\n"


def from_atlas(folder: Path, pick: str = FASTEST) -> Pins:
    """Return the plans of an atlas that `run_verify.py --plans` wrote.

    Args:
        pick: `FASTEST`, or `TORCH` for those that PyTorch runs, by their kernels.

    Raises:
        InputError: the folder has no atlas, or a damaged one.
    """
    rows, store = rows_of(folder), Store(folder, PLANS)
    found = store.objects("plan_layers")
    chosen = {row.position: row for row in rows if (row.is_fastest if pick == FASTEST else row.candidate == TORCH)}
    layers = [
        _pin(each, chosen[each.shape_position], pick) for each in found["plan_layers"] if each.shape_position in chosen
    ]
    run = store.read_run() or {}
    request = run.get(PLANS.request, {})
    about = {name: getattr(rows[0], name) for name in (*SETTINGS, *STACK)}
    about["gpu_name"] = about["gpu_name"] or run.get("environment", {}).get("cpu")
    settings = {name: about[name] for name in SETTINGS}
    return Pins(settings, {name: about[name] for name in STACK}, request.get(MODEL_DIGEST), layers)


def rows_of(folder: Path) -> list[PlanRow]:
    """Return the plans of an atlas; raises as `from_atlas`."""
    rows: list[PlanRow] = Store(folder, PLANS).objects("plans")["plans"]
    if not rows:
        raise InputError(f"{folder} has no atlas of plans: run_verify.py --model M --plans writes one")
    return rows


def _pin(each: PlanLayerRow, row: PlanRow, pick: str) -> Pin:
    """Return a layer with the plan or algorithm of a row; PyTorch's choice is the plan that launches its kernels.

    Where it is picked as the fastest, the layer is left to it: it may do something else besides.
    """
    of_torch = TORCH if pick == FASTEST else row.same_kernels_as or TORCH
    algorithm = of_torch if row.engine is None and row.provider is None else row.candidate
    shape, figures = ({name: getattr(row, name) for name in names} for names in (SHAPE, FIGURES))
    return Pin(each.layer, algorithm, shape, figures, json.loads(row.kernels or "{}"))


def read(path: Path) -> Pins:
    """Return a document that `Pins.text` wrote.

    Raises:
        InputError: there is no such file, or it is another one; the message names what is missing.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): name a file of convscope plans export or select") from None
    if not isinstance(document, dict) or document.get("form") != FORM:
        raise InputError(f"{path} is no document of plans: convscope plans export, or convscope select, writes one")
    if document.get("version") != VERSION:
        raise InputError(f"{path} has version {document.get('version')}, this is {VERSION}: export it again")
    columns = [field.name for field in dataclasses.fields(Pin)]
    try:
        layers = [Pin(**{name: each[name] for name in columns}) for each in map(_with_fused, document["layers"])]
        for pin in layers:
            algorithms.find(pin.algorithm)
            _check_numbers(pin)
        settings, stack = ({name: document[name] for name in names} for names in (SETTINGS, STACK))
        return Pins(settings, stack, document[MODEL_DIGEST], layers)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} lacks {error}: export it again") from None


def _with_fused(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer as it is written now: nothing was fused in documents that do not say so."""
    return {**layer, "shape": {"fused": None, **layer["shape"]}}


def _sizes(shape: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of a shape in the order of `SHAPE`; of what is fused only where something is."""
    return [shape[name] for name in SHAPE if name != "fused" or shape[name] is not None]


def _check_numbers(pin: Pin) -> None:
    """Raise KeyError or TypeError where a layer lacks a size or a figure, or has a size that is none."""
    for name in FIGURES:
        pin.figures[name]
    for name in SHAPE:
        kind = (str, type(None)) if name == "fused" else str if name in SIZES else int
        if not isinstance(pin.shape[name], kind):
            raise TypeError(f"{name} of {pin.layer}")
