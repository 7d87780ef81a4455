"""Judgement on the times of two rows: difference with its interval, verdict, and what else could account for it.

A row's mean has an error: over placements of tensors in memory where it was timed in several, else over samples. Pure:
rows in, words and numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from convscope.gpus import slowed_by
from convscope.profiling.rows import OverallRow, Row
from convscope.storage import wording
from convscope.timing.summary import CONFIDENCE

THERMAL_PCT = 1.0  # of a window: a card that heat slowed for less of it lost less time than that


@dataclass(frozen=True)
class Estimate:
    """Mean of a row's times with its standard error, None for a single sample, and its degrees of freedom.

    `is_placed` says that the error covers the spread over placements; `low_ms` and `high_ms` then enclose the means of
    all of them.
    """

    mean_ms: float
    error_ms: float | None
    freedom: int
    is_placed: bool = False
    low_ms: float | None = None
    high_ms: float | None = None


@dataclass(frozen=True)
class Change:
    """Difference of two estimates in percent of the first, with its interval.

    `p_value` is the probability of a difference as far beyond the tolerance where there is none.
    """

    change_pct: float
    low_pct: float
    high_pct: float
    p_value: float


def estimate(row: Row) -> Estimate | None:
    """Return the mean time of a row and what it rests on; None where it was not timed.

    `mean_ci95_ms` of a row with several `placements` is half the width of Student's interval of their mean.
    """
    mean_ms, std_ms = (row.mean, row.std) if isinstance(row, OverallRow) else (row.mean_ms, row.std_ms)
    if mean_ms is None or mean_ms <= 0 or row.samples is None:
        return None
    places = row.placements
    if places is None or places < 2 or row.mean_ci95_ms is None:
        count = int(row.samples)
        alone = std_ms is None or count < 2
        return Estimate(mean_ms, None if alone else (std_ms or 0.0) / math.sqrt(count), count - 1)
    error_ms = row.mean_ci95_ms / float(stdtrit(places - 1, 0.5 + CONFIDENCE / 2))
    if row.placement_spread_pct is None:
        return Estimate(mean_ms, error_ms, places - 1, is_placed=True)
    # However the places lie between the two ends, none is farther from the mean of all than this.
    reach_ms = mean_ms * row.placement_spread_pct / 100 * (places - 1) / places
    return Estimate(mean_ms, error_ms, places - 1, True, mean_ms - reach_ms, mean_ms + reach_ms)


def change(a: Estimate, b: Estimate, tolerance_pct: float, doubt_ms: float = 0.0) -> Change | None:
    """Return how much longer B took than A, with the 95 % interval; None where one of them has no error.

    The interval of two rows over samples is Welch's. Where one is over placements, the two half widths are added in
    quadrature: they hold errors that no degrees of freedom belong to, and so may not be made narrower.

    Args:
        doubt_ms: added to either side of the interval: what both times may be off by together.
    """
    if a.error_ms is None or b.error_ms is None:
        return None
    parts = a.error_ms**2, b.error_ms**2
    error_ms, between_ms = math.sqrt(sum(parts)), b.mean_ms - a.mean_ms
    beyond_ms = abs(between_ms) - doubt_ms - tolerance_pct / 100 * a.mean_ms
    half_ms, p_value = 0.0, 1.0 if beyond_ms < 0 else 0.0
    if error_ms > 0:
        freedom = sum(parts) ** 2 / (parts[0] ** 2 / a.freedom + parts[1] ** 2 / b.freedom)
        freedom = min(a.freedom, b.freedom) if a.is_placed or b.is_placed else freedom
        half_ms = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * error_ms
        p_value = min(1.0, 2 * float(stdtr(freedom, -beyond_ms / error_ms)))
    to_pct, reach_ms = 100 / a.mean_ms, half_ms + doubt_ms
    return Change(between_ms * to_pct, (between_ms - reach_ms) * to_pct, (between_ms + reach_ms) * to_pct, p_value)


def verdict(low_pct: float, high_pct: float, tolerance_pct: float) -> str:
    """Return what an interval of B's change against A says: faster, slower, same, or ambiguous where it may be two."""
    if low_pct > tolerance_pct:
        return "slower"
    if high_pct < -tolerance_pct:
        return "faster"
    return "same" if -tolerance_pct <= low_pct and high_pct <= tolerance_pct else "ambiguous"


def placement_doubt(a: Estimate, b: Estimate) -> str:
    """Return why a difference may be one of placement, "" where no place of the tensors would have turned it round."""
    if a.low_ms is None or a.high_ms is None or b.low_ms is None or b.high_ms is None:
        return ""
    if max(a.low_ms, b.low_ms) > min(a.high_ms, b.high_ms):
        return ""
    return "another place in memory may turn it round"


def card_doubt(a: OverallRow, b: OverallRow, found: Change, b_pct: float, tolerance_pct: float) -> str:
    """Return why a verdict on the times of two passes does not stand, "" where it does.

    Time goes at most with the inverse of the clock: at A's clock B would lie between what it is and that bound.

    Args:
        b_pct: B's time in percent of A's.
    """
    named = (("A", a), ("B", b))
    for name, row in named:
        if why := _throttle(row):
            return f"{name} was throttled ({why})"
    if wording.present(a.timing_method) != wording.present(b.timing_method):
        return f"timed in different ways ({a.timing_method}; {b.timing_method})"
    if not a.sm_clock_mhz or not b.sm_clock_mhz:
        capped = next((name for name, row in named if _is_capped(row)), None)
        return f"{capped} was held at its power limit, at clocks that are not known" if capped else ""
    shift_pct = b_pct * (b.sm_clock_mhz / a.sm_clock_mhz - 1)
    if verdict(found.low_pct + min(0, shift_pct), found.high_pct + max(0, shift_pct), tolerance_pct) != "ambiguous":
        return ""
    return f"clocks of {a.sm_clock_mhz:.0f} and {b.sm_clock_mhz:.0f} MHz can account for {abs(shift_pct):.1f} %"


def _throttle(row: OverallRow) -> str:
    """Return what slowed a pass besides a power limit, which is normal on many cards; "" for nothing."""
    heat_pct = row.throttle_thermal_pct
    if heat_pct is not None and heat_pct >= THERMAL_PCT:
        return f"{heat_pct:.0f} % of the window by heat"
    every = slowed_by(row.throttle_reasons)
    return ", ".join(reason for reason in every if heat_pct is None or "thermal" not in reason)


def _is_capped(row: OverallRow) -> bool:
    return bool(row.throttle_power_pct) or "power cap" in (row.throttle_reasons or "")


def beyond_chance(p_values: Sequence[float]) -> float:
    """Return the largest p-value that counts among many, by Benjamini and Hochberg; -1 where none does.

    Of the differences that are named in this way no more than 5 % are expected to be chance; of two runs of the same
    command, none is named in 95 % of comparisons, whatever the number of layers.
    """
    ordered = sorted(p_values)
    count = len(ordered)
    within = [p for rank, p in enumerate(ordered, 1) if p <= (1 - CONFIDENCE) * rank / count]
    return max(within, default=-1.0)
