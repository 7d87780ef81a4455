"""An engine under the load of a server: how long its batches take, which rates to try, and what becomes of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from convscope import serving
from convscope.aside import Aside
from convscope.deployment import Inference
from convscope.runner import Runner, undisturbed

SERVICE_SAMPLES = 20
SIMULATED_REQUESTS = 20_000
RATE_SHARES = (0.5, 0.75, 0.9, 1.0, 1.1)  # of the rate that the simulation predicts to be the highest
REFINEMENTS = 2  # rates between the highest that kept the limit and the lowest that did not
# A request that has waited so long ends a run: a share of its length, and many times the limit. Where a host stands
# still for a second the queue goes away again; one that only grows takes longer.
GIVE_UP_SHARE, GIVE_UP_SLOS = 0.25, 20.0


class Load:
    """An engine at several batch sizes behind a dynamic batcher.

    Args:
        runners: by batch size.
        aside: the thread that the engine was set up in.
    """

    def __init__(self, inference: Inference, runners: Mapping[int, Runner], aside: Aside) -> None:
        self._asked, self._runners, self._aside = inference, runners, aside
        self._sizes = sorted(runners)
        self.batcher = serving.Batcher(self._sizes[-1], inference.max_delay_ms / 1e3)

    def batch_seconds(self) -> dict[int, float]:
        """Return how long a batch of each size takes, in seconds: the median of some calls."""

        def measured(runner: Runner) -> float:
            return statistics.median(_call_s(runner) for _ in range(SERVICE_SAMPLES))

        return self._aside.run(lambda: {size: measured(runner) for size, runner in self._runners.items()})

    def served(self, rate_qps: float) -> serving.Served:
        """Serve requests of this rate for as long as was asked for."""
        arrivals_s = serving.poisson(rate_qps, self._asked.min_seconds, self._asked.seed)
        give_up_s = max(1.0, GIVE_UP_SHARE * self._asked.min_seconds, GIVE_UP_SLOS * self._asked.slo_ms / 1e3)

        def work() -> serving.Served:
            with undisturbed():
                return serving.serve(
                    arrivals_s, self.batcher, self._execute, time.perf_counter, serving.pause, give_up_s
                )

        return self._aside.run(work)

    def _execute(self, count: int) -> None:
        self._runners[serving.fitting(self._sizes, count)].call()


def _call_s(runner: Runner) -> float:
    started_s = time.perf_counter()
    runner.call()
    return time.perf_counter() - started_s


def rates_around(batch_s: Mapping[int, float], batcher: serving.Batcher, slo_ms: float, seed: int) -> list[float]:
    """Return the rates to measure, in requests a second: shares of the highest that a simulation holds to the limit.

    Where even one request a second would not keep the limit, shares of the capacity.
    """
    most = serving.capacity_qps(batch_s)
    duration_s = SIMULATED_REQUESTS / most

    def meets(rate: float) -> bool:
        return serving.simulated_p99_ms(batch_s, batcher, rate, duration_s, seed) <= slo_ms

    best = serving.highest(meets, 0.0, most, steps=8) or most
    return [serving.rounded(share * best) for share in RATE_SHARES]


def between(within: Mapping[float, bool]) -> list[float]:
    """Return the rate between the highest that kept the limit and the lowest above it that did not; none without."""
    good = max((rate for rate, kept in within.items() if kept), default=None)
    bad = min((rate for rate, kept in within.items() if not kept and (good is None or rate > good)), default=None)
    return [] if good is None or bad is None else [serving.rounded((good + bad) / 2)]


def search(within: Mapping[float, bool], first: Callable[[], Sequence[float]]) -> Iterator[float]:
    """Yield rate after rate to be measured; `within` has to know each before the next is asked for.

    What an earlier call measured counts: of the first rates the lowest are left out for it, then refinements.

    Args:
        first: the rates to begin with, in rising order, as many as `RATE_SHARES`.
    """
    missing = len(RATE_SHARES) - len(within)
    if missing > 0:
        yield from first()[-missing:]
    while not is_found(within):
        yield from between(within)


def is_found(within: Mapping[float, bool]) -> bool:
    """Tell whether enough rates were measured around the highest that keeps the limit."""
    enough = len(RATE_SHARES) + REFINEMENTS
    return len(within) >= len(RATE_SHARES) and (len(within) >= enough or not between(within))
