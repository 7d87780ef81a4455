"""Rows of an atlas: what a race has found, shape by shape and plan by plan. Pure: nothing here measures."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from convscope.atlas.offered import Known, KnownAlgorithm
from convscope.atlas.race import ROUNDS_LEAST, Shape
from convscope.atlas.rows import OK, PlanLayerRow, PlanRow
from convscope.convolution import algorithms
from convscope.convolution.layer import Layer
from convscope.cudnn.graph.engines import Mode
from convscope.power.energy import LoadEnergy
from convscope.profiling.request import Run
from convscope.storage.environment import Environment
from convscope.storage.table import fill
from convscope.timing.summary import paired_difference, summarize
from convscope.verification import kernel_families
from convscope.verification.candidates import GUESS
from convscope.verification.choice import pair_confidence
from convscope.verification.rows import ModelKey, PassRow

KNOWN = ("outcome", "reason", "build_ms", "relative_error")
ENERGY = {"j": "energy_j", "uncertainty_j": "uncertainty_j", "reason": "reason"}


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


def with_energy(row: PassRow, spent: LoadEnergy | None) -> PassRow:
    """Return the row of an assignment with the energy of its pass, where that is known."""
    if spent is None:
        return row
    energy_j, uncertainty_j = spent.per_inference_j, spent.uncertainty_j
    return dataclasses.replace(row, energy_per_inference_j=energy_j, energy_uncertainty_j=uncertainty_j)


def rows(run: Run, here: Environment, shapes: Sequence[Shape]) -> list[PlanRow]:
    """Return a row for each shape and each plan of it, and each chooser, the fastest first, those without time last."""
    return [row for shape in shapes for row in _rows(run, here, shape)]


def _rows(run: Run, here: Environment, shape: Shape) -> list[PlanRow]:
    by_name, times = {plan.name: plan for plan in shape.plans}, shape.times_ms
    launched = {name: plan.kernels for name, plan in by_name.items() if plan.kernels} | shape.kernels
    in_order = sorted(times, key=lambda name: fmean(times[name].values()))
    in_order += [name for name in by_name if name not in times]
    fastest, found = shape.fastest(), []
    for name in in_order:
        plan = by_name.get(name)
        cells: dict[str, Any] = _of_plan(plan) if plan else {"outcome": OK, "relative_error": shape.errors.get(name)}
        if (energy := shape.energies.get(name)) is not None:
            cells |= {f"energy_{cell}": getattr(energy, attribute) for cell, attribute in ENERGY.items()}
        found.append(fill(
            PlanRow, here, run, shape.first, layer=shape.first.name, layers=len(shape.layers), candidate=name,
            is_fastest=name == fastest, same_kernels_as=_twin(name, in_order, by_name, launched),
            input_size=run.input_sizes[0], kernels=json.dumps(dict(launched[name])) if launched.get(name) else None,
            **cells, **_of_times(shape, name, fastest), **_sizes(shape.first),
        ))  # fmt: skip
    return found


def _twin(
    name: str, in_order: Sequence[str], plans: Mapping[str, Known], launched: Mapping[str, Mapping[str, int]]
) -> str | None:
    """Return the plan that launches the same kernels as a candidate: all of them, copies to other layouts too.

    Of several, the fastest; for PyTorch's choice the one that it asks for first, which is mode A's order. PyTorch adds
    a bias in a kernel of its own, which no plan has to launch.
    """
    if not launched.get(name):
        return None
    same = [other for other in in_order if other in plans and other != name and launched.get(other) == launched[name]]
    if name in plans:
        return next(iter(same), None)
    of_cudnn = kernel_families.of_library(launched[name])
    same += [other for other in in_order if other in plans and of_cudnn and launched.get(other) == of_cudnn]
    return min(same, key=lambda other: _asked_for(plans[other], name), default=None)


def _asked_for(known: Known, chooser: str) -> tuple[bool, float]:
    """Return the place of a candidate among those that a chooser may have taken: legacy algorithms are `guess`'s."""
    if isinstance(known, KnownAlgorithm):
        return chooser != GUESS, 0.0
    return chooser == GUESS, known.offer.ranks.get(Mode.A.name.lower(), math.inf)


def _of_plan(plan: Known) -> dict[str, Any]:
    """Return the cells that a plan has, or an algorithm, and no chooser."""
    if isinstance(plan, KnownAlgorithm):
        return {name: getattr(plan, name) for name in (*KNOWN, "provider", "workspace_bytes")}
    offer = plan.offer
    ranks = {f"rank_{mode.name.lower()}": offer.ranks.get(mode.name.lower()) for mode in Mode}
    notes = {name: "; ".join(getattr(offer, name)) for name in ("numerical_notes", "behavior_notes")}
    known = {name: getattr(plan, name) for name in KNOWN} | {"provider": algorithms.GRAPH}
    return known | ranks | notes | {"engine": offer.plan.engine, "workspace_bytes": offer.workspace_bytes}


def _of_times(shape: Shape, name: str, fastest: str | None) -> dict[str, Any]:
    """Return the cells of a candidate's times, and its regret over the rounds that it shares with the fastest."""
    mine = shape.times_ms.get(name, {})
    if not mine:
        return {"rounds": 0}
    taken = summarize([*mine.values()])
    cells: dict[str, Any] = {"mean_ms": taken.mean_ms, "std_ms": taken.std_ms, "rounds": taken.count}
    least = shape.times_ms[fastest] if fastest else {}
    shared = sorted(mine.keys() & least.keys())
    if not shared:
        return cells
    both = [mine[place] for place in shared], [least[place] for place in shared]
    cells["regret_us"] = (fmean(both[0]) - fmean(both[1])) * 1e3
    if len(shared) >= ROUNDS_LEAST and name != fastest:
        several = sum(len(times) >= ROUNDS_LEAST for times in shape.times_ms.values())
        cells["regret_ci99_us"] = paired_difference(*both, pair_confidence(several)).half_width_ms * 1e3
    return cells


def _sizes(layer: Layer) -> dict[str, Any]:
    """Return the columns of a layer's shape; the batch is the run's, which a model may fold otherwise."""
    known = {column.name for column in dataclasses.fields(PlanRow)} - {"batch_size"}
    return {name: value for name, value in layer.columns().items() if name in known} | {"fused": layer.steps}
