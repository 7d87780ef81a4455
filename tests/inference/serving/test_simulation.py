"""The dynamic batcher and the Poisson process, against a simulated clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convscope.inference.serving import simulation
from convscope.inference.serving.simulation import Batcher, Served, Simulated


def served(arrivals_s: list[float], batcher: Batcher, batch_s: dict[int, float], **options: float) -> Served:
    engine = Simulated(batch_s)
    return simulation.serve(np.array(arrivals_s), batcher, engine.execute, engine.clock, engine.wait, **options)


def test_a_request_alone_takes_as_long_as_a_batch_of_one():
    found = served([1.0, 2.0], Batcher(4), {1: 0.1, 4: 0.2})
    assert found.latencies_s == pytest.approx([0.1, 0.1])
    assert found.batches == [1, 1]
    assert found.duration_s == pytest.approx(2.1)


def test_requests_that_arrive_while_the_engine_works_make_the_next_batch():
    found = served([0.0, 0.01, 0.02, 0.03], Batcher(8), {1: 0.1, 4: 0.2, 8: 0.3})
    assert found.batches == [1, 3]
    assert found.latencies_s == pytest.approx([0.1, 0.29, 0.28, 0.27])


def test_no_batch_is_larger_than_the_limit():
    found = served([0.0] * 5, Batcher(2), {1: 0.1, 2: 0.1})
    assert found.batches == [2, 2, 1]
    assert found.latencies_s == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])


def test_a_batch_that_is_not_full_waits_for_more_until_the_delay_is_over():
    batcher = Batcher(3, max_delay_s=0.05)
    assert served([0.0, 0.02, 0.2], batcher, {1: 0.1, 3: 0.1}).batches == [2, 1]
    assert served([0.0, 0.02], batcher, {1: 0.1, 3: 0.1}).latencies_s == pytest.approx([0.15, 0.13])
    assert served([0.0, 0.02, 0.03], batcher, {1: 0.1, 3: 0.1}).latencies_s == pytest.approx([0.13, 0.11, 0.10])


def test_a_queue_without_end_is_given_up():
    found = served([index * 0.01 for index in range(1000)], Batcher(1), {1: 0.1}, give_up_s=1.0)
    assert found.gave_up
    assert len(found.latencies_s) < 20


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(1, 8),
    st.floats(0, 0.5),
    st.floats(1e-6, 0.5),
)
def test_every_request_is_answered_once_and_none_before_its_batch_is_done(gaps, most, delay_s, batch_s):
    arrivals_s = sorted(gaps)
    found = served(arrivals_s, Batcher(most, delay_s), {most: batch_s})
    assert len(found.latencies_s) == sum(found.batches) == len(arrivals_s)
    assert max(found.batches) <= most
    assert min(found.latencies_s) >= batch_s * (1 - 1e-9) - 1e-12


def test_the_queue_of_one_server_is_as_long_as_theory_says():
    """M/D/1: at a load of 0.8 the mean wait is load / (2 (1 - load)) services."""
    arrivals_s = simulation.poisson(80.0, 1000.0, seed=1)
    found = served(arrivals_s.tolist(), Batcher(1), {1: 0.01})
    assert np.mean(found.latencies_s) == pytest.approx(0.01 + 0.01 * 0.8 / (2 * 0.2), rel=0.05)


def test_arrivals_are_of_the_rate_independent_and_the_same_for_one_seed():
    arrivals_s = simulation.poisson(500.0, 100.0, seed=3)
    gaps_s = np.diff(arrivals_s)
    assert len(arrivals_s) == pytest.approx(50_000, rel=0.02)
    assert arrivals_s[-1] < 100
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.02)
    assert (simulation.poisson(500.0, 100.0, seed=3) == arrivals_s).all()
    assert len(simulation.poisson(0.001, 1.0, seed=0)) == 1


def test_p99_rises_with_the_rate_and_is_infinite_beyond_the_capacity():
    batch_s = {1: 0.001, 8: 0.002}
    p99_ms = [simulation.simulated_p99_ms(batch_s, Batcher(8), rate, 20.0, 0) for rate in (1, 100, 2000, 3500, 8000)]
    assert p99_ms == sorted(p99_ms)
    assert p99_ms[0] == pytest.approx(1.0, rel=0.1)
    assert p99_ms[-1] == math.inf
    assert simulation.capacity_qps(batch_s) == pytest.approx(4000)


def served_late(arrivals_s: list[float], batcher: Batcher, batch_s: dict[int, float], **options: float) -> Served:
    """Serve arrivals with a simulated engine whose clock does not begin at 0."""
    engine = Simulated(batch_s)
    engine.wait(8.0)
    return simulation.serve(np.array(arrivals_s), batcher, engine.execute, engine.clock, engine.wait, **options)


def test_a_batch_starts_at_the_moment_its_oldest_request_has_waited_enough():
    found = served_late([0.0, 0.25, 1.0], Batcher(3, 0.5), {1: 0.25, 3: 0.25})
    assert found == Served([0.75, 0.5, 0.75], [2, 1], 1.75)


def test_nothing_was_served_and_nobody_waits_where_nothing_is_said():
    assert Served() == Served([], [], 0.0, gave_up=False)
    assert Batcher(4) == Batcher(4, 0.0)


def test_a_full_batch_does_not_wait():
    assert served_late([0.0, 0.25, 2.0], Batcher(2, 1.0), {1: 0.25, 2: 0.5}) == Served([0.75, 0.5, 1.25], [2, 1], 3.25)


def test_a_request_that_has_waited_the_limit_is_served_and_one_that_has_waited_longer_ends_the_run():
    assert not served_late([0.0] * 3, Batcher(1), {1: 1.0}, give_up_s=2.0).gave_up
    found = served_late([0.0] * 3, Batcher(1), {1: 1.0}, give_up_s=1.75)
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
    arrivals_s = simulation.poisson(0.5, 1.0, seed)
    assert len(arrivals_s) == 1 or arrivals_s[-1] < 1.0
    first = simulation.poisson(0.5, 1000.0, seed)[0]
    assert arrivals_s[0] == first


@given(st.integers(0, 1000))
def test_a_longer_run_begins_with_the_arrivals_of_a_shorter_one(seed: int):
    short, long = simulation.poisson(4.0, 8.0, seed), simulation.poisson(4.0, 32.0, seed)
    assert short.tolist() == long[long < 8.0].tolist()


def test_the_p99_of_a_simulation_is_that_of_its_latencies():
    batch_s, batcher = {1: 0.01, 4: 0.02}, Batcher(4, 0.005)
    engine, arrivals_s = Simulated(batch_s), simulation.poisson(150.0, 10.0, 3)
    latencies_s = simulation.serve(arrivals_s, batcher, engine.execute, engine.clock, engine.wait).latencies_s
    p99_ms = simulation.simulated_p99_ms(batch_s, batcher, 150.0, 10.0, 3)
    assert p99_ms == 1e3 * float(np.percentile(latencies_s, 99)) < 1e3 * max(latencies_s)


@pytest.mark.parametrize(("rate_qps", "has_end"), [(140.0, True), (160.0, False)])
def test_a_simulated_queue_has_no_end_where_waiting_takes_half_the_run(rate_qps: float, has_end: bool):
    """A server of 100 requests a second falls behind by 0.4 and 0.6 s a second."""
    p99_ms = simulation.simulated_p99_ms({1: 0.01}, Batcher(1), rate_qps, 40.0, 0)
    assert math.isfinite(p99_ms) == has_end


def test_the_capacity_is_that_of_the_best_size():
    assert simulation.capacity_qps({1: 0.5, 8: 2.0, 16: 8.0}) == 4.0
