"""Search of the highest rate of requests that keeps a limit: rates to measure, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from convscope.inference.serving import simulation
from convscope.inference.serving.simulation import Batcher

SIMULATED_REQUESTS = 20_000
RATE_SHARES = (0.5, 0.75, 0.9, 1.0, 1.1)  # of the rate that the simulation predicts to be the highest
CLOSE = 0.05  # share by which the lowest rate that failed may lie above the highest that did not
_UP, _DOWN = 1.25, 0.5  # where no rate failed, and where none kept the limit
_MOST = 20  # rates


def rates_around(batch_s: Mapping[int, float], batcher: Batcher, slo_ms: float, seed: int) -> list[float]:
    """Return rates to measure (1/s): shares of the highest to keep the limit in a simulation, else of the capacity."""
    most = simulation.capacity_qps(batch_s)
    duration_s = SIMULATED_REQUESTS / most

    def meets(rate: float) -> bool:
        return simulation.simulated_p99_ms(batch_s, batcher, rate, duration_s, seed) <= slo_ms

    best = highest(meets, 0.0, most, steps=8) or most
    return [rounded(share * best) for share in RATE_SHARES]


def highest(meets: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Return the highest rate that meets a limit, by bisection between one that meets it and one that does not."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def rounded(rate_qps: float) -> float:
    """Return a rate rounded to three significant digits."""
    return float(f"{rate_qps:.3g}")


def bracket(within: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """Return the highest rate that kept the limit, and the lowest above it that did not."""
    good = max((rate for rate, kept in within.items() if kept), default=None)
    bad = min((rate for rate, kept in within.items() if not kept and (good is None or rate > good)), default=None)
    return good, bad


@dataclass(frozen=True)
class Range:
    """Rates (1/s) beyond which nothing is searched."""

    lowest_qps: float
    highest_qps: float


def search(within: Mapping[float, bool], first: Callable[[], Sequence[float]], limits: Range) -> Iterator[float]:
    """Yield rate after rate to measure; the caller adds each to `within` (rate: kept the limit) before the next.

    Rates of earlier calls count. The `first` rates are measured in rising order, until two have not kept the limit;
    then higher ones while none has failed, or lower ones while none has kept it; then rates between the two, until they
    are `CLOSE`.

    Args:
        first: called once, and not at all where enough rates are known.
    """
    planned = list[float]()
    if len(within) < len(RATE_SHARES) and not is_complete(within, limits):
        planned = sorted({min(max(rate, limits.lowest_qps), limits.highest_qps) for rate in first()})
    while (rate := following(within, planned, limits)) is not None:
        yield rate


def is_complete(within: Mapping[float, bool], limits: Range) -> bool:
    """Tell whether the highest rate that keeps the limit is known as well as a search finds it."""
    return bool(within) and following(within, [], limits) is None


def following(within: Mapping[float, bool], planned: Sequence[float], limits: Range) -> float | None:
    """Return the rate to measure next, None at the end of the search."""
    good, bad = bracket(within)
    failed = sum(not kept for kept in within.values())
    next_planned = next((rate for rate in planned if rate > max(within, default=0.0)), None)
    if next_planned is not None and failed < 2:
        return next_planned
    if not within or len(within) >= _MOST:
        return None
    if bad is None:
        assert good is not None
        return min(rounded(good * _UP), limits.highest_qps) if good < limits.highest_qps else None
    if good is None:
        return max(rounded(bad * _DOWN), limits.lowest_qps) if bad > limits.lowest_qps else None
    middle = rounded((good + bad) / 2)
    return None if bad <= good * (1 + CLOSE) or middle in (good, bad) else middle
