"""Which algorithm is the fastest for each layer, what cuDNN's and PyTorch's own choices are, and what they cost.

Every candidate is timed inside the whole model, several times in turn, each time in a new capture: where the tensors
of a capture lie in memory is part of its time, so a comparison must stand against what captures differ by.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from tqdm import tqdm

from convscope.convolution import algorithms, assignment, backends, swap
from convscope.convolution.backends import PlanThread
from convscope.convolution.layer import Layer
from convscope.convolution.operator import card_check
from convscope.errors import HostTooSlowError
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.timing import summary
from convscope.timing.stopwatch import pass_ms
from convscope.timing.summary import Difference, Summary, difference
from convscope.verification import kernel_families
from convscope.verification.evidence import Subject, look

T = TypeVar("T")
CONFIDENCE = 0.99
ROUNDS = 5
GUESS, HEURISTIC, BENCHMARK = "guess", "torch", "torch benchmark"
PICKS = (GUESS, HEURISTIC, BENCHMARK)
"""Who chooses: cuDNN's heuristic, PyTorch as it is, PyTorch with `torch.backends.cudnn.benchmark`."""


@dataclass(frozen=True)
class ChoiceRow:
    """One layer with one candidate, an algorithm or somebody's choice. Times in milliseconds.

    `rank` is 1 more than the number of algorithms that are faster at `CONFIDENCE`; of the fastest and those that tie
    with it, all have rank 1. `regret_us` is what the candidate takes more than the fastest algorithm, with half its
    interval. `chosen` is the algorithm of a choice: by identifier, or else by the kernels that it launched.
    """

    model: str
    layer: str
    position: int
    candidate: str
    chosen: str | None
    mean_ms: float
    std_ms: float | None
    rounds: int
    rank: int
    fastest: str
    regret_us: float
    regret_ci99_us: float
    beats_next: str | None
    same_kernels_as: str | None
    kernels: str | None
    input_size: int
    batch_size: int
    math: str
    gpu_name: str | None
    driver: str | None
    cudnn: str | None


@dataclass(frozen=True)
class Candidate:
    """What was measured of one candidate, layer by layer; None stands for a layer that cannot use it.

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


class _Casting:
    """Puts one candidate after another into a model and runs something with it."""

    def __init__(self, subject: Subject) -> None:
        run, device = subject.run, subject.given.device
        self._swapped = swap.Swap(subject.model)
        self.assignments: dict[str, dict[str, str]] = {}
        self.usable: dict[str, list[bool]] = {}
        for algorithm in algorithms.ALGORITHMS.values():
            if algorithms.why_not_on_device(algorithm, run.device_type):
                continue
            reasons = assignment.why_not_each(
                algorithm, subject.layers, run.device_type, card_check(device, dtype=run.dtype)
            )
            if all(reasons):
                continue
            self.usable[algorithm.name] = [reason is None for reason in reasons]
            chosen = dataclasses.replace(run, algorithm=algorithm.name, unsupported="fallback")
            self.assignments[algorithm.name] = dict(
                assignment.assign(chosen, subject.layers, card_check(device, dtype=run.dtype)).algorithms
            )
        if device.type == "cuda":
            self.usable[BENCHMARK] = self.usable[HEURISTIC]
            self.assignments[BENCHMARK] = self.assignments[HEURISTIC]
        self._aside = PlanThread(device)  # for the plans that benchmark chooses

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` with the model as this candidate has it."""
        self._swapped.apply(self.assignments[name])
        if name != BENCHMARK:
            return work()
        with backends.searching():
            return self._aside.run(torch.inference_mode()(work))

    def close(self) -> None:
        """Give the model its own convolutions back."""
        self._swapped.restore()
        self._aside.close()


def study(subject: Subject, bench: Bench, note: Callable[[str], None], rounds: int = ROUNDS) -> ChoiceResult:
    """Time every candidate for every layer, in rounds.

    Args:
        bench: made for the subject's model, and calibrated.
        note: told, in one line, which candidate had to be left out and why.
    """
    with contextlib.closing(_Casting(subject)) as cast:
        found = _rounds(subject, bench, cast, note, rounds, list(cast.assignments))
        candidates = [_candidate(subject, cast, name, times) for name, times in found.items()]
        cast.assignments[TOGETHER] = fastest_of_each(subject.layers, candidates)
        passes: dict[str, list[float]] = {
            name: [] for name in (TOGETHER, HEURISTIC, BENCHMARK) if name in cast.assignments
        }
        for _ in range(rounds):
            for name, times_ms in passes.items():
                times_ms.append(cast.run(name, lambda: pass_ms(lambda: subject.model(subject.given), subject.given)))
        return ChoiceResult(candidates, {name: summary.summarize(times) for name, times in passes.items()})


