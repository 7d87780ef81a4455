"""Autotuning: the fastest plan of each layer of a model at one input size, raced in the whole model under replay."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch import nn

from convscope.atlas.race import Race, shapes_of
from convscope.convolution.assignment import Assignment
from convscope.convolution.layer import Layer
from convscope.convolution.operator import sparing
from convscope.convolution.sources.source import Inputs
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.verification.candidates import HEURISTIC, Note
from convscope.verification.evidence import Subject

UNTIMED = "no plan of it could be timed"
ROUNDS = 3
"""Placements in memory that each plan is timed in, if it is not far behind the best after one."""


def raced(
    run: Run, model: nn.Module, inputs: Inputs, layers: Sequence[Layer], bench: Bench, note: Note,
    first: int | None = None, with_pytorch: bool = False,
) -> Assignment:  # fmt: skip
    """Return for each layer the plan with the least mean time in the captured model, or why it has none.

    Plans that fail, err by more than their tolerance, or compute in less precision than asked for are no candidates.

    Args:
        model: none of its convolutions swapped; so it is afterwards.
        bench: of the model, and calibrated.
        first: only this many plans of each heuristic are candidates, as in `known_plans`; None is all of them.
        with_pytorch: a layer is left to PyTorch ("torch") where that is ahead of the fastest plan in each placement.

    Raises:
        DeviceFaultError: a plan has lost the GPU; the message names it.
    """
    subject = Subject(run, model, layers, inputs)
    bench.expect_captures(inputs)
    with sparing(subject.device):
        shapes = shapes_of(subject, note, first=first)
        with contextlib.closing(Race(subject, bench, note, shapes)) as race:
            race.leave_out_slow()
            for place in range(ROUNDS):
                race.round(place, picks=(HEURISTIC,) if with_pytorch else ())
    best = [(shape, shape.fastest()) for shape in shapes]
    found = {layer.name: name for shape, name in best if name for layer in shape.layers}
    return Assignment(found, {layer.name: UNTIMED for layer in layers if layer.name not in found})
