"""Atlas of plans: all that cuDNN's graph API offers for each layer of a model, timed inside the whole model.

Layers of one shape are one. A pass runs one plan of each shape, the next pass another of each: as many passes as the
shape with the most plans has are a round, in an order drawn anew. A round is a placement in memory, the same for all of
them. What is far behind the best of its shape after a round is timed no more. The fastest of each shape are then put
together and judged in new rounds, as those of a choice are: the rounds that picked them make them look faster. A shape
whose fastest plan was slower than PyTorch's own convolution in each round is left to PyTorch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from tqdm import tqdm

from convscope.atlas.offered import NONE_LOST, Known, KnownPlan, failure_of, known_plans
from convscope.atlas.rows import OK, REFUSED, SLOW, PlanTimeRow
from convscope.atlas.turns import NO_TURNS, Turns
from convscope.convolution import algorithms, assignment
from convscope.convolution.layer import Layer
from convscope.convolution.observation import observe
from convscope.convolution.operator import card_check, release
from convscope.failures import Failure
from convscope.profiling.bench import Bench
from convscope.profiling.layer_energy import LayerEnergy
from convscope.storage.table import fill
from convscope.verification import choice
from convscope.verification.candidates import (
    BENCHMARK,
    GUESS,
    HEURISTIC,
    LAUNCHES,
    PICKS,
    AssignmentSwap,
    Note,
    is_hopeless,
)
from convscope.verification.choice import PassRounds
from convscope.verification.evidence import Subject
from convscope.verification.rows import ModelKey
from convscope.verification.trial import Trial

FAR_BEHIND, FAR_BEHIND_MS = 1.25, 0.002
"""A plan is timed no more when its mean is above the least of its shape by both: this factor, and this time."""
ROUNDS_LEAST = 2
FRUGAL = "most frugal of each layer"
_PASS = "a pass of plans"


@dataclass
class Shape:
    """Calls of a model's convolutions that are the same work, and the plans that cuDNN offers for it.

    Attributes:
        times_ms: the mean time of a call, by candidate (a plan, or one of `PICKS`) and round.
        dropped: plans that are far behind.
        errors: of the choosers, against float64.
        kernels: those of the choosers.
        energies: of a call alone, of some of the fastest plans and of PyTorch's choice.
    """

    layers: tuple[Layer, ...]
    plans: tuple[Known, ...]
    times_ms: dict[str, dict[int, float]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    errors: dict[str, float | None] = field(default_factory=dict)
    kernels: dict[str, Mapping[str, int]] = field(default_factory=dict)
    energies: dict[str, LayerEnergy] = field(default_factory=dict)

    @property
    def first(self) -> Layer:
        """The first of the calls."""
        return self.layers[0]

    def rivals(self) -> list[str]:
        """Return the plans to be timed in the next round: those that work, and are not far behind."""
        return [plan.name for plan in self.plans if plan.outcome == OK and plan.name not in self.dropped]

    def drop(self) -> None:
        """Drop the plans that are far behind the best by now."""
        means = {name: fmean(times.values()) for name in self.rivals() if (times := self.times_ms.get(name))}
        least = min(means.values(), default=0.0)
        most = max(FAR_BEHIND * least, least + FAR_BEHIND_MS)
        self.dropped |= {name for name, mean_ms in means.items() if mean_ms > most}

    def in_order(self) -> list[str]:
        """Return the rivals with the most rounds, that with the least mean first."""
        timed = {name: times for name in self.rivals() if (times := self.times_ms.get(name))}
        most = max(map(len, timed.values()), default=0)
        whole = {name: fmean(times.values()) for name, times in timed.items() if len(times) == most}
        return sorted(whole, key=lambda name: whole[name])

    def fastest(self) -> str | None:
        """Return the first of `in_order`, or PyTorch's own where that was ahead of it in each round; None for none."""
        best = next(iter(self.in_order()), None)
        least, own = self.times_ms.get(best or "", {}), self.times_ms.get(HEURISTIC, {})
        shared = least.keys() & own.keys()
        return HEURISTIC if shared and all(own[place] < least[place] for place in shared) else best

    def most_frugal(self) -> str | None:
        """Return the plan with the least energy, None where none is known; PyTorch is a rival where it is fastest."""
        rivals = {*self.rivals(), self.fastest()}
        known = {name: found.energy_j for name, found in self.energies.items() if found.energy_j and name in rivals}
        return min(known, key=lambda name: known[name], default=None)


