"""The stopwatch's logic, on a GPU that is only pretended: its events keep time, its work takes as long as we say."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import fakes
import pytest
import torch

from convscope.errors import HostTooSlowError
from convscope.timing import graphs
from convscope.timing.layer_times import Reading, layer_times


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    return made


@pytest.mark.parametrize(("launched_s", "ahead"), [(10.5, True), (10.89, True), (10.91, False), (11.0, False)])
def test_the_host_stayed_ahead_if_a_tenth_of_the_time_was_left_to_the_gpu(launched_s: float, ahead: bool):
    assert graphs.stayed_ahead(started_s=10.0, launched_s=launched_s, finished_s=11.0) is ahead


def test_a_replay_is_timed_without_the_hosts_launch(gpu: fakes.Gpu):
    assert graphs.replay_times_ms(fakes.Captured(gpu, 2.0), 3) == pytest.approx([2.0] * 3)


def test_a_sample_that_the_host_held_up_is_taken_again(gpu: fakes.Gpu):
    gpu.launch_ms = 0.3  # three times as long as the first spin
    hider, captured = graphs.LaunchHider(), fakes.Captured(gpu, 2.0)
    assert hider.sample(captured.replay, lambda: "read") == "read"
    assert (hider.repeated, captured.replays) == (2, 3)


def test_a_spin_that_was_too_short_stays_longer(gpu: fakes.Gpu):
    gpu.launch_ms = 0.3
    hider, captured = graphs.LaunchHider(), fakes.Captured(gpu, 2.0)
    for _ in range(5):
        hider.sample(captured.replay, lambda: None)
    assert hider.repeated == 2


def test_a_host_that_is_never_ahead_is_an_error(gpu: fakes.Gpu):
    gpu.launch_ms = 1e6
    with pytest.raises(HostTooSlowError, match="the host is too busy to measure beside"):
        graphs.LaunchHider().sample(fakes.Captured(gpu, 2.0).replay, lambda: None)


def test_a_graph_that_overfills_the_queue_counts_where_the_gpu_had_most_of_it_still_to_do(gpu: fakes.Gpu):
    gpu.launch_ms = 100.0
    assert graphs.replay_times_ms(fakes.Captured(gpu, 1000.0), 1) == pytest.approx([1100.0], rel=0.1)


def test_samples_that_overfill_the_queue_are_counted(gpu: fakes.Gpu):
    gpu.launch_ms = 100.0
    hider, captured = graphs.LaunchHider(), fakes.Captured(gpu, 1000.0)
    hider.sample(captured.replay, lambda: None)
    assert hider.overfull == 1
    gpu.launch_ms = 0.01
    hider.sample(captured.replay, lambda: None)
    assert hider.overfull == 1


def read_one() -> Reading:
    return Reading([0.5], [0.001])


def test_layer_times_are_what_the_events_read(gpu: fakes.Gpu):
    def read() -> Reading:
        return Reading([0.51, 0.31], [0.002, 0.001])

    found = layer_times(fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.04), read, count=3)
    assert found.passes_ms == pytest.approx([1.0] * 3)
    assert found.added_ms == pytest.approx([0.04] * 3)
    assert found.layers_ms == [[0.51] * 3, [0.31] * 3]
    assert found.empty_ms == [[0.002] * 3, [0.001] * 3]


def test_what_comes_before_each_replay_is_not_timed(gpu: fakes.Gpu):
    done: list[float] = []

    def before() -> None:
        done.append(5.0)
        gpu.work(5.0)

    found = layer_times(fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.04), read_one, count=3, before=before)
    assert found.passes_ms == pytest.approx([1.0] * 3)
    assert found.added_ms == pytest.approx([0.04] * 3)
    assert done == [5.0] * 6


def test_layer_times_count_the_samples_taken_again(gpu: fakes.Gpu):
    gpu.launch_ms = 0.15
    found = layer_times(fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.0), read_one, count=2)
    assert found.repeated == 1


def test_a_steady_load_keeps_the_queue_filled(gpu: fakes.Gpu):
    captured = fakes.Captured(gpu, 2.0)
    graphs.ReplayLoad(captured, pass_ms=2.0).step()
    assert captured.replays == 10


@pytest.mark.parametrize(("pass_ms", "depth"), [(500.0, 2), (1e-6, 256)])
def test_the_queue_is_at_least_two_deep_and_has_an_end(gpu: fakes.Gpu, pass_ms: float, depth: int):
    captured = fakes.Captured(gpu, pass_ms)
    graphs.ReplayLoad(captured, pass_ms).step()
    assert captured.replays == depth


def test_a_step_queues_as_many_replays_as_have_finished(gpu: fakes.Gpu):
    gpu.launch_ms = 0.0
    captured = fakes.Captured(gpu, 2.0)
    load = graphs.ReplayLoad(captured, pass_ms=2.0)
    load.step()
    gpu.host_ms += 6.0
    load.step()
    assert captured.replays == 13
    assert load.starved == 0


def test_a_queue_found_empty_is_counted_and_made_deeper(gpu: fakes.Gpu):
    captured = fakes.Captured(gpu, 2.0)
    load = graphs.ReplayLoad(captured, pass_ms=2.0)
    load.step()
    torch.cuda.synchronize()
    load.step()
    assert load.starved == 1
    assert captured.replays == 30


def replays_of(gpu: fakes.Gpu, pass_ms: float, seconds: float, detunings: int = 0) -> list[float]:
    """Return the rests between the replays of a load that is kept going for some seconds, in milliseconds."""
    gpu.launch_ms = 0.0
    load = graphs.ReplayLoad(fakes.Captured(gpu, pass_ms), pass_ms)
    for _ in range(detunings):
        assert load.detune()
    until_ms = gpu.host_ms + seconds * 1e3
    while gpu.host_ms < until_ms:
        load.step()
        gpu.host_ms += 0.5
    rests_ms = [start_ms - end_ms for (_, end_ms), (start_ms, _) in itertools.pairwise(gpu.replays_ms)]
    return [round(rest_ms, 6) for rest_ms in rests_ms]


@pytest.mark.parametrize(("pass_ms", "most_ms"), [(0.1, 0.1), (2.0, 0.25)])
def test_replays_are_shifted_each_fifth_of_a_second_by_another_part_of_one(
    gpu: fakes.Gpu, pass_ms: float, most_ms: float
):
    shifts_ms = [rest_ms for rest_ms in replays_of(gpu, pass_ms, 4.0) if rest_ms > 0]
    assert 18 <= len(shifts_ms) <= 21
    assert len({*shifts_ms}) == len(shifts_ms)
    assert 0.5 * most_ms < max(shifts_ms) <= most_ms


@pytest.mark.parametrize("detunings", [1, 2])
def test_a_detuned_load_rests_after_each_replay(gpu: fakes.Gpu, detunings: int):
    rests_ms = replays_of(gpu, 0.2, 0.15, detunings)
    assert rests_ms == [pytest.approx(detunings * 0.003)] * len(rests_ms)
    assert len(rests_ms) > 500


def test_what_is_queued_without_a_rest_is_done_before_a_load_is_detuned(gpu: fakes.Gpu):
    load = graphs.ReplayLoad(fakes.Captured(gpu, 2.0), 2.0)
    load.step()
    queued_until_ms = gpu.busy_until_ms
    load.detune()
    assert gpu.host_ms >= queued_until_ms
    load.step()
    assert load.starved == 0


@pytest.mark.parametrize(("pass_ms", "detuned"), [(20.0, True), (20.1, False)])
def test_long_replays_are_not_detuned(gpu: fakes.Gpu, pass_ms: float, detuned: bool):
    assert graphs.ReplayLoad(fakes.Captured(gpu, pass_ms), pass_ms).detune() is detuned


def test_a_load_of_the_host_cannot_be_detuned():
    assert not graphs.HostLoad(lambda: None).detune()


def test_nothing_has_finished_before_the_first_step(gpu: fakes.Gpu):
    assert not graphs.ReplayLoad(fakes.Captured(gpu, 2.0), pass_ms=2.0).completions.begun


def test_a_load_counts_the_replays_that_have_finished(gpu: fakes.Gpu):
    gpu.launch_ms = 0.0
    load = graphs.ReplayLoad(fakes.Captured(gpu, 2.0), pass_ms=2.0)
    load.step()
    for _ in range(40):
        gpu.host_ms += 0.5
        load.step()
    assert load.completions.between(0.004, 0.015).inferences == pytest.approx(5.5, abs=0.25)


def test_replays_that_one_step_finds_finished_were_so_between_it_and_the_step_before(gpu: fakes.Gpu):
    gpu.launch_ms = 0.0
    load = graphs.ReplayLoad(fakes.Captured(gpu, 2.0), pass_ms=2.0)
    load.step()
    gpu.host_ms = 6.5
    load.step()
    gpu.host_ms = 13.0
    load.step()
    # 1 to 3 by 6.5 ms and 4 to 6 by 13 ms: on average number 2 at 3.25 ms and number 5 at 9.75 ms
    assert load.completions.between(0.00325, 0.00975).inferences == pytest.approx(3.0)


def test_a_load_of_a_cpu_knows_when_each_pass_ended(gpu: fakes.Gpu):
    def step() -> None:
        gpu.host_ms += 4.0

    load = graphs.HostLoad(step)
    for _ in range(3):
        load.step()
    count = load.completions.between(0.006, 0.012)
    assert (count.inferences, count.std) == (pytest.approx(1.5), 0.0)
    assert load.pause_s == 0.0


def test_a_busy_load_replays_for_as_long_as_it_is_told(gpu: fakes.Gpu):
    gpu.launch_ms, gpu.look_ms = 0.0, 0.1
    captured = fakes.Captured(gpu, 2.0)
    load = graphs.ReplayLoad(captured, pass_ms=2.0)
    load.keep_busy(0.1)
    assert gpu.host_ms == pytest.approx(100.0, abs=5.0)
    assert captured.replays == pytest.approx(50 + 10, abs=3)


class Stream:
    """A stream that notes for whom it waits."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what a capture does to a GPU, in its order."""
    done: list[str] = []

    @contextlib.contextmanager
    def block(name: str) -> Iterator[None]:
        done.append(f"into {name}")
        yield
        done.append(f"out of {name}")

    def graph(made: object, pool: object, stream: Stream, capture_error_mode: str) -> contextlib.AbstractContextManager:
        return block(f"capture, {pool}, {stream.name}, {capture_error_mode}")

    monkeypatch.setattr(graphs, "_side_stream", lambda index: Stream("side", done))
    for name, made in {
        "current_device": lambda: 0,
        "current_stream": lambda: Stream("main", done),
        "stream": lambda stream: block(stream.name),
        "synchronize": lambda: done.append("wait for all"),
        "CUDAGraph": object,
        "graph_pool_handle": lambda: "own memory",
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    return done


RUN = ["side waits for main", "into side", "step", "out of side", "main waits for side"]


def test_a_step_is_run_beside_the_current_stream_and_then_captured(log: list[str]):
    graphs.capture(lambda: log.append("step"))
    inside = "capture, own memory, side, global"
    assert log == [*RUN, "wait for all", f"into {inside}", "step", f"out of {inside}"]


def test_a_step_that_was_run_before_is_only_captured(log: list[str]):
    graphs.run_on_side_stream(lambda: log.append("step"))
    assert log == RUN
    del log[:]
    graphs.capture(lambda: log.append("step"), has_run=True, error_mode="thread_local")
    inside = "capture, own memory, side, thread_local"
    assert log == ["wait for all", f"into {inside}", "step", f"out of {inside}"]
