"""Two sides of plans, of another cuDNN, driver or GPU: which layers changed, and how. Needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convscope.atlas.rows import OK
from convscope.errors import InputError
from convscope.pinning.document import SETTINGS, STACK, Pin, Pins
from convscope.profiling.comparison.judgement import Estimate, change, verdict

TOLERANCE_PCT = 5.0
LESS_EXACT = 4.0
"""Errors of two kernels that are both right differ by less than this factor, for they are those of random sums."""
BAD = ("slower", "wrong", "less exact", "more memory", "other kernels", "missing", "other shape")


@dataclass(frozen=True)
class Changed:
    """One layer of both sides: its plans, B's time in percent of A's with its interval, and what changed."""

    layer: str
    a: str
    b: str
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    verdicts: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        """True where something changed that somebody must look at."""
        return bool(set(self.verdicts) & set(BAD))


def compared(a: Pins, b: Pins, tolerance_pct: float = TOLERANCE_PCT) -> list[Changed]:
    """Return every layer of A, and those that only B has, side by side.

    Raises:
        InputError: the two are of other work: another model, size, batch, arithmetic, type or layout.
    """
    both = ((name, a.settings[name], b.settings[name]) for name in SETTINGS)
    others = [f"{name} {of_a} and {of_b}" for name, of_a, of_b in both if of_a != of_b]
    fused = [any(pin.shape["fused"] for pin in side.layers) for side in (a, b)]
    if fused[0] != fused[1]:
        others.append(f"{'A' if fused[0] else 'B'} is of a fused model")
    if others:
        raise InputError(f"A and B are other work ({'; '.join(others)}): compare two of the same")
    in_a, in_b = ({pin.layer: pin for pin in side.layers} for side in (a, b))
    names = [*in_a, *(name for name in in_b if name not in in_a)]
    return [_layer(name, in_a.get(name), in_b.get(name), tolerance_pct) for name in names]


def stack_lines(a: Pins, b: Pins) -> Iterator[str]:
    """Yield a line for each part of the stack that differs."""
    for name in STACK:
        if a.stack[name] != b.stack[name]:
            yield f"{name}: {a.stack[name]} -> {b.stack[name]}"


def _layer(name: str, a: Pin | None, b: Pin | None, tolerance_pct: float) -> Changed:
    if a is None or b is None:
        return Changed(name, a.algorithm if a else "-", b.algorithm if b else "-", verdicts=("missing",))
    if dict(a.shape) != dict(b.shape):
        return Changed(name, a.algorithm, b.algorithm, verdicts=("other shape",))
    ours, theirs = _estimate(a.figures), _estimate(b.figures)
    found = change(ours, theirs, tolerance_pct) if ours and theirs else None
    words = verdict(found.low_pct, found.high_pct, tolerance_pct) if found else "not compared"
    verdicts = words, *_other_changes(a, b)
    if found is None:
        return Changed(name, a.algorithm, b.algorithm, verdicts=verdicts)
    return Changed(name, a.algorithm, b.algorithm, found.change_pct, found.low_pct, found.high_pct, verdicts)


def _estimate(figures: Mapping[str, Any]) -> Estimate | None:
    """Return the time of a plan and its error over rounds, each of which was another placement in memory."""
    mean_ms, std_ms, rounds = (figures[name] for name in ("mean_ms", "std_ms", "rounds"))
    if not mean_ms or std_ms is None or rounds < 2:
        return None
    return Estimate(mean_ms, std_ms / math.sqrt(rounds), rounds - 1, is_placed=True)


def _other_changes(a: Pin, b: Pin) -> Sequence[str]:
    """Return what changed besides the time."""
    words = []
    if b.figures["outcome"] != OK:
        words.append(b.figures["outcome"])
    errors = a.figures["relative_error"], b.figures["relative_error"]
    if None not in errors and not errors[1] <= LESS_EXACT * errors[0]:
        words.append("less exact")
    workspaces = a.figures["workspace_bytes"], b.figures["workspace_bytes"]
    if None not in workspaces and workspaces[1] > workspaces[0]:
        words.append("more memory")
    if a.kernels and b.kernels and a.kernels.keys() != b.kernels.keys():
        words.append("other kernels")
    return words
