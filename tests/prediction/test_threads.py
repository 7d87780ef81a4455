"""Parts of a fit in threads: in order, as many as there are cores for, and none within another."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from convscope.prediction import processes
from convscope.prediction.learners import threads

WAIT_S = 10


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(6)})
    monkeypatch.setattr(threads, "_processes", 1)


def test_parts_are_computed_side_by_side_and_returned_in_order(six_cores: None):
    together = threading.Barrier(threads.MOST)

    def part(number: int) -> int:
        together.wait(WAIT_S)  # which none passes alone
        return number

    assert threads.parallel_map(part, range(2 * threads.MOST)) == [*range(2 * threads.MOST)]


def test_a_part_starts_no_threads_of_its_own(six_cores: None):
    def part(number: int) -> bool:
        return {*threads.parallel_map(lambda _: threading.get_ident(), range(3))} == {threading.get_ident()}

    assert all(threads.parallel_map(part, range(4)))
    assert threads.count() == threads.MOST


def test_processes_that_splits_are_judged_in_know_of_each_other():
    asked = "__import__('convscope').prediction.learners.threads._processes"
    assert [*processes.starmap(eval, [(asked,), (asked,)], 2)] == [2, 2]


@pytest.mark.parametrize(("sharing", "count"), [(1, 4), (2, 3), (3, 2), (6, 1), (13, 1)])
def test_processes_share_the_cores(six_cores: None, sharing: int, count: int):
    threads.share_cores(sharing)
    assert threads.count() == count


def test_the_error_of_a_part_is_raised_and_no_further_ones_are_begun(six_cores: None):
    begun = list[int]()

    def part(number: int) -> None:
        begun.append(number)
        time.sleep(0.01)
        raise ZeroDivisionError(number)

    with pytest.raises(ZeroDivisionError):
        threads.parallel_map(part, range(40))
    assert len(begun) <= threads.MOST


def test_an_interrupt_does_not_wait_for_parts(six_cores: None):
    release, begun = threading.Event(), threading.Barrier(threads.MOST)

    def part(number: int) -> None:
        if begun.wait(WAIT_S) == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        release.wait(WAIT_S)

    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        threads.parallel_map(part, range(threads.MOST))
    release.set()
    assert time.monotonic() - start_s < WAIT_S / 2


def test_each_part_has_one_thread_of_blas(six_cores: None):
    def part(number: int) -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        assert threads.parallel_map(part, range(4)) == [{1}] * 4
