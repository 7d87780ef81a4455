"""Tensors of a call, checked against the convolution that a plan was made for, before a library gets their addresses.

An address says nothing of type, size or device: what does not fit is read as if it did, and the output is wrong, or the
GPU is lost. The check takes one or two microseconds.
"""

from __future__ import annotations

import torch

from convscope.cudnn.shape import Convolution
from convscope.errors import InputError


class Operands:
    """The types, sizes and device that a plan's tensors must have.

    Args:
        device: number of the GPU, -1 for a CPU; None takes any, the same for all tensors.

    Raises:
        InputError: there is no such convolution: its channels do not fit its groups.
    """

    def __init__(self, shape: Convolution, device: int | None = None) -> None:
        if shape.in_channels != shape.weight[1] * shape.groups or shape.out_channels % shape.groups:
            raise InputError(
                f"a weight of {_sizes(shape.weight)} in {shape.groups} groups does not convolve {_sizes(shape.input)}: "
                f"it takes {shape.weight[1] * shape.groups} channels, and filters that the groups divide"
            )
        self._dtype: torch.dtype = getattr(torch, shape.dtype)
        self._device = device
        self._x, self._weight = torch.Size(shape.input), torch.Size(shape.weight)
        self._bias = torch.Size(shape.weight[:1])

    def fit(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Tell whether each tensor has the type, size and device."""
        dtype, device = self._dtype, x.get_device() if self._device is None else self._device
        return (
            x.dtype is dtype and x.get_device() == device and x.shape == self._x
            and weight.dtype is dtype and weight.get_device() == device and weight.shape == self._weight
            and (bias is None
                 or (bias.dtype is dtype and bias.get_device() == device and bias.shape == self._bias))
        )  # fmt: skip

    def check(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Raise InputError for a tensor of another type, size or device, naming it."""
        if self.fit(x, weight, bias):
            return
        device = x.get_device() if self._device is None else self._device
        self._refuse(device, input=(x, self._x), weight=(weight, self._weight), bias=(bias, self._bias))

    def _refuse(self, device: int, **named: tuple[torch.Tensor | None, torch.Size]) -> None:
        wanted = str(self._dtype).removeprefix("torch."), "cpu" if device < 0 else f"cuda:{device}"
        for name, (tensor, size) in named.items():
            if tensor is None:
                continue
            there = str(tensor.dtype).removeprefix("torch."), str(tensor.device)
            if (tensor.dtype, tensor.get_device(), tensor.shape) != (self._dtype, device, size):
                raise InputError(
                    f"the {name} of this convolution is {_sizes(tensor.shape)}, {' on '.join(there)}; "
                    f"it must be {_sizes(size)}, {' on '.join(wanted)}"
                )


def _sizes(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))
