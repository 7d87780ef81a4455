"""Statistics of repeated times: summary, interval of the median, difference of two means. Pure numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Summary of repeated measurements of one time, in milliseconds.

    `std_ms` and `ci95_ms` are None for a single sample, which has no spread.
    """

    count: int
    mean_ms: float
    std_ms: float | None
    min_ms: float
    max_ms: float
    median_ms: float
    p95_ms: float
    ci95_ms: float | None


def summarize(times_ms: Sequence[float]) -> Summary:
    """Summarize repeated times; ValueError without any, or for one that is not finite.

    The standard deviation is the sample's (n - 1); `ci95_ms` is half the width of the 95 % confidence interval of the
    mean by Student's t.
    """
    times = np.asarray(times_ms, dtype=np.float64)
    if times.size == 0:
        raise ValueError("no times to summarize: at least one sample is needed")
    if not np.isfinite(times).all():
        raise ValueError(f"a time is not finite: {times[~np.isfinite(times)][0]}")
    std_ms = float(times.std(ddof=1)) if times.size > 1 else None
    ci95_ms = None if std_ms is None else half_width_ms(std_ms, int(times.size))
    return Summary(
        count=int(times.size), mean_ms=float(times.mean()), std_ms=std_ms, min_ms=float(times.min()),
        max_ms=float(times.max()), median_ms=float(np.median(times)), p95_ms=float(np.percentile(times, 95)),
        ci95_ms=ci95_ms,
    )  # fmt: skip


@dataclass(frozen=True)
class PlacedSummary(Summary):
    """Summary over several placements in memory, in milliseconds.

    `ci95_ms` is from the means of the placements; `placement_spread_pct` is the distance of the largest of them from
    the smallest, in percent of the mean. Both are None for a single placement.
    """

    placements: int
    placement_spread_pct: float | None


def summarize_placed(times_ms: Sequence[Sequence[float]], doubt_ms: float = 0.0) -> PlacedSummary:
    """Summarize repeated times by placement; ValueError as `summarize`.

    `ci95_ms` is half the width of the 95 % confidence interval of the mean of placements by Student's t, and
    `doubt_ms`, half the width of the interval of what is common to all samples, in quadrature.

    Args:
        times_ms: as many of each placement.
    """
    found = summarize([time_ms for of_place in times_ms for time_ms in of_place])
    means_ms = np.array([np.mean(of_place) for of_place in times_ms])
    between_ms = half_width_ms(float(means_ms.std(ddof=1)), means_ms.size) if means_ms.size > 1 else None
    known = between_ms is not None and found.mean_ms > 0
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return PlacedSummary(
        **fields | {"ci95_ms": None if between_ms is None else math.hypot(between_ms, doubt_ms)},
        placements=means_ms.size,
        placement_spread_pct=100 * float(np.ptp(means_ms)) / found.mean_ms if known else None,
    )


def half_width_ms(std_ms: float, count: int, confidence: float = CONFIDENCE) -> float:
    """Return half the width, in ms, of the confidence interval of a mean of `count` samples."""
    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return quantile * std_ms / math.sqrt(count)


def median_interval_ms(times_ms: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the median for any distribution; None for fewer than six times.

    Its ends are the times of two ranks; the ranks are quantiles of a binomial distribution with p = 1/2.
    """
    ordered, count = sorted(times_ms), len(times_ms)
    at_most = bdtr(np.arange(count + 1), count, 0.5)  # that at most so many times lie below the median
    rank = int(np.searchsorted(at_most, (1 - CONFIDENCE) / 2))
    return (ordered[rank - 1], ordered[count - rank]) if rank >= 1 else None


@dataclass(frozen=True)
class Difference:
    """Difference of two mean times in milliseconds, with half the width of its confidence interval."""

    mean_ms: float
    half_width_ms: float

    @property
    def is_tie(self) -> bool:
        """True where the interval holds 0: the two do not differ at this confidence."""
        return abs(self.mean_ms) <= self.half_width_ms


def paired_difference(one_ms: Sequence[float], other_ms: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """Return the mean of `one_ms` minus `other_ms`, taken in the same rounds: an error that a round shares cancels.

    Raises:
        ValueError: there are not as many of the one as of the other, or fewer than two rounds.
    """
    extra = summarize([one - other for one, other in zip(one_ms, other_ms, strict=True)])
    if extra.std_ms is None:
        raise ValueError("a single round has no spread: two or more are needed to compare")
    return Difference(extra.mean_ms, half_width_ms(extra.std_ms, extra.count, confidence))


def difference(one: Summary, other: Summary, confidence: float = CONFIDENCE) -> Difference:
    """Return the time of `one` minus that of `other`, with Welch's interval for two means of unequal spread.

    Raises:
        ValueError: one of them has a single sample, and so no spread.
    """
    if one.std_ms is None or other.std_ms is None:
        raise ValueError("a single sample has no spread: two or more are needed to compare")
    parts = one.std_ms**2 / one.count, other.std_ms**2 / other.count
    variance = sum(parts)
    between_ms = one.mean_ms - other.mean_ms
    if variance == 0:
        return Difference(between_ms, 0.0)
    freedom = variance**2 / (parts[0] ** 2 / (one.count - 1) + parts[1] ** 2 / (other.count - 1))
    return Difference(between_ms, float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(variance))
