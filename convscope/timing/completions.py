"""Completed inferences of a steady load at any moment, the one under way as a fraction. Pure numbers."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """Number of inferences, fractions counted, and the standard deviation of that number."""

    inferences: float
    std: float


class Completions:
    """Moments at which a load's inferences were completed, one after another, as far as they were seen.

    A GPU is asked now and then. Completions that one look finds together are a pass apart, so they lie evenly around
    the middle of the time since the look before; where exactly is uncertain by that time or by a pass, the shorter.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._middles_s: list[float] = []
        self._counts: list[float] = []  # completed at these moments: the mean of before and after each
        self._widths_s: list[float] = []

    def add(self, finished: int, after_s: float, by_s: float) -> None:
        """Note that the inferences up to number `finished` were completed after one moment and by another."""
        if finished <= self._seen:
            return
        self._middles_s.append((after_s + by_s) / 2)
        self._counts.append((self._seen + finished) / 2)
        self._widths_s.append(by_s - after_s)
        self._seen = finished

    @property
    def begun(self) -> bool:
        """True once the first inference has been seen to complete."""
        return self._seen > 0

    def cover(self, time_s: float) -> bool:
        """Tell whether completions are known on both sides of a moment, so that a fraction is one of a known pass."""
        return self.begun and self._middles_s[0] <= time_s <= self._middles_s[-1]

    def between(self, start_s: float, end_s: float) -> Count:
        """Return the number of inferences between two moments that are covered; ValueError where one is not."""
        start, end = self._at(start_s), self._at(end_s)
        return Count(end.inferences - start.inferences, math.hypot(start.std, end.std))

    def _at(self, time_s: float) -> Count:
        if not self.cover(time_s) or len(self._middles_s) < 2:
            raise ValueError(f"no inference was seen to complete on both sides of {time_s:.3f} s")
        right = max(1, bisect.bisect_left(self._middles_s, time_s))
        left = right - 1
        step_s = self._middles_s[right] - self._middles_s[left]
        step = self._counts[right] - self._counts[left]
        share = (time_s - self._middles_s[left]) / step_s
        return Count(
            self._counts[left] + share * step,
            math.hypot((1 - share) * self._std(left, step / step_s), share * self._std(right, step / step_s)),
        )

    def _std(self, index: int, per_s: float) -> float:
        """Return the standard deviation of a count: a rectangle as wide as the time that is uncertain, in passes."""
        return min(self._widths_s[index] * per_s, 1.0) / math.sqrt(12)
