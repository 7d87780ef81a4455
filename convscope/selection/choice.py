"""Choice of one candidate for a layer: PyTorch's own, unless another is better beyond the intervals of both.

Where intervals are wide that leaves much to PyTorch; `Rule.least` takes the least estimate instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from convscope.pinning.document import TORCH
from convscope.prediction.features import CARD, CATEGORIES
from convscope.selection.candidates import Candidate, Value, gain

NAMED = 2
"""Features that a remark names at most."""
OUTSIDE = "outside what was learned"
_NAMES = frozenset({CARD, *CATEGORIES})
UNSURE = "without an interval"
UNKNOWN = "PyTorch's own choice is neither measured nor predicted"


@dataclass(frozen=True)
class Rule:
    """Rule of a choice: the objective, one of `objectives.OBJECTIVES`, and limits of the candidates.

    Attributes:
        max_workspace_bytes, max_error: a candidate with more, or of which it is not known, is left out; not PyTorch.
        outside: predictions for a card, an algorithm, a type, a math or a layout that was not learned count too. Those
            for numbers outside what was learned always count, and are marked.
        least: the least value is taken, however far its interval reaches.
    """

    objective: str = "time"
    max_workspace_bytes: int | None = None
    max_error: float | None = None
    outside: bool = False
    least: bool = False


@dataclass(frozen=True)
class Choice:
    """The candidate that was chosen, PyTorch's own choice, and what is to be said of it."""

    chosen: Candidate
    own: Candidate
    remark: str

    @property
    def is_changed(self) -> bool:
        """True where the layer is not left to PyTorch."""
        return self.chosen.algorithm != TORCH


def left(reason: str) -> Choice:
    """Return the choice of a layer that is left to PyTorch for a reason."""
    return Choice(Candidate(TORCH), Candidate(TORCH), reason)


def choose(candidates: Sequence[Candidate], rule: Rule) -> Choice:
    """Choose among the candidates of one layer.

    Only those count whose gain over PyTorch's own choice is above 0 in its whole interval; all else is a tie with it,
    which it wins. Of those, the ones whose interval reaches the best one's are tied, and the one that needs least
    workspace is chosen. What has no interval (timed in one placement in
    memory, where it was far behind) is not chosen. With `Rule.least` ties are not looked at.
    """
    own = next((each for each in candidates if each.algorithm == TORCH), Candidate(TORCH))
    value = own.value(rule.objective)
    if value is None:
        return Choice(own, own, UNKNOWN)
    if _is_unknown(value) and not rule.outside:
        return Choice(own, own, _marked(value))
    if math.isinf(value.high):
        return Choice(own, own, f"PyTorch's own choice is {UNSURE}")
    others, dropped = _allowed([each for each in candidates if each is not own], rule)
    if rule.least:
        return _least(own, [(own, value), *others], dropped)
    better = [(each, its) for each, its in others if gain(its, value)[1] > 0]
    if not better:
        names = [each.algorithm for each, its in others if gain(its, value)[2] >= 0]
        first = f"tie with {', '.join(names)}" if names else "" if others else "no other candidate"
        return Choice(own, own, "; ".join(filter(None, (first, _marked(value), *dropped))))
    best = min((its for _, its in better), key=lambda its: its.middle)
    tied = [(each, its) for each, its in better if its.low <= best.high]
    chosen, its = min(tied, key=lambda pair: (_workspace(pair[0]), pair[1].middle, pair[0].algorithm))
    rest = [each.algorithm for each, _ in tied if each is not chosen]
    said = f"tie with {', '.join(rest)}" if rest else "", _marked(its)
    return Choice(chosen, own, "; ".join(filter(None, (*said, *dropped))))


def _least(own: Candidate, rivals: Sequence[tuple[Candidate, Value]], dropped: Sequence[str]) -> Choice:
    """Choose the least of the candidates, PyTorch's own among them, and say how many are within its interval."""
    chosen, its = min(rivals, key=lambda pair: (pair[1].middle, pair[0] is not own, pair[0].algorithm))
    near = sum(value.low <= its.high for each, value in rivals if each is not chosen)
    said = f"{near} within its interval" if near else "", _marked(its)
    return Choice(chosen, own, "; ".join(filter(None, (*said, *dropped))))


def _allowed(candidates: Sequence[Candidate], rule: Rule) -> tuple[list[tuple[Candidate, Value]], list[str]]:
    """Return the candidates that the rule allows, and a few words for each reason why others are left out."""
    allowed, reasons = [], Counter[str]()
    for each in candidates:
        value = each.value(rule.objective)
        if value is None:
            reasons[f"without {rule.objective}"] += 1
        elif _is_unknown(value) and not rule.outside:
            reasons[f"{OUTSIDE} ({_first(value.outside)})"] += 1
        elif math.isinf(value.high):
            reasons[UNSURE] += 1
        elif _is_above(each.workspace_bytes, rule.max_workspace_bytes):
            reasons["with more workspace, or an unknown one"] += 1
        elif _is_above(each.relative_error, rule.max_error):
            reasons["with a larger error, or an unknown one"] += 1
        else:
            allowed.append((each, value))
    return allowed, [f"{count} {reason}" for reason, count in reasons.items()]


def _marked(value: Value) -> str:
    """Return what is outside what was learned, for a remark; "" for nothing."""
    return f"{OUTSIDE}: {_first(value.outside)}" if value.outside else ""


def _is_unknown(value: Value) -> bool:
    """Tell whether a prediction is for a name that was not learned: nothing says how wrong it may be."""
    return not _NAMES.isdisjoint(value.outside.split(", "))


def _first(features: str) -> str:
    """Return the first of the features that are outside what was learned, and the number of others."""
    names = features.split(", ")
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _is_above(value: float | None, most: float | None) -> bool:
    return most is not None and (value is None or value > most)


def _workspace(candidate: Candidate) -> float:
    return math.inf if candidate.workspace_bytes is None else candidate.workspace_bytes
