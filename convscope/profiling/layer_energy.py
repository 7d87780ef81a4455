"""Energy of each convolution of a model, and of the rest of the pass.

A sensor that changes ten times a second cannot separate the layers of one pass, so each distinct layer is replayed
alone. Alone, its tensors would stay in the L2 cache; inputs and weights therefore rotate through enough copies to
exceed it. The rest is measured the same way: the pass with every convolution replaced by its stored output.
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

EnergyMeasurement = Callable[[graphs.ReplayLoad], tuple[LoadEnergy | None, str | None]]
"""Measures a steady load: its energy, or None and the reason (`Bench.steady_energy`)."""


@dataclass(frozen=True)
class LayerEnergy:
    """Energy of one call of a layer with its uncertainty, or the reason why there is none."""

    energy_j: float | None
    uncertainty_j: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Breakdown:
    """Energies of a pass's layers by position, and of the rest of the pass; None where it could not be measured."""

    layers: tuple[LayerEnergy, ...]
    rest_j: float | None

    @property
    def layers_sum_j(self) -> float | None:
        """The sum over the convolutions, None where one is missing."""
        known_j = [layer.energy_j for layer in self.layers if layer.energy_j is not None]
        return sum(known_j) if len(known_j) == len(self.layers) else None

    def residual_pct(self, pass_j: float) -> float | None:
        """Return the excess of layers and rest together over the energy of a pass, in percent."""
        if self.layers_sum_j is None or self.rest_j is None:
            return None
        return 100 * ((self.layers_sum_j + self.rest_j) / pass_j - 1)


@dataclass(frozen=True)
class _Call:
    name: str
    module: nn.Module
    given: torch.Tensor
    output: torch.Tensor


def measure(
    model: nn.Module, given: torch.Tensor, layers: Sequence[Layer], measure_energy: EnergyMeasurement
) -> Breakdown:
    """Measure every distinct layer of a pass alone, and the rest of the pass.

    Args:
        given: the model's input, batch × 3 × height × width, on the GPU.
        layers: the calls of convolutions in the pass, in order.
    """
    calls = _calls(model, given)
    measured: dict[tuple[object, ...], LayerEnergy] = {}
    energies = []
    for layer, call in zip(layers, calls, strict=True):
        key = (layer.cost_key, getattr(call.module, "algorithm", "torch"))
        if key not in measured:
            measured[key] = _alone(call, measure_energy)
        energies.append(measured[key])
    with _stubbed(model, calls), graphs.capture(lambda: model(given)) as captured:
        rest, _ = measure_energy(graphs.ReplayLoad.of(captured))
    return Breakdown(tuple(energies), rest.per_inference_j if rest else None)


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


def _alone(call: _Call, measure_energy: EnergyMeasurement) -> LayerEnergy:
    l2_bytes = torch.cuda.get_device_properties(call.given.device).L2_cache_size
    tensors = [call.given, call.output, *call.module.parameters()]
    copies = copies_needed(sum(tensor.nbytes for tensor in tensors), l2_bytes)
    modules = [copy.deepcopy(call.module) for _ in range(copies)]
    inputs = [call.given.clone() for _ in range(copies)]
    count = copies * math.ceil(CALLS_LEAST / copies)

    def step() -> None:
        for module, given in itertools.islice(itertools.cycle(zip(modules, inputs, strict=True)), count):
            module(given)

    with graphs.capture(step) as captured:
        energy, reason = measure_energy(graphs.ReplayLoad.of(captured))
    if energy is None:
        return LayerEnergy(None, None, reason)
    return LayerEnergy(energy.per_inference_j / count, energy.uncertainty_j / count)


class _Stub(nn.Module):
    """Stand-in for a convolution that returns its outputs of an earlier pass, one for each call."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = itertools.cycle(outputs)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return next(self._outputs)


@contextlib.contextmanager
def _stubbed(model: nn.Module, calls: Sequence[_Call]) -> Iterator[None]:
    modules = {call.name: call.module for call in calls}
    for name in modules:
        models.set_module(model, name, _Stub([call.output for call in calls if call.name == name]))
    try:
        yield
    finally:
        for name, module in modules.items():
            models.set_module(model, name, module)
