"""The load generator at its edges: limits that are just kept, counts of calls, and rates as exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import Clock
from hypothesis import given
from hypothesis import strategies as st

from convscope.inference import loadgen
from convscope.inference.loadgen import Batcher, Served, Simulated
from convscope.inference.request import Inference


def served(arrivals_s: list[float], batcher: Batcher, batch_s: dict[int, float], **options: float) -> Served:
    """Serve arrivals with a simulated engine whose clock does not begin at 0."""
    engine = Simulated(batch_s)
    engine.wait(8.0)
    return loadgen.serve(np.array(arrivals_s), batcher, engine.execute, engine.clock, engine.wait, **options)


def test_a_batch_starts_at_the_moment_its_oldest_request_has_waited_enough():
    found = served([0.0, 0.25, 1.0], Batcher(3, 0.5), {1: 0.25, 3: 0.25})
    assert found == Served([0.75, 0.5, 0.75], [2, 1], 1.75)


def test_nothing_was_served_and_nobody_waits_where_nothing_is_said():
    assert Served() == Served([], [], 0.0, gave_up=False)
    assert Batcher(4) == Batcher(4, 0.0)


def test_a_full_batch_does_not_wait():
    assert served([0.0, 0.25, 2.0], Batcher(2, 1.0), {1: 0.25, 2: 0.5}) == Served([0.75, 0.5, 1.25], [2, 1], 3.25)


def test_a_request_that_has_waited_the_limit_is_served_and_one_that_has_waited_longer_ends_the_run():
    assert not served([0.0] * 3, Batcher(1), {1: 1.0}, give_up_s=2.0).gave_up
    found = served([0.0] * 3, Batcher(1), {1: 1.0}, give_up_s=1.75)
    assert found == Served([1.0, 2.0], [1, 1], 2.0, gave_up=True)


def test_the_simulated_clock_begins_at_0_and_always_moves():
    engine = Simulated({1: 0.5})
    assert engine.clock() == 0.0
    engine.wait(2.0)
    assert engine.clock() == 2.0
    engine.wait(-1.0)
    assert engine.clock() == math.nextafter(2.0, math.inf)


@pytest.mark.parametrize("seed", range(8))
def test_where_no_request_arrives_in_time_the_first_one_is_kept(seed: int):
    arrivals_s = loadgen.poisson(0.5, 1.0, seed)
    assert len(arrivals_s) == 1 or arrivals_s[-1] < 1.0
    first = loadgen.poisson(0.5, 1000.0, seed)[0]
    assert arrivals_s[0] == first


@given(st.integers(0, 1000))
def test_a_longer_run_begins_with_the_arrivals_of_a_shorter_one(seed: int):
    short, long = loadgen.poisson(4.0, 8.0, seed), loadgen.poisson(4.0, 32.0, seed)
    assert short.tolist() == long[long < 8.0].tolist()


class FakeTime(Clock):
    """A clock that moves by 2^-10 s a look, and remembers how long it slept."""

    def __init__(self) -> None:
        super().__init__(step_s=2.0**-10)
        self.slept_s: list[float] = []
        self.perf_counter = self

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        super().sleep(seconds)


@pytest.mark.parametrize(("seconds", "slept_s"), [(2.0**-9, []), (0.002, []), (0.25, [0.248])])
def test_a_pause_sleeps_but_for_its_last_two_milliseconds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, slept_s: list[float]
):
    clock = FakeTime()
    monkeypatch.setattr(loadgen, "time", clock)
    loadgen.pause(seconds)
    assert clock.slept_s == slept_s
    assert seconds + 2.0**-10 <= clock.now_s < seconds + 2.0**-9


def test_a_pause_ends_at_its_moment(monkeypatch: pytest.MonkeyPatch):
    clock = FakeTime()
    monkeypatch.setattr(loadgen, "time", clock)
    loadgen.pause(2.0**-9)
    assert clock.now_s == 3 * 2.0**-10


def test_the_p99_of_a_simulation_is_that_of_its_latencies():
    batch_s, batcher = {1: 0.01, 4: 0.02}, Batcher(4, 0.005)
    engine, arrivals_s = Simulated(batch_s), loadgen.poisson(150.0, 10.0, 3)
    latencies_s = loadgen.serve(arrivals_s, batcher, engine.execute, engine.clock, engine.wait).latencies_s
    p99_ms = loadgen.simulated_p99_ms(batch_s, batcher, 150.0, 10.0, 3)
    assert p99_ms == 1e3 * float(np.percentile(latencies_s, 99)) < 1e3 * max(latencies_s)


@pytest.mark.parametrize(("rate_qps", "has_end"), [(140.0, True), (160.0, False)])
def test_a_simulated_queue_has_no_end_where_waiting_takes_half_the_run(rate_qps: float, has_end: bool):
    """A server of 100 requests a second falls behind by 0.4 and 0.6 s a second."""
    p99_ms = loadgen.simulated_p99_ms({1: 0.01}, Batcher(1), rate_qps, 40.0, 0)
    assert math.isfinite(p99_ms) == has_end


def test_the_capacity_is_that_of_the_best_size():
    assert loadgen.capacity_qps({1: 0.5, 8: 2.0, 16: 8.0}) == 4.0


@pytest.mark.parametrize(("steps", "found"), [(0, 0.0), (1, 500.0), (2, 500.0), (3, 625.0), (4, 687.5)])
def test_each_step_of_a_search_halves_the_range(steps: int, found: float):
    assert loadgen.highest(lambda rate: rate <= 700, 0.0, 1000.0, steps) == found


@pytest.mark.parametrize(
    ("slo_ms", "best"), [(101.0, 101.0), (101.9, 101.0), (-1.0, 256.0), (1000.0, 255.0), (1.0, 1.0), (0.99, 256.0)]
)
def test_the_rates_are_shares_of_the_highest_that_the_simulation_holds(monkeypatch, slo_ms: float, best: float):
    batcher, asked = Batcher(64), set()

    def p99_ms(batch_s: object, batched: Batcher, rate_qps: float, duration_s: float, seed: int) -> float:
        asked.add((batched, duration_s, seed))
        return rate_qps

    monkeypatch.setattr(loadgen, "simulated_p99_ms", p99_ms)
    rates = loadgen.rates_around({1: 0.5, 64: 0.25}, batcher, slo_ms, seed=5)
    assert rates == [float(f"{share * best:.3g}") for share in (0.5, 0.75, 0.9, 1.0, 1.1)]
    assert asked == {(batcher, 20_000 / 256.0, 5)}


def test_a_rate_between_is_of_the_highest_kept_and_the_lowest_above_it_that_was_not():
    assert loadgen.between({50.0: False, 100.0: True, 200.0: False, 400.0: False, 80.0: True}) == [150.0]
    assert loadgen.between({50.0: False, 100.0: True}) == []


def rates(kept: int, lost: int) -> dict[float, bool]:
    """Return as many rates that kept the limit, and above them as many that did not."""
    return {float(rate): rate < kept for rate in range(kept + lost)}


@pytest.mark.parametrize(
    ("kept", "lost", "complete"),
    [
        (4, 0, False),
        (3, 1, False),
        (5, 0, True),
        (4, 1, False),
        (5, 1, False),
        (6, 0, True),
        (6, 1, True),
        (0, 5, True),
    ],
)
def test_five_rates_and_two_refinements_are_enough(kept: int, lost: int, complete: bool):
    assert loadgen.is_complete(rates(kept, lost)) is complete


@pytest.mark.parametrize(("there", "first"), [(0, [1.0, 2.0, 3.0, 4.0, 5.0]), (2, [3.0, 4.0, 5.0]), (4, [5.0])])
def test_rates_that_are_there_count_as_the_lowest(there: int, first: list[float]):
    within = {float(rate): True for rate in range(1, there + 1)}
    tried = []
    for rate in loadgen.search(within, lambda: [1.0, 2.0, 3.0, 4.0, 5.0]):
        tried.append(rate)
        within[rate] = True
    assert tried == first


def test_a_complete_search_asks_for_nothing():
    assert list(loadgen.search(rates(5, 0), lambda: pytest.fail("no more rates are needed"))) == []


class Runner:
    """A runner whose calls take a number of seconds of the fake clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        self._clock.sleep(self._seconds if self.calls != 3 else 1.0)  # one is interrupted


