"""Convolutions of the engine `fused` by this project's kernels, where those are faster.

`ChosenConvolution` times both at its first call, for each size of its input. First layers, of few channels, have a
kernel of their own. Both are for channels last in 16 bits on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.cudnn.shape import output_extents
from convscope.errors import NothingFitsError
from convscope.inference.engines.fused.steps import FusedConvolution, FusedProduct, shared_modules
from convscope.inference.engines.fused.tails import TailedConvolution

if TYPE_CHECKING:
    from convscope.kernels.blocks import Blocks2d
    from convscope.kernels.channels_last.convolution import Convolution
    from convscope.kernels.channels_last.first import Packed

DTYPES = ("float16", "bfloat16")
"""Data types that the kernels are for."""
SLOW = "its convolutions are timed by this project's kernels, which takes up to a minute the first time on a card"


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
        options: Any = module.options if isinstance(module, FusedConvolution) else ((1, 1), (0, 0), (1, 1), 1)
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


class FirstConvolution(nn.Module):
    """A convolution of few channels, with its bias and activation in one kernel."""

    def __init__(self, other: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.other, self.weight, self.bias = other, parts.weight, parts.bias
        self._options, self._kind = parts.options, parts.kind
        self._packed: Packed | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(convolution(x) + bias)."""
        from convscope.kernels.channels_last import first  # imports Triton

        stride, padding, _ = self._options
        lies = x.is_cuda and x.dtype == self.weight.dtype and x.is_contiguous(memory_format=torch.channels_last)
        if not lies or not first.takes(self.weight, stride, padding):
            y: torch.Tensor = self.other(x)
            return y
        if self._packed is None:
            self._packed = first.pack(self.weight.detach(), self.bias.detach(), stride, padding)
        return first.convolve(x, self._packed, self._kind)


Choices = dict[str, "Blocks2d | None"]
"""Blocks of this project's kernel by convolution; None where the other module is faster."""


class ChosenConvolution(nn.Module):
    """A convolution, with what is fused with it, by the faster of a module and this project's kernel.

    Args:
        other: takes an input, and what is added where something is.
        choices: of all convolutions of a model; what is chosen here is added.

    Attributes:
        is_own: the last call was by a kernel of this project.
    """

    def __init__(self, other: nn.Module, parts: Parts, choices: Choices) -> None:
        super().__init__()
        self.other, self.weight, self.bias = other, parts.weight, parts.bias
        self._options, self._kind, self._choices = parts.options, parts.kind, choices
        self._own: Convolution | None = None
        self.is_own = False

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(convolution(x) + bias + added), without what is not fused with it."""
        stride, padding, dilation = self._options
        kernel: Any = tuple(self.weight.shape[2:])
        size: Any = tuple(output_extents(x.shape[2:], kernel, padding, stride, dilation))
        if x.is_cuda and added is None and kernel == x.shape[2:] == size == (1, 1) and self._is_rows(x):
            self.is_own = True
            return self._by_rows(x)
        if not self._takes(x, added, size):
            self.is_own = False
            return self._by_other(x, added)
        from convscope.kernels.channels_last.convolution import Convolution
        from convscope.kernels.channels_last.windows import Window

        if self._own is None:
            window = Window(kernel, stride, padding, dilation)
            self._own = Convolution(self.weight.detach(), self.bias.detach(), window, self._kind)
        key = f"{type(self.other).__name__} {self._own.key(x, added)}"
        if key not in self._choices:
            self._choices[key] = self._choose(self._own, x, added, size)
        blocks = self._choices[key]
        self.is_own = blocks is not None
        return self._own(x, added, size, blocks) if blocks else self._by_other(x, added)

    def _takes(self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]) -> bool:
        if not x.is_cuda:
            return False
        from convscope.kernels.channels_last import convolution  # imports Triton

        if not convolution.takes(x, self.weight, size):
            return False
        whole = len(x), len(self.weight), *size
        return added is None or (
            added.shape == whole and added.dtype == x.dtype and added.is_contiguous(memory_format=torch.channels_last)
        )

    def _is_rows(self, x: torch.Tensor) -> bool:
        from convscope.kernels.channels_last import heads  # imports Triton

        return heads.takes_rows(x.flatten(1), self.weight.flatten(1))

    def _by_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution of single pixels: a fully connected layer."""
        from convscope.kernels.channels_last import heads  # imports Triton

        return heads.linear(x.flatten(1), self.weight.flatten(1), self.bias, self._kind)[:, :, None, None]

    def _by_other(self, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = self.other(x) if added is None else self.other(x, added)
        return y

    def _choose(
        self, own: Convolution, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]
    ) -> Blocks2d | None:
        """Return the blocks of this project's kernel, None where the other module is faster."""
        from convscope.kernels import autotune

        try:
            blocks = own.choose(x, added, size).blocks
        except NothingFitsError:
            return None
        own_us = autotune.time_us(lambda: own(x, added, size, blocks))
        other_us = autotune.time_us(lambda: self._by_other(x, added))
        return blocks if own_us < other_us else None


def with_first(model: nn.Module) -> int:
    """Put `FirstConvolution` in the place of convolutions of few channels in a trace; return their number."""
    every = _convolutions(model)
    return _put(model, {name: FirstConvolution(module, parts) for name, module, parts in every if _is_first(parts)})


def with_chosen(model: nn.Module, choices: Choices) -> int:
    """Put `ChosenConvolution` in the place of the other convolutions in a trace; return their number."""
    found = {
        name: ChosenConvolution(module, parts, choices)
        for name, module, parts in _convolutions(model)
        if not _is_first(parts)
    }
    return _put(model, found)


def _is_first(parts: Parts) -> bool:
    """Tell whether a convolution is one of few channels, and no fully connected layer of single pixels."""
    from convscope.kernels.channels_last.first import CHANNELS_MOST  # imports Triton

    kernel = parts.weight.shape[2:]
    return parts.weight.shape[1] <= CHANNELS_MOST and kernel != (1, 1) and parts.options[2] == (1, 1)


def _convolutions(model: nn.Module) -> list[tuple[str, nn.Module, Parts]]:
    if not isinstance(model, fx.GraphModule):
        return []
    shared = shared_modules(model)
    named = ((name, module, parts_of(module)) for name, module in model.named_modules() if name not in shared)
    return [(name, module, parts) for name, module, parts in named if parts is not None]


def _put(model: nn.Module, found: dict[str, Any]) -> int:
    for name, module in found.items():
        models.set_module(model, name, module)
    return len(found)


def count(model: nn.Module) -> str:
    """Return as text how many of the convolutions of `with_chosen` are this project's, "" where there are none."""
    every = [module for module in model.modules() if isinstance(module, ChosenConvolution)]
    own = sum(module.is_own for module in every)
    return f"{own} of {len(every)} convolutions by Triton" if every else ""
