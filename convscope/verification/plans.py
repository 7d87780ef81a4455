"""Atlas of plans: all that cuDNN's graph API offers for each layer of a model, timed inside the whole model.

Layers of one shape are one. A pass runs one plan of each shape, the next pass the next plan of each: as many passes as
the shape with the most plans has are a round, and a round is a placement in memory, the same for all of them. What is
far behind the best of its shape after a round is timed no more. The fastest of each shape are then put together and
judged in new rounds, as those of a choice are.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from tqdm import tqdm

from convscope.convolution import algorithms, assignment, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.operator import card_check, cuda_operator, described, release
from convscope.cudnn.graph.engines import Mode, Offer
from convscope.errors import CudnnError
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing.summary import Summary, difference, summarize
from convscope.verification import choice
from convscope.verification.candidates import BENCHMARK, GUESS, HEURISTIC, HOPELESS, AssignmentSwap, Note
from convscope.verification.choice import PassRounds, pair_confidence, same_kernels
from convscope.verification.evidence import Subject
from convscope.verification.rows import ModelKey, PlanLayerRow, PlanRow, PlanTimeRow
from convscope.verification.trial import Trial

OK = "ok"
REFUSED = "refused"
LESS_PRECISE = "less precise"
SLOW = "far too slow"
PICKS = (HEURISTIC, BENCHMARK, GUESS)
"""Choosers that are timed beside the plans: PyTorch by default, with `torch.backends.cudnn.benchmark`, and cuDNN's
legacy heuristic. ONNX Runtime takes the first plan that works: of mode B by default ("EXHAUSTIVE"), else of A."""
FAR_BEHIND, FAR_BEHIND_MS = 1.25, 0.002
"""Plans that take more than so many times the least of their shape, and so much more, are timed in one round only."""
ROUNDS_LEAST = 2
_LAUNCHES = 3


@dataclass
class KnownPlan:
    """One plan of a shape: what cuDNN says of it, and what became of it.

    Attributes:
        build_ms: the time that cuDNN took to build it.
        relative_error: of its result for random numbers, against float64.
        kernels: counted by name, None where they are not known.
    """

    offer: Offer
    status: str = OK
    reason: str | None = None
    build_ms: float | None = None
    relative_error: float | None = None
    kernels: Mapping[str, int] | None = None

    @property
    def name(self) -> str:
        """The algorithm that it is."""
        return algorithms.plan_name(self.offer.plan)


@dataclass
class Shape:
    """Calls of a model's convolutions that are the same work, and the plans that cuDNN offers for it.

    `times_ms` are the mean times of a call by candidate, a plan or one of `PICKS`, by round; `kernels` those of the
    choosers.
    """

    layers: tuple[Layer, ...]
    plans: tuple[KnownPlan, ...]
    times_ms: dict[str, dict[int, float]] = field(default_factory=dict)
    kernels: dict[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def first(self) -> Layer:
        """The first of the calls."""
        return self.layers[0]

    def rivals(self) -> list[str]:
        """Return the plans to be timed in the next round: those that work, and are not far behind the best."""
        usable = [plan.name for plan in self.plans if plan.status == OK]
        means = {name: fmean(times.values()) for name in usable if (times := self.times_ms.get(name))}
        if not means:
            return usable
        most = FAR_BEHIND * min(means.values()), min(means.values()) + FAR_BEHIND_MS
        return sorted((name for name in means if means[name] <= max(most)), key=lambda name: means[name])

    def fastest(self) -> str | None:
        """Return the plan with the least mean of those with the most rounds, None where none was timed."""
        timed = {plan.name: times for plan in self.plans if (times := self.times_ms.get(plan.name))}
        most = max(map(len, timed.values()), default=0)
        whole = {name: fmean(times.values()) for name, times in timed.items() if len(times) == most}
        return min(whole, key=lambda name: whole[name], default=None)


def shapes_of(subject: Subject, note: Note) -> list[Shape]:
    """Ask cuDNN for the plans of every shape of a model, build and run each, and compare it with float64.

    A layer that is no plain 2-D convolution, or that a pass calls at several shapes, is left to PyTorch, with a note.
    """
    run, device = subject.run, subject.device
    given = run.device_type, card_check(device, dtype=run.dtype), run.dtype, run.layout
    reasons = assignment.why_not_each(algorithms.find("heuristic a"), subject.layers, *given)
    keys: dict[str, set[object]] = {}
    for layer in subject.layers:
        keys.setdefault(layer.name, set()).add(layer.cost_key)
    groups: dict[object, list[Layer]] = {}
    for layer, reason in zip(subject.layers, reasons, strict=True):
        why = reason or ("it is called at several shapes" if len(keys[layer.name]) > 1 else None)
        if why:
            note(f"{layer.name} is left to PyTorch: {why}")
        else:
            groups.setdefault(layer.cost_key, []).append(layer)
    bar = tqdm(groups.values(), desc=f"{run.model}, plans", unit="shape", disable=None)
    return [Shape(tuple(layers), tuple(_known(layers[0], device, run.dtype))) for layers in bar]


def _known(layer: Layer, device: torch.device, dtype: str) -> Iterator[KnownPlan]:
    """Return every plan of a shape, built, run once and compared with float64 where it may be."""
    convolution, trial = described(layer, dtype), Trial(layer, device, dtype)
    for offer in cuda_operator().offers(convolution, device):
        yield _tried(KnownPlan(offer), trial, why=offer.why_not_comparable(convolution))
    release(device)


def _tried(known: KnownPlan, trial: Trial, why: str | None) -> KnownPlan:
    if why:
        known.status, known.reason = LESS_PRECISE, why
        return known
    try:
        started_s = time.perf_counter()
        cuda_operator().build(trial.layer, known.name, trial.device, trial.dtype)
        known.build_ms = (time.perf_counter() - started_s) * 1e3
        known.relative_error = trial.error(known.name)
    except (CudnnError, torch.OutOfMemoryError) as error:
        known.status, known.reason = REFUSED, str(error).splitlines()[0]
        return known
    allowed = tolerance.tolerance(trial.layer, known.name, described(trial.layer, trial.dtype).math, trial.dtype)
    if reason := tolerance.why_wrong(known.relative_error, allowed):
        known.status, known.reason = tolerance.WRONG, reason
    return known


class Race(AssignmentSwap):
    """Times the plans of all shapes in the whole model, a round at a time."""

    def __init__(self, subject: Subject, bench: Bench, note: Note, shapes: Sequence[Shape]) -> None:
        super().__init__(subject, note)
        self._bench, self.shapes = bench, shapes
        self._torch = {layer.name: HEURISTIC for layer in subject.layers}
        can_guess = {layer.name: GUESS for shape in shapes for layer in shape.layers}
        self.assignments |= {HEURISTIC: self._torch, BENCHMARK: self._torch, GUESS: self._torch | can_guess}

    def resume(self, earlier: Sequence[PlanTimeRow]) -> None:
        """Take the times of rounds that were measured before."""
        by_position = {shape.first.position: shape for shape in self.shapes}
        for row in earlier:
            if shape := by_position.get(row.position):
                shape.times_ms.setdefault(row.candidate, {})[row.round] = row.mean_ms

    def places(self) -> set[int]:
        """Return the rounds that have times."""
        return {place for shape in self.shapes for times in shape.times_ms.values() for place in times}

    def times_of(self, place: int, key: ModelKey) -> list[PlanTimeRow]:
        """Return the times of a round as rows."""
        return [
            fill(PlanTimeRow, key, shape.first, round=place, layer=shape.first.name, candidate=name, mean_ms=at[place])
            for shape in self.shapes
            for name, at in shape.times_ms.items()
            if place in at
        ]

    def leave_out_slow(self) -> None:
        """Launch every plan from Python, and leave out those that take more than `HOPELESS` times the least."""
        launched_ms: list[dict[str, float]] = [{} for _ in self.shapes]
        for slot in self._slots():
            work = partial(self._bench.launched_ms, self._subject.inputs, _LAUNCHES)
            for found, name, time_ms in zip(launched_ms, slot, self._timed(slot, work) or [], strict=False):
                found.setdefault(name, time_ms)
        for shape, found in zip(self.shapes, launched_ms, strict=True):
            least = min(found.values(), default=0.0)
            for plan in shape.plans:
                if plan.status == OK and found.get(plan.name, 0.0) > HOPELESS * least:
                    plan.status = SLOW
                    plan.reason = f"launched one by one it takes {found[plan.name] / least:.0f} times the least"

    def round(self, place: int) -> None:
        """Time every rival, and the choosers, in one placement."""
        work = partial(self._bench.layer_times_ms, self._subject.inputs, place)
        for name in PICKS:
            taken_ms = self.tried(name, work)
            self._bench.release()
            self._keep(place, [name] * len(self.shapes), self._means(taken_ms))
        for slot in self._slots():
            self._keep(place, slot, self._timed(slot, work))

    def judged(self, rounds: int) -> dict[str, PassRounds]:
        """Judge whole passes: the fastest of each shape together, and the choosers."""
        best = [shape.fastest() or HEURISTIC for shape in self.shapes]
        self.assignments[choice.TOGETHER] = self._assigned(best)
        return choice.judge(self._subject, self._bench, self, rounds)

    def trace(self) -> None:
        """Record the kernels of every plan, and of the choosers: CUPTI, so only after all times."""
        run, device = self._subject.run, self._subject.device
        for shape in self.shapes:
            tried = [plan for plan in shape.plans if plan.status in (OK, SLOW)]
            found = Trial(shape.first, device, run.dtype).kernels([*(plan.name for plan in tried), GUESS])
            for plan, kernels in zip(tried, found, strict=False):
                plan.kernels = kernels
            shape.kernels |= dict(zip((GUESS,), found[len(tried) :], strict=False))
            release(device)
        for name in (HEURISTIC, BENCHMARK):
            _, launched = self.tried(name, partial(choice.executed, self._subject)) or ([], [])
            for shape in self.shapes if launched else ():
                shape.kernels[name] = launched[shape.first.position] or {}

    def _slots(self) -> Iterator[list[str]]:
        """Yield the plan of each shape in one pass after another, PyTorch's where none works."""
        every = [shape.rivals() or [HEURISTIC] for shape in self.shapes]
        for index in range(max(map(len, every), default=0)):
            yield [names[index] if index < len(names) else names[0] for names in every]

    def _assigned(self, slot: Sequence[str]) -> dict[str, str]:
        mine = {layer.name: name for shape, name in zip(self.shapes, slot, strict=True) for layer in shape.layers}
        return self._torch | mine

    def _timed(self, slot: Sequence[str], work: Callable[[], list[float]]) -> list[float] | None:
        """Return the mean time of a call of each shape in one pass; None where the pass fails, with a note."""
        together = f"the pass of {', '.join(sorted(set(slot)))}"
        self.assignments[together] = self._assigned(slot)
        taken_ms = self.tried(together, work)
        del self.assignments[together]
        self._bench.release()
        return self._means(taken_ms)

    def _means(self, taken_ms: Sequence[float] | None) -> list[float] | None:
        if taken_ms is None:
            return None
        return [fmean(taken_ms[layer.position] for layer in shape.layers) for shape in self.shapes]

    def _keep(self, place: int, slot: Sequence[str], means_ms: Sequence[float] | None) -> None:
        for shape, name, mean_ms in zip(self.shapes, slot, means_ms or [], strict=False):
            shape.times_ms.setdefault(name, {}).setdefault(place, mean_ms)