def shapes_of(
    subject: Subject, note: Note, lost: Mapping[str, Mapping[str, str]] | None = None, first: int | None = None,
    by_name: bool = False, turns: Turns = NO_TURNS,
) -> list[Shape]:  # fmt: skip
    """Ask cuDNN for the plans of every shape of a model; build and run each, and compare it with float64.

    A layer that is no plain 2-D convolution, or that a pass calls at several shapes, is left to PyTorch, with a note.

    Args:
        lost: by the first layer of a shape, plans that have lost the GPU before, with the reason.
        first, by_name: as in `known_plans`.
        turns: the place of this process; it gives way before each shape.

    Raises:
        PlanFaultError: another one has.
    """
    run, device = subject.run, subject.device
    given = "cuda", None, run.dtype, run.layout  # what a layer's module does besides is a reason on a CPU too
    reasons = assignment.why_not_each(algorithms.HEURISTICS["heuristic a"], subject.layers, *given)
    keys: dict[str, set[object]] = {}
    for layer in subject.layers:
        keys.setdefault(layer.name, set()).add(layer.cost_key)
    groups: dict[object, list[Layer]] = {}
    for layer, reason in zip(subject.layers, reasons, strict=True):
        if why := reason or ("it is called at several shapes" if len(keys[layer.name]) > 1 else None):
            note(f"{layer.name} is left to PyTorch: {why}")
        else:
            groups.setdefault(layer.cost_key, []).append(layer)
    bar = tqdm(groups.values(), desc=f"{run.model}, plans", unit="shape", disable=None)
    known = lost or {}
    found = []
    for layers in bar:
        turns.give_way()
        plans = known_plans(layers[0], device, run.dtype, note, known.get(layers[0].name, NONE_LOST), first, by_name)
        found.append(Shape(tuple(layers), plans))
    return [shape for shape in found if shape.plans]


