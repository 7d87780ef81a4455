"""Deadline of a run, and the time that its next input size takes: a size that cannot end before it is not begun.

The batch script passes on when its job ends, in `CONVSCOPE_END_S`. The time that a size takes is learned from those
that the folder has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from convscope.errors import InputError

VARIABLE = "CONVSCOPE_END_S"
_SPREAD = 1.25  # a size may take so many times what it is expected to
_ENDING_S = 15.0  # from the last size to the end of the job: sorting the tables, the end of the step


def read_end_s(environment: Mapping[str, str]) -> float | None:
    """Return when the job ends, in seconds since 1970; None where it is not known."""
    text = environment.get(VARIABLE, "")
    if text and not text.isdecimal():
        raise InputError(f"{VARIABLE} is {text!r}: give seconds since 1970, as date +%s prints them, or unset it")
    return float(text) if text else None


class Deadline:
    """The end of a run's time, and the durations of its sizes so far.

    Args:
        end_s: when the time is over, in seconds since 1970; None for never.
        rows: rows of the overall table as text, whose sizes show how long the next one takes.
    """

    def __init__(
        self, end_s: float | None, rows: Iterable[Mapping[str, str]] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self._end_s, self._clock = end_s, clock
        self._walls_s: dict[int, float] = {}
        for row in rows:
            if row["status"] == "ok" and row["wall_s"]:
                self.learn(int(row["input_size"]), float(row["wall_s"]))

    def learn(self, size: int, wall_s: float) -> None:
        """Note how long a size has taken."""
        self._walls_s[size] = wall_s

    def expected_s(self, size: int) -> float | None:
        """Return the time that a size takes by the next smaller and larger ones; None where there is neither.

        A size takes at most as long as a larger one, and as a smaller one by the ratio of the areas.
        """
        smaller = max((known for known in self._walls_s if known <= size), default=None)
        larger = min((known for known in self._walls_s if known >= size), default=None)
        bounds = [] if larger is None else [self._walls_s[larger]]
        if smaller is not None:
            bounds.append(self._walls_s[smaller] * (size / smaller) ** 2)
        return max(bounds, default=None)

    def missed_by(self, size: int) -> str | None:
        """Return why a size is not to be begun; None where it ends in time, and where its duration is not known."""
        expected_s = self.expected_s(size)
        if self._end_s is None or expected_s is None:
            return None
        left_s = max(0.0, self._end_s - self._clock())
        if _SPREAD * expected_s + _ENDING_S <= left_s:
            return None
        return f"{size} px takes about {expected_s:.0f} s, and the job ends in {left_s:.0f} s"
