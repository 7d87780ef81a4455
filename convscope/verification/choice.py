"""Choice of an algorithm for each layer: the fastest one, and the cost of cuDNN's and PyTorch's own choices.

Every candidate is timed inside the whole model, several times in turn, each time in a new capture: the time depends on
where the tensors of a capture lie in memory, so a comparison must be significant against the scatter between captures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from tqdm import tqdm

from convscope import failures
from convscope.convolution import algorithms, assignment, backends, swap
from convscope.convolution.backends import PlanThread
from convscope.convolution.layer import Layer
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing import summary, trace
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, Summary, difference
from convscope.verification import kernel_families
from convscope.verification.evidence import Subject
from convscope.verification.rows import ChoiceRow

T = TypeVar("T")
Note = Callable[[str], None]
CONFIDENCE = 0.99
ROUNDS = 5
GUESS, HEURISTIC, BENCHMARK = "guess", "torch", "torch benchmark"
PICKS = (GUESS, HEURISTIC, BENCHMARK)
"""The choosers: cuDNN's heuristic, PyTorch by default, PyTorch with `torch.backends.cudnn.benchmark`."""


@dataclass(frozen=True)
class Candidate:
    """Measurements of one candidate, layer by layer; None stands for a layer that cannot use it.

    `times` are over the rounds; `ran` is the algorithm by identifier, None where PyTorch ran the layer.
    """

    name: str
    times: Sequence[Summary | None]
    ran: Sequence[str | None]
    kernels: Sequence[Mapping[str, int] | None]


@dataclass(frozen=True)
class ChoiceResult:
    """The candidates of one model, and whole passes, in ms: the fastest of each layer put together, and PyTorch's."""

    candidates: Sequence[Candidate]
    passes: Mapping[str, Summary]


TOGETHER = "fastest of each layer"


