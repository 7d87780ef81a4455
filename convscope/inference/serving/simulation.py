"""Server on a simulated clock: requests of a Poisson process, a dynamic batcher, batches with known times.

It predicts which rates are worth measuring. Times are in seconds from the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from convscope.inference.serving.mlperf import fitting

Times = NDArray[np.float64]


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
