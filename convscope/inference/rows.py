"""Table of an inference study, and its schema: one row for each engine at each batch size, or under each load.

The files are a `Store`'s. Nothing here measures, and nothing needs PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from convscope.inference.serving.mlperf import SERVER, SINGLE_STREAM, Outcome
from convscope.power.energy import EnergyWindow
from convscope.storage.schema import Part, Schema, same_document, with_starts
from convscope.storage.table import Table
from convscope.timing.summary import summarize


@dataclass(frozen=True)
class InferenceKey:
    """Name of a cell.

    Under a server's load `batch_size` is the batcher's limit, and the four fields behind `scenario` are set. `inputs`
    is "host" where images are copied from host memory, empty where they lie in the engine's input.
    """

    model: str
    engine: str
    batch_size: int
    processes: int
    scenario: str
    target_qps: float | None = None
    slo_ms: float | None = None
    max_delay_ms: float | None = None
    sizes: str | None = None
    inputs: str | None = None


@dataclass(frozen=True)
class InferenceRow(InferenceKey):
    """One cell. Latencies are of one call of a batch; under a server's load of one request, from arrival to answer."""

    latency_mean_ms: float | None = None
    latency_std_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p90_ms: float | None = None
    latency_p99_ms: float | None = None
    samples: int | None = None
    images_per_s: float | None = None
    images_per_s_per_process: str | None = None
    window_s: float | None = None
    weak_scaling_pct: float | None = None
    strong_scaling_pct: float | None = None
    mean_batch: float | None = None
    within_slo: bool | None = None
    scheduled_qps: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    images_per_s_low: float | None = None
    images_per_s_high: float | None = None
    runs: int | None = None
    valid: bool | None = None
    load_generator: str | None = None
    image_error: float | None = None
    image_tolerance: float | None = None
    top1_agreement_pct: float | None = None
    energy_per_image_j: float | None = None
    energy_uncertainty_j: float | None = None
    power_mean_w: float | None = None
    energy_source: str | None = None
    peak_memory_bytes: int | None = None
    setup_s: float | None = None
    export_s: float | None = None
    compile_s: float | None = None
    disk_bytes: int | None = None
    floor_ms: float | None = None
    floor_memory_ms: float | None = None
    floor_compute_ms: float | None = None
    times_floor: float | None = None
    flops: int | None = None
    minimum_bytes: int | None = None
    timing_method: str | None = None
    remark: str | None = None
    dtype: str | None = None
    layout: str | None = None
    math: str | None = None
    image_size_px: int | None = None
    warmup_iters: int | None = None
    device: str | None = None
    started_utc: str | None = None
    wall_s: float | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    status: str = "ok"
    reason: str | None = None


TABLE = "inference"
_CELL = tuple(field.name for field in fields(InferenceKey))
# Of the whole output's length and one input; of one GPU with the batch of all.
_DROPPED = ("relative_error", "tolerance", "scaling_efficiency_pct")
_FREE = (
    *("engines", "batch_sizes", "device", "processes", "warmup_iters", "measure_iters", "min_seconds", "energy"),
    *("scenario", "qps", "slo_ms", "max_delay_ms", "weights", "seeds", "resident", "with_copies", "keep"),
)
SCHEMA = Schema(
    request="inference",
    version=3,
    parts=(Part(InferenceKey, {TABLE: Table(InferenceRow, _CELL, len(_CELL) - 1, _DROPPED, added={"inputs": ""})}),),
    free=_FREE,
    upgrades=(with_starts("inference", _FREE), same_document),
)


def is_current(row: Mapping[str, str] | None) -> bool:
    """Tell whether a row on disk is there, and by LoadGen where its scenario is MLPerf's (not so in version 2)."""
    return row is not None and (row["scenario"] == "batch" or bool(row["load_generator"]))


