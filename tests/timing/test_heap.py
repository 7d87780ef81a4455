"""Garbage collection around measurements: what is there is left out, garbage is not kept."""

from __future__ import annotations

import gc
import weakref

import pytest

from convscope.timing import heap


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.own = self


def cycle() -> weakref.ref[Cycle]:
    return weakref.ref(Cycle())


@pytest.fixture(autouse=True)
def _no_collection_of_its_own():
    had_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()
    if had_frozen:
        gc.freeze()


def test_what_is_there_is_left_out_and_takes_part_again_afterwards():
    with heap.frozen():
        assert gc.get_freeze_count() > 10_000
        made = cycle()
        gc.collect()
        assert made() is None
    assert gc.get_freeze_count() == 0


def test_garbage_from_before_is_not_kept():
    made = cycle()
    with heap.frozen():
        assert made() is None


def test_after_an_error_it_takes_part_again_too():
    with pytest.raises(ValueError, match="stop"), heap.frozen():
        raise ValueError("stop")
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_frozen_stays_so():
    gc.freeze()
    with heap.frozen():
        pass
    assert gc.get_freeze_count() > 10_000
