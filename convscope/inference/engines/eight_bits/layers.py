"""Convolutions on 8-bit numbers in a fused trace, and the roundings between them and the other layers.

A tensor is a matrix of int8 where a convolution in 8 bits returns it and such convolutions alone take it, to convolve
it or to add it. What another layer returns is rounded for them; what another layer takes is returned in 16 bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx, nn

from convscope.convolution.fusion.graphs import changes_in_place
from convscope.inference.engines.eight_bits.ranges import Range, ranges_of
from convscope.inference.engines.fused import traces
from convscope.inference.engines.fused.parts import Parts, convolutions

if TYPE_CHECKING:
    from convscope.kernels.eight_bits.convolution import Blocks8


SLOW = "its convolutions are timed by blocks, which takes up to a minute the first time on a card"


class Steps(NamedTuple):
    """Steps of the input, of what is added, and of the output; None for an output in 16 bits."""

    input: float
    added: float
    output: float | None


class EightBitConvolution(nn.Module):
    """A convolution on int8 numbers with its bias, addition and ReLU, by this project's kernel.

    On another device, and for tensors that the kernel is not for, by PyTorch in float64: slow, and the same numbers.
    """

    def __init__(self, parts: Parts, steps: Steps) -> None:
        super().__init__()
        from convscope.kernels.eight_bits.convolution import Convolution8

        weight, window = parts.weight, _window(parts)
        self._by_kernel = Convolution8(weight, parts.bias, window, parts.kind, *steps, dtype=weight.dtype)
        self._blocks: dict[str, Blocks8] = {}

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Return relu(convolution(x) + bias + added), of these what is fused; int8 or in 16 bits."""
        kernel = self._by_kernel
        if not kernel.is_for(x, added):
            return kernel.exactly(x, added)
        key = kernel.key(x, added)
        if key not in self._blocks:
            self._blocks[key] = kernel.choose(x, added).blocks
        return kernel(x, added, self._blocks[key])


class EightBitRounding(nn.Module):
    """Numbers rounded to int8, over a step."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rounded numbers, channels last."""
        from convscope.kernels.eight_bits import numbers  # imports Triton

        x = x.contiguous(memory_format=torch.channels_last)
        return numbers.to_eight_bits(x, self._step) if x.is_cuda else numbers.rounded(x, self._step)


def with_eight_bits(model: nn.Module, images: torch.Tensor) -> tuple[int, int]:
    """Put `EightBitConvolution` in the place of the convolutions of a trace that it is for.

    Args:
        model: as the engine `fused` makes it, where it is to run.
        images: what ranges are taken from, N × 3 × H × W, as the model takes them.

    Returns:
        the number of convolutions in 8 bits, and of all that the trace calls once.
    """
    if not isinstance(model, fx.GraphModule):
        return 0, 0
    every = {name: (module, parts) for name, module, parts in convolutions(model)}
    nodes = {node: every[str(node.target)][1] for node in model.graph.nodes if str(node.target) in every}
    wanted = {node: parts for node, parts in nodes.items() if _takes(parts, node)}
    tensors = {*wanted, *(given for node in wanted for given in _given(node))}
    ranges = ranges_of(model, {tensor for tensor in tensors if not _is_changed(model, tensor)}, images)
    wanted = {node: parts for node, parts in wanted.items() if _fits(node, parts, ranges)}
    for number, (node, parts) in enumerate(wanted.items()):
        given = [ranges[each] for each in _given(node)]
        is_int8 = all(user in wanted for user in node.users)
        steps = Steps(_step(given[0]), _step(given[-1]), _step(ranges[node]) if is_int8 else None)
        name = f"eight_bits_{number}"
        model.add_submodule(name, EightBitConvolution(parts, steps))
        node.target = name
    _round_between(model, {*wanted}, ranges)
    traces.finish(model)
    return len(wanted), len(every)


def _window(parts: Parts) -> Any:
    from convscope.kernels.channels_last.windows import Window  # imports Triton

    return Window(tuple(parts.weight.shape[2:]), *parts.options)  # type: ignore[arg-type]


def _takes(parts: Parts, node: fx.Node) -> bool:
    from convscope.kernels.eight_bits import convolution

    are_tensors = all(isinstance(given, fx.Node) for given in node.args)
    return are_tensors and convolution.takes(parts.weight, _window(parts), parts.kind)


def _given(node: fx.Node) -> list[fx.Node]:
    """Return what a convolution that `_takes` wants is given: its input, and what is added."""
    return [given for given in node.args if isinstance(given, fx.Node)]


def _is_changed(model: fx.GraphModule, tensor: fx.Node) -> bool:
    """Tell whether a user of a tensor may change it in place."""
    return any(changes_in_place(model, user) for user in tensor.users)


def _fits(node: fx.Node, parts: Parts, ranges: dict[fx.Node, Range]) -> bool:
    """Tell whether the ranges of all that a convolution reads and writes are known, and their sizes fit."""
    from convscope.kernels.eight_bits import convolution

    tensors = [*_given(node), node]
    if not all(tensor in ranges and math.isfinite(ranges[tensor].largest) for tensor in tensors):
        return False
    fits = convolution.takes_size(ranges[tensors[0]].size, _window(parts))
    return fits and (len(node.args) == 1 or ranges[tensors[1]].size == ranges[node].size)


def _step(seen: Range) -> float:
    from convscope.kernels.eight_bits import numbers

    return numbers.step_for(seen.largest)


def _round_between(model: fx.GraphModule, in_8_bits: set[fx.Node], ranges: dict[fx.Node, Range]) -> None:
    """Round what convolutions in 8 bits take and what comes in 16 bits, each tensor once, before the first of them."""
    for tensor in [*model.graph.nodes]:
        users = [user for user in model.graph.nodes if user in in_8_bits and user in tensor.users]
        if not users or (tensor in in_8_bits and len(users) == len(tensor.users)):
            continue
        name = f"eight_bits_of_{tensor.name}"
        model.add_submodule(name, EightBitRounding(_step(ranges[tensor])))
        with model.graph.inserting_before(users[0]):
            rounded = model.graph.call_module(name, (tensor,))
        for user in users:
            user.replace_input_with(tensor, rounded)
