"""Errata for stock PyTorch: a file that denies it one engine of cuDNN, and what that costs by an atlas. No PyTorch.

PyTorch reads the file that `CUDNN_ERRATA_JSON_FILE` names, and leaves out plans that a rule of it fits. The form of the
file is that of NVIDIA's cudnn-frontend ("Errata Filter" in its README).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from convscope.atlas.rows import OK, SLOW, PlanRow
from convscope.convolution import algorithms
from convscope.cudnn.graph.plan import Plan
from convscope.errors import InputError
from convscope.pinning.document import TORCH

FORWARD = "ConvFwd"
"""cuDNN's name of a graph of one forward convolution: what PyTorch's convolutions without fusion are."""


@dataclass(frozen=True)
class Cost:
    """One shape whose plan is denied: what PyTorch runs, what it would run, and the time of a call of each in µs.

    `instead` is None where no other plan that PyTorch would try runs; a time is None where it was not measured.
    """

    layer: str
    calls: int
    now: str
    now_us: float | None
    instead: str | None
    instead_us: float | None

    @property
    def more_us(self) -> float | None:
        """The time that it costs in a pass, over all calls; None where it is not known."""
        if self.now_us is None or self.instead_us is None:
            return None
        return self.calls * (self.instead_us - self.now_us)


def text(denied: Plan, cudnn: str) -> str:
    """Return the file that denies a plan, or an engine with all values of its knobs, in one version of cuDNN.

    Args:
        cudnn: the version, "9.19.0".
    """
    major, minor, patch = map(int, cudnn.split("."))
    number = 10_000 * major + 100 * minor + patch
    rule = {
        "rule_id": f"{FORWARD}_eng{denied.engine}" + "".join(f"_k{knob}={value}" for knob, value in denied.knobs),
        "operation": FORWARD,
        "engine": denied.engine,
        "knob": [f"k{knob}={value}" for knob, value in denied.knobs],
        "cudnn_version_start": number,
        "cudnn_version_end": number + 1,
    }
    return json.dumps({"version": 1, "rules": [rule]}, indent=1) + "\n"


def costs(rows: Sequence[PlanRow], denied: Plan) -> Iterator[Cost]:
    """Yield the shapes of an atlas where PyTorch runs a plan that is denied, and what it would run instead.

    Raises:
        InputError: no shape has a plan of this engine, or the atlas is of fused convolutions.
    """
    if any(row.fused for row in rows):
        raise InputError("an atlas with --fused is of no stock model: give one of the model as it is")
    if not any(row.engine == denied.engine for row in rows):
        raise InputError(f"no layer of this atlas has a plan of engine {denied.engine}: name one of its plans.csv")
    for position in dict.fromkeys(row.position for row in rows):
        mine = [row for row in rows if row.position == position]
        torchs = next((row for row in mine if row.candidate == TORCH), None)
        if torchs is None or torchs.same_kernels_as is None or not fits(denied, torchs.same_kernels_as):
            continue
        instead = _next([row for row in mine if row.engine is not None and not fits(denied, row.candidate)])
        found = instead.candidate if instead else None
        yield Cost(torchs.layer, torchs.layers, torchs.same_kernels_as, _us(torchs), found, _us(instead))


def fits(denied: Plan, name: str) -> bool:
    """Tell whether a plan, by its algorithm's name, is of the denied engine with the denied values of knobs."""
    plan = algorithms.plan_of(name)
    return plan is not None and plan.engine == denied.engine and set(denied.knobs) <= set(plan.knobs)


def _next(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Return the plan that PyTorch tries next: the first of mode A that runs, else of the fallback."""
    for rank in ("rank_a", "rank_fallback"):
        ranked = [row for row in rows if getattr(row, rank) is not None and row.outcome in (OK, SLOW)]
        if ranked:
            return min(ranked, key=lambda row: int(getattr(row, rank)))
    return None


def _us(row: PlanRow | None) -> float | None:
    return None if row is None or row.mean_ms is None else row.mean_ms * 1e3
