"""Tables of a training study, and their schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convscope.convolution.names import PREFIX
from convscope.storage.paths import slug
from convscope.storage.schema import Part, Schema, same_document, with_starts
from convscope.storage.table import Table, columns


@dataclass(frozen=True)
class TrainingKey:
    """Name of a cell: all rows of all tables begin with these."""

    model: str
    batch_size: int
    processes: int
    compiled: bool
    captured: bool


@dataclass(frozen=True)
class TrainingRow(TrainingKey):
    """One cell: times in ms a step, over the measured steps of all epochs; `batch_size` and times of one process."""

    throughput_samples_per_s: float | None = None
    throughput_per_process_samples_per_s: float | None = None
    scaling_efficiency_pct: float | None = None
    step_ms: float | None = None
    step_std_ms: float | None = None
    step_p95_ms: float | None = None
    data_ms: float | None = None
    data_std_ms: float | None = None
    data_p95_ms: float | None = None
    forward_ms: float | None = None
    forward_std_ms: float | None = None
    forward_p95_ms: float | None = None
    backward_ms: float | None = None
    backward_std_ms: float | None = None
    backward_p95_ms: float | None = None
    optimizer_ms: float | None = None
    optimizer_std_ms: float | None = None
    optimizer_p95_ms: float | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    window_s: float | None = None
    launch_ms: float | None = None
    host_bound: bool | None = None
    data_gpu_ms: float | None = None
    forward_gpu_ms: float | None = None
    backward_gpu_ms: float | None = None
    optimizer_gpu_ms: float | None = None
    gpu_busy_ms: float | None = None
    peak_memory_bytes: int | None = None
    mean_memory_bytes: int | None = None
    energy_per_sample_j: float | None = None
    energy_uncertainty_j: float | None = None
    power_mean_w: float | None = None
    energy_window_s: float | None = None
    energy_source: str | None = None
    parameters: int | None = None
    loss: float | None = None
    accuracy_pct: float | None = None
    timing_method: str | None = None
    dataset: str | None = None
    stem: str | None = None
    algorithm: str | None = None
    dtype: str | None = None
    layout: str | None = None
    math: str | None = None
    cudnn_benchmark: bool | None = None
    fused_optimizer: bool | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
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


@dataclass(frozen=True)
class EpochRow(TrainingKey):
    """One epoch: the mean loss of its training steps; loss and accuracy over the held-out images after it."""

    epoch: int
    steps: int
    train_loss: float
    test_loss: float | None
    accuracy_pct: float | None


@dataclass(frozen=True)
class OperatorRow(TrainingKey):
    """One operator in one phase, by torch.profiler, each figure for one step."""

    operator: str
    phase: str
    category: str
    share_pct: float
    calls: float
    cpu_ms: float
    device_ms: float


@dataclass(frozen=True)
class KernelRow(TrainingKey):
    """One GPU kernel by its name, each figure for one step."""

    kernel: str
    launches: float
    kernel_ms: float


@dataclass(frozen=True)
class MemoryRow(TrainingKey):
    """The allocator after one allocation or release in the traced steps."""

    time_ms: float
    device: str
    allocated_bytes: int


Row = TrainingRow | EpochRow | OperatorRow | KernelRow | MemoryRow
_CELL = tuple(columns(TrainingKey))
_ADDED = {"captured": "False"}  # in version 3: before it every step was eager
TABLES = {
    "epochs": Table(EpochRow, unique=(*_CELL, "epoch"), first=4, added=_ADDED),
    "operators": Table(OperatorRow, unique=(*_CELL, "operator", "phase"), first=4, added=_ADDED),
    "kernels": Table(KernelRow, unique=(*_CELL, "kernel"), first=4, added=_ADDED),
    "memory": Table(MemoryRow, unique=(), first=4, added=_ADDED),
    "training": Table(TrainingRow, unique=_CELL, first=4, added=_ADDED),  # the last to be written: a cell counts by it
}
_FREE = (
    *("models", "model_digests", "batch_sizes", "device", "processes", "compiled", "captured"),
    *("skipped_steps", "profiler", "profile_memory", "energy"),  # how a cell is measured, not what it is
)


def _other_models(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what sets models of two requests apart that have the same name in tables; an older one has no digests."""
    found = []
    names = {slug(name): name for name in _texts(then.get("models"))}
    digests = dict(text.split(" ", 1) for text in _texts(then.get("model_digests")) if text.partition(" ")[2])
    for name, text in zip(_texts(now["models"]), _texts(now["model_digests"]), strict=False):
        in_tables, _, digest = text.partition(" ")
        earlier = names.get(in_tables, name)
        if earlier.removeprefix(PREFIX) != name.removeprefix(PREFIX):
            found.append(f"model {in_tables} {earlier}, now {name}")
        elif digest and digests.get(in_tables, digest) != digest:
            found.append(f"the code or the weights of {in_tables} are others")
    return found


def _texts(found: object) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


SCHEMA = Schema(
    request="training",
    version=3,
    parts=(Part(TrainingKey, TABLES),),
    free=_FREE,
    upgrades=(with_starts("training", _FREE), same_document),
    more_differences=_other_models,
)
