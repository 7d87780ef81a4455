"""Energy of plans: of the fastest of each shape, of PyTorch's choice, and of whole passes put together from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from tqdm import tqdm

from convscope.atlas.race import FRUGAL, Race, Shape
from convscope.convolution import algorithms
from convscope.convolution.swap import Conv2d
from convscope.power.energy import LoadEnergy
from convscope.profiling import layer_energy
from convscope.profiling.bench import Bench
from convscope.profiling.layer_energy import CallOfPass
from convscope.timing.calls import Call
from convscope.verification.candidates import HEURISTIC, Note
from convscope.verification.choice import TOGETHER
from convscope.verification.evidence import Subject

PLANS_MOST = 3
"""Plans of a shape whose energy is measured. What takes much longer takes more energy, too."""
JUDGED = (TOGETHER, FRUGAL, HEURISTIC)


def contenders(shape: Shape) -> list[str]:
    """Return the plans whose energy is measured: the fastest, then the fastest of other engines, then others."""
    in_order = shape.in_order()
    engines = [plan.engine if (plan := algorithms.plan_of(name)) else name for name in in_order]
    first = [name for at, name in enumerate(in_order) if engines[at] not in engines[:at]]
    return [*first, *(name for name in in_order if name not in first)][:PLANS_MOST]


def measure(subject: Subject, bench: Bench, note: Note, shapes: Sequence[Shape]) -> None:
    """Measure the energy of a call of each shape, by its contenders and as PyTorch runs it, on the numbers of a pass.

    The model runs PyTorch's own convolutions.

    Raises:
        RuntimeError: the GPU is lost, or a mistake of the program.
    """
    try:
        calls = layer_energy.calls_of(subject.model, subject.inputs)
    except torch.OutOfMemoryError:
        note("no energy of plans: the inputs and outputs of all layers do not fit into memory beside the model")
        bench.release()
        return
    for shape in tqdm(shapes, desc=f"{subject.run.model}, energy", unit="shape", disable=None):
        call = calls[shape.first.position]
        for name in (HEURISTIC, *contenders(shape)):
            shape.energies[name] = layer_energy.alone(_with(call, name), bench.steady_energy)
            bench.release()


def of_passes(race: Race, subject: Subject, bench: Bench) -> dict[str, LoadEnergy]:
    """Return the energy of a captured pass by assignment, for those that are there and whose energy can be measured."""
    found = {}
    for name in JUDGED:
        if name in race.assignments:
            measured = race.tried(name, partial(bench.pass_energy, subject.inputs))
            bench.release()
            if measured and measured[0]:
                found[name] = measured[0]
    return found


def _with(call: CallOfPass, name: str) -> CallOfPass:
    """Return a call that runs an algorithm."""
    if name == HEURISTIC:
        return call
    if isinstance(call.module, Call):
        return dataclasses.replace(call, module=call.module.with_algorithm(name))
    assert isinstance(call.module, nn.Conv2d)
    return dataclasses.replace(call, module=Conv2d(call.module, name, call.name))
