"""Convolutions and products of the engine `fused` by this project's kernels, where those are faster.

`ChosenConvolution` and `ChosenDepthwise` time both at the first call, for each size of the input. All are for channels
last in 16 bits on a GPU. First layers, of few channels, are not among them (`first`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from convscope.cudnn.shape import dimensions, output_extents
from convscope.errors import NothingFitsError
from convscope.inference.engines.fused.parts import Parts, convolutions, is_first, put
from convscope.inference.engines.fused.rows import few_rows
from convscope.inference.engines.fused.tails import DepthwiseConvolution

if TYPE_CHECKING:
    from convscope.kernels.blocks import Blocks2d
    from convscope.kernels.channels_last.convolution import Convolution

DTYPES = ("float16", "bfloat16")
"""Data types that the kernels are for."""
SLOW = "its convolutions are timed by this project's kernels, which takes up to a minute the first time on a card"

Choices = dict[str, "Blocks2d | bool"]
"""Blocks of this project's kernel by convolution, or that it has none to choose; False: the other is faster."""


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
        is_product = added is None and kernel == x.shape[2:] == size == (1, 1)
        if is_product and (few := few_rows(x, self.weight, self.bias, self._kind)) is not None:
            self.is_own = True
            return few
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
        self.is_own = not isinstance(blocks, bool)
        return self._by_other(x, added) if isinstance(blocks, bool) else self._own(x, added, size, blocks)

    def _takes(self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]) -> bool:
        if not x.is_cuda:
            return False
        from convscope.kernels.channels_last import convolution  # imports Triton

        if not convolution.takes(x, self.weight, size):
            return False
        if added is None or not isinstance(added, torch.Tensor):
            return added is None
        lies = added.dtype == x.dtype and added.is_contiguous(memory_format=torch.channels_last)
        return lies and added.shape == (len(x), len(self.weight), *size)

    def _by_other(self, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = self.other(x) if added is None else self.other(x, added)
        return y

    def _choose(
        self, own: Convolution, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]
    ) -> Blocks2d | bool:
        """Return the blocks of this project's kernel, False where the other module is faster."""
        from convscope.kernels import autotune

        try:
            blocks = own.choose(x, added, size).blocks
        except NothingFitsError:
            return False
        own_us = autotune.time_us(lambda: own(x, added, size, blocks))
        other_us = autotune.time_us(lambda: self._by_other(x, added))
        return blocks if own_us < other_us else False


class ChosenDepthwise(nn.Module):
    """A depthwise convolution, its bias and activation, by the faster of this project's kernel and cuDNN with a tail.

    Args:
        choices: as those of `ChosenConvolution`.

    Attributes:
        is_own: the last call was by a kernel of this project.
    """

    def __init__(self, module: DepthwiseConvolution, choices: Choices) -> None:
        super().__init__()
        self.module, self._choices = module, choices
        self.is_own = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(convolution(x) + bias)."""
        self.is_own = self.module.takes(x) and self._is_faster(x)
        return self.module(x) if self.is_own else self.module.by_library(x)

    def _is_faster(self, x: torch.Tensor) -> bool:
        sizes = map(dimensions, (x.shape, self.module.weight.shape, *self.module.options[:3]))
        key = " ".join(("depthwise", *sizes, self.module.kind, str(x.dtype)))
        if key not in self._choices:
            from convscope.kernels import autotune

            own_us = autotune.time_us(lambda: self.module(x))
            self._choices[key] = own_us < autotune.time_us(lambda: self.module.by_library(x))
        return bool(self._choices[key])


def with_chosen(model: nn.Module, choices: Choices) -> int:
    """Put `ChosenConvolution` and `ChosenDepthwise` in the place of the others in a trace; return their number."""
    found: dict[str, nn.Module] = {
        name: ChosenConvolution(module, parts, choices)
        for name, module, parts in convolutions(model)
        if not is_first(parts)
    }
    for name, module in model.named_modules() if isinstance(model, fx.GraphModule) else ():
        if isinstance(module, DepthwiseConvolution):  # a trace calls it once
            found[name] = ChosenDepthwise(module, choices)
    return put(model, found)


def count(model: nn.Module) -> str:
    """Return as text how many of the convolutions of `with_chosen` are this project's, "" where there are none."""
    every = [module for module in model.modules() if isinstance(module, (ChosenConvolution, ChosenDepthwise))]
    own = sum(module.is_own for module in every)
    return f"{own} of {len(every)} convolutions by Triton" if every else ""
