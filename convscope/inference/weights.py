"""Weights of the models that engines compute: from a file, or drawn from a seed and made fit to be judged.

A deep network as it is drawn is chaotic: roundings grow from layer to layer until nothing else is seen (ResNet-152 in
float16: as large as the output). And some draw what hides errors: a last layer of zeros (vision transformers), branches
that are scaled by 1e-6 (ConvNeXt).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from convscope.convolution import models
from convscope.convolution.sources.source import seeded
from convscope.errors import InputError

_SHIFT = 0.75  # of normalised activations, in standard deviations: a quarter of a ReLU's inputs is negative
_HIDDEN = 1e-2  # a branch with a scale below it adds next to nothing


def draw(model: nn.Module, images: torch.Tensor, seed: int, is_own: bool = False) -> None:
    """Give a model's untrained parts values with which its output depends on all of its layers, in place.

    Batch normalisation that has seen no images gets the statistics of these (N × 3 × H × W), and a shift by which fewer
    ReLUs switch from one image to the next; layers of zeros get random weights, scales of branches below 0.01 become 1.

    Args:
        is_own: the model comes with weights of its own; only batch normalisation that has seen no images is changed.
    """
    with seeded(seed), torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and not module.weight.any() and not is_own:
                nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            elif isinstance(module, nn.BatchNorm2d) and _is_fresh(module) and module.bias is not None:
                module.bias.fill_(_SHIFT)
        for name, parameter in model.named_parameters():
            if not is_own and _is_hidden_scale(name.rpartition(".")[2], parameter):
                parameter.fill_(1.0)
    models.settle(model, (images,), [module for module in model.modules() if _is_fresh(module)])


def _is_fresh(module: nn.Module) -> bool:
    """Tell whether a module is a batch normalisation with the statistics that it was made with."""
    if not isinstance(module, nn.BatchNorm2d) or module.running_mean is None or module.running_var is None:
        return False
    return not module.running_mean.any() and bool((module.running_var == 1).all())


def _is_hidden_scale(name: str, parameter: torch.Tensor) -> bool:
    """Tell whether a parameter is the scale of a branch, one small number for all of its channels."""
    if not any(word in name for word in ("scale", "gamma", "lambda")) or parameter.numel() != max(
        parameter.shape, default=0
    ):
        return False
    first = parameter.flatten()[0]
    return bool((parameter == first).all()) and 0 < abs(float(first)) < _HIDDEN


def load(model: nn.Module, file: Path) -> None:
    """Load weights from a file that `torch.save` wrote of a state dict, in place; also where it is an entry there.

    Raises:
        InputError: it cannot be read, or its weights are another model's.
    """
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in the file
        cause = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(f"--weights {file}: no weights can be read from it ({cause})") from None
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"--weights {file}: it holds a {type(found).__name__}: save a model's state_dict() in it")
    try:
        model.load_state_dict(dict(_without_wrappers(found)))
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()[1:]), str(error)).strip()
        raise InputError(f"--weights {file}: it has the weights of another model ({first[:200]})") from None


def digest(file: Path) -> str:
    """Return the SHA-256 of a file of weights.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"--weights {file}: it cannot be read ({error.strerror})") from None


def _without_wrappers(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights by their names without the prefixes of modules that wrap a model for training."""
    for prefix in ("module.", "_orig_mod."):
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    return dict(weights)
