"""Tables of an atlas of plans, and their schema: rounds one by one, then what stands on all of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from convscope.storage.schema import Part, with_starts
from convscope.storage.table import Table
from convscope.verification.rows import SUPPORT, ModelKey, PassRow

OK, REFUSED, LESS_PRECISE, SLOW, LOST = "ok", "refused", "less precise", "far too slow", "lost the GPU"
"""Outcomes of a plan; a wrong result is `tolerance.WRONG`."""


@dataclass(frozen=True)
class RoundKey:
    """Name of a round of plans: one placement in memory."""

    model: str
    input_size: int
    batch_size: int
    math: str
    round: int


@dataclass(frozen=True)
class PlanTimeRow:
    """Mean time of a call of one shape with one candidate in one round; `layer` is the first of the shape."""

    model: str
    input_size: int
    batch_size: int
    math: str
    round: int
    layer: str
    position: int
    candidate: str
    mean_ms: float
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None


@dataclass(frozen=True)
class PlanRow:
    """One shape with a plan of cuDNN's graph API, an algorithm by name, or a chooser. Times of a call in milliseconds.

    `layer` and `position` are those of the first of the `layers` calls that have this shape. `rank_…` is the plan's
    place in the list of a heuristic of cuDNN, from 0, empty where it is not in it. `regret_us` is the extra time over
    the fastest in the rounds that both have, with half its interval (all pairs of a shape that have two rounds hold
    together at 99 %; none after one round). These rounds picked the fastest, so that regrets read too large: `passes`
    has rounds that did not. `same_kernels_as` is another plan that launches the same kernels, copies to
    other layouts too: the fastest of them, or for PyTorch's choice the first of mode A.
    Energy is that of a call replayed alone, of some of the fastest plans and PyTorch's choice, where it was asked for.
    `fused` is what follows the convolution in the same call: "addition bias relu", empty for a convolution alone.
    `provider` is the library that computes; `engine` is of a plan alone.
    """

    model: str
    layer: str
    layers: int
    position: int
    candidate: str
    outcome: str
    rounds: int
    is_fastest: bool
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
    layout: str
    gpu_name: str | None
    driver: str | None
    cudnn: str | None
    reason: str | None = None
    mean_ms: float | None = None
    std_ms: float | None = None
    regret_us: float | None = None
    regret_ci99_us: float | None = None
    same_kernels_as: str | None = None
    engine: int | None = None
    rank_a: int | None = None
    rank_b: int | None = None
    rank_fallback: int | None = None
    numerical_notes: str | None = None
    behavior_notes: str | None = None
    workspace_bytes: int | None = None
    build_ms: float | None = None
    relative_error: float | None = None
    kernels: str | None = None
    host: str | None = None
    gpu_uuid: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None
    start: int | None = None
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    energy_reason: str | None = None
    fused: str | None = None
    provider: str | None = None


@dataclass(frozen=True)
class PlanLayerRow:
    """One call of a convolution, and the first call of its shape, under which the shape's plans stand."""

    model: str
    input_size: int
    batch_size: int
    math: str
    layer: str
    position: int
    shape_layer: str
    shape_position: int


_PLANS = {
    "plan_layers": Table(PlanLayerRow, unique=("position",), first=8),
    "passes": Table(PassRow, unique=("convolutions_by",), first=8),
    "plans": Table(PlanRow, unique=("position", "candidate"), first=10),
}
_PLAN_TIMES = {"plan_times": Table(PlanTimeRow, unique=("round", "position", "candidate"), first=9)}
_ROUNDS_FREE = ("device", "stage", "gpu", "rounds")  # rounds of two cards are not of one atlas
PLANS = dataclasses.replace(
    SUPPORT,
    parts=(Part(RoundKey, _PLAN_TIMES), Part(ModelKey, _PLANS)),
    free=_ROUNDS_FREE,
    upgrades=(with_starts("verification", _ROUNDS_FREE),),
)
