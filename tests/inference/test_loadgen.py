"""The dynamic batcher and the Poisson process, against a simulated clock."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convscope.inference import loadgen
from convscope.inference.loadgen import Batcher, Simulated


def served(arrivals_s: list[float], batcher: Batcher, batch_s: dict[int, float], **options: float) -> loadgen.Served:
    engine = Simulated(batch_s)
    return loadgen.serve(np.array(arrivals_s), batcher, engine.execute, engine.clock, engine.wait, **options)


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
    arrivals_s = loadgen.poisson(80.0, 1000.0, seed=1)
    found = served(arrivals_s.tolist(), Batcher(1), {1: 0.01})
    assert np.mean(found.latencies_s) == pytest.approx(0.01 + 0.01 * 0.8 / (2 * 0.2), rel=0.05)


def test_arrivals_are_of_the_rate_independent_and_the_same_for_one_seed():
    arrivals_s = loadgen.poisson(500.0, 100.0, seed=3)
    gaps_s = np.diff(arrivals_s)
    assert len(arrivals_s) == pytest.approx(50_000, rel=0.02)
    assert arrivals_s[-1] < 100
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.02)
    assert (loadgen.poisson(500.0, 100.0, seed=3) == arrivals_s).all()
    assert len(loadgen.poisson(0.001, 1.0, seed=0)) == 1


def test_p99_rises_with_the_rate_and_is_infinite_beyond_the_capacity():
    batch_s = {1: 0.001, 8: 0.002}
    p99_ms = [loadgen.simulated_p99_ms(batch_s, Batcher(8), rate, 20.0, 0) for rate in (1, 100, 2000, 3500, 8000)]
    assert p99_ms == sorted(p99_ms)
    assert p99_ms[0] == pytest.approx(1.0, rel=0.1)
    assert p99_ms[-1] == math.inf
    assert loadgen.capacity_qps(batch_s) == pytest.approx(4000)


def test_the_highest_rate_is_found_by_bisection():
    assert loadgen.highest(lambda rate: rate <= 700, 0.0, 1000.0, steps=12) == pytest.approx(700, abs=1)
    assert loadgen.highest(lambda rate: False, 0.0, 1000.0, steps=5) == 0.0
    assert loadgen.rounded(12_345.6) == 12_300


def test_a_batch_runs_in_the_smallest_size_that_holds_it():
    assert [loadgen.fitting([1, 4, 16], count) for count in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.004])
def test_a_pause_is_never_too_short(seconds: float):
    started_s = time.perf_counter()
    loadgen.pause(seconds)
    assert time.perf_counter() - started_s >= seconds
