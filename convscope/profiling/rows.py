"""Tables of a profile: the whole model, its layers and its work at each input size, and their schema.

A column is a field: its name carries its unit, and None is an empty cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.storage.paths import PROFILE_FREE, PROFILE_VERSION
from convscope.storage.schema import Part, Schema, with_starts
from convscope.storage.store import Store
from convscope.storage.table import Table

SCHEMA_VERSION = PROFILE_VERSION


@dataclass(frozen=True)
class SizeKey:
    """Name of a cell: one input size, in pixels."""

    input_size: int


@dataclass(frozen=True)
class OverallRow:
    """The whole model at one input size. Times in milliseconds."""

    model: str
    algorithm: str
    input_size: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    power_mean_w: float | None = None
    energy_per_inference_j: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    mean_ci95_ms: float | None = None
    placements: int | None = None
    placement_spread_pct: float | None = None
    samples: int | None = None
    repeated_samples: int | None = None
    timing_method: str | None = None
    eager_mean_ms: float | None = None
    eager_std_ms: float | None = None
    eager_samples: int | None = None
    event_overhead_us: float | None = None
    layers_sum_ms: float | None = None
    convolutions: int | None = None
    fallback_layers: int | None = None
    unsupported_layers: int | None = None
    wrong_layers: int | None = None
    power_std_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    power_samples: int | None = None
    energy_total_j: float | None = None
    energy_uncertainty_j: float | None = None
    energy_source: str | None = None
    energy_disagreement_pct: float | None = None
    idle_power_w: float | None = None
    energy_dynamic_j: float | None = None
    energy_window_s: float | None = None
    energy_inferences: float | None = None
    energy_layers_sum_j: float | None = None
    energy_rest_j: float | None = None
    energy_residual_pct: float | None = None
    energy_pass_vs_mean_pct: float | None = None
    temperature_start_c: int | None = None
    temperature_end_c: int | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    throttle_power_pct: float | None = None
    throttle_thermal_pct: float | None = None
    other_processes: int | None = None
    peak_memory_bytes: int | None = None
    oom_asked_bytes: int | None = None
    batch_size: int | None = None
    input_shape: str | None = None
    math: str | None = None
    dtype: str | None = None
    layout: str | None = None
    device: str | None = None
    started_utc: str | None = None
    wall_s: float | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    order: int | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class LayerRow:
    """One convolution of the model at one input size. `percentage` is its share of the forward pass (`mean`)."""

    layer: str
    in_channels: int
    out_channels: int
    kernel_size: str
    mean_ms: float | None
    percentage: float | None
    model: str
    algorithm: str
    input_size: int
    position: int
    stride: str
    padding: str
    dilation: str
    groups: int
    batch_size: int
    in_height_px: int | None
    in_width_px: int | None
    out_height_px: int | None
    out_width_px: int | None
    kind: str | None = None
    in_size: str | None = None
    out_size: str | None = None
    ran_algorithm: str | None = None
    ran_provider: str | None = None
    workspace_bytes: int | None = None
    copied_input_bytes: int | None = None
    flops: int | None = None
    bytes: int | None = None
    std_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    samples: int | None = None
    mean_ci95_ms: float | None = None
    placements: int | None = None
    placement_spread_pct: float | None = None
    timing_method: str | None = None
    kernel_ms: float | None = None
    span_ms: float | None = None
    kernels: str | None = None
    relative_error: float | None = None
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    energy_attribution: str | None = None
    math: str | None = None
    dtype: str | None = None
    layout: str | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class WorkRow:
    """The kernels of one name (on a CPU one operator) in one module of a pass at one input size."""

    model: str
    algorithm: str
    input_size: int
    category: str
    module: str | None
    kernel: str
    calls: int
    kernel_ms: float
    share_pct: float | None
    timing_method: str
    batch_size: int | None = None
    math: str | None = None
    dtype: str | None = None
    layout: str | None = None


Row = OverallRow | LayerRow


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Bring `run.json` from version 1 to 2, which knows a limit on workspaces, resumed runs, and what ended one."""
    run = {"max_workspace_bytes": None} | document["run"]
    return document | {"schema_version": 2, "run": run, "resumed_utc": [], "error": None}


_TABLES = {
    "work": Table(WorkRow, unique=("input_size", "category", "module", "kernel"), first=10),
    "layers": Table(LayerRow, unique=("input_size", "position"), first=6),
    "overall": Table(OverallRow, unique=("input_size",), first=9),
}
SCHEMA = Schema(
    request="run",
    version=SCHEMA_VERSION,
    parts=(Part(SizeKey, _TABLES, counted=("layers", "convolutions"), is_sorted=True),),
    free=PROFILE_FREE,
    upgrades=(_from_1, with_starts("run", PROFILE_FREE)),
    needed={"model": str, "algorithm": str, "gpu": str, "device": str, "input_sizes": list},
    noun="sizes",
    entries={"kernels": {}},
)


def profile_store(
    path: Path | str, stem: str, note: Callable[[str], None] = lambda line: None, take_over: bool = False
) -> Store:
    """Return the store of a profile; `stem` is `<model>_<algorithm>`."""
    return Store(path, SCHEMA, stem, note, take_over)