def rows(run: Run, here: Environment, shapes: Sequence[Shape]) -> list[PlanRow]:
    """Return a row for each shape and each plan of it, and each chooser, the fastest first, those without time last."""
    return [row for shape in shapes for row in _rows(run, here, shape)]


def layer_rows(key: ModelKey, shapes: Sequence[Shape]) -> list[PlanLayerRow]:
    """Return a row for each call of a convolution that has plans, in the order of the pass."""
    found = [
        fill(
            PlanLayerRow, key, layer=each.name, position=each.position,
            shape_layer=shape.first.name, shape_position=shape.first.position,
        )
        for shape in shapes
        for each in shape.layers
    ]  # fmt: skip
    return sorted(found, key=lambda row: row.position)


def _rows(run: Run, here: Environment, shape: Shape) -> list[PlanRow]:
    by_name = {plan.name: plan for plan in shape.plans}
    times = {name: summarize([*by_round.values()]) for name, by_round in shape.times_ms.items()}
    launched = {name: plan.kernels for name, plan in by_name.items() if plan.kernels} | shape.kernels
    in_order = sorted(times, key=lambda name: times[name].mean_ms) + [name for name in by_name if name not in times]
    fastest, confidence = shape.fastest(), pair_confidence(len(times))
    found = []
    for name in in_order:
        taken, mine = times.get(name), launched.get(name)
        twins = (other for other in in_order if other in by_name and same_kernels(mine, launched.get(other)))
        cells = _of_plan(by_name.get(name)) | _of_times(taken, times[fastest] if fastest else None, confidence)
        found.append(fill(
            PlanRow, here, run, shape.first, layer=shape.first.name, layers=len(shape.layers), candidate=name,
            is_fastest=name == fastest, same_kernels_as=next((twin for twin in twins if twin != name), None),
            kernels=json.dumps(dict(mine)) if mine else None, input_size=run.input_sizes[0],
            **cells, **_sizes(shape.first),
        ))  # fmt: skip
    return found