def pick(subject: Subject, bench: Bench, note: Callable[[str], None], rounds: int) -> dict[str, str]:
    """Return the algorithm with the smallest mean for each layer by name, as `study` takes the times; traces nothing.

    After a trace CUPTI may stay with the process and slow down what is timed later.
    """
    with contextlib.closing(_Casting(subject)) as cast:
        names = [name for name in cast.assignments if name not in PICKS]
        found = _rounds(subject, bench, cast, note, rounds, names)
        timed = [Candidate(name, _where(cast.usable[name], _summaries(times)), [], []) for name, times in found.items()]
        return fastest_of_each(subject.layers, timed)


def _rounds(
    subject: Subject, bench: Bench, cast: _Casting, note: Callable[[str], None], rounds: int, names: Sequence[str]
) -> dict[str, list[list[float]]]:
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in tqdm(range(rounds), desc=f"{subject.run.model}, choice", unit="round", disable=None):
        for name in list(times):
            try:
                times[name].append(cast.run(name, lambda: bench.layer_times_ms(subject.given)))
            except (HostTooSlowError, torch.OutOfMemoryError) as error:
                note(f"{name} is left out: {str(error).splitlines()[0]}")
                del times[name]
            bench.release()
    return times


def _candidate(subject: Subject, cast: _Casting, name: str, times: list[list[float]]) -> Candidate:
    ran, kernels = cast.run(name, lambda: look(subject.model, subject.given))
    usable = cast.usable[name]
    return Candidate(name, _where(usable, _summaries(times)), _where(usable, ran), _where(usable, kernels))


def _summaries(times: list[list[float]]) -> list[Summary]:
    """Summarize each layer's times over the rounds."""
    return [summary.summarize(layer) for layer in zip(*times, strict=True)]


def _where(usable: Sequence[bool], values: Sequence[T]) -> list[T | None]:
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
    return {name: min(found, key=lambda algorithm: found[algorithm]) for name, found in sums.items() if found}


def rows(run: Run, here: Environment, layers: Sequence[Layer], candidates: Sequence[Candidate]) -> list[ChoiceRow]:
    """Return a row for each layer and each candidate that can do it, the fastest first."""
    found: list[ChoiceRow] = []
    for index, layer in enumerate(layers):
        entries = [
            _Entry(one.name, time, one.ran[index], one.kernels[index])
            for one in candidates
            if (time := one.times[index]) is not None
        ]
        entries.sort(key=lambda entry: entry.time.mean_ms)
        found += [_row(run, here, layer, entry, entries) for entry in entries]
    return found


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
    field = [entry for entry in entries if entry.is_algorithm]
    fastest = field[0]
    after = field[field.index(one) + 1 :] if one.is_algorithm else []
    regret = Difference(0.0, 0.0) if one is fastest else difference(one.time, fastest.time, CONFIDENCE)
    twin = next((entry.name for entry in field if entry is not one and _same_work(one, entry)), None)
    return ChoiceRow(
        model=run.model,
        layer=layer.name,
        position=layer.position,
        candidate=one.name,
        chosen=one.ran or twin,
        mean_ms=one.time.mean_ms,
        std_ms=one.time.std_ms,
        rounds=one.time.count,
        rank=1 + sum(_slower(one.time, other.time) for other in field if other is not one),
        fastest=fastest.name,
        regret_us=regret.mean_ms * 1e3,
        regret_ci99_us=regret.half_width_ms * 1e3,
        beats_next=_against(one, after[0]) if after else None,
        same_kernels_as=twin,
        kernels=None if one.kernels is None else json.dumps(dict(one.kernels)),
        input_size=run.input_sizes[0],
        batch_size=run.batch_size,
        math=run.math,
        gpu_name=here.gpu_name,
        driver=here.driver,
        cudnn=here.cudnn,
    )


def _slower(one: Summary, other: Summary) -> bool:
    apart = difference(one, other, CONFIDENCE)
    return apart.mean_ms > 0 and not apart.is_tie


def _against(one: _Entry, after: _Entry) -> str:
    sure = _slower(after.time, one.time)
    return f"beats {after.name} at {100 * CONFIDENCE:.0f} %" if sure else f"tie with {after.name}"


def _same_work(one: _Entry, other: _Entry) -> bool:
    if not one.kernels or not other.kernels:
        return False
    return kernel_families.working(one.kernels) == kernel_families.working(other.kernels)


def totals(found: Sequence[ChoiceRow]) -> dict[str, Difference]:
    """Return for each choice what it takes more than the fastest algorithms over all layers; in ms, at `CONFIDENCE`.

    The intervals of layers are taken as independent.
    """
    return {
        pick: Difference(
            sum(row.regret_us for row in mine) / 1e3,
            math.sqrt(sum(row.regret_ci99_us**2 for row in mine)) / 1e3,
        )
        for pick in PICKS
        if (mine := [row for row in found if row.candidate == pick])
    }
