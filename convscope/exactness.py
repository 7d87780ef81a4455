"""Convolutions in float64 by PyTorch, and how far other results are from them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from torch import nn


def relative_error(module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> float | None:
    """Return the `relative_distance` of a convolution's output from that of the same input in float64."""
    return relative_distance(output, reference_of(module)(given.double()))


def relative_distance(output: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Return ‖output − reference‖ / ‖reference‖, None where the reference is all zeros; not finite where it is not."""
    length = float(torch.linalg.vector_norm(reference))
    return float(torch.linalg.vector_norm(output.double() - reference)) / length if length else None


def reference_of(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return PyTorch's convolution with this module's weights and options, in float64."""
    assert isinstance(module, (nn.Conv2d, SwappedConv2d))
    weight = module.weight.double()
    bias = None if module.bias is None else module.bias.double()
    if isinstance(module, nn.Conv2d):
        return lambda x: module._conv_forward(x, weight, bias)
    options = module.stride, module.padding, module.dilation, module.groups
    return lambda x: nn.functional.conv2d(x, weight, bias, *options)
