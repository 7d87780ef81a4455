"""Candidates of a layer: algorithms and plans, each with what was measured or predicted of it.

Repeats of the same work are not averaged: their interval reaches from the least end to the largest, so that runs that
contradict each other decide nothing.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from convscope.convolution import algorithms
from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC, SHAPE
from convscope.errors import InputError
from convscope.selection.objectives import OBJECTIVES

MEASURED, PREDICTED = "measured", "predicted"
COLUMNS: Mapping[str, tuple[str, str]] = {
    "time": ("mean_ms", "mean_ci95_ms"), "energy": ("energy_j", "energy_uncertainty_j"),
}  # fmt: skip
"""Columns of samples by target: the value, and half its 95 % interval."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Value:
    """Time in ms or energy in J of a call, with the ends of its interval.

    Attributes:
        outside: of a prediction, what is outside what was learned; "" for nothing.
        against_own: of a prediction, half the width in the logarithm of the interval of its ratio to that of PyTorch's
            own choice; infinite where it is not known.
    """

    middle: float
    low: float
    high: float
    by: str = MEASURED
    outside: str = ""
    against_own: float = math.inf


def gain(value: Value, own: Value) -> tuple[float, float, float]:
    """Return what is saved over PyTorch's own choice, and the ends of its interval.

    It is that of two independent values, or of two predictions, whose errors are alike, that of their ratio.
    """
    if value is own:
        return 0.0, 0.0, 0.0
    saved = own.middle - value.middle
    if value.by == own.by == PREDICTED and math.isfinite(value.against_own):
        factor = math.exp(value.against_own)
        return saved, own.middle - value.middle * factor, own.middle - value.middle / factor
    return saved, own.low - value.high, own.high - value.low


@dataclass(frozen=True)
class Candidate:
    """An algorithm or plan for one layer; `values` is by target. Of repeats the largest workspace and error count."""

    algorithm: str
    values: Mapping[str, Value] = field(default_factory=dict)
    workspace_bytes: int | None = None
    relative_error: float | None = None
    std_ms: float | None = None
    rounds: int | None = None
    kernels: Mapping[str, int] = field(default_factory=dict)

    def value(self, objective: str) -> Value | None:
        """Return what is to be least, None where a part of it is not known."""
        parts = [self.values[target] for target in OBJECTIVES[objective] if target in self.values]
        if len(parts) < len(OBJECTIVES[objective]):
            return None
        middle, low, high = (math.prod(getattr(part, name) for part in parts) for name in ("middle", "low", "high"))
        by = MEASURED if all(part.by == MEASURED for part in parts) else PREDICTED
        outside = ", ".join(dict.fromkeys(part.outside for part in parts if part.outside))
        are_predicted = all(part.by == PREDICTED for part in parts)
        against = sum(part.against_own for part in parts) if are_predicted else math.inf
        return Value(middle, low, high, by, outside, against)


@dataclass(frozen=True)
class Measured:
    """Candidates that were measured.

    Attributes:
        candidates: by work (`keys`), then by algorithm.
        refused: by work, the algorithms that do not compute it, with the reason; they are never predicted.
        contradictions: number of candidates whose repeats have intervals that do not meet.
    """

    candidates: Mapping[str, Mapping[str, Candidate]]
    refused: Mapping[str, Mapping[str, str]]
    contradictions: int


@functools.cache
def is_pinnable(name: str) -> bool:
    """Tell whether a name is an algorithm or plan that a layer can be given: no choice of somebody, nothing fused."""
    try:
        known = algorithms.find(name)
    except InputError:
        return False
    return known.name not in {*algorithms.CHOOSERS, *algorithms.MIXTURES} and not algorithms.has_steps(known.name)


def keys(frame: pd.DataFrame) -> splits.Labels:
    """Return for each row the text of its work; the arithmetic of float32 says nothing of other types."""
    known = frame.assign(math=frame["math"].where(frame["dtype"] == "float32", "any"))
    return splits.joined(known, (*SHAPE, *ARITHMETIC))


def gathered(frame: pd.DataFrame) -> Measured:
    """Return the candidates that samples of one card and cuDNN have; rows without sizes are left out."""
    known = frame[frame["in_height_px"].notna() & frame["algorithm"].map(is_pinnable)]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    if len(known):
        for key, row in zip(keys(known), known.to_dict("records"), strict=True):
            rows.setdefault((key, row["algorithm"]), []).append({str(name): cell for name, cell in row.items()})
    candidates: dict[str, dict[str, Candidate]] = {}
    refused: dict[str, dict[str, str]] = {}
    for (key, name), repeats in rows.items():
        bad = next((row for row in repeats if row["status"] != "ok"), None)
        if bad:
            refused.setdefault(key, {})[name] = str(bad["reason"] or bad["status"])
        else:
            candidates.setdefault(key, {})[name] = _candidate(name, repeats)
    taken = ((key, name) for key, by_name in candidates.items() for name in by_name)
    return Measured(candidates, refused, sum(_contradict(rows[each]) for each in taken))


def _candidate(name: str, repeats: Sequence[Mapping[str, Any]]) -> Candidate:
    values = {}
    for target in COLUMNS:
        if ends := _intervals(repeats, target):
            middles, lows, highs = zip(*ends, strict=True)
            values[target] = Value(statistics.median(middles), min(lows), max(highs))
    workspaces, errors = ([_number(row[name]) for row in repeats] for name in ("workspace_bytes", "relative_error"))
    timed = [row for row in repeats if _number(row["mean_ms"]) is not None]
    std_ms, rounds = _spread(timed[0]) if len(timed) == 1 else (None, None)
    workspace = None if None in workspaces else int(max(filter(None, workspaces), default=0))
    error = None if None in errors else max(filter(None, errors), default=0.0)
    return Candidate(name, values, workspace, error, std_ms, rounds, _kernels(repeats[0]["kernels"]))


def _intervals(repeats: Sequence[Mapping[str, Any]], target: str) -> list[tuple[float, float, float]]:
    """Return value, low and high of each repeat; one without an interval may be anything."""
    middle_in, half_in = COLUMNS[target]
    found = []
    for row in repeats:
        middle, half = _number(row[middle_in]), _number(row[half_in])
        if middle is not None:
            half = math.inf if half is None else half
            found.append((middle, max(0.0, middle - half), middle + half))
    return found


def _contradict(repeats: Sequence[Mapping[str, Any]]) -> bool:
    ends = _intervals(repeats, "time")
    return bool(ends) and max(low for _, low, _ in ends) > min(high for _, _, high in ends)


def _spread(row: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return the standard deviation over placements, and their number, that a sample's interval was made of."""
    half, placements = _number(row["mean_ci95_ms"]), _number(row["placements"])
    if half is None or placements is None or placements < 2:
        return None, None
    return half * math.sqrt(placements) / float(stdtrit(placements - 1, 0.5 + CONFIDENCE / 2)), int(placements)


def _kernels(text: str | None) -> dict[str, int]:
    """Return kernels by name; none where other people's data have another text."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(cell: Any) -> float | None:
    return None if cell is None or cell != cell else float(cell)