class Race(AssignmentSwap):
    """Times the plans of all shapes in the whole model, a round at a time."""

    def __init__(self, subject: Subject, bench: Bench, note: Note, shapes: Sequence[Shape]) -> None:
        super().__init__(subject, note)
        bench.expect(subject.layers)
        self._bench, self.shapes = bench, shapes
        self._torch = {layer.name: HEURISTIC for layer in subject.layers}
        self.assignments[HEURISTIC] = self._torch
        self._has_plans = any(isinstance(known, KnownPlan) for shape in shapes for known in shape.plans)  # on a GPU
        if self._has_plans:
            self.assignments[BENCHMARK] = self._torch
        if guessed := {layer.name: GUESS for layer in self._guessed()}:
            self.assignments[GUESS] = self._torch | guessed

    def leave_out_slow(self) -> None:
        """Launch every plan from Python, and leave out those that are hopeless beside the least (`is_hopeless`).

        On a CPU, which has no plans, none is: no pass is captured there.
        """
        if not self._has_plans:
            return
        launched_ms: list[dict[str, float]] = [{} for _ in self.shapes]
        work = partial(self._bench.launched_ms, self._subject.inputs, LAUNCHES)
        for slot in self._slots(random.Random(0)):
            for found, name, time_ms in zip(launched_ms, slot, self._timed(slot, work), strict=True):
                if time_ms is not None:
                    found[name] = time_ms
        for shape, found in zip(self.shapes, launched_ms, strict=True):
            least = min(found.values(), default=0.0)
            for plan in shape.plans:
                if plan.outcome == OK and is_hopeless(found.get(plan.name, 0.0), least):
                    plan.outcome = SLOW
                    plan.reason = f"launched one by one it takes {found[plan.name] / least:.0f} times the least"

    def resume(self, earlier: Sequence[PlanTimeRow]) -> None:
        """Take the times of rounds that were measured before; plans that were no candidates then are none now."""
        by_position = {shape.first.position: shape for shape in self.shapes}
        for row in earlier:
            if shape := by_position.get(row.position):
                shape.times_ms.setdefault(row.candidate, {})[row.round] = row.mean_ms
        last = max(self.places(), default=0)
        for shape in self.shapes:
            shape.dropped |= {name for name, times in shape.times_ms.items() if last not in times}
            shape.dropped |= {plan.name for plan in shape.plans if shape.times_ms and plan.name not in shape.times_ms}
            shape.drop()

    def places(self) -> set[int]:
        """Return the rounds that have times."""
        return {place for shape in self.shapes for times in shape.times_ms.values() for place in times}

    def round(self, place: int, picks: Sequence[str] = PICKS) -> None:
        """Time every rival, and these choosers, in one placement, in an order of its own."""
        work = partial(self._bench.layer_times_ms, self._subject.inputs, place)
        drawn = random.Random(place)
        turns: list[str | list[str]] = [*filter(self.assignments.get, picks), *self._slots(drawn)]
        for turn in tqdm(drawn.sample(turns, len(turns)), desc=f"round {place + 1}", unit="pass", disable=None):
            if isinstance(turn, str):
                taken_ms = self.tried(turn, work)
                self._bench.release()
                if taken_ms is not None:
                    means_ms = zip(self.shapes, self._means(taken_ms), strict=True)
                    own = [mean_ms if self._picks(turn, shape) else None for shape, mean_ms in means_ms]
                    self._keep(place, [turn] * len(self.shapes), own)
            else:
                self._keep(place, turn, self._timed(turn, work))
        for shape in self.shapes:
            shape.drop()

    def times_of(self, place: int, key: ModelKey) -> list[PlanTimeRow]:
        """Return the times of a round as rows."""
        return [
            fill(PlanTimeRow, key, shape.first, round=place, layer=shape.first.name, candidate=name, mean_ms=at[place])
            for shape in self.shapes
            for name, at in shape.times_ms.items()
            if place in at
        ]

    def judged(self, rounds: int) -> dict[str, PassRounds]:
        """Judge whole passes: the fastest of each shape together, the most frugal where known, and the choosers."""
        best = [shape.fastest() or HEURISTIC for shape in self.shapes]
        self.assignments[choice.TOGETHER] = self._assigned(best)
        if any(shape.energies for shape in self.shapes):
            frugal = [shape.most_frugal() or name for shape, name in zip(self.shapes, best, strict=True)]
            self.assignments[FRUGAL] = self._assigned(frugal)
        return choice.judge(self._subject, self._bench, self, rounds, (choice.TOGETHER, FRUGAL, *PICKS))

    def trace(self, turns: Turns = NO_TURNS) -> None:
        """Record the errors of the choosers and the kernels of all: CUPTI, so only after all times.

        The process gives way in `turns` before each pass and each shape.
        """
        picks = [name for name in PICKS if name in self.assignments]
        for name in picks:
            turns.give_way()
            if seen := self.tried(name, partial(observe, self._subject.model, self._subject.inputs, check_errors=True)):
                for shape in (shape for shape in self.shapes if self._picks(name, shape)):
                    known = [seen[layer.position].relative_error for layer in shape.layers]
                    shape.errors[name] = max((error for error in known if error is not None), default=None)
        for shape in self.shapes if self._has_plans else ():
            turns.give_way()
            self._trace_plans(shape)
        for name in picks:
            turns.give_way()
            if launched := self.tried(name, partial(choice.executed, self._subject)):
                for shape in (shape for shape in self.shapes if self._picks(name, shape)):
                    shape.kernels[name] = launched[1][shape.first.position] or {}

    def _trace_plans(self, shape: Shape) -> None:
        """Record the kernels of a shape's plans; where one fails now, those of none are known, with a note."""
        run, device = self._subject.run, self._subject.device
        worked = [plan for plan in shape.plans if plan.outcome in (OK, SLOW)]
        try:
            found = Trial(shape.first, device, run.dtype).kernels([plan.name for plan in worked])
        except Exception as error:
            why = failure_of(error, device, shape.first.name).reason
            self._note(f"{shape.first.name}: the kernels of its plans are not known: {why}")
            return
        finally:
            release(device)
        for plan, kernels in zip(worked, found, strict=False):  # none where CUPTI records none
            plan.kernels = kernels

    def _picks(self, name: str, shape: Shape) -> bool:
        """Tell whether a chooser chooses for a shape; the legacy heuristic leaves some to PyTorch."""
        return name != GUESS or self.assignments[GUESS][shape.first.name] == GUESS

    def _guessed(self) -> Iterator[Layer]:
        """Yield the layers that cuDNN's legacy heuristic has an algorithm for."""
        run, every = self._subject.run, [layer for shape in self.shapes for layer in shape.layers]
        given = run.device_type, card_check(self._subject.device, dtype=run.dtype), run.dtype, run.layout
        reasons = assignment.why_not_each(algorithms.find(GUESS), every, *given)
        return (layer for layer, reason in zip(every, reasons, strict=True) if reason is None)

    def _slots(self, drawn: random.Random) -> Iterator[list[str]]:
        """Yield the plan of each shape in one pass after another, PyTorch's where all of them have had theirs."""
        every = [drawn.sample(rivals, len(rivals)) for rivals in (shape.rivals() for shape in self.shapes)]
        for index in range(max(map(len, every), default=0)):
            yield [names[index] if index < len(names) else HEURISTIC for names in every]

    def _assigned(self, slot: Sequence[str]) -> dict[str, str]:
        by_plan = {layer.name: name for shape, name in zip(self.shapes, slot, strict=True) for layer in shape.layers}
        return self._torch | by_plan

    def _timed(self, slot: Sequence[str], work: Callable[[], list[float]]) -> list[float | None]:
        """Return the mean time of a call of each shape in one pass, None of PyTorch's, and of a plan that fails.

        Where the pass fails each of its plans runs alone, and those that fail then are refused, with the reason.
        """
        together = self._pass_ms(slot, work)
        if not isinstance(together, Failure):
            return [None if name == HEURISTIC else time_ms for name, time_ms in zip(slot, together, strict=True)]
        found: list[float | None] = []
        for index, (shape, name) in enumerate(zip(self.shapes, slot, strict=True)):
            if name == HEURISTIC:
                found.append(None)
                continue
            alone = self._pass_ms([name if at == index else HEURISTIC for at in range(len(slot))], work)
            if isinstance(alone, Failure):
                failed = next(plan for plan in shape.plans if plan.name == name)
                failed.outcome, failed.reason = REFUSED, alone.reason
            found.append(None if isinstance(alone, Failure) else alone[index])
        return found

    def _pass_ms(self, slot: Sequence[str], work: Callable[[], list[float]]) -> list[float] | Failure:
        """Return the mean time of a call of each shape in one pass, or why it fails."""
        self.assignments[_PASS] = self._assigned(slot)
        try:
            taken_ms = self.run(_PASS, work)
        except Exception as error:
            return failure_of(error, self._subject.device, f"a pass of {len(set(slot))} plans")
        finally:
            self._bench.release()
        return self._means(taken_ms)

    def _means(self, taken_ms: Sequence[float]) -> list[float]:
        """Return the mean time of a call of each shape."""
        return [fmean(taken_ms[layer.position] for layer in shape.layers) for shape in self.shapes]

    def _keep(self, place: int, slot: Sequence[str], means_ms: Sequence[float | None]) -> None:
        for shape, name, mean_ms in zip(self.shapes, slot, means_ms, strict=True):
            if mean_ms is not None:
                shape.times_ms.setdefault(name, {})[place] = mean_ms
