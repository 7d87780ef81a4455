"""Sets of 3-D convolutions, read from CSV files or taken from a model; every row is checked before anything runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.cudnn.shape import dimensions
from convscope.errors import InputError

FOLDER = Path(__file__).parents[1] / "data" / "convparams"
MODEL_PREFIX = "model:torchvision:"
COLUMNS = ["layer", "batch", "channels", "filters", "depth", "height", "width",
           "kernel", "stride", "padding", "dilation", "groups"]  # fmt: skip
EXTENTS = ("size", "kernel", "stride", "padding", "dilation")  # of a layer: depth, height and width of each
_CLIP = (3, 16, 112, 112)  # what torchvision's video models are trained on: channels, frames, height, width
_LARGEST = 2**31 - 1  # of one number: cuDNN's descriptors hold no larger one
_MOST = 1e18  # fits 63 bits; no card does it in a day


def names() -> list[str]:
    """Return the names of the sets that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.csv"))


def load(params: str, batch_size: int | None = None) -> list[Layer]:
    """Return the layers of a set by name, of a file by path, or of a model by `model:torchvision:NAME`.

    Args:
        batch_size: in place of the set's own.

    Raises:
        InputError: there is no such set, or a row of it is invalid; the message names file and line.
    """
    if params.startswith("model:"):
        return of_model(params, batch_size or 1)
    path = FOLDER / f"{params}.csv" if params in names() else Path(params)
    try:
        text = path.read_bytes().decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(
            f"--params {params}: {why}; choose one of {', '.join(names())}, a CSV file, or {MODEL_PREFIX}NAME"
        ) from None
    layers = parse(text, str(path))
    return layers if batch_size is None else [layer.resized(batch=batch_size) for layer in layers]


def parse(text: str, where: str) -> list[Layer]:
    """Return the layers of a CSV text.

    Raises:
        InputError: the header or a row is invalid.
    """
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = next(reader, [])
        if header != COLUMNS:
            raise InputError(f"{where}, line 1: the columns must be {','.join(COLUMNS)}")
        layers: list[Layer] = []
        for cells in reader:
            place = f"{where}, line {reader.line_num}"
            if len(cells) != len(COLUMNS):
                raise InputError(f"{place}: {len(cells)} cells where {len(COLUMNS)} belong")
            layers.append(_layer(dict(zip(COLUMNS, cells, strict=True)), len(layers), place))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from None
    if not layers:
        raise InputError(f"{where}: it has no layers")
    return layers


def _layer(cells: Mapping[str, str], position: int, place: str) -> Layer:
    batch, channels, filters, *size = (_number(cells[name], name, place) for name in COLUMNS[1:7])
    extents: dict[str, Any] = {name: _triple(cells[name], name, place) for name in EXTENTS[1:]}
    layer = Layer.of_sizes(
        cells["layer"] or f"layer {position}", position, batch=batch, in_channels=channels, out_channels=filters,
        size=tuple(size), groups=_number(cells["groups"], "groups", place), **extents,
    )  # fmt: skip
    reason = why_invalid(layer)
    if reason:
        raise InputError(f"{place}: {reason}")
    return layer


def why_invalid(layer: Layer) -> str | None:
    """Return why there is no such 3-D convolution, or None where there is."""
    channels, filters, groups = layer.in_channels, layer.out_channels, layer.groups
    for name, count in (("batch", layer.batch), ("channels", channels), ("filters", filters), ("groups", groups)):
        if count < 1:
            return f"{name} {count}: it must be at least 1"
    for name in ("size", "kernel", "stride", "dilation"):
        extents: tuple[int, ...] = getattr(layer, name)
        if min(extents) < 1:
            return f"{name} {dimensions(extents, short=True)}: each must be at least 1"
    if channels % groups or filters % groups:
        return f"groups {groups} must divide channels {channels} and filters {filters}"
    for side, extent, kernel, padding, dilation in zip(
        ("depth", "height", "width"), layer.size, layer.kernel, layer.padding, layer.dilation, strict=True
    ):
        if extent + 2 * padding > _LARGEST:
            return f"the padded {side} ({extent + 2 * padding}) is more than {_LARGEST}"
        if dilation * (kernel - 1) + 1 > extent + 2 * padding:
            seen = f"the kernel ({kernel}, dilation {dilation})"
            return f"{seen} is larger than the padded {side} ({extent + 2 * padding})"
    most = max(layer.minimum_bytes(1), layer.flops)
    return f"its elements or operations ({most:.1e}) are more than {_MOST:.0e}" if most > _MOST else None


def of_model(params: str, batch_size: int) -> list[Layer]:
    """Return the 3-D convolutions that one pass of a torchvision model calls, in order; shapes only, no arithmetic.

    Raises:
        InputError: torchvision has no such model, or it has no 3-D convolution.
    """
    name = params.removeprefix(MODEL_PREFIX)
    known = torchvision.models.list_models(module=torchvision.models.video)
    if not params.startswith(MODEL_PREFIX) or name not in known:
        raise InputError(f"--params {params}: the models are {MODEL_PREFIX}NAME with NAME one of {', '.join(known)}")
    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None).eval()
    layers: list[Layer] = []

    def note(layer: str, module: nn.Conv3d, given: torch.Size) -> None:
        layers.append(describe(layer, len(layers), module, given))

    for layer, module in model.named_modules():
        if isinstance(module, nn.Conv3d):
            module.register_forward_pre_hook(lambda module, given, layer=layer: note(layer, module, given[0].shape))
    with torch.inference_mode():
        try:
            model(torch.empty(batch_size, *_CLIP, device="meta"))
        except (RuntimeError, AssertionError, ValueError) as error:
            cause = str(error).splitlines()[0]
            raise InputError(
                f"--params {params}: it cannot take clips of {dimensions(_CLIP, short=True)} ({cause})"
            ) from None
    if not layers:
        raise InputError(f"--params {params}: this model has no 3-D convolution")
    return layers


def describe(name: str, position: int, conv: nn.Conv3d, given: Sequence[int]) -> Layer:
    """Return the layer that a call of a convolution is, without its bias; `given` is N × C × D × H × W."""
    return models.describe(name, position, conv, given).resized(bias=False)


def _number(text: str, name: str, place: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) or int(text) > _LARGEST:
        raise InputError(f"{place}: {name} is {text[:40]!a}: say a whole number, at most {_LARGEST}")
    return int(text)


def _triple(text: str, name: str, place: str) -> tuple[int, ...]:
    parts = text.strip().split("x")
    if len(parts) not in (1, 3):
        raise InputError(f"{place}: {name} is {text[:40]!a}: say one number, or three such as 1x3x3")
    return tuple(_number(part, name, place) for part in (parts * 3 if len(parts) == 1 else parts))
