"""Tables of the 3-D study."""

from __future__ import annotations

from dataclasses import dataclass

from convscope.storage.schema import Part, Schema, same_document, with_starts
from convscope.storage.table import Table

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Conv3dRow:
    """One layer by one implementation in one layout. Times in ms; ratios are times of another over this one's.

    The others are those of the same layout. A ratio of 1 is as fast, one above 1 faster.
    """

    layer: str
    position: int
    implementation: str
    provider: str
    layout: str | None = None
    median_ms: float | None = None
    median_low_ms: float | None = None
    median_high_ms: float | None = None
    mean_ms: float | None = None
    std_ms: float | None = None
    min_ms: float | None = None
    p95_ms: float | None = None
    samples: int | None = None
    tflops: float | None = None
    ratio_to_cudnn_best: float | None = None
    cudnn_best: str | None = None
    ratio_to_torch_best: float | None = None
    torch_best: str | None = None
    packing_ms: float | None = None
    ratio_with_packing: float | None = None
    ratio_to_roofline: float | None = None
    attainable_ms: float | None = None
    elementwise_error: float | None = None
    tolerance: float | None = None
    blocks: str | None = None
    workspace_bytes: int | None = None
    flops: int | None = None
    bytes: int | None = None
    batch: int | None = None
    channels: int | None = None
    filters: int | None = None
    size: str | None = None
    kernel: str | None = None
    stride: str | None = None
    padding: str | None = None
    dilation: str | None = None
    groups: int | None = None
    arithmetic: str | None = None
    math: str | None = None
    dtype: str | None = None
    device: str | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class SampleRow:
    """One sample of a time, for the violins."""

    layer: str
    position: int
    implementation: str
    sample_ms: float
    layout: str | None = None


@dataclass(frozen=True)
class StressRow:
    """One round by one implementation; `smallest` is the smallest shape found that fails as well."""

    round: int
    implementation: str
    shape: str
    layout: str | None = None
    elementwise_error: float | None = None
    tolerance: float | None = None
    blocks: str | None = None
    smallest: str | None = None
    math: str | None = None
    dtype: str | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class EndToEndRow:
    """The network with one implementation in one layout: an inference pass and a training step. Times in ms."""

    implementation: str
    layout: str | None = None
    inference_ms: float | None = None
    inference_low_ms: float | None = None
    inference_high_ms: float | None = None
    training_step_ms: float | None = None
    training_low_ms: float | None = None
    training_high_ms: float | None = None
    relative_error: float | None = None
    tolerance: float | None = None
    batch: int | None = None
    math: str | None = None
    dtype: str | None = None
    device: str | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class KindRow:
    """Share of one kind of layer in an inference pass."""

    implementation: str
    kind: str
    layers: int
    median_ms: float
    share_pct: float
    layout: str | None = None


@dataclass(frozen=True)
class LayerKey:
    """Name of a cell: one layer by one implementation in one layout."""

    layer: str
    position: int
    implementation: str
    layout: str


@dataclass(frozen=True)
class StressKey:
    """Name of a cell: one round of the stress test by one implementation in one layout."""

    round: int
    implementation: str
    layout: str


@dataclass(frozen=True)
class NetworkKey:
    """Name of a cell: the whole network with one implementation in one layout."""

    implementation: str
    layout: str


# Versions 1 and 2 have no layout, which was N × C × D × H × W; products were of digits that were cut off. And the ratio
# of them was to PyTorch's search in that layout alone.
_ADDED = {"layout": ""}
_SAMPLES = Table(SampleRow, unique=(), first=4)
_LAYERS = Table(
    Conv3dRow, ("position", "implementation", "layout"), first=4, dropped=("ratio_to_torch_benchmark",), added=_ADDED
)
_ROUNDS = Table(StressRow, unique=("round", "implementation", "layout"), first=3, added=_ADDED)
_KINDS = Table(KindRow, unique=("implementation", "kind", "layout"), first=5, added=_ADDED)
_NETWORKS = Table(EndToEndRow, unique=("implementation", "layout"), first=1, added=_ADDED)
_FREE = (
    *("implementations", "layouts", "device", "first_layer", "last_layer"),
    *("verify", "compare", "warmup", "measure", "budget_s"),
)
SCHEMA = Schema(
    request="conv3d",
    version=SCHEMA_VERSION,
    parts=(
        Part(LayerKey, {"samples": _SAMPLES, "conv3d": _LAYERS}),
        Part(StressKey, {"stress": _ROUNDS}),
        Part(NetworkKey, {"breakdown": _KINDS, "end_to_end": _NETWORKS}),
    ),
    free=_FREE,
    upgrades=(with_starts("conv3d", _FREE), same_document),
    entries={"ceilings": None},
)
