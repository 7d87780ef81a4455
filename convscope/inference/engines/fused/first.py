"""First layers of the engine `fused`, of few channels, by kernels of this project, with the max pooling behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.inference.engines.fused import traces
from convscope.inference.engines.fused.parts import Parts, convolutions, is_first, put
from convscope.inference.engines.fused.steps import MaximumPooling

if TYPE_CHECKING:
    from convscope.kernels.channels_last.first import Packed


class FirstConvolution(nn.Module):
    """A convolution of few channels, with its bias and activation in one kernel.

    Attributes:
        kind: its activation, a key of `tails.BY_PYTORCH`.
        window: stride and padding, rows and columns.
    """

    def __init__(self, other: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.other, self.weight, self.bias, self.kind = other, parts.weight, parts.bias, parts.kind
        self.window = parts.options[:2]
        self._packed: Packed | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return activation(convolution(x) + bias)."""
        from convscope.kernels.channels_last import first  # imports Triton

        packed = self.packed(x)
        if packed is None:
            y: torch.Tensor = self.other(x)
            return y
        return first.convolve(x, packed, self.kind)

    def packed(self, x: torch.Tensor) -> Packed | None:
        """Return the filters as the kernel reads them; None where it does not take them or an input."""
        from convscope.kernels.channels_last import first

        stride, padding = self.window
        lies = x.is_cuda and x.dtype == self.weight.dtype and x.is_contiguous(memory_format=torch.channels_last)
        if not lies or not first.takes(self.weight, stride, padding):
            return None
        if self._packed is None:
            self._packed = first.pack(self.weight.detach(), self.bias.detach(), stride, padding)
        return self._packed


class PooledFirstConvolution(nn.Module):
    """A first layer and the max pooling behind it in one kernel, or by a module each."""

    def __init__(self, first: FirstConvolution, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.pool = first, pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maxima of activation(convolution(x) + bias)."""
        from convscope.kernels.channels_last import first_pooled  # imports Triton

        packed = self.first.packed(x)
        if packed is not None:
            return first_pooled.convolve(x, packed, self.first.kind)
        y: torch.Tensor = self.pool(self.first(x))
        return y


def with_first(model: nn.Module) -> int:
    """Put `FirstConvolution` in the place of convolutions of few channels in a trace; return their number."""
    every = convolutions(model, inputs_most=1)
    return put(model, {name: FirstConvolution(module, parts) for name, module, parts in every if is_first(parts)})


def with_pooled_first(model: nn.Module) -> int:
    """Put `PooledFirstConvolution` in the place of first layers and the max pooling behind them; return their number.

    To be called after `with_first`, and after `steps.with_maxima` where that is.
    """
    if not isinstance(model, fx.GraphModule):
        return 0
    from convscope.kernels.channels_last import first_pooled  # imports Triton

    shared, inputs, found = traces.shared_modules(model), traces.inputs(model), 0
    for node in list(model.graph.nodes):
        following = next(iter(node.users)) if len(node.users) == 1 else None
        if following is None or node.op != "call_module" or following.op != "call_module":
            continue
        conv, pool = model.get_submodule(str(node.target)), model.get_submodule(str(following.target))
        names = {str(node.target), str(following.target)}
        if type(conv) is not FirstConvolution or names & shared or any(inputs[name] != 1 for name in names):
            continue
        if _is_usual(pool) and first_pooled.takes(conv.weight, *conv.window):
            models.set_module(model, str(node.target), PooledFirstConvolution(conv, pool))
            traces.replace(model, [node, following], str(node.target), None, node)
            found += 1
    traces.finish(model)
    return found


def _is_usual(pool: nn.Module) -> bool:
    """Tell whether a module is the max pooling of 3 × 3 windows, every second one, with a padding of 1."""
    if isinstance(pool, MaximumPooling):
        pool = pool.pool
    if type(pool) is not nn.MaxPool2d or pool.return_indices or pool.ceil_mode or models.has_hooks(pool):
        return False
    given = ((pool.kernel_size, 3), (pool.stride, 2), (pool.padding, 1), (pool.dilation, 1))
    return all(size in (wanted, (wanted, wanted)) for size, wanted in given)
