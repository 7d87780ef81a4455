"""Sets of 3-D convolutions, read from CSV files or taken from a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torchvision
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.convolution.sources import table
from convscope.cudnn.shape import dimensions
from convscope.errors import InputError

FOLDER = Path(__file__).parents[1] / "data" / "convparams"
MODEL_PREFIX = "model:torchvision:"
_CLIP = (3, 16, 112, 112)  # what torchvision's video models are trained on: channels, frames, height, width


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
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(
            f"--params {params}: {why}; choose one of {', '.join(names())}, a CSV file, or {MODEL_PREFIX}NAME"
        ) from None
    layers = table.parse(text, str(path), 3)
    return layers if batch_size is None else [layer.resized(batch=batch_size) for layer in layers]


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
