"""How far the rounding of a data type moves a model's output: what an engine that computes right may differ by.

A deep model can amplify errors: an untrained ResNet-50 turns roundings of 5e-4 into 3e-2 of its output, ResNet-18 into
2e-3. No rule says by how much, so the roundings are done, in float32 and apart from any engine: both factors of each
convolution and fully connected layer, and the result where it is stored in fewer bits.
"""

from __future__ import annotations

import copy
import math as mathematics
from collections.abc import Callable, Iterable

import torch
from torch import nn

from convscope import accuracy, exactness
from convscope.records import Layer

_MARGIN = 2.0  # engines round elsewhere too (additions, activations), or with other transforms
_TF32_CUT = 2.0**-10  # the most that a factor loses whose digits are cut off
_STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}

Rounding = Callable[[torch.Tensor], torch.Tensor]


def allowed(model: nn.Module, given: torch.Tensor, layers: Iterable[Layer], dtype: str, math: str) -> float | None:
    """Return the largest ‖output − exact‖ / ‖exact‖ to be expected of an engine.

    It is twice what the roundings move the output by, and at least what the layers' own tolerances add up to. In
    float32 without TF32 the reference rounds as much as an engine; there the roundings are those of TF32, scaled down.
    None where the model's numbers leave the range of the type.

    Args:
        model: in float32, on the device of `given`; it is left as it is.
        given: some images, N × 3 × H × W.
        layers: the model's convolutions and fully connected layers.
        dtype: what the engine stores numbers in.
        math: "fp32" or "tf32", for float32.
    """
    tolerances = [accuracy.stored_tolerance(layer, dtype, math) for layer in layers]
    apart = moved(model, given, dtype)
    if not mathematics.isfinite(apart):
        return None
    if dtype not in _STORED and math == "fp32":
        apart *= max(tolerances, default=0.0) / _TF32_CUT
    return max(accuracy.whole_model_tolerance(tolerances), _MARGIN * apart)


def moved(model: nn.Module, given: torch.Tensor, dtype: str) -> float:
    """Return how far a model's output moves, relative to its length, where its layers' numbers are rounded to `dtype`.

    float32 is taken as TF32: the factors keep 10 digits, the results all. Layers are modules that are called: what
    `nn.MultiheadAttention` does with its weights by itself is not rounded, and counts as exact.

    Args:
        model: in float32, on the device of `given`; it is left as it is.
        given: N × 3 × H × W.
    """
    with torch.no_grad():
        return exactness.relative_distance(_rounded(model, dtype)(given), model(given).double()) or 0.0


def _rounded(model: nn.Module, dtype: str) -> nn.Module:
    """Return a copy of a model whose layers round their factors, and their results where these are stored so."""
    model = copy.deepcopy(model)
    stored = _STORED.get(dtype)
    rounding: Rounding = _cut if stored is None else lambda x: x.to(stored).to(x.dtype)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = rounding(module.weight.data)
            module.register_forward_pre_hook(lambda module, given: (rounding(given[0]),))
            if stored is not None:
                module.register_forward_hook(lambda module, given, result: rounding(result))
    return model


def _cut(x: torch.Tensor) -> torch.Tensor:
    """Cut float32 off after 10 digits, as the matrix unit does with what it takes from memory."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
