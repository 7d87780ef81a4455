"""What goes to disk and comes back: a run, its environment, the rows of its two tables.

Every other module speaks in these types. A column is a field: its name carries its unit, and None is an empty cell.
`folder` writes and reads them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

SCHEMA_VERSION = 2
STAGES = ("1_sanity", "2_quick", "3_full")
KEPT = ".before-"  # in the name of a folder beside a run's, where --overwrite keeps what was there

# Settings that two runs must share for their sizes to stand in one table.
SETTINGS = (
    "model",
    "algorithm",
    "device_type",
    "batch_size",
    "warmup_iters",
    "measure_iters",
    "math",
    "dtype",
    "unsupported",
    "provider",
    "pretrained",
    "seed",
    "energy",
    "energy_warmup_s",
    "energy_precision",
    "energy_budget_s",
    "layer_energy",
    "max_workspace_bytes",
)
PROCESSOR = ("cpu", "cpu_threads")  # for runs on a CPU
SOFTWARE = ("gpu_name", "driver", "cuda", "cudnn", "torch", "torchvision", "ai3")


@dataclass(frozen=True)
class Layer:
    """One call of a convolution in a forward pass: its place, shape and options. Pairs are (height, width)."""

    name: str
    position: int
    batch: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    bias: bool
    padding_mode: str = "zeros"
    uneven_padding: bool = False

    @property
    def shape(self) -> tuple[object, ...]:
        """All that the cost of the layer depends on: two layers of one shape are the same work."""
        return dataclasses.astuple(self)[2:]


@dataclass(frozen=True)
class Run:
    """What was asked for: one model with one algorithm at many input sizes."""

    model: str
    algorithm: str
    stage: str
    gpu: str
    input_sizes: tuple[int, ...]
    device: str = "cpu"
    batch_size: int = 1
    warmup_iters: int = 10
    measure_iters: int = 20
    math: str = "tf32"
    dtype: str = "float32"
    unsupported: str = "error"
    provider: str | None = None
    pretrained: bool = False
    seed: int = 0
    energy: bool = True
    energy_warmup_s: float = 0.2
    energy_precision: float = 0.01
    energy_budget_s: float = 5.0
    layer_energy: bool = False
    max_workspace_bytes: int | None = None

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]

    @property
    def folder_name(self) -> str:
        """`<model>_<algorithm>_<gpu>`, the name of the folder under `results/<stage>/`."""
        return f"{self.stem}_{slug(self.gpu)}"

    @property
    def stem(self) -> str:
        """`<model>_<algorithm>`, what the names of both tables begin with."""
        return f"{slug(self.model)}_{slug(self.algorithm)}"


@dataclass(frozen=True)
class Environment:
    """What the figures depend on besides the request: the card, its state, the software, the place and time."""

    host: str
    cpu: str
    python: str
    torch: str
    torchvision: str
    ai3: str
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    compute_capability: str | None = None
    cpu_threads: int | None = None
    tf32_override: str | None = None
    cuda_visible_devices: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None


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
    temperature_start_c: int | None = None
    temperature_end_c: int | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    other_processes: int | None = None
    peak_memory_bytes: int | None = None
    oom_asked_bytes: int | None = None
    batch_size: int | None = None
    math: str | None = None
    dtype: str | None = None
    device: str | None = None
    started_utc: str | None = None
    wall_s: float | None = None
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
    in_height_px: int
    in_width_px: int
    out_height_px: int
    out_width_px: int
    ran_algorithm: str | None = None
    ran_provider: str | None = None
    workspace_bytes: int | None = None
    flops: int | None = None
    bytes: int | None = None
    std_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    samples: int | None = None
    kernel_ms: float | None = None
    span_ms: float | None = None
    kernels: str | None = None
    relative_error: float | None = None
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    energy_attribution: str | None = None
    math: str | None = None
    status: str = "ok"
    reason: str | None = None


Row = OverallRow | LayerRow


def slug(name: str) -> str:
    """Return a name as it stands in paths: spaces and colons become underscores, `torchvision:` falls away."""
    return name.removeprefix("torchvision:").replace(" ", "_").replace(":", "_")


def columns(row_type: type[Any]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]


def now_utc() -> str:
    """Return the time as the files say it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
