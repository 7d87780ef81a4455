"""Pairs of 1×1 convolutions of the engine `fused` in one kernel: the end of a ResNet's block and the begin of the next.

To be found after `own.with_chosen`, where that is: a pair is timed beside the best of each alone.
"""

from __future__ import annotations

import contextlib
import operator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from convscope.convolution.fusion.graphs import may_move
from convscope.errors import NothingFitsError
from convscope.inference.engines.fused import traces
from convscope.inference.engines.fused.own import Choices, ChosenConvolution
from convscope.inference.engines.fused.parts import ONE_PIXEL, Parts, parts_of

if TYPE_CHECKING:
    from convscope.kernels.blocks import Blocks2d
    from convscope.kernels.channels_last.joined import Joined

Pair = tuple[torch.Tensor, torch.Tensor]


class JoinedConvolutions(nn.Module):
    """A convolution with an addition, and the next one over its output: in one kernel, or by a module each if faster.

    Args:
        first: takes an input and what is added; `second` takes its output.
        parts: of both.
        choices: as those of `own.ChosenConvolution`.
    """

    def __init__(self, first: nn.Module, second: nn.Module, parts: tuple[Parts, Parts], choices: Choices) -> None:
        super().__init__()
        self.first, self.second, self._choices = first, second, choices
        self.weights = nn.ParameterList([parts[0].weight, parts[1].weight])
        self.biases = nn.ParameterList([parts[0].bias, parts[1].bias])
        self._kinds = parts[0].kind, parts[1].kind
        self._own: Joined | None = None
        self.is_joined = False

    def forward(self, x: torch.Tensor, added: torch.Tensor) -> Pair:
        """Return the output of the first convolution, and of the second."""
        blocks = self._blocks(x, added) if self._takes(x, added) else False
        self.is_joined = not isinstance(blocks, bool)
        return self._by(blocks, x, added)

    def _takes(self, x: torch.Tensor, added: torch.Tensor) -> bool:
        if not x.is_cuda:
            return False
        from convscope.kernels.channels_last import joined  # imports Triton

        return joined.takes(x, added, *self.weights)

    def _blocks(self, x: torch.Tensor, added: torch.Tensor) -> Blocks2d | bool:
        """Return the blocks of the kernel for an input, chosen at the first call, or False for the modules."""
        from convscope.kernels import autotune
        from convscope.kernels.channels_last.joined import Joined

        if self._own is None:
            (first, second), (bias, shift) = self.weights, self.biases
            self._own = Joined(first.detach(), bias.detach(), second.detach(), shift.detach(), self._kinds)
        key = self._own.key(x)
        if key not in self._choices:
            self._by(False, x, added)  # the modules choose too, which cannot be timed
            ways: list[Blocks2d | bool] = [False]
            with contextlib.suppress(NothingFitsError):
                ways.append(self._own.choose(x, added).blocks)
            times_us = [autotune.time_us(partial(self._by, way, x, added)) for way in ways]
            self._choices[key] = ways[times_us.index(min(times_us))]
        return self._choices[key]  # type: ignore[return-value]

    def _by(self, blocks: Blocks2d | bool, x: torch.Tensor, added: torch.Tensor) -> Pair:
        if self._own is not None and not isinstance(blocks, bool):
            return self._own(x, added, blocks)
        y: torch.Tensor = self.first(x, added)
        return y, self.second(y)


def with_joined(model: nn.Module, choices: Choices) -> int:
    """Put `JoinedConvolutions` in the place of pairs in a trace; return their number."""
    if not isinstance(model, fx.GraphModule):
        return 0
    shared, found = traces.shared_modules(model), 0
    for node in list(model.graph.nodes):
        first = _parts(model, node, 2, shared)
        if first is None:
            continue
        for user in list(node.users):
            second = _parts(model, user, 1, shared)
            fits = second is not None and second.weight.shape[1] == len(first.weight)
            if second is not None and fits and may_move(model, node, user):
                _join(model, node, user, (first, second), choices, f"joined_{found}")
                found += 1
                break
    traces.finish(model)
    return found


def _parts(model: fx.GraphModule, node: fx.Node, inputs: int, shared: set[str]) -> Parts | None:
    """Return the parts of the 1×1 convolution that a node with so many inputs calls; None for anything else."""
    if node.op != "call_module" or node.kwargs or len(node.args) != inputs or str(node.target) in shared:
        return None
    module = model.get_submodule(str(node.target))
    parts = parts_of(module.other if isinstance(module, ChosenConvolution) else module)
    is_one = parts is not None and parts.weight.shape[2:] == (1, 1) and parts.options == ONE_PIXEL
    return parts if is_one else None


def _join(
    model: fx.GraphModule, first: fx.Node, second: fx.Node, parts: tuple[Parts, Parts], choices: Choices, name: str
) -> None:
    before, after = (model.get_submodule(str(node.target)) for node in (first, second))
    model.add_submodule(name, JoinedConvolutions(before, after, parts, choices))
    with model.graph.inserting_before(first):
        both = model.graph.call_module(name, first.args)
        for number, node in enumerate((first, second)):
            node.replace_all_uses_with(model.graph.call_function(operator.getitem, (both, number)))
    for node in (second, first):
        model.graph.erase_node(node)


def count(model: nn.Module) -> str:
    """Return as text how many of the pairs of `with_joined` are done by one kernel, "" where there are none."""
    every = [module for module in model.modules() if isinstance(module, JoinedConvolutions)]
    return f"{sum(module.is_joined for module in every)} of {len(every)} pairs in one kernel" if every else ""
