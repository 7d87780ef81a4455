"""Measurements of one input size, and the rows that they become. Pure: nothing here measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convscope.convolution import tolerance
from convscope.convolution.assignment import Assignment
from convscope.convolution.layer import Layer
from convscope.convolution.observation import Observation
from convscope.cudnn.shape import ELEMENT_BYTES, dimensions
from convscope.failures import Failure
from convscope.power.energy import Conditions, LoadEnergy
from convscope.profiling.layer_energy import ATTRIBUTION, Breakdown, LayerEnergy
from convscope.profiling.request import Run
from convscope.profiling.rows import LayerRow, OverallRow, WorkRow
from convscope.storage.table import fill
from convscope.timing.shares import Work, folded
from convscope.timing.summary import Summary
from convscope.timing.trace import LayerTrace

ENERGY_PASS_PCT = 1.0  # difference between the passes of the energy window and those timed that a row remarks on
WRONG = tolerance.WRONG  # of a layer, and of a pass that has one


@dataclass
class Measurement:
    """Measurements of one input size; lists over layers go by position, empty where nothing was measured.

    `method` is the way of timing of the pass, and of the layers that `layer_methods` names none for.
    """

    passes: Summary
    layers: list[Summary]
    method: str
    layer_methods: list[str] = field(default_factory=list)
    eager: Summary | None = None
    repeated: int | None = None
    overhead_us: float | None = None
    observations: list[Observation] = field(default_factory=list)
    traces: list[LayerTrace] = field(default_factory=list)
    energy: LoadEnergy | None = None
    energy_reason: str | None = None
    conditions: Conditions = field(default_factory=Conditions)
    idle_power_w: float | None = None
    peak_memory_bytes: int | None = None
    breakdown: Breakdown | None = None
    infinite: str | None = None  # why the model's output means nothing, None where its numbers are finite
    work: Sequence[Work] = ()
    work_method: str = ""
    remark: str | None = None  # on how the pass was timed
    layers_pass_ms: float | None = None  # mean of the passes that the layers were timed in, None where it is `passes`


def overall_row(
    run: Run, size: int, found: Measurement, assigned: Assignment, layers: Sequence[LayerRow], started_utc: str,
    wall_s: float,
) -> OverallRow:  # fmt: skip
    """Return the row of the whole model; with a wrong layer it is wrong."""
    wrong = [layer for layer in layers if layer.status == WRONG]
    said = f"{len(wrong)} of {len(layers)} layers wrong: {wrong[0].layer}, {wrong[0].reason}" if wrong else None
    passes, eager, energy = found.passes, found.eager, found.energy
    cells: dict[str, Any] = {"mean": passes.mean_ms, "std": passes.std_ms, "min": passes.min_ms, "max": passes.max_ms}
    if eager:
        cells |= {"eager_mean_ms": eager.mean_ms, "eager_std_ms": eager.std_ms, "eager_samples": eager.count}
    if breakdown := found.breakdown:
        cells |= {"energy_layers_sum_j": breakdown.layers_sum_j, "energy_rest_j": breakdown.rest_j}
        cells["energy_residual_pct"] = breakdown.residual_pct(energy.per_inference_j) if energy else None
    if energy:
        cells |= _energy_cells(energy, found.idle_power_w, passes.mean_ms)
    remark = found.energy_reason or _remarks(energy, cells, breakdown)
    return fill(
        OverallRow,
        run,
        passes,
        found,
        *((energy.window, energy.conditions) if energy else (found.conditions,)),
        input_size=size,
        mean_ci95_ms=passes.ci95_ms,
        samples=passes.count,
        repeated_samples=found.repeated,
        timing_method=found.method,
        event_overhead_us=found.overhead_us,
        layers_sum_ms=sum(layer.mean_ms for layer in found.layers),
        convolutions=len(found.layers),
        fallback_layers=len(assigned.reasons) if run.unsupported == "fallback" else 0,
        unsupported_layers=len(assigned.reasons) if run.unsupported == "skip" else 0,
        wrong_layers=len(wrong),
        started_utc=started_utc,
        wall_s=wall_s,
        status=WRONG if wrong else "ok",
        reason="; ".join(filter(None, (said, found.infinite, found.remark, remark))) or None,
        **cells,
    )


def _remarks(energy: LoadEnergy | None, cells: Mapping[str, Any], breakdown: Breakdown | None) -> str:
    """Return what is worth knowing about the energy of a row."""
    found = (_other_pass(cells.get("energy_pass_vs_mean_pct")), _rested(energy), _no_rest(breakdown))
    return "; ".join(filter(None, found))


def _no_rest(breakdown: Breakdown | None) -> str | None:
    if breakdown is None or breakdown.rest_reason is None:
        return None
    return f"{breakdown.rest_reason} (the pass without its convolutions)"


def _other_pass(excess_pct: float | None) -> str | None:
    """Return the remark on a row whose energy is of passes of another length than the timed ones."""
    if excess_pct is None or abs(excess_pct) <= ENERGY_PASS_PCT:
        return None
    kind = "longer" if excess_pct > 0 else "shorter"
    return f"the passes whose energy was measured were {abs(excess_pct):.1f} % {kind} than mean"


def _rested(energy: LoadEnergy | None) -> str | None:
    """Return the remark on a row whose energy was measured with a rest after each inference."""
    if energy is None or not energy.rest_s:
        return None
    return f"inferences kept step with the power sensor: {1e6 * energy.rest_s:.1f} µs of rest after each are taken off"


def _energy_cells(energy: LoadEnergy, idle_power_w: float | None, mean_ms: float) -> dict[str, Any]:
    """Return the cells that do not have the name of an attribute of the energy's window or its conditions."""
    window = energy.window
    return {
        "energy_total_j": window.energy_j,
        "energy_per_inference_j": energy.per_inference_j,
        "energy_uncertainty_j": energy.uncertainty_j,
        "energy_source": window.source,
        "energy_disagreement_pct": window.disagreement_pct,
        "energy_dynamic_j": None if idle_power_w is None else energy.dynamic_j(idle_power_w),
        "energy_window_s": window.duration_s,
        "energy_inferences": energy.inferences,
        "energy_pass_vs_mean_pct": 100 * (energy.pass_s * 1e3 / mean_ms - 1),
    }


