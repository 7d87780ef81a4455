"""Tables of a verification, and their schemas: support, choice, first calls; a folder for each model at one size."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from convscope.storage.schema import Part, Schema, with_starts
from convscope.storage.table import Table


@dataclass(frozen=True)
class ModelKey:
    """Name of a cell: one model at one input size."""

    model: str
    input_size: int
    batch_size: int
    math: str


@dataclass(frozen=True)
class SupportRow:
    """One layer with one algorithm. `predicted_status` is the rules' word, `status` what the card said.

    `agrees` is empty where the rules have no word: they do not know a workspace's size, and few layouts.
    `same_kernels_as` is the first algorithm that launched the same kernels for this layer.
    """

    model: str
    layer: str
    position: int
    algorithm: str
    status: str
    reason: str | None
    predicted_status: str
    predicted_reason: str | None
    agrees: bool | None
    same_kernels_as: str | None
    families: str | None
    kernels: str | None
    workspace_bytes: int | None
    relative_error: float | None
    in_channels: int
    out_channels: int
    kernel_size: str
    stride: str
    padding: str
    dilation: str
    groups: int
    in_height_px: int | None
    in_width_px: int | None
    input_size: int
    batch_size: int
    math: str
    dtype: str
    gpu_name: str | None
    compute_capability: str | None
    driver: str | None
    cudnn: str | None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    layout: str | None = None


@dataclass(frozen=True)
class ChoiceRow:
    """One layer with one candidate: an algorithm, or the choice of one of `PICKS`. Times in milliseconds.

    `rank` is 1 more than the number of algorithms, and PyTorch's own choice, that are faster; the fastest and those
    that tie with it all have rank 1. `regret_us` is the extra time over the fastest, with half its interval. All pairs
    of a layer hold together at `CONFIDENCE`. `chosen` is
    the algorithm of a choice: by identifier, or else by the kernels that it launched.
    """

    model: str
    layer: str
    position: int
    candidate: str
    chosen: str | None
    mean_ms: float
    std_ms: float | None
    rounds: int
    rank: int
    fastest: str
    regret_us: float
    regret_ci99_us: float
    beats_next: str | None
    same_kernels_as: str | None
    kernels: str | None
    input_size: int
    batch_size: int
    math: str
    gpu_name: str | None
    driver: str | None
    cudnn: str | None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    dtype: str | None = None
    layout: str | None = None


@dataclass(frozen=True)
class PassRow:
    """Whole passes of a model, in ms, in rounds that did not pick the fastest: these put together, and the choosers.

    `layers_us` is the sum of the convolutions, `regret_us` what it is more than that of the fastest together,
    `saved_us` what the pass is shorter than PyTorch's: differences round by round, with half their 99 % interval. An
    older version's table has none of these. Energy is that of a captured pass, where it was asked for.
    """

    model: str
    input_size: int
    batch_size: int
    math: str
    convolutions_by: str
    mean_ms: float
    std_ms: float | None
    rounds: int
    layers_us: float | None = None
    regret_us: float | None = None
    regret_ci99_us: float | None = None
    saved_us: float | None = None
    saved_ci99_us: float | None = None
    dtype: str | None = None
    layout: str | None = None
    energy_per_inference_j: float | None = None
    energy_uncertainty_j: float | None = None


@dataclass(frozen=True)
class FirstPassRow:
    """The first pass of a model by one way to convolve, in a process of its own; times in ms, by the host's clock.

    `extra_ms` is what the convolutions took longer in the first pass than in a later one, `library_ms` a first call of
    another shape, before. `pass_ms` is a replayed pass, `saved_us` what it is shorter than by PyTorch's default, with
    half its 99 % interval; `pays_after` the pass after which the way has taken less time in all than that, empty where
    passes are not shorter.
    """

    model: str
    input_size: int
    batch_size: int
    math: str
    convolutions_by: str
    extra_ms: float
    first_layers_ms: float
    library_ms: float | None
    pass_ms: float
    saved_us: float | None
    saved_ci99_us: float | None
    pays_after: int | None
    layers: int
    layers_by_torch: int
    dtype: str
    layout: str
    gpu_name: str | None
    driver: str | None
    cudnn: str | None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class FirstCallRow:
    """The first call of a convolution by one way, and the least of its later calls; `reason` why PyTorch ran it."""

    model: str
    input_size: int
    batch_size: int
    math: str
    layer: str
    position: int
    convolutions_by: str
    ran: str | None
    first_ms: float
    later_ms: float
    extra_ms: float
    workspace_bytes: int | None
    reason: str | None


_CHOICE = {
    "passes": Table(PassRow, unique=("convolutions_by",), first=8),
    "choice": Table(ChoiceRow, unique=("position", "candidate"), first=6),
}
_FREE = ("device", "stage", "gpu", "gpu_uuid")  # a folder is one cell: no two cards meet in it
SUPPORT = Schema(
    request="verification",
    version=2,
    parts=(Part(ModelKey, {"support": Table(SupportRow, unique=("position", "algorithm"), first=6)}),),
    free=_FREE,
    upgrades=(with_starts("verification", _FREE),),
)
CHOICE = dataclasses.replace(SUPPORT, parts=(Part(ModelKey, _CHOICE),))
_FIRST = {
    "first_call": Table(FirstCallRow, unique=("position", "convolutions_by"), first=13),
    "first_passes": Table(FirstPassRow, unique=("convolutions_by",), first=14),
}
FIRST_CALL = dataclasses.replace(SUPPORT, parts=(Part(ModelKey, _FIRST),))