def with_scaling(rows: Sequence[InferenceRow]) -> list[InferenceRow]:
    """Return rows with the scaling of those of several processes, as far as the rows of one process are there.

    It is their images/s over as many times those of one process: for weak scaling with the batch that each of them has,
    for strong scaling with the batch of all.
    """
    alone = {_engine(row): row.images_per_s for row in rows if row.processes == 1}

    def pct(row: InferenceRow, batch_size: int) -> float | None:
        one = alone.get(_engine(dataclasses.replace(row, batch_size=batch_size)))
        if row.processes == 1 or not one or row.images_per_s is None:
            return None
        return 100 * row.images_per_s / (row.processes * one)

    return [
        dataclasses.replace(
            row,
            weak_scaling_pct=pct(row, row.batch_size // row.processes),
            strong_scaling_pct=pct(row, row.batch_size),
        )
        for row in rows
    ]


def _engine(row: InferenceRow) -> tuple[object, ...]:
    return row.model, row.engine, row.batch_size, row.scenario, row.inputs


def load_figures(outcomes: Sequence[Outcome], scenario: str, slo_ms: float, seconds: float) -> dict[str, Any]:
    """Return the columns of LoadGen's runs of a cell, which differ in their seed: medians, lowest and highest."""
    names = [field.name for field in fields(Outcome) if field.name.startswith("latency_")]
    found = {name: [ms for each in outcomes if (ms := getattr(each, name)) is not None] for name in names}
    latencies = {name: statistics.median(times) if times else None for name, times in found.items()}
    judged = found["latency_p90_ms" if scenario == SINGLE_STREAM else "latency_p99_ms"]
    rates = [each.images_per_s for each in outcomes if each.images_per_s is not None]
    reasons = [reason for each in outcomes if (reason := _why_invalid(each, scenario, slo_ms, seconds))]
    return {
        **latencies,
        "samples": sum(each.queries for each in outcomes),
        "images_per_s": statistics.median(rates) if rates else None,
        "window_s": sum(each.seconds for each in outcomes),
        "mean_batch": statistics.fmean(each.mean_batch for each in outcomes),
        "within_slo": not reasons if scenario == SERVER else None,
        "scheduled_qps": outcomes[0].scheduled_qps,
        "latency_low_ms": min(judged, default=None),
        "latency_high_ms": max(judged, default=None),
        "images_per_s_low": min(rates, default=None),
        "images_per_s_high": max(rates, default=None),
        "runs": len(outcomes),
        "valid": not any(each.verdict or each.gave_up for each in outcomes),
        "reason": next(iter(reasons), None),
    }


_REACHED = 0.99  # of the requests a second that were scheduled, but for the wait at the end


def _why_invalid(outcome: Outcome, scenario: str, slo_ms: float, seconds: float) -> str:
    """Return why a run shows nothing, or does not keep its limit; "" where it does."""
    if outcome.gave_up:
        return "the queue grew too long: the run was ended early"
    if scenario == SERVER and outcome.scheduled_qps and outcome.images_per_s is not None:
        due = _REACHED * outcome.scheduled_qps / (1 + slo_ms / 1e3 / max(seconds, outcome.seconds))
        if outcome.images_per_s < due:
            return f"{outcome.images_per_s:,.0f} of {outcome.scheduled_qps:,.0f} requests/s were answered"
    return outcome.verdict


def latency_figures(times_ms: Sequence[float]) -> dict[str, Any]:
    """Return the columns of repeated latencies."""
    times = summarize(times_ms)
    return {
        "latency_mean_ms": times.mean_ms,
        "latency_std_ms": times.std_ms,
        "latency_p50_ms": times.median_ms,
        "latency_p90_ms": float(np.percentile(times_ms, 90)),
        "latency_p99_ms": float(np.percentile(times_ms, 99)),
        "samples": times.count,
    }


def energy_figures(metered: Sequence[tuple[EnergyWindow | None, str | None]], images_per_s: float) -> dict[str, object]:
    """Return an image's energy as columns: power of all processes' windows over images a second; else the reason."""
    windows = [window for window, _ in metered if window is not None]
    if len(windows) < len(metered):
        return {"reason": next((reason for _, reason in metered if reason), None)}
    power_w = sum(window.power_mean_w for window in windows)
    uncertainty_w = math.hypot(*(window.uncertainty_j / window.duration_s for window in windows))
    return {
        "energy_per_image_j": power_w / images_per_s,
        "energy_uncertainty_j": uncertainty_w / images_per_s,
        "power_mean_w": power_w,
        "energy_source": windows[0].source,
    }