def _of_plan(plan: KnownPlan | None) -> dict[str, Any]:
    """Return the cells that only a plan has; of a chooser they are empty."""
    offer = plan.offer if plan else None
    notes = {name: "; ".join(getattr(offer, name)) if offer else None for name in ("numerical_notes", "behavior_notes")}
    ranks = {f"rank_{mode.name.lower()}": offer.ranks.get(mode.name.lower()) if offer else None for mode in Mode}
    told = {name: getattr(plan, name, None) for name in ("reason", "build_ms", "relative_error")}
    of_offer = {
        "status": plan.status if plan else OK,
        "engine": offer.plan.engine if offer else None,
        "workspace_bytes": offer.workspace_bytes if offer else None,
    }
    return of_offer | told | notes | ranks


def _of_times(taken: Summary | None, least: Summary | None, confidence: float) -> dict[str, Any]:
    """Return the cells of a candidate's times, and of its regret, without an interval after one round alone."""
    regret_ms = taken.mean_ms - least.mean_ms if taken and least else None
    spread = taken and least and taken is not least and min(taken.count, least.count) > 1
    apart = difference(taken, least, confidence) if taken and least and spread else None
    return {
        "mean_ms": taken.mean_ms if taken else None,
        "std_ms": taken.std_ms if taken else None,
        "rounds": taken.count if taken else 0,
        "regret_us": None if regret_ms is None else regret_ms * 1e3,
        "regret_ci99_us": apart.half_width_ms * 1e3 if apart else None,
    }


def _sizes(layer: Layer) -> dict[str, Any]:
    known = {column.name for column in dataclasses.fields(PlanRow)}
    return {name: value for name, value in layer.columns().items() if name in known}