def failed_row(run: Run, size: int, failure: Failure, started_utc: str, wall_s: float) -> OverallRow:
    """Return the row of a size that could not be measured; its figures are empty."""
    return fill(
        OverallRow, failure, run, input_size=size, started_utc=started_utc, wall_s=wall_s,
        oom_asked_bytes=failure.asked_bytes,
    )  # fmt: skip


def work_rows(run: Run, size: int, found: Measurement) -> list[WorkRow]:
    """Return a row for the kernels of each name in each module, the longest first."""
    whole_ms = sum(work.kernel_ms for work in found.work)
    return [
        fill(
            WorkRow, run, work, input_size=size, timing_method=found.work_method,
            share_pct=100 * work.kernel_ms / whole_ms if whole_ms else None,
        )
        for work in folded(found.work)
    ]  # fmt: skip


def layer_rows(
    run: Run, size: int, layers: Sequence[Layer], found: Measurement, assigned: Assignment
) -> list[LayerRow]:
    """Return a row for each convolution, in the order in which the pass calls them."""
    traces: Sequence[LayerTrace | None] = found.traces or [None] * len(layers)
    energies = found.breakdown.layers if found.breakdown else [None] * len(layers)
    methods = found.layer_methods or [found.method] * len(layers)
    measured = zip(layers, found.layers, methods, found.observations, traces, energies, strict=True)
    pass_ms = found.layers_pass_ms or found.passes.mean_ms
    return [_layer_row(run, size, assigned, pass_ms, *of_layer) for of_layer in measured]


def _layer_row(
    run: Run, size: int, assigned: Assignment, pass_ms: float, layer: Layer, times: Summary, method: str,
    observed: Observation, traced: LayerTrace | None, alone: LayerEnergy | None,
) -> LayerRow:  # fmt: skip
    reason = assigned.reasons.get(layer.name)
    skipped = reason is not None and run.unsupported == "skip"
    timed = () if skipped else (times, traced)
    allowed = tolerance.tolerance(layer, observed.execution.arithmetic, run.math, run.dtype)
    wrong = tolerance.why_wrong(observed.relative_error, allowed)
    reasons = wrong, reason, alone.reason if alone and not reason else None, observed.unchecked
    return fill(
        LayerRow,
        run,
        observed.execution,
        *timed,
        observed,
        alone,
        layer=layer.name,
        input_size=size,
        percentage=None if skipped else 100 * times.mean_ms / pass_ms,
        mean_ms=None if skipped else times.mean_ms,
        mean_ci95_ms=None if skipped else times.ci95_ms,
        samples=None if skipped else times.count,
        timing_method=None if skipped else method,
        kind=layer.kind,
        in_size=dimensions(layer.size),
        out_size=dimensions(layer.output_size),
        out_height_px=layer.out_height if len(layer.size) == 2 else None,
        out_width_px=layer.out_width if len(layer.size) == 2 else None,
        ran_algorithm=observed.execution.algorithm,
        ran_provider=observed.execution.provider,
        flops=layer.flops,
        bytes=layer.minimum_bytes(ELEMENT_BYTES[run.dtype]),
        kernels=json.dumps(dict(traced.kernels)) if traced else None,
        status=WRONG if wrong else "unsupported" if skipped else "fallback" if reason else "ok",
        energy_uncertainty_j=alone.uncertainty_j if alone else None,
        energy_attribution=ATTRIBUTION if alone and alone.energy_j is not None else None,
        reason="; ".join(filter(None, reasons)) or None,
        **layer.columns(),
    )
