"""Passes that cannot be captured, on a GPU that is only pretended: how they are timed, and what that is called."""

from __future__ import annotations

from collections.abc import Callable

import fakes
import pytest

from convscope.timing import eager
from convscope.timing.eager import HIDDEN_METHOD, INCLUDED_METHOD, Unhidden, eager_load, eager_times, passes_ms
from convscope.timing.graphs import HostLoad, ReplayLoad
from convscope.timing.layer_times import LayerTimes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    return made


def step_of(gpu: fakes.Gpu, launch_ms: float, work_ms: float, waits: bool = False) -> Callable[[], None]:
    """Return a pass that takes the host and the GPU some time; one that waits does so half-way."""

    def step() -> None:
        for _ in range(2):
            gpu.host_ms += launch_ms / 2
            gpu.work(work_ms / 2)
            if waits:
                gpu.synchronize()

    return step


def test_behind_a_spin_the_launch_is_no_part_of_an_eager_pass(gpu: fakes.Gpu):
    found = eager_times(step_of(gpu, 5.0, 2.0), fakes.LayerTimer([0.5, 0.25]), samples=3)
    assert found.passes_ms == pytest.approx([2.0] * 3)
    assert found.layers_ms == [[0.5] * 3, [0.25] * 3]
    assert (found.way, found.repeated) == (HIDDEN_METHOD, 0)


def test_a_launch_that_outlasts_the_spin_is_taken_again_behind_a_longer_one(gpu: fakes.Gpu):
    found = eager_times(step_of(gpu, 20.0, 2.0), fakes.LayerTimer([0.5]), samples=2)
    assert found.passes_ms == pytest.approx([2.0] * 2)
    assert (found.way, found.repeated) == (HIDDEN_METHOD, 2)


def test_where_the_host_is_known_to_wait_the_launch_is_included_and_the_method_says_so(gpu: fakes.Gpu):
    found = eager_times(step_of(gpu, 5.0, 2.0, waits=True), fakes.LayerTimer([0.5]), samples=3, hides=False)
    assert found.passes_ms == pytest.approx([7.0] * 3)
    assert (found.way, found.repeated, found.overfull) == (INCLUDED_METHOD, 0, 0)


def test_where_the_host_waits_unseen_no_spin_helps_and_the_launch_is_included(gpu: fakes.Gpu):
    found = eager_times(step_of(gpu, 5.0, 2.0, waits=True), fakes.LayerTimer([0.5]), samples=3)
    assert found.passes_ms == pytest.approx([7.0] * 3)
    assert found.way == INCLUDED_METHOD


@pytest.mark.parametrize(("waits", "pass_ms"), [(False, 2.0), (True, 7.0)])
def test_what_comes_before_an_eager_pass_is_not_timed_and_hides_no_launch(gpu: fakes.Gpu, waits: bool, pass_ms: float):
    step, timer = step_of(gpu, 5.0, 2.0, waits=waits), fakes.LayerTimer([0.5])
    found = eager_times(step, timer, samples=3, hides=not waits, before=lambda: gpu.work(4.0))
    assert found.passes_ms == pytest.approx([pass_ms] * 3)


def test_passes_with_and_without_events_are_warmed_up_and_sampled_in_turn(gpu: fakes.Gpu):
    timer, passes = fakes.LayerTimer([0.5]), []
    eager_times(lambda: passes.append(timer.entered), timer, samples=2, warmup=1)
    assert passes == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(("waits", "hides", "pass_ms"), [(False, True, 2.0), (True, True, 7.0), (True, False, 7.0)])
def test_passes_alone_are_timed_in_the_same_ways(gpu: fakes.Gpu, waits: bool, hides: bool, pass_ms: float):
    assert passes_ms(step_of(gpu, 5.0, 2.0, waits), 4, hides) == pytest.approx([pass_ms] * 4)


def test_a_sample_with_its_launch_begins_on_an_idle_gpu_and_is_read_when_it_ended(gpu: fakes.Gpu):
    gpu.work(50.0)
    seen = []

    def launch() -> None:
        seen.append((gpu.host_ms, gpu.busy_until_ms))
        gpu.work(3.0)

    assert Unhidden().sample(launch, lambda: gpu.host_ms) == 53.0
    assert seen == [(50.0, 50.0)]


def times(way: str) -> LayerTimes:
    return LayerTimes([2.0, 1.5], [], [], [], repeated=0, way=way)


def test_passes_whose_launch_was_hidden_are_queued_as_a_load(gpu: fakes.Gpu):
    calls: list[int] = []
    load = eager_load(lambda: calls.append(1), times(HIDDEN_METHOD))
    assert isinstance(load, ReplayLoad)
    load.step()
    assert len(calls) == 13  # 20 ms of the shortest pass, which is 1.5 ms


def test_passes_whose_launch_was_not_hidden_follow_each_other_as_a_load(gpu: fakes.Gpu):
    load = eager_load(lambda: gpu.work(2.0), times(INCLUDED_METHOD))
    assert isinstance(load, HostLoad)
    load.step()
    assert gpu.host_ms == 2.0


def test_a_pass_in_which_the_host_waits_is_known_without_a_capture(gpu: fakes.Gpu):
    assert eager.why_synchronizes(gpu.wait) == "the host waits for the GPU in the pass"
    assert gpu.debug_mode == 0


def test_what_waits_at_the_first_call_only_does_not_count(gpu: fakes.Gpu):
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        if len(calls) == 1:
            gpu.wait()

    assert eager.why_synchronizes(step) is None
    assert (len(calls), gpu.debug_mode) == (2, 0)


def test_another_error_of_the_pass_is_no_answer(gpu: fakes.Gpu):
    def step() -> None:
        if gpu.debug_mode == "error":
            raise RuntimeError("sizes do not match")

    with pytest.raises(RuntimeError, match="sizes do not match"):
        eager.why_synchronizes(step)
    assert gpu.debug_mode == 0
