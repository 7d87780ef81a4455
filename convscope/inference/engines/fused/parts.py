"""Parts of the modules of the engine `fused` that are convolutions, and where they are in a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import fx, nn

from convscope.convolution import models
from convscope.inference.engines.fused import traces
from convscope.inference.engines.fused.rows import RowProduct
from convscope.inference.engines.fused.steps import FusedConvolution, FusedProduct
from convscope.inference.engines.fused.tails import TailedConvolution

ONE_PIXEL = (1, 1), (0, 0), (1, 1)
"""Stride, padding and dilation of a convolution that sees one pixel."""


class Parts(NamedTuple):
    """Parts of a module: a convolution without groups, its bias, and the activation behind it.

    Attributes:
        options: stride, padding and dilation, rows and columns.
        kind: a key of `tails.BY_PYTORCH`.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    options: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    kind: str


def parts_of(module: nn.Module) -> Parts | None:
    """Return the parts of a module of the engine `fused`; None where it is no such convolution."""
    weight: Any
    bias: Any
    if type(module) in (FusedConvolution, FusedProduct):
        weight, bias, kind = module.weight, module.bias, "relu"
        options: Any = module.options if isinstance(module, FusedConvolution) else (*ONE_PIXEL, 1)
    elif type(module) is RowProduct:
        weight, bias, kind, options = module.weight, module.bias, module.kind, (*ONE_PIXEL, 1)
    elif type(module) is TailedConvolution:
        weight, bias, kind, options = module.weight, module.bias, module.kind, module.options
    elif type(module) is nn.Conv2d and not models.peculiarity(module) and module.padding_mode == "zeros":
        weight, bias, kind = module.weight, module.bias, ""
        options = module.stride, module.padding, module.dilation, module.groups
    else:
        return None
    if options[3] != 1 or isinstance(options[1], str):
        return None
    bias = bias if bias is not None else nn.Parameter(weight.new_zeros(len(weight)))
    return Parts(weight, bias, options[:3], kind)


def convolutions(model: nn.Module, inputs_most: int = 2) -> list[tuple[str, nn.Module, Parts]]:
    """Return the convolutions of a trace that it calls once, by name with their parts; none of what is no trace.

    Args:
        inputs_most: those with more inputs are left out, as are those whose inputs are named.
    """
    if not isinstance(model, fx.GraphModule):
        return []
    shared, inputs = traces.shared_modules(model), traces.inputs(model)
    named = ((name, module, parts_of(module)) for name, module in model.named_modules() if name not in shared)
    return [
        (name, module, parts)
        for name, module, parts in named
        if parts is not None and 1 <= inputs.get(name, 1) <= inputs_most
    ]


def put(model: nn.Module, found: Mapping[str, nn.Module]) -> int:
    """Put modules in the places of those of these names; return their number."""
    for name, module in found.items():
        models.set_module(model, name, module)
    return len(found)


def is_first(parts: Parts) -> bool:
    """Tell whether a convolution is one of few channels, and no fully connected layer of single pixels."""
    from convscope.kernels.channels_last.first import CHANNELS_MOST  # imports Triton

    kernel = parts.weight.shape[2:]
    return parts.weight.shape[1] <= CHANNELS_MOST and kernel != (1, 1) and parts.options[2] == (1, 1)
