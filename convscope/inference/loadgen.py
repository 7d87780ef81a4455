"""Load generator: requests of a Poisson process, a dynamic batcher, the latency of each request, the search of rates.

Clock, waiting and work are arguments: the same loop runs with an engine on a GPU and with a simulated clock. Times are
in seconds from the start of the run.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from convscope.convolution.backends import PlanThread
from convscope.inference.engines.runners import Runner, undisturbed
from convscope.inference.request import Inference

Times = NDArray[np.float64]
_SPIN_S = 0.002  # at the end of a wait: the system wakes a sleeper up to a millisecond late


@dataclass(frozen=True)
class Batcher:
    """Gathers requests into batches of at most `max_batch`, each started when the engine is free.

    A batch that is not full waits until its oldest request has waited `max_delay_s`.
    """

    max_batch: int
    max_delay_s: float = 0.0


@dataclass
class Served:
    """Result of a run under load: latency of each answered request, sizes of the batches, duration.

    `gave_up` is True where the queue grew so long that the run was ended before all requests were answered.
    """

    latencies_s: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    duration_s: float = 0.0
    gave_up: bool = False


def poisson(rate_qps: float, duration_s: float, seed: int) -> Times:
    """Return the arrivals of a Poisson process of this rate within a duration, in order; one request at least."""
    generator = np.random.default_rng(seed)
    count = math.ceil(rate_qps * duration_s + 6 * math.sqrt(rate_qps * duration_s))
    arrivals = np.cumsum(generator.exponential(1 / rate_qps, count))
    within: Times = arrivals[arrivals < duration_s]
    return within if within.size else arrivals[:1]


def serve(
    arrivals_s: Times,
    batcher: Batcher,
    execute: Callable[[int], None],
    clock: Callable[[], float],
    wait: Callable[[float], None],
    give_up_s: float = math.inf,
) -> Served:
    """Answer requests in the order of their arrival.

    Args:
        execute: runs a batch of this many requests and returns when its answers are complete.
        clock: returns the time in seconds, from any zero.
        wait: lets this many seconds pass.
        give_up_s: a request that has waited longer ends the run: the rate is more than the engine can serve.
    """
    served, answered, count = Served(), 0, len(arrivals_s)
    start_s = clock()
    while answered < count:
        now_s = clock() - start_s
        arrived = int(np.searchsorted(arrivals_s, now_s, side="right"))
        if arrived == answered:
            wait(arrivals_s[answered] - now_s)
            continue
        if now_s - arrivals_s[answered] > give_up_s:
            served.gave_up = True
            break
        size, due_s = min(arrived - answered, batcher.max_batch), arrivals_s[answered] + batcher.max_delay_s
        if size < batcher.max_batch and now_s < due_s:
            wait(min(due_s, arrivals_s[arrived] if arrived < count else due_s) - now_s)
            continue
        execute(size)
        done_s = clock() - start_s
        served.latencies_s += (done_s - arrivals_s[answered : answered + size]).tolist()
        served.batches.append(size)
        answered += size
    served.duration_s = clock() - start_s
    return served


def pause(seconds: float) -> None:
    """Wait to within microseconds: sleep first, then spin on the clock."""
    until_s = time.perf_counter() + seconds
    if seconds > _SPIN_S:
        time.sleep(seconds - _SPIN_S)
    while time.perf_counter() < until_s:
        pass


def fitting(sizes: Sequence[int], count: int) -> int:
    """Return the smallest of these sizes, in rising order, that holds this many requests."""
    return sizes[bisect_left(sizes, count)]


class Simulated:
    """Engine with known batch times on a simulated clock: `serve` runs with it in no time."""

    def __init__(self, batch_s: Mapping[int, float]) -> None:
        self._batch_s, self._sizes = batch_s, sorted(batch_s)
        self._now_s = 0.0

    def clock(self) -> float:
        """Return the simulated time."""
        return self._now_s

    def wait(self, seconds: float) -> None:
        """Advance the clock; always by a step at least, or rounding could stop it."""
        self._now_s = max(self._now_s + seconds, math.nextafter(self._now_s, math.inf))

    def execute(self, count: int) -> None:
        """Run a batch in the smallest size that holds it."""
        self._now_s += self._batch_s[fitting(self._sizes, count)]


def simulated_p99_ms(
    batch_s: Mapping[int, float], batcher: Batcher, rate_qps: float, duration_s: float, seed: int
) -> float:
    """Return the p99 that follows from these service times at a rate; infinite where the queue grows without end."""
    engine = Simulated(batch_s)
    arrivals_s = poisson(rate_qps, duration_s, seed)
    served = serve(arrivals_s, batcher, engine.execute, engine.clock, engine.wait, give_up_s=duration_s / 2)
    return math.inf if served.gave_up else 1e3 * float(np.percentile(served.latencies_s, 99))


def capacity_qps(batch_s: Mapping[int, float]) -> float:
    """Return the highest rate of an engine with these service times, in seconds by batch size."""
    return max(size / seconds for size, seconds in batch_s.items())


def highest(meets: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Return the highest rate that meets a limit, by bisection between one that meets it and one that does not."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def rounded(rate_qps: float) -> float:
    """Return a rate rounded to three significant digits."""
    return float(f"{rate_qps:.3g}")


SERVICE_SAMPLES = 20
SIMULATED_REQUESTS = 20_000
RATE_SHARES = (0.5, 0.75, 0.9, 1.0, 1.1)  # of the rate that the simulation predicts to be the highest
REFINEMENTS = 2  # rates between the highest that kept the limit and the lowest that did not
# A request that has waited this long ends a run: a share of its length, and many times the limit. After a host's pause
# of a second the queue empties again; a queue that only grows makes requests wait longer.
GIVE_UP_SHARE, GIVE_UP_SLOS = 0.25, 20.0


class ServerLoad:
    """An engine, with a runner for each batch size and the thread that built them, behind a dynamic batcher."""

    def __init__(self, inference: Inference, runners: Mapping[int, Runner], thread: PlanThread) -> None:
        self._inference, self._runners, self._thread = inference, runners, thread
        self._sizes = sorted(runners)
        self._batcher = Batcher(self._sizes[-1], inference.max_delay_ms / 1e3)

    def first_rates(self) -> list[float]:
        """Return `rates_around` for the time of a batch of each size: the median of some calls."""

        def call_s(runner: Runner) -> float:
            started_s = time.perf_counter()
            runner.call()
            return time.perf_counter() - started_s

        def measured(runner: Runner) -> float:
            return statistics.median(call_s(runner) for _ in range(SERVICE_SAMPLES))

        batch_s = self._thread.run(lambda: {size: measured(runner) for size, runner in self._runners.items()})
        return rates_around(batch_s, self._batcher, self._inference.slo_ms, self._inference.seed)

    def served(self, rate_qps: float) -> Served:
        """Serve requests of this rate for the length of a run."""
        arrivals_s = poisson(rate_qps, self._inference.min_seconds, self._inference.seed)
        give_up_s = max(1.0, GIVE_UP_SHARE * self._inference.min_seconds, GIVE_UP_SLOS * self._inference.slo_ms / 1e3)

        def work() -> Served:
            with undisturbed():
                return serve(arrivals_s, self._batcher, self._execute, time.perf_counter, pause, give_up_s)

        return self._thread.run(work)

    def _execute(self, count: int) -> None:
        self._runners[fitting(self._sizes, count)].call()


def rates_around(batch_s: Mapping[int, float], batcher: Batcher, slo_ms: float, seed: int) -> list[float]:
    """Return rates to measure (1/s): shares of the highest to keep the limit in a simulation, else of the capacity."""
    most = capacity_qps(batch_s)
    duration_s = SIMULATED_REQUESTS / most

    def meets(rate: float) -> bool:
        return simulated_p99_ms(batch_s, batcher, rate, duration_s, seed) <= slo_ms

    best = highest(meets, 0.0, most, steps=8) or most
    return [rounded(share * best) for share in RATE_SHARES]


def between(within: Mapping[float, bool]) -> list[float]:
    """Return the rate between the highest that kept the limit and the lowest above it that did not; none without."""
    good = max((rate for rate, kept in within.items() if kept), default=None)
    bad = min((rate for rate, kept in within.items() if not kept and (good is None or rate > good)), default=None)
    return [] if good is None or bad is None else [rounded((good + bad) / 2)]


def search(within: Mapping[float, bool], first: Callable[[], Sequence[float]]) -> Iterator[float]:
    """Yield rate after rate to measure; the caller adds each to `within` (rate: kept the limit) before the next.

    Rates of earlier calls count: as many of the `first` rates, which rise, are left out, the lowest; then refinements.
    """
    missing = len(RATE_SHARES) - len(within)
    if missing > 0:
        yield from first()[-missing:]
    while not is_complete(within):
        yield from between(within)


def is_complete(within: Mapping[float, bool]) -> bool:
    """Tell whether enough rates were measured around the highest that keeps the limit."""
    enough = len(RATE_SHARES) + REFINEMENTS
    return len(within) >= len(RATE_SHARES) and (len(within) >= enough or not between(within))