class _CandidateSwap:
    """Swaps one candidate after another into a model and runs work with it."""

    def __init__(self, subject: Subject) -> None:
        run, device = subject.run, subject.given.device
        self._swapped = swap.Swap(subject.model)
        self.assignments: dict[str, dict[str, str]] = {}
        self.usable: dict[str, list[bool]] = {}
        check = card_check(device, dtype=run.dtype)
        for algorithm in algorithms.ALGORITHMS.values():
            if algorithms.why_not_on_device(algorithm, run.device_type):
                continue
            reasons = assignment.why_not_each(algorithm, subject.layers, run.device_type, check)
            if all(reasons):
                continue
            self.usable[algorithm.name] = [reason is None for reason in reasons]
            chosen = dataclasses.replace(run, algorithm=algorithm.name, unsupported="fallback")
            self.assignments[algorithm.name] = dict(assignment.assign(chosen, subject.layers, check).algorithms)
        if device.type == "cuda":
            self.usable[BENCHMARK] = self.usable[HEURISTIC]
            self.assignments[BENCHMARK] = self.assignments[HEURISTIC]
        self._thread = PlanThread(device)  # for the plans that benchmark chooses

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` with the algorithms of this candidate in the model."""
        self._swapped.apply(self.assignments[name])
        if name != BENCHMARK:
            return work()
        with backends.searching():
            return self._thread.run(torch.inference_mode()(work))

    def close(self) -> None:
        """Restore the model's own convolutions."""
        self._swapped.restore()
        self._thread.close()


def study(subject: Subject, bench: Bench, note: Note, rounds: int = ROUNDS) -> ChoiceResult:
    """Time every candidate for every layer, in rounds.

    Args:
        bench: made for the subject's model, and calibrated.
        note: called with one line for each candidate that is left out, with the reason.
    """
    stopwatch = Stopwatch(subject.given.device)
    with contextlib.closing(_CandidateSwap(subject)) as swapped:
        times_by_name = _rounds(subject, bench, swapped, note, rounds, list(swapped.assignments))
        candidates = [_candidate(subject, swapped, name, times) for name, times in times_by_name.items()]
        swapped.assignments[TOGETHER] = fastest_of_each(subject.layers, candidates)
        names = [name for name in (TOGETHER, HEURISTIC, BENCHMARK) if name in swapped.assignments]
        passes: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name, times_ms in passes.items():
                times_ms.append(swapped.run(name, lambda: stopwatch.pass_ms(partial(subject.model, subject.given))))
        return ChoiceResult(candidates, {name: summary.summarize(times) for name, times in passes.items()})


def pick(subject: Subject, bench: Bench, note: Note, rounds: int) -> dict[str, str]:
    """Return the algorithm with the smallest mean for each layer by name, timed as in `study`; traces nothing.

    After a trace CUPTI may stay in the process and slow down later measurements.
    """
    with contextlib.closing(_CandidateSwap(subject)) as swapped:
        names = [name for name in swapped.assignments if name not in PICKS]
        candidates = [
            Candidate(name, _usable(swapped.usable[name], _summaries(times)), [], [])
            for name, times in _rounds(subject, bench, swapped, note, rounds, names).items()
        ]
        return fastest_of_each(subject.layers, candidates)


def _rounds(
    subject: Subject, bench: Bench, swapped: _CandidateSwap, note: Note, rounds: int, names: Sequence[str]
) -> dict[str, list[list[float]]]:
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in tqdm(range(rounds), desc=f"{subject.run.model}, choice", unit="round", disable=None):
        for name in list(times):
            try:
                times[name].append(swapped.run(name, lambda: bench.layer_times_ms(subject.given)))
            except Exception as error:
                note(f"{name} is left out: {failures.of_cell(error, subject.given.device).reason}")
                del times[name]
            bench.release()
    return times


def _candidate(subject: Subject, swapped: _CandidateSwap, name: str, times: list[list[float]]) -> Candidate:
    ran, kernels = swapped.run(name, lambda: _executed(subject))
    usable = swapped.usable[name]
    return Candidate(name, _usable(usable, _summaries(times)), _usable(usable, ran), _usable(usable, kernels))


def _executed(subject: Subject) -> tuple[list[str | None], list[Mapping[str, int] | None]]:
    """Return for each convolution of a pass the algorithm that ran, None where PyTorch ran it, and its kernels."""
    ran = [observation.algorithm for observation in observe(subject.model, subject.given, check_errors=False)]
    traces, _ = trace.trace_pass(subject.model, subject.given)
    return ran, [traced.kernels for traced in traces] or [None] * len(ran)


def _summaries(times: list[list[float]]) -> list[Summary]:
    """Summarize each layer's times over the rounds."""
    return [summary.summarize(layer) for layer in zip(*times, strict=True)]


def _usable(usable: Sequence[bool], values: Sequence[T]) -> list[T | None]:
    """Return the values of the layers that can use a candidate, None for the others."""
    return [value if can else None for value, can in zip(values, usable, strict=True)]


def fastest_of_each(layers: Sequence[Layer], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return the algorithm with the smallest mean for each layer by name; a layer called twice counts with both."""
    sums: dict[str, dict[str, float]] = {layer.name: {} for layer in layers}
    for candidate in candidates:
        if candidate.name in PICKS:
            continue
        unable = {layer.name for layer, time in zip(layers, candidate.times, strict=True) if time is None}
        for layer, time in zip(layers, candidate.times, strict=True):
            if time is not None and layer.name not in unable:
                sums[layer.name][candidate.name] = sums[layer.name].get(candidate.name, 0.0) + time.mean_ms
    return {name: min(times, key=lambda algorithm: times[algorithm]) for name, times in sums.items() if times}


def rows(run: Run, here: Environment, layers: Sequence[Layer], candidates: Sequence[Candidate]) -> list[ChoiceRow]:
    """Return a row for each layer and each candidate that can do it, the fastest first."""
    all_rows: list[ChoiceRow] = []
    for index, layer in enumerate(layers):
        entries = [
            _Entry(candidate.name, time, candidate.ran[index], candidate.kernels[index])
            for candidate in candidates
            if (time := candidate.times[index]) is not None
        ]
        entries.sort(key=lambda entry: entry.time.mean_ms)
        all_rows += [_row(run, here, layer, entry, entries) for entry in entries]
    return all_rows


@dataclass(frozen=True)
class _Entry:
    name: str
    time: Summary
    ran: str | None
    kernels: Mapping[str, int] | None

    @property
    def is_algorithm(self) -> bool:
        return self.name not in PICKS


def _row(run: Run, here: Environment, layer: Layer, one: _Entry, entries: Sequence[_Entry]) -> ChoiceRow:
    rivals = [entry for entry in entries if entry.is_algorithm]
    fastest = rivals[0]
    slower = rivals[rivals.index(one) + 1 :] if one.is_algorithm else []
    regret = Difference(0.0, 0.0) if one is fastest else difference(one.time, fastest.time, CONFIDENCE)
    twin = next((entry.name for entry in rivals if entry is not one and _same_kernels(one, entry)), None)
    return fill(
        ChoiceRow,
        here,
        run,
        layer,
        one.time,
        layer=layer.name,
        candidate=one.name,
        chosen=one.ran or twin,
        rounds=one.time.count,
        rank=1 + sum(_is_slower(one.time, other.time) for other in rivals if other is not one),
        fastest=fastest.name,
        regret_us=regret.mean_ms * 1e3,
        regret_ci99_us=regret.half_width_ms * 1e3,
        beats_next=_comparison(one, slower[0]) if slower else None,
        same_kernels_as=twin,
        kernels=None if one.kernels is None else json.dumps(dict(one.kernels)),
        input_size=run.input_sizes[0],
    )


def _is_slower(one: Summary, other: Summary) -> bool:
    extra = difference(one, other, CONFIDENCE)
    return extra.mean_ms > 0 and not extra.is_tie


def _comparison(one: _Entry, following: _Entry) -> str:
    beats = _is_slower(following.time, one.time)
    return f"beats {following.name} at {100 * CONFIDENCE:.0f} %" if beats else f"tie with {following.name}"


def _same_kernels(one: _Entry, other: _Entry) -> bool:
    kernels = [kernel_families.working(entry.kernels) for entry in (one, other) if entry.kernels]
    return len(kernels) == 2 and kernels[0] == kernels[1]


def totals(rows: Sequence[ChoiceRow]) -> dict[str, Difference]:
    """Return for each choice its extra time over the fastest algorithms, summed over all layers; at `CONFIDENCE`.

    The intervals of layers are taken as independent.
    """
    sums: dict[str, Difference] = {}
    for pick in PICKS:
        if chosen := [row for row in rows if row.candidate == pick]:
            half_width_us = math.sqrt(sum(row.regret_ci99_us**2 for row in chosen))
            sums[pick] = Difference(sum(row.regret_us for row in chosen) / 1e3, half_width_us / 1e3)
    return sums
