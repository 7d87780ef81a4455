"""The energy of each convolution of a model, each distinct layer replayed alone, and of everything between them.

A sensor that changes ten times a second cannot tell the layers of one pass apart, so each is run alone, over and over.
Alone, its tensors would stay in the L2 cache; inputs and weights therefore rotate through enough copies to exceed it.
What is not a convolution is measured the same way: the pass with every convolution replaced by its own output.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.power.energy import LoadEnergy
from convscope.timing import graphs
from convscope.timing.hooks import hooked

L2_MULTIPLE = 2.0  # the copies together hold this many times the L2 cache
CALLS_LEAST = 64  # in one graph, so that its launch does not matter
ATTRIBUTION = "layer alone, tensors rotated through more than the L2 cache"

Meter = Callable[[graphs.ReplayLoad], tuple[LoadEnergy | None, str | None]]


@dataclass(frozen=True)
class LayerEnergy:
    """Energy of one call of a layer, with its uncertainty, or the reason why there is none."""

    energy_j: float | None
    uncertainty_j: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Breakdown:
    """The energies of a pass's layers by position, and of the rest of the pass; None where it could not be measured."""

    layers: tuple[LayerEnergy, ...]
    rest_j: float | None

    @property
    def layers_sum_j(self) -> float | None:
        """Sum over the convolutions, None where one is missing."""
        known = [layer.energy_j for layer in self.layers if layer.energy_j is not None]
        return sum(known) if len(known) == len(self.layers) else None

    def residual_pct(self, pass_j: float) -> float | None:
        """Return how far layers and rest together are above the energy of a pass, in percent."""
        if self.layers_sum_j is None or self.rest_j is None:
            return None
        return 100 * ((self.layers_sum_j + self.rest_j) / pass_j - 1)


@dataclass(frozen=True)
class _Call:
    name: str
    module: nn.Module
    given: torch.Tensor
    output: torch.Tensor


def measure(model: nn.Module, given: torch.Tensor, layers: Sequence[Layer], meter: Meter) -> Breakdown:
    """Measure every distinct layer of a pass alone, and the rest of the pass.

    Args:
        given: the model's input, batch × 3 × height × width, on the GPU.
        layers: the calls of convolutions in the pass, in order.
        meter: measures the energy of a steady load.
    """
    calls = _calls(model, given)
    measured: dict[tuple[object, ...], LayerEnergy] = {}
    found = []
    for layer, call in zip(layers, calls, strict=True):
        key = (layer.cost_key, getattr(call.module, "algorithm", "torch"))
        if key not in measured:
            measured[key] = _alone(call, meter)
        found.append(measured[key])
    return Breakdown(tuple(found), _rest(model, given, calls, meter))


def _calls(model: nn.Module, given: torch.Tensor) -> list[_Call]:
    calls: list[_Call] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        calls.append(_Call(name, module, given.detach().clone(), output.detach().clone()))

    with hooked(model, after=after):
        model(given)
    return calls


def copies_needed(call_bytes: int, l2_bytes: int) -> int:
    """Return how many copies of a layer's tensors exceed the L2 cache `L2_MULTIPLE` times over; at least two."""
    return max(2, math.ceil(L2_MULTIPLE * l2_bytes / call_bytes))


def _alone(call: _Call, meter: Meter) -> LayerEnergy:
    l2_bytes = torch.cuda.get_device_properties(call.given.device).L2_cache_size
    held = [call.given, call.output, *call.module.parameters()]
    copies = copies_needed(sum(tensor.nbytes for tensor in held), l2_bytes)
    modules = [copy.deepcopy(call.module) for _ in range(copies)]
    inputs = [call.given.clone() for _ in range(copies)]
    count = copies * math.ceil(CALLS_LEAST / copies)

    def step() -> None:
        for module, given in itertools.islice(itertools.cycle(zip(modules, inputs, strict=True)), count):
            module(given)

    with graphs.capture(step) as captured:
        found, reason = meter(graphs.ReplayLoad(captured, min(graphs.replay_times_ms(captured, 3))))
    if found is None:
        return LayerEnergy(None, None, reason)
    return LayerEnergy(found.per_inference_j / count, found.uncertainty_j / count)


def _rest(model: nn.Module, given: torch.Tensor, calls: Sequence[_Call], meter: Meter) -> float | None:
    with _stubbed(model, calls), graphs.capture(lambda: model(given)) as captured:
        found, _ = meter(graphs.ReplayLoad(captured, min(graphs.replay_times_ms(captured, 3))))
    return found.per_inference_j if found else None


class _Stub(nn.Module):
    """Stands for a convolution and gives back its outputs of an earlier pass, one a call."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = itertools.cycle(outputs)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return next(self._outputs)


@contextlib.contextmanager
def _stubbed(model: nn.Module, calls: Sequence[_Call]) -> Iterator[None]:
    modules = {call.name: call.module for call in calls}
    for name in modules:
        stub = _Stub([call.output for call in calls if call.name == name])
        models.set_module(model, name, stub)
    try:
        yield
    finally:
        for name, module in modules.items():
            models.set_module(model, name, module)
