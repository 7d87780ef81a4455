"""Parts of a fit in threads: in order, as many as there are cores for, and none within another."""

from __future__ import annotations

import os
import threading

import pytest

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

    assert threads.each(part, range(2 * threads.MOST)) == [*range(2 * threads.MOST)]


def test_a_part_starts_no_threads_of_its_own(six_cores: None):
    def part(number: int) -> list[int]:
        return threads.each(lambda _: threading.get_ident(), range(3))

    assert all(len({*own}) == 1 for own in threads.each(part, range(4)))
    assert threads.count() == threads.MOST


def test_processes_that_a_split_is_judged_in_know_of_each_other():
    asked = "len({*__import__('os').sched_getaffinity(0)}), __import__('convscope').prediction.learners.threads.count()"
    for cores, count in processes.starmap(eval, [(asked,), (asked,)], 2):
        assert count == max(1, min(threads.MOST, cores // 2))


@pytest.mark.parametrize(("sharing", "count"), [(1, 4), (2, 3), (3, 2), (6, 1), (13, 1)])
def test_processes_share_the_cores(six_cores: None, sharing: int, count: int):
    threads.share_cores(sharing)
    assert threads.count() == count


def test_the_error_of_a_part_is_raised(six_cores: None):
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda number: 1 // number, [1, 0])
