"""Passes in several placements on a pretended GPU: captured together beside the process that traces, or one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import fakes
import pytest
import torch
from fakes import LayerTimer, Meter, run
from torch import nn

from convscope.errors import NotCapturableError
from convscope.profiling import bench, passes
from convscope.profiling.bench import Bench
from convscope.timing import eager, graphs, placement

GIVEN = (torch.zeros(1),)
PASS_MS = 2.0


class Pass:
    """A model of the pretended GPU."""

    def __init__(self, gpu: fakes.Gpu) -> None:
        self.gpu = gpu

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        self.gpu.host_ms += 1.0
        self.gpu.work(PASS_MS)
        return given


class Tracer:
    """The process that traces, as it is seen: notes what it is asked for."""

    def __init__(self, log: list[str]) -> None:
        self.work: list[Any] = []
        self.work_method = ""
        self._log = log

    def prepare(self, size: int, algorithms: object) -> None:
        self._log.append("prepare")

    def wait_until_prepared(self) -> None:
        self._log.append("wait")

    def trace(self, size: int, algorithms: object, captures: bool = True) -> tuple[list[Any], None]:
        return [], None


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> Bench:
    """Return the bench of a pass on a pretended GPU, whose captures and placements are noted."""
    gpu = fakes.Gpu(look_ms=0.1)
    gpu.patch(monkeypatch)

    @contextlib.contextmanager
    def capture(step: object, around: Any = None, memory_of: object = None, has_run: bool = False) -> Iterator[Any]:
        log.append("capture with events" if around else "capture")
        with around or contextlib.nullcontext():
            pass
        yield fakes.Captured(gpu, PASS_MS + (0.1 if around else 0.0))
        log.append("freed")

    @contextlib.contextmanager
    def moved(model: object, given: object, index: int) -> Iterator[Any]:
        log.append(f"placement {index}")
        yield given

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(placement, "moved", moved)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 1000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10**12, 10**12))
    for module in (bench, passes):
        monkeypatch.setattr(module, "release", lambda device: None)
    asked, timer, tracer = run(device="cuda:0", measure_iters=10, warmup_iters=1), LayerTimer([0.5]), Tracer(log)
    return Bench(asked, cast(nn.Module, Pass(gpu)), torch.device("cuda:0"), timer, Meter(), log.append, tracer)


def at_once(made: Bench, log: list[str]) -> Any:
    return made._at_once(GIVEN, lambda: log.append("prepare"))


def test_all_placements_are_captured_first_and_the_other_process_is_quiet_before_the_last(made: Bench, log: list[str]):
    timed = at_once(made, log)
    captures = [f"placement {index}" for index in range(5)]
    expected = [each for place in captures for each in (place, "capture", "capture with events")]
    assert log == ["prepare", *expected[:12], "wait", *expected[12:], *["freed"] * 10, "wait"]
    assert [len(times.passes_ms) for times in timed.placed] == [2] * 5
    assert [times.layers_ms for times in timed.placed] == [[[0.5, 0.5]]] * 5
    assert timed.placed[0].passes_ms == pytest.approx([PASS_MS] * 2)
    assert timed.placed[0].added_ms == pytest.approx([0.1] * 2)
    assert (timed.peak_bytes, timed.energy, timed.energy_reason) == (1000, None, None)


def test_what_does_not_fit_together_is_timed_one_by_one_and_nobody_prepares(
    made: Bench, log: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10_000, 10**12))
    assert at_once(made, log) is None
    assert log == []
    timed = made._one_by_one(GIVEN)
    one = ["capture", "capture with events", "freed", "freed"]
    assert log == [each for index in range(5) for each in (f"placement {index}", *one)]
    assert [len(times.passes_ms) for times in timed.placed] == [2] * 5


def evicting(nbytes: int, calls: list[str]) -> Any:
    """Return an eviction of so much memory, whose calls are noted."""

    class Eviction:
        def __init__(self) -> None:
            self.nbytes = nbytes

        def __call__(self) -> None:
            calls.append("evict")

    return Eviction()


@pytest.mark.parametrize("together", [True, False])
def test_what_evicts_comes_before_each_sample_and_is_no_memory_of_the_pass(made: Bench, log: list[str], together: bool):
    calls: list[str] = []
    made._passes._evict = evicting(300, calls)
    timed = at_once(made, log) if together else made._one_by_one(GIVEN)
    repeated = sum(times.repeated for times in timed.placed)
    assert len(calls) == 5 * 2 * 2 + repeated  # placements, samples, without and with events
    assert timed.peak_bytes == 700


@pytest.mark.parametrize("evicts", [True, False])
def test_the_cache_is_evicted_where_the_run_asks_for_it(evicts: bool, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr(placement, "Eviction", lambda device, is_asked: asked.append((device.type, is_asked)))
    given: Any = nn.ReLU(), torch.device("cuda:0"), LayerTimer([0.5]), Meter(), print
    Bench(run(device="cuda:0", evicts=evicts), *given)
    assert asked == [("cuda", evicts)]


def failing(error: Exception) -> Callable[..., Any]:
    @contextlib.contextmanager
    def fails(*given: object, **options: object) -> Iterator[None]:
        raise error
        yield

    return fails


def test_a_pass_that_cannot_be_captured_is_timed_eagerly_once_the_other_process_is_quiet(
    made: Bench, log: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(graphs, "capture", failing(NotCapturableError("no")))
    assert at_once(made, log) is None
    assert log == ["prepare", "placement 0", "passes are timed eagerly: no", "wait"]
    assert made._passes.refused == "no"
    assert at_once(made, log) is None
    assert log[4:] == []
    timed = made._one_by_one(GIVEN)
    assert {times.way for times in timed.placed} == {eager.HIDDEN_METHOD}
    assert len(timed.placed) == 5


def test_memory_that_is_full_all_the_same_leaves_the_placements_to_be_timed_one_by_one(
    made: Bench, log: list[str], monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as full:
        full.setattr(placement, "captured_in_all", failing(torch.OutOfMemoryError("full")))
        assert at_once(made, log) is None
    assert log == ["prepare", "wait"]
    assert made._passes.refused is None
    assert len(made._one_by_one(GIVEN).placed) == 5


def test_times_rest_on_the_placements_that_there_was_memory_for(
    made: Bench, log: list[str], monkeypatch: pytest.MonkeyPatch
):
    moved = placement.moved

    def full(model: Any, given: Any, index: int) -> Any:
        return moved(model, given, index) if index < 2 else failing(torch.OutOfMemoryError("full"))()

    monkeypatch.setattr(placement, "moved", full)
    assert len(made._one_by_one(GIVEN).placed) == 2
    assert log[-1] == "times rest on 2 placements: there is no memory to move weights in"
