"""Energy of each convolution of a model, and of the rest of the pass.

A sensor that changes ten times a second cannot separate the layers of one pass, so each distinct layer is replayed
alone. Alone, its tensors would stay in the L2 cache; inputs and weights therefore rotate through enough copies to
exceed it. The rest is measured the same way: the pass with every convolution replaced by its stored output.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from convscope import failures
from convscope.convolution import backends, models
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.layer import Layer
from convscope.convolution.operator import release
from convscope.convolution.sources.source import Inputs
from convscope.power.energy import LoadEnergy
from convscope.timing import calls as calls_outside
from convscope.timing import graphs, placement
from convscope.timing.calls import Call, watched

CALLS_LEAST = 64  # in one graph, so that its launch does not matter; fewer where a replay is long enough for that
LONG_MS = 5.0
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
    """Energies of a pass's layers by position, and of the rest of the pass: None, and the reason, without one."""

    layers: tuple[LayerEnergy, ...]
    rest_j: float | None
    rest_reason: str | None = None

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
class CallOfPass:
    """A convolution as a pass calls it: its name, its module, a copy of its input and of its output."""

    name: str
    module: nn.Module
    given: torch.Tensor
    output: torch.Tensor


def measure(
    model: nn.Module, inputs: Inputs, layers: Sequence[Layer], measure_energy: EnergyMeasurement,
    refused: str | None = None,
) -> Breakdown:  # fmt: skip
    """Measure every distinct layer of a pass alone, and the rest of the pass.

    A layer that does not fit into memory beside its copies, or that fails alone, has a reason instead of an energy.

    Args:
        inputs: the arguments of one call of the model, on the GPU.
        layers: the calls of convolutions in the pass, in order.
        refused: why the pass, and so its rest, cannot be captured; None where it can.

    Raises:
        RuntimeError: the GPU is lost, or a mistake of the program.
    """
    try:
        calls = calls_of(model, inputs)
    except RuntimeError as error:
        reason = _reason(error, inputs[0].device)
        return Breakdown((LayerEnergy(None, None, reason),) * len(layers), None, reason)
    measured: dict[tuple[object, ...], LayerEnergy] = {}
    energies = []
    for layer, call in zip(layers, calls, strict=True):
        copied = not call.given.is_contiguous(memory_format=backends.LAYOUTS[backends.settings_in_force().layout])
        key = (layer.cost_key, copied, getattr(call.module, "algorithm", "torch"))
        if key not in measured:
            measured[key] = alone(call, measure_energy)
        energies.append(measured[key])
    if refused:
        return Breakdown(tuple(energies), None, f"no energy: {refused}")
    rest = _or_reason(functools.partial(_rest, model, inputs, calls, measure_energy), inputs[0].device)
    return Breakdown(tuple(energies), rest.energy_j, rest.reason)


def alone(call: CallOfPass, measure_energy: EnergyMeasurement) -> LayerEnergy:
    """Measure the energy of a call, replayed alone with its tensors rotated through more than the L2 cache.

    Raises:
        RuntimeError: the GPU is lost, or a mistake of the program.
    """
    return _or_reason(functools.partial(_alone, call, measure_energy), call.given.device)


def calls_of(model: nn.Module, inputs: Inputs) -> list[CallOfPass]:
    """Return the calls of convolutions of one pass, in order."""
    calls: list[CallOfPass] = []

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        calls.append(CallOfPass(name, module, given.detach().clone(), output.detach().clone()))

    with watched(model, after=after):
        model(*inputs)
    return calls


def _or_reason(measure_one: Callable[[], LayerEnergy], device: torch.device) -> LayerEnergy:
    try:
        return measure_one()
    except RuntimeError as error:
        reason = _reason(error, device)
    gc.collect()  # what failed may still hold memory in cycles
    release(device)
    return LayerEnergy(None, None, reason)


def _reason(error: RuntimeError, device: torch.device) -> str:
    """Return the reason for a missing energy; raise the error where it is not of one layer alone."""
    failure = failures.classify(error)
    if failure is None or failures.device_fault(device):
        raise error
    return f"no energy: {failure.status}: {failure.reason}"


def _rest(
    model: nn.Module, inputs: Inputs, calls: Sequence[CallOfPass], measure_energy: EnergyMeasurement
) -> LayerEnergy:
    with _stubbed(model, calls), graphs.capture(lambda: model(*inputs)) as captured:
        return _of_one(*measure_energy(graphs.ReplayLoad.of(captured)))


def _of_one(energy: LoadEnergy | None, reason: str | None, calls: int = 1) -> LayerEnergy:
    if energy is None:
        return LayerEnergy(None, None, reason)
    return LayerEnergy(energy.per_inference_j / calls, energy.uncertainty_j / calls)


def copies_needed(call_bytes: int, evicting_bytes: float) -> int:
    """Return how many copies of a layer's tensors make up so much data; at least two."""
    return max(2, math.ceil(evicting_bytes / call_bytes))


def _alone(call: CallOfPass, measure_energy: EnergyMeasurement) -> LayerEnergy:
    if isinstance(call.module, FusedConv2d) and call.module.fused.addition:
        return LayerEnergy(None, None, "no energy alone: what is added to it is not known here")
    tensors = [call.given, call.output, *call.module.parameters()]
    copies = copies_needed(sum(tensor.nbytes for tensor in tensors), placement.evicting_bytes(call.given.device))
    modules = [copy.deepcopy(call.module) for _ in range(copies)]
    inputs = [call.given.clone() for _ in range(copies)]

    def step(count: int) -> None:
        for module, given in itertools.islice(itertools.cycle(zip(modules, inputs, strict=True)), count):
            module(given)

    once, often = copies, copies * math.ceil(CALLS_LEAST / copies)
    with graphs.capture(functools.partial(step, once)) as captured:
        load = graphs.ReplayLoad.of(captured)
        if once == often or load.pass_ms >= LONG_MS:
            return _of_one(*measure_energy(load), calls=once)
    with graphs.capture(functools.partial(step, often)) as captured:
        return _of_one(*measure_energy(graphs.ReplayLoad.of(captured)), calls=often)


class _Stub(nn.Module):
    """Stand-in for a convolution that returns its outputs of an earlier pass, one for each call."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = itertools.cycle(outputs)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return next(self._outputs)


@contextlib.contextmanager
def _stubbed(model: nn.Module, calls: Sequence[CallOfPass]) -> Iterator[None]:
    modules = {call.name: call.module for call in calls if not isinstance(call.module, Call)}
    outputs = {call.name: itertools.cycle([one.output for one in calls if one.name == call.name]) for call in calls}
    has_calls = len(modules) < len(outputs)
    for name in modules:
        models.set_module(model, name, _Stub([call.output for call in calls if call.name == name]))
    stored = calls_outside.substituting(model, lambda name, call, given: next(outputs[name]))
    try:
        with stored if has_calls else contextlib.nullcontext():
            yield
    finally:
        for name, module in modules.items():
            models.set_module(model, name, module)
