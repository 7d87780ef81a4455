"""The stopwatch on a CPU and on a pretended GPU: numbers of passes and replays, and the times that come out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import fakes
import pytest
import torch

from convscope.errors import HostTooSlowError, NotCapturableError
from convscope.timing import graphs, stopwatch
from convscope.timing.stopwatch import Stopwatch, Times

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SETTLING_REPLAYS = 3  # by which the depth of the queue is found


class Step:
    """A step of `duration_ms` on the pretended GPU; `log` says in what order it was run, captured and replayed."""

    def __init__(self, gpu: fakes.Gpu | None = None, duration_ms: float = 2.0) -> None:
        self._gpu, self.duration_ms = gpu, duration_ms
        self.log: list[str] = []

    def __call__(self) -> None:
        self.log.append("run")
        if self._gpu is not None:
            self._gpu.host_ms += self._gpu.launch_ms
            self._gpu.work(self.duration_ms)

    def count(self, what: str) -> int:
        return self.log.count(what)


class Captured:
    """A graph whose replay launches the step once more, all its work at once."""

    def __init__(self, gpu: fakes.Gpu, step: Callable[[], object], log: list[str]) -> None:
        self._gpu, self._step, self._log = gpu, step, log

    def replay(self) -> None:
        launch_ms, self._gpu.launch_ms = self._gpu.launch_ms, 0.0
        self._gpu.host_ms += launch_ms
        before = list(self._log)
        self._step()
        self._log[:] = [*before, "replay"]
        self._gpu.launch_ms = launch_ms


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, log: list[str]) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    made.look_ms = 0.01
    monkeypatch.setattr(stopwatch, "time", made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    @contextlib.contextmanager
    def capture(step: Callable[[], object]) -> Iterator[Captured]:
        made.synchronize()
        log.append("capture")
        yield Captured(made, step, log)
        log.append("close")

    monkeypatch.setattr(graphs, "capture", capture)
    return made


def step_of(gpu: fakes.Gpu, log: list[str], duration_ms: float = 2.0) -> Step:
    step = Step(gpu, duration_ms)
    step.log = log
    return step


def test_on_a_cpu_passes_are_the_warm_up_and_the_samples():
    step = Step()
    times = Stopwatch(CPU).measure(step, samples=4, warmup=2)
    assert step.count("run") == 2 + 4
    assert (len(times.all_ms), times.method, times.repeated) == (4, "time.perf_counter", 0)


def test_on_a_cpu_a_spent_budget_leaves_six_samples():
    step = Step()
    assert len(Stopwatch(CPU).measure(step, samples=20, budget_s=0.0).all_ms) == 6


def test_samples_come_by_capture():
    times = Stopwatch(CPU).measure(Step(), captures=2, samples=3)
    assert [len(samples) for samples in times.samples_ms] == [3, 3]
    assert len(times.means_ms) == 2


def test_the_mean_is_over_each_capture_and_the_best_over_all():
    times = Times(((1.0, 3.0), (5.0, 7.0)), "a clock")
    assert (times.means_ms, times.best_ms, times.all_ms) == ([2.0, 6.0], 1.0, [1.0, 3.0, 5.0, 7.0])


def test_on_a_gpu_a_step_runs_once_is_captured_and_replayed(gpu: fakes.Gpu, log: list[str]):
    times = Stopwatch(CUDA).measure(step_of(gpu, log), samples=3, warmup=2)
    assert log == ["run", "capture", *["replay"] * (2 + 3), "close"]
    assert times.all_ms == pytest.approx([2.0] * 3)
    assert times.method == "replays of a CUDA graph, CUDA events"


def test_each_capture_begins_with_a_pass_and_ends_before_the_next(gpu: fakes.Gpu, log: list[str]):
    Stopwatch(CUDA).measure(step_of(gpu, log), captures=2, samples=1)
    assert log == ["run", "capture", "replay", "close"] * 2


def test_clocks_settle_under_load_before_the_warm_up(gpu: fakes.Gpu, log: list[str]):
    started_ms = gpu.host_ms
    Stopwatch(CUDA).measure(step_of(gpu, log), samples=1, settle_s=0.5)
    assert gpu.host_ms - started_ms >= 500.0
    assert log.count("replay") > SETTLING_REPLAYS + 500 / 2.0 - 5


def test_without_settling_there_is_no_load(gpu: fakes.Gpu, log: list[str]):
    Stopwatch(CUDA).measure(step_of(gpu, log), samples=1)
    assert log.count("replay") == 1


def test_a_budget_limits_samples_and_warm_up_to_what_it_affords(gpu: fakes.Gpu, log: list[str]):
    times = Stopwatch(CUDA).measure(step_of(gpu, log, 10.0), samples=20, warmup=20, budget_s=0.08)
    assert len(times.all_ms) == 8
    assert log.count("replay") == 1 + 8 + 8


def test_a_budget_leaves_six_samples(gpu: fakes.Gpu, log: list[str]):
    assert len(Stopwatch(CUDA).measure(step_of(gpu, log, 1000.0), samples=20, budget_s=0.1).all_ms) == 6


def test_samples_that_the_host_held_up_are_counted_of_all_captures(gpu: fakes.Gpu, log: list[str]):
    gpu.launch_ms = 0.3  # three times as long as the first spin
    times = Stopwatch(CUDA).measure(step_of(gpu, log), captures=2, samples=2)
    assert times.repeated == 2 * 2
    assert times.all_ms == pytest.approx([2.0 + 0.3] * 4, abs=0.3)


def test_a_launch_longer_than_the_queue_is_said_in_the_method(gpu: fakes.Gpu, log: list[str]):
    gpu.launch_ms = 100.0
    times = Stopwatch(CUDA).measure(step_of(gpu, log, 1000.0), samples=1)
    assert (times.overfull, times.method) == (1, "replays of a CUDA graph, CUDA events, launch longer than the queue")


def test_a_host_that_is_never_ahead_is_an_error(gpu: fakes.Gpu, log: list[str]):
    gpu.launch_ms = 1e6
    with pytest.raises(HostTooSlowError):
        Stopwatch(CUDA).measure(step_of(gpu, log), samples=1)


def test_a_pass_is_one_on_a_cpu_and_ten_settled_replays_on_a_gpu(gpu: fakes.Gpu, log: list[str]):
    step = Step()
    assert Stopwatch(CPU).pass_ms(step) >= 0
    assert step.count("run") == 1
    assert Stopwatch(CUDA).pass_ms(step_of(gpu, log)) == pytest.approx(2.0)
    assert log.count("replay") > SETTLING_REPLAYS + 10


def test_a_pass_in_which_the_host_waits_is_not_captured_and_timed_with_its_launch(gpu: fakes.Gpu, log: list[str]):
    step = step_of(gpu, log)

    def waiting() -> None:
        step()
        gpu.wait()

    gpu.launch_ms = 1.0
    assert Stopwatch(CUDA).pass_ms(waiting) == pytest.approx(3.0)
    assert log == ["run"] * (2 + 10)


def test_a_pass_that_cannot_be_captured_is_timed_behind_a_spin(
    gpu: fakes.Gpu, log: list[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(step: Callable[[], object]) -> None:
        raise NotCapturableError("not this one")

    monkeypatch.setattr(graphs, "capture", refuse)
    gpu.launch_ms = 1.0
    assert Stopwatch(CUDA).pass_ms(step_of(gpu, log)) == pytest.approx(2.0)
    assert log == ["run"] * (2 + 1 + 10)


def test_a_short_call_is_timed_several_in_a_row(gpu: fakes.Gpu, log: list[str]):
    seen_ms: list[float] = []

    def calls(single_ms: float) -> int:
        seen_ms.append(single_ms)
        return 5

    times = Stopwatch(CUDA).measure_calls(step_of(gpu, log, 0.02), calls=calls, samples=4, probes=3)
    assert seen_ms == pytest.approx([0.02])
    assert times.all_ms == pytest.approx([0.02] * 4)
    assert log == ["run", "capture", *["replay"] * 3, "close", "capture", *["replay"] * 4, "close"]


@pytest.mark.parametrize("count", [0, 1])
def test_a_call_that_is_long_enough_needs_no_second_graph(gpu: fakes.Gpu, log: list[str], count: int):
    times = Stopwatch(CUDA).measure_calls(step_of(gpu, log), calls=lambda single_ms: count, samples=3, probes=3)
    assert times.all_ms == pytest.approx([2.0] * 3)
    assert log.count("capture") == 1


def test_a_call_with_too_few_probes_is_sampled_again(gpu: fakes.Gpu, log: list[str]):
    times = Stopwatch(CUDA).measure_calls(step_of(gpu, log), calls=lambda single_ms: 1, samples=4, probes=3)
    assert len(times.all_ms) == 4
    assert log.count("capture") == 2


def test_an_eager_pass_holds_the_launch_and_the_wait(gpu: fakes.Gpu, log: list[str]):
    gpu.launch_ms = 1.0
    times = Stopwatch(CUDA).eager(step_of(gpu, log), samples=3)
    assert times.all_ms == pytest.approx([1.0 + 2.0 + gpu.look_ms] * 3)
    assert "capture" not in log


@pytest.mark.parametrize(("enough_s", "count"), [(0.0, 5), (0.02, 10), (1.0, 50)])
def test_eager_passes_end_when_they_took_long_enough_but_are_five_at_least(
    gpu: fakes.Gpu, log: list[str], enough_s: float, count: int
):
    gpu.look_ms = 0.0
    gpu.launch_ms = 0.0
    assert len(Stopwatch(CUDA).eager(step_of(gpu, log), samples=50, enough_s=enough_s).all_ms) == count


def test_a_launched_step_is_not_captured_and_its_launch_is_hidden(gpu: fakes.Gpu, log: list[str]):
    times = Stopwatch(CUDA).launched(step_of(gpu, log), samples=4, warmup=2)
    assert log == ["run"] * (2 + 4)
    assert times.all_ms == pytest.approx([2.0] * 4)


def test_on_a_cpu_a_launched_step_is_timed_by_the_clock():
    step = Step()
    assert len(Stopwatch(CPU).launched(step, samples=4, warmup=2).all_ms) == 4
    assert step.count("run") == 2 + 4


def test_spans_are_the_times_of_the_parts_in_one_graph(gpu: fakes.Gpu, log: list[str]):
    def part(duration_ms: float, added: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            gpu.work(duration_ms)
            return x + added

        return run

    spans_ms = Stopwatch(CUDA).spans_ms([part(2.0, 1), part(0.5, 2)], torch.zeros(1), samples=3)
    assert spans_ms == pytest.approx([2.0, 0.5])
    assert log == ["capture", *["replay"] * 3, "close"]


def test_on_a_cpu_each_part_takes_the_output_of_the_one_before():
    given: list[float] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        given.append(float(x))
        return x + 1

    assert len(Stopwatch(CPU).spans_ms([part, part], torch.zeros(1))) == 2
    assert given == [0.0, 1.0]
