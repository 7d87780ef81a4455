"""Choice of an algorithm for each layer: the fastest one, and the cost of cuDNN's and PyTorch's own choices.

Every candidate is timed inside the whole model, several times in turn, each time in another placement: the time depends
on where tensors lie in memory, so a comparison must be significant against the scatter between placements.
The pairs of one layer share an error rate of 1 % (Bonferroni). The fastest of each layer are then put together and
judged in new rounds: the rounds that picked them make them look faster than they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from convscope.convolution.layer import Layer, has_calls
from convscope.convolution.observation import observe
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing import placement, summary, trace
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import Difference, Summary, difference, paired_difference
from convscope.verification import kernel_families
from convscope.verification.candidates import (
    CHOOSERS_ONLY,
    HEURISTIC,
    PICKS,
    AssignmentSwap,
    CandidateSwap,
    Note,
)
from convscope.verification.evidence import Subject
from convscope.verification.rows import ChoiceRow, ModelKey, PassRow

T = TypeVar("T")
CONFIDENCE = 0.99
ROUNDS = 5
TOGETHER = "fastest of each layer"
JUDGED = (TOGETHER, *PICKS)


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
class PassRounds:
    """Rounds of one assignment: its whole passes, and the sums of their convolutions, in ms."""

    passes_ms: Sequence[float]
    layers_ms: Sequence[float]


@dataclass(frozen=True)
class ChoiceResult:
    """The candidates of one model, and rounds of `JUDGED` that had no part in picking the fastest."""

    candidates: Sequence[Candidate]
    passes: Mapping[str, PassRounds]


def study(subject: Subject, bench: Bench, note: Note, rounds: int = ROUNDS) -> ChoiceResult:
    """Time every candidate for every layer, in rounds.

    Args:
        bench: made for the subject's model, and calibrated.
        note: called with one line for each candidate that is left out, with the reason.
    """
    bench.expect(subject.layers)
    with contextlib.closing(CandidateSwap(subject, note)) as swapped:
        swapped.leave_out_wrong()
        swapped.leave_out_hopeless(bench)
        times_by_name = _rounds(subject, bench, swapped, range(rounds), list(swapped.assignments))
        timed = [_timed(swapped, name, times) for name, times in times_by_name.items()]
        swapped.assignments[TOGETHER] = fastest_of_each(subject.layers, timed)
        judged = judge(subject, bench, swapped, rounds)
        candidates = [_traced(subject, swapped, each) for each in timed]  # CUPTI only after all times
        return ChoiceResult(candidates, judged)


def judge(
    subject: Subject, bench: Bench, swapped: AssignmentSwap, rounds: int, judged: Sequence[str] = JUDGED
) -> dict[str, PassRounds]:
    """Time the fastest of each layer together, and what the choosers chose, in rounds that did not pick them."""
    stopwatch, model = Stopwatch(subject.device), subject.model
    names = [name for name in judged if name in swapped.assignments]
    layers = _rounds(subject, bench, swapped, range(rounds, 2 * rounds), names)
    passes: dict[str, list[float]] = {name: [] for name in layers}

    def pass_ms(place: int) -> float:
        with placement.moved(model, subject.inputs, place) as there:
            return stopwatch.pass_ms(partial(model, *there))

    for place in range(rounds, 2 * rounds):
        for name in list(passes):
            taken_ms = swapped.tried(name, partial(pass_ms, place))
            bench.release()
            if taken_ms is None:
                del passes[name]
            else:
                passes[name].append(taken_ms)
    return {name: PassRounds(times, [sum(times_ms) for times_ms in layers[name]]) for name, times in passes.items()}


def _rounds(
    subject: Subject, bench: Bench, swapped: AssignmentSwap, rounds: Sequence[int], names: Sequence[str]
) -> dict[str, list[list[float]]]:
    """Time the layers of each candidate in turn; a round is a placement in memory, the same for all."""
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for place in tqdm(rounds, desc=f"{subject.run.model}, choice", unit="round", disable=None):
        for name in list(times):
            work = partial(bench.layer_times_ms, subject.inputs, place)
            taken_ms = swapped.tried(name, work)
            if taken_ms is None:
                del times[name]
            else:
                times[name].append(taken_ms)
            bench.release()
    return times


def _timed(swapped: CandidateSwap, name: str, times: list[list[float]]) -> Candidate:
    return Candidate(name, _usable(swapped.usable[name], _summaries(times)), [], [])


def _traced(subject: Subject, swapped: CandidateSwap, timed: Candidate) -> Candidate:
    """Return a candidate with the algorithms and kernels of an eager pass."""
    ran, kernels = swapped.run(timed.name, lambda: executed(subject))
    usable = swapped.usable[timed.name]
    return dataclasses.replace(timed, ran=_usable(usable, ran), kernels=_usable(usable, kernels))


def executed(subject: Subject) -> tuple[list[str | None], list[Mapping[str, int] | None]]:
    """Return for each convolution of a pass the algorithm that ran, None where PyTorch ran it, and its kernels."""
    ran = [observation.algorithm for observation in observe(subject.model, subject.inputs, check_errors=False)]
    traces, _ = trace.trace_pass(subject.model, subject.inputs, has_calls(subject.layers))
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
        if candidate.name in CHOOSERS_ONLY:
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
        if not any(entry.is_rival for entry in entries):
            continue
        all_rows += [_row(run, here, layer, entry, entries) for entry in entries]
    return all_rows


@dataclass(frozen=True)
class _Entry:
    name: str
    time: Summary
    ran: str | None
    kernels: Mapping[str, int] | None

    @property
    def is_rival(self) -> bool:
        return self.name not in CHOOSERS_ONLY


def _row(run: Run, here: Environment, layer: Layer, one: _Entry, entries: Sequence[_Entry]) -> ChoiceRow:
    rivals = [entry for entry in entries if entry.is_rival]
    fastest, confidence = rivals[0], pair_confidence(len(entries))
    slower = rivals[rivals.index(one) + 1 :] if one.is_rival else []
    regret = Difference(0.0, 0.0) if one is fastest else difference(one.time, fastest.time, confidence)
    twins = [entry.name for entry in rivals if entry is not one and same_kernels(one.kernels, entry.kernels)]
    twin = min(twins, key=HEURISTIC.__eq__, default=None)  # an algorithm's name says more than PyTorch's
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
        rank=1 + sum(_is_slower(one.time, other.time, confidence) for other in rivals if other is not one),
        fastest=fastest.name,
        regret_us=regret.mean_ms * 1e3,
        regret_ci99_us=regret.half_width_ms * 1e3,
        beats_next=_comparison(one, slower[0], confidence) if slower else None,
        same_kernels_as=twin,
        kernels=None if one.kernels is None else json.dumps(dict(one.kernels)),
        input_size=run.input_sizes[0],
    )


def pair_confidence(candidates: int) -> float:
    """Return the confidence at which to compare two of so many candidates: all pairs together hold at `CONFIDENCE`."""
    pairs = candidates * (candidates - 1) // 2
    return 1 - (1 - CONFIDENCE) / max(1, pairs)


def _is_slower(one: Summary, other: Summary, confidence: float) -> bool:
    extra = difference(one, other, confidence)
    return extra.mean_ms > 0 and not extra.is_tie


def _comparison(one: _Entry, following: _Entry, confidence: float) -> str:
    beats = _is_slower(following.time, one.time, confidence)
    return f"beats {following.name} at {100 * CONFIDENCE:.0f} %" if beats else f"tie with {following.name}"


def same_kernels(one: Mapping[str, int] | None, other: Mapping[str, int] | None) -> bool:
    """Tell whether two launched the same kernels that convolve; not where those of one are not known."""
    working = kernel_families.working(one or {})
    return bool(working) and working == kernel_families.working(other or {})


def pass_rows(key: ModelKey, run: Run, passes: Mapping[str, PassRounds]) -> list[PassRow]:
    """Return a row for each judged assignment, compared round by round with the fastest together, and with PyTorch."""
    fastest, torchs = passes.get(TOGETHER), passes.get(HEURISTIC)
    found = []
    for name, one in passes.items():
        regret = paired_difference(one.layers_ms, fastest.layers_ms, CONFIDENCE) if fastest else None
        saved = paired_difference(torchs.passes_ms, one.passes_ms, CONFIDENCE) if torchs else None
        times = summary.summarize(one.passes_ms)
        found.append(fill(
            PassRow, key, times, run, convolutions_by=name, rounds=times.count,
            layers_us=summary.summarize(one.layers_ms).mean_ms * 1e3,
            regret_us=None if regret is None else regret.mean_ms * 1e3,
            regret_ci99_us=None if regret is None else regret.half_width_ms * 1e3,
            saved_us=None if saved is None else saved.mean_ms * 1e3,
            saved_ci99_us=None if saved is None else saved.half_width_ms * 1e3,
        ))  # fmt: skip
    return found
