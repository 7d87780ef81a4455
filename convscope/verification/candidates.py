"""The candidates of a choice: swapped into a model one after another, each where it can be the fastest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch

from convscope import failures
from convscope.convolution import algorithms, assignment, backends, swap, tolerance
from convscope.convolution.backends import PlanThread
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check
from convscope.profiling.bench import Bench
from convscope.verification.evidence import Subject

T = TypeVar("T")
Note = Callable[[str], None]
GUESS, HEURISTIC, BENCHMARK = "guess", "torch", "torch benchmark"
PICKS = (GUESS, HEURISTIC, BENCHMARK)
"""The choosers: cuDNN's heuristic, PyTorch by default, PyTorch with `torch.backends.cudnn.benchmark`."""
CHOOSERS_ONLY = (GUESS, BENCHMARK)
"""No candidates for the fastest: cuDNN's heuristic picks one of the algorithms, and no layer alone can be given the
search. PyTorch's default is a candidate: a layer is left to it."""
HOPELESS, HOPELESS_MS = 30, 1.0
"""Launched one by one, a layer of more than so many times the least time is not the fastest of a replay either: a
launch takes the host a few times as long as the shortest kernel takes the GPU. cuDNN's FFT launches kernels for each
group, and to capture those of a network of depthwise layers takes minutes. Less than the second is never too long: a
launch takes a slow host some 0.2 ms, and a call that begins while the GPU still works is read without it."""
LAUNCHES = 3  # of a pass; the least time of a layer counts, which no pause of the host is part of


class AssignmentSwap:
    """Swaps one assignment after another into a model and runs work with it.

    Args:
        note: called with one line for each that fails, with the reason.

    Attributes:
        assignments: by name, the algorithm of each layer in its passes; `BENCHMARK` has PyTorch search its own.
    """

    def __init__(self, subject: Subject, note: Note) -> None:
        self._subject, self._note = subject, note
        self._swapped = swap.Swap(subject.model)
        self._thread = PlanThread(subject.device)  # for the plans that benchmark chooses
        self.assignments: dict[str, dict[str, str]] = {}

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` with the algorithms of this assignment in the model."""
        self._swapped.apply(self.assignments[name])
        if name != BENCHMARK:
            return work()
        with backends.searching():
            return self._thread.run(torch.inference_mode()(work))

    def tried(self, name: str, work: Callable[[], T]) -> T | None:
        """Run `work` with an assignment in the model; note why where it fails, and return None."""
        try:
            return self.run(name, work)
        except Exception as error:
            self._note(f"{name} is left out: {failures.of_cell(error, self._subject.device).reason}")
            return None

    def close(self) -> None:
        """Restore the model's own convolutions."""
        self._swapped.restore()
        self._thread.close()


class CandidateSwap(AssignmentSwap):
    """The candidates of a choice among algorithms, as a swap of their assignments.

    Attributes:
        usable: by candidate, whether each layer can use it.
    """

    def __init__(self, subject: Subject, note: Note) -> None:
        super().__init__(subject, note)
        run, device = subject.run, subject.device
        self.usable: dict[str, list[bool]] = {}
        check = card_check(device, dtype=run.dtype)
        for algorithm in algorithms.ALGORITHMS.values():
            if algorithms.why_not_on_device(algorithm, run.device_type):
                continue
            given = run.device_type, check, run.dtype, run.layout
            reasons = assignment.why_not_each(algorithm, subject.layers, *given)
            if all(reasons):
                continue
            self.usable[algorithm.name] = [reason is None for reason in reasons]
            chosen = dataclasses.replace(run, algorithm=algorithm.name, unsupported="fallback")
            self.assignments[algorithm.name] = dict(assignment.assign(chosen, subject.layers, check).algorithms)
        if device.type == "cuda":
            self.usable[BENCHMARK] = list(self.usable[HEURISTIC])
            self.assignments[BENCHMARK] = self.assignments[HEURISTIC]

    def leave_out_wrong(self) -> None:
        """Compare every candidate with float64; a layer whose error is above its tolerance cannot use the candidate."""
        model, inputs, run = self._subject.model, self._subject.inputs, self._subject.run
        for name, usable in self.usable.items():
            observations = self.run(name, partial(observe, model, inputs, check_errors=True))
            for index, (layer, seen) in enumerate(zip(self._subject.layers, observations, strict=True)):
                allowed = tolerance.tolerance(layer, seen.execution.arithmetic, run.math, run.dtype)
                if usable[index] and (reason := tolerance.why_wrong(seen.relative_error, allowed)):
                    usable[index] = False
                    self._note(f"{name} is wrong for {layer.name} and left out there: {reason}")

    def leave_out_hopeless(self, bench: Bench) -> None:
        """Leave candidates out of layers where they take more than `HOPELESS` times the least; captures nothing."""
        if self._subject.device.type == "cpu":
            return  # no pass is captured there
        launched_ms: dict[str, list[float]] = {}
        for name in [name for name in self.assignments if name != BENCHMARK]:
            taken_ms = self.tried(name, partial(bench.launched_ms, self._subject.inputs, LAUNCHES))
            if taken_ms is None:
                del self.assignments[name]
            else:
                launched_ms[name] = taken_ms
            bench.release()
        layers = self._subject.layers
        for name, positions in hopeless(launched_ms, self.usable).items():
            self._leave_to_pytorch(name, positions)
            many = f"{len(positions)} of {len(layers)} layers"
            too_long = f"launched one by one it takes more than {HOPELESS} times the least there"
            self._note(f"{name} is left out of {many}: {too_long}")

    def _leave_to_pytorch(self, name: str, positions: Sequence[int]) -> None:
        """Take a candidate from the layers at these positions: PyTorch runs them in its passes."""
        layers, usable = self._subject.layers, self.usable[name]
        unable = {layers[position].name for position in positions}
        self.usable[name] = [can and layer.name not in unable for can, layer in zip(usable, layers, strict=True)]
        assigned = self.assignments[name]
        self.assignments[name] = {layer: HEURISTIC if layer in unable else one for layer, one in assigned.items()}
        if not any(self.usable[name]):
            del self.assignments[name]


def is_hopeless(time_ms: float, least_ms: float) -> bool:
    """Tell whether a layer that takes this long when it is launched, and the least by another, cannot be fastest."""
    return time_ms > max(HOPELESS * least_ms, HOPELESS_MS)


def hopeless(launched_ms: Mapping[str, Sequence[float]], usable: Mapping[str, Sequence[bool]]) -> dict[str, list[int]]:
    """Return by name the positions of the layers where a candidate that is no chooser cannot be the fastest."""
    every = enumerate(zip(*launched_ms.values(), strict=True))
    able = [
        [time_ms for name, time_ms in zip(launched_ms, times, strict=True) if usable[name][at]] for at, times in every
    ]
    least_ms = [min(times, default=math.inf) for times in able]
    found = {
        name: [
            index
            for index, (time_ms, least) in enumerate(zip(times, least_ms, strict=True))
            if usable[name][index] and is_hopeless(time_ms, least)
        ]
        for name, times in launched_ms.items()
        if name not in PICKS
    }
    return {name: positions for name, positions in found.items() if positions}