class Here:
    """A thread that is this one."""

    def run(self, work: Callable[[], Any]) -> Any:
        return work()


def load(clock: Clock, **changes: Any) -> tuple[loadgen.ServerLoad, dict[int, Runner]]:
    runners = {4: Runner(clock, 0.5), 1: Runner(clock, 0.25)}
    return loadgen.ServerLoad(Inference("alexnet", ("eager",), (1, 4), "h200", **changes), runners, Here()), runners


def test_the_time_of_a_batch_is_the_median_of_twenty_calls(monkeypatch: pytest.MonkeyPatch):
    clock = FakeTime()
    monkeypatch.setattr(loadgen, "time", clock)
    monkeypatch.setattr(loadgen, "rates_around", lambda *found: found)
    found, runners = load(clock, slo_ms=15.0, max_delay_ms=2.5, seed=7)
    batch_s, batcher, slo_ms, seed = found.first_rates()
    assert {runner.calls for runner in runners.values()} == {20}
    assert batch_s == {4: 0.5 + 2.0**-10, 1: 0.25 + 2.0**-10}
    assert (batcher, slo_ms, seed) == (Batcher(4, 0.0025), 15.0, 7)


@pytest.mark.parametrize(
    ("min_seconds", "slo_ms", "give_up_s"), [(2.0, 10.0, 1.0), (16.0, 10.0, 4.0), (2.0, 100.0, 2.0), (2.0, 150.0, 3.0)]
)
def test_a_run_gives_up_after_a_share_of_its_length_and_many_limits(monkeypatch, min_seconds, slo_ms, give_up_s):
    monkeypatch.setattr(loadgen, "serve", lambda *given: given)
    found, runners = load(Clock(), min_seconds=min_seconds, slo_ms=slo_ms, seed=3)
    arrivals_s, _, execute, *_, limit_s = found.served(8.0)
    assert limit_s == give_up_s
    assert arrivals_s.tolist() == loadgen.poisson(8.0, min_seconds, 3).tolist()
    execute(2)
    assert (runners[1].calls, runners[4].calls) == (0, 1)
