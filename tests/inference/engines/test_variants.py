"""Choice of one variant of several; the times are a table here, on a card they are measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from convscope.inference.engines import variants
from convscope.inference.engines.variants import FUSED_STEPS, GRAPH_STEPS, Variant

CPU = torch.device("cpu")


class Engine:
    """A runner whose calls take what a table says."""

    def __init__(self, time_ms: float) -> None:
        self.time_ms, self.closed, self.thread = time_ms, False, threading.current_thread()
        self.searched = torch.backends.cudnn.benchmark
        self._callback: Callable[[], None] | None = None

    def latencies_ms(self, count: int) -> list[float]:
        return [self.time_ms] * count

    def when_closed(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def close(self) -> None:
        self.closed = True
        if self._callback is not None:
            self._callback()


@pytest.fixture
def tried() -> list[tuple[Variant, Engine]]:
    return []


def maker(tried: list[tuple[Variant, Engine]], time_ms: Callable[[Variant], float]) -> Any:
    def make(variant: Variant) -> Engine:
        tried.append((variant, Engine(time_ms(variant))))
        return tried[-1][1]

    return make


def test_each_change_is_tried_on_the_best_so_far(tried: list[tuple[Variant, Engine]]):
    times_ms = {(0, False): 5.0, (4, False): 4.0, (8, False): 3.0, (8, True): 3.5}
    runner, variant, found_ms = variants.fastest(
        maker(
            tried,
            lambda variant: (
                times_ms[8 if variant.first else variant.channels, variant.products]
                - variant.searched
                - variant.pools / 10
                - variant.tails / 100
                - variant.heads / 1000
                - variant.rows / 2000
                - variant.first / 4000
                - variant.pooled / 8000
                - variant.own / 16000
                - variant.joined / 32000
                - variant.branches / 64000
            ),
        ),
        CPU,
        FUSED_STEPS,
    )
    assert [(each.channels, each.products, each.searched) for each, _ in tried] == [
        (0, False, False), (4, False, False), (8, False, False), (8, True, False), (8, False, True), (8, False, True),
        (8, False, True), (8, False, True), (8, False, True), *[(0, False, True)] * 6,
    ]  # fmt: skip
    steps = ("pools", "tails", "heads", "rows", "first", "pooled", "own", "joined", "branches")
    for at, step in enumerate(steps, start=5):
        assert [getattr(each, step) for each, _ in tried] == [*[False] * at, *[True] * (15 - at)]
    assert all(getattr(variant, step) for step in ("searched", *steps))
    assert (variant.channels, len(found_ms)) == (0, 14)
    assert found_ms == sorted(found_ms)
    assert runner is tried[-1][1]
    said = "plans searched, max pooling by Triton, depthwise and activations by Triton, means by Triton, rows by Triton"
    more = "first layer by Triton, max pooling in the first layer"
    last = "pairs of 1x1 convolutions in one kernel where faster, branches side by side"
    assert str(variant) == f"{said}, {more}, convolutions by Triton where faster, {last}"
    assert str(Variant(channels=8)) == "plans by heuristic, images padded to 8 channels"


def test_the_kept_one_lives_in_the_thread_that_it_was_timed_in(tried: list[tuple[Variant, Engine]]):
    runner, _, _ = variants.fastest(maker(tried, lambda variant: 2.0 - variant.searched), CPU, GRAPH_STEPS)
    plain, searched, kept = (engine for _, engine in tried)
    assert [engine.closed for engine in (plain, searched, kept)] == [True, True, False]
    assert searched.thread is kept.thread is not plain.thread
    assert (plain.searched, searched.searched, kept.searched) == (False, True, True)
    assert kept.thread.is_alive()
    runner.close()
    assert not any(engine.thread.is_alive() for engine in (plain, searched, kept))


@pytest.mark.parametrize(
    "refusal",
    [
        RuntimeError("GET was unable to find an engine to execute this computation"),
        OutOfResources(300_000, 232_448, "shared memory"),
    ],
)
def test_a_way_that_is_refused_is_passed_over(tried: list[tuple[Variant, Engine]], refusal: Exception):
    def time_ms(variant: Variant) -> float:
        if not variant.channels:
            raise refusal
        return 1.0 + variant.channels

    _, variant, found_ms = variants.fastest(maker(tried, time_ms), CPU, FUSED_STEPS)
    assert (variant, len(found_ms)) == (Variant(channels=4), 11)


@pytest.mark.parametrize("error", [RuntimeError("cuDNN error: none"), RuntimeError("a mistake")])
def test_where_nothing_works_the_first_error_is_told(error: RuntimeError):
    def make(variant: Variant) -> Any:
        raise error

    before = threading.active_count()
    with pytest.raises(RuntimeError) as raised:
        variants.fastest(make, CPU, FUSED_STEPS)
    assert raised.value is error
    assert threading.active_count() <= before


def test_the_fastest_of_some_ways_is_built_again():
    times_ms = {"plain": 2.0, "refused": 0.0, "best": 1.0}
    built: list[tuple[str, Engine]] = []

    def make(name: str) -> Any:
        if name == "refused":
            raise RuntimeError("cuDNN error: none")
        built.append((name, Engine(times_ms[name])))
        return built[-1][1]

    runner, name, count = variants.fastest_of({name: partial(make, name) for name in times_ms})
    assert (name, count) == ("best", 2)
    assert [(each, engine.closed) for each, engine in built] == [("plain", True), ("best", True), ("best", False)]
    assert runner is built[-1][1]


def test_where_no_way_works_the_first_error_is_told():
    errors = [RuntimeError("cuDNN error: first"), RuntimeError("cuDNN error: second")]

    def make(error: Exception) -> Any:
        raise error

    with pytest.raises(RuntimeError, match="first"):
        variants.fastest_of({str(error): partial(make, error) for error in errors})
    with pytest.raises(ValueError, match="a mistake"):
        variants.fastest_of({"it": partial(make, ValueError("a mistake"))})
