"""Convolutions and products of the engine `fused` by this project's kernels, where those are faster.

`ChosenConvolution` and `ChosenDepthwise` time both at the first call, for each size of the input. All are for channels
last in 16 bits on a GPU. First layers, of few channels, are not among them (`first`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from convscope.cudnn.shape import dimensions, output_extents
from convscope.errors import CudnnError, NothingFitsError
from convscope.inference.engines.fused import planned
from convscope.inference.engines.fused.parts import Parts, convolutions, is_first, put
from convscope.inference.engines.fused.planned import Planned
from convscope.inference.engines.fused.rows import few_rows
from convscope.inference.engines.fused.tails import DepthwiseConvolution

if TYPE_CHECKING:
    from convscope.kernels.blocks import Blocks2d
    from convscope.kernels.channels_last.convolution import Convolution

DTYPES = ("float16", "bfloat16")
"""Data types that the kernels are for."""
SLOW = "its convolutions are timed by this project's kernels, which takes up to a minute the first time on a card"

Choices = dict[str, "Blocks2d | Planned | bool"]
"""By convolution: blocks of this project's kernel, or that it has none to choose; a plan; False for the other module.

The plans are destroyed by `close`, when no model needs them any more."""


class ChosenConvolution(nn.Module):
    """A convolution, with what is fused with it, by the fastest of a module, this project's kernel and plans of cuDNN.

    Args:
        other: takes an input, and what is added where something is.
        choices: of all convolutions of a model; what is chosen here is added.

    Attributes:
        is_used: it was called; in a pair that one kernel does it is not.
        is_own, is_planned: the last call was by a kernel of this project, or by a plan.
    """

    def __init__(self, other: nn.Module, parts: Parts, choices: Choices) -> None:
        super().__init__()
        self.other, self.weight, self.bias = other, parts.weight, parts.bias
        self._options, self._kind, self._choices = parts.options, parts.kind, choices
        self._own: Convolution | None = None
        self.is_used = self.is_own = self.is_planned = False

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return activation(convolution(x) + bias + added), without what is not fused with it."""
        self.is_used = True
        stride, padding, dilation = self._options
        kernel: Any = tuple(self.weight.shape[2:])
        size: Any = tuple(output_extents(x.shape[2:], kernel, padding, stride, dilation))
        is_product = added is None and kernel == x.shape[2:] == size == (1, 1)
        if is_product and (few := few_rows(x, self.weight, self.bias, self._kind)) is not None:
            self.is_own, self.is_planned = True, False
            return few
        way = self._way(x, added, size) if self._takes(x, added, size) else False
        self.is_planned = isinstance(way, Planned)
        self.is_own = not self.is_planned and not isinstance(way, bool)
        return self._by(way, x, added, size)

    def _way(self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]) -> Blocks2d | Planned | bool:
        """Return how an input is convolved, chosen at the first call for such a one."""
        from convscope.kernels.channels_last.convolution import Convolution
        from convscope.kernels.channels_last.windows import Window

        if self._own is None:
            stride, padding, dilation = self._options
            window: Any = Window(tuple(self.weight.shape[2:]), stride, padding, dilation)  # type: ignore[arg-type]
            self._own = Convolution(self.weight.detach(), self.bias.detach(), window, self._kind)
        key = f"{type(self.other).__name__} {self._own.key(x, added)}"
        if key not in self._choices:
            self._choices[key] = self._choose(self._own, x, added, size)
        return self._choices[key]

    def _by(
        self, way: Blocks2d | Planned | bool, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]
    ) -> torch.Tensor:
        if isinstance(way, Planned):
            return way(x, self.weight, self.bias, added)
        if self._own is not None and not isinstance(way, bool):
            return self._own(x, added, size, way)
        y: torch.Tensor = self.other(x) if added is None else self.other(x, added)
        return y

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

    def _choose(
        self, own: Convolution, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]
    ) -> Blocks2d | Planned | bool:
        """Return the fastest: blocks of this project's kernel, a plan, or False for the other module."""
        from convscope.kernels import autotune

        best: Blocks2d | Planned | bool = False
        best_us = autotune.time_us(partial(self._by, best, x, added, size))
        blocks: list[Blocks2d] = []
        with contextlib.suppress(NothingFitsError):
            blocks.append(own.choose(x, added, size).blocks)
        plans = planned.plans(x, self.weight, self._options, self._kind, added is not None)
        offered: Iterable[Blocks2d | Planned] = itertools.chain(blocks, plans)
        for way in offered:
            try:
                way_us = autotune.time_us(partial(self._by, way, x, added, size))
            except (CudnnError, torch.OutOfMemoryError):  # a plan may be refused only when it runs
                way_us = math.inf
            worse: Blocks2d | Planned | bool = way
            if way_us < best_us:
                worse, best, best_us = best, way, way_us
            close([worse])
        return best


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
    """Return as text how many of the convolutions of `with_chosen` that ran are this project's, "" where none did."""
    chosen = [module for module in model.modules() if isinstance(module, ChosenConvolution) and module.is_used]
    every: list[ChosenConvolution | ChosenDepthwise] = [*chosen]
    every += (module for module in model.modules() if isinstance(module, ChosenDepthwise))
    own, by_plans = sum(module.is_own for module in every), sum(module.is_planned for module in chosen)
    more = f", {by_plans} by plans of cuDNN's graph API" if by_plans else ""
    return f"{own} of {len(every)} convolutions by Triton{more}" if every else ""


def close(ways: Iterable[Blocks2d | Planned | bool]) -> None:
    """Destroy the plans among what was chosen."""
    for way in ways:
        if isinstance(way, Planned):
            way.close()
