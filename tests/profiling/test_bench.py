"""The order of the steps at one size, on a CPU with instruments that are handed in."""

from __future__ import annotations

import contextlib
import time
from typing import Any, cast

import fakes
import pytest
import torch
from fakes import Branching, LayerTimer, Meter, layer, run, unusual
from torch import nn

from convscope import failures
from convscope.convolution.assignment import Assignment
from convscope.convolution.providers.plan import Execution
from convscope.convolution.swap import Swap
from convscope.errors import HookMismatchError, NotCapturableError
from convscope.profiling import bench, passes
from convscope.profiling.bench import Bench
from convscope.profiling.measurement import Measurement, layer_rows
from convscope.timing import eager
from convscope.timing.layer_times import LayerTimes, Overhead

LAYERS = [layer(name="one"), layer(name="two", position=1)]


class Counting(Branching):
    """Counts its passes and keeps their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(x)
        return super().forward(x)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def measure(model: nn.Module, timer: LayerTimer | None = None, errors: bool = False, **changes: object) -> Measurement:
    asked = run(**({"warmup_iters": 2, "measure_iters": 3} | changes))
    made = Bench(asked, model, torch.device("cpu"), timer or LayerTimer([2.0, 1.0]), Meter(), note=pytest.fail)
    return made.measure(8, LAYERS, check_errors=errors)


def test_on_a_cpu_the_method_is_the_hosts_clock():
    assert measure(Branching()).method == "time.perf_counter"


def test_on_a_cpu_the_pass_is_what_a_caller_waits_for():
    found = measure(Branching())
    assert found.passes == found.eager
    assert found.passes.count == 3


def test_layers_are_those_that_the_timer_reads_in_every_pass():
    found = measure(Branching(), LayerTimer([2.0, 1.0]))
    assert [(times.mean_ms, times.count) for times in found.layers] == [(2.0, 3), (1.0, 3)]


class Clock:
    """The host's clock, in seconds: a look at it takes a millisecond, and nothing else any time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-3
        return self.now_s


def test_on_a_cpu_the_shares_of_layers_are_of_the_passes_that_they_were_timed_in(monkeypatch: pytest.MonkeyPatch):
    """Passes whose layers are timed take 20 ms more: another program came in between."""
    clock, timer, model = Clock(), LayerTimer([15.0, 0.1]), Branching()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)

    def slow(*_: object) -> None:
        clock.now_s += 0.02 if timer.entered else 0

    model.one.register_forward_hook(slow)
    found = measure(model, timer, warmup_iters=0)
    assert found.passes.mean_ms == pytest.approx(1.0)
    assert found.layers_pass_ms == pytest.approx(21.0)
    rows = layer_rows(run(), 8, LAYERS, found, Assignment({}, {}))
    assert rows[0].percentage == pytest.approx(100 * 15.0 / 21.0)
    assert sum(row.percentage or 0 for row in rows) < 100


def test_the_timer_is_entered_for_the_passes_that_it_times_only():
    timer = LayerTimer([2.0, 1.0])
    measure(Branching(), timer)
    assert timer.entered == 3


def test_passes_are_one_that_looks_the_warm_up_the_measured_the_timed_and_one_by_operator():
    model = Counting()
    measure(model)
    assert len(model.given) == 1 + 2 + 3 + 3 + 1


def test_without_warm_up_there_are_fewer_passes():
    model = Counting()
    measure(model, warmup_iters=0)
    assert len(model.given) == 1 + 3 + 3 + 1


def test_every_pass_gets_the_same_input_of_the_batch_and_size_asked_for():
    model = Counting()
    measure(model, batch_size=2)
    assert {(tuple(x.shape), x.data_ptr()) for x in model.given} == {((2, 3, 8, 8), model.given[0].data_ptr())}


def test_the_input_goes_by_the_seed():
    same, again, other = Counting(), Counting(), Counting()
    measure(same, seed=1)
    measure(again, seed=1)
    measure(other, seed=2)
    assert torch.equal(same.given[0], again.given[0])
    assert not torch.equal(same.given[0], other.given[0])


def test_observations_say_what_ran_in_each_layer():
    model = Branching()
    Swap(model).apply({"one": "direct"})
    found = measure(model)
    assert [observation.execution for observation in found.observations] == [
        Execution("direct", "ai3", None, 0),
        Execution("torch", "torch"),
    ]


def test_errors_are_computed_where_they_are_asked_for():
    model = Branching()
    Swap(model).apply({"one": "direct", "two": "smm"})
    errors = [observation.relative_error for observation in measure(model, errors=True).observations]
    assert all(error is not None and 0 < error < 1e-5 for error in errors)


def test_errors_are_absent_where_nobody_asked():
    assert [observation.relative_error for observation in measure(Branching()).observations] == [None, None]


def test_on_a_cpu_there_are_no_kernels_no_energy_and_no_overhead():
    found = measure(Branching())
    assert (found.traces, found.energy, found.overhead_us, found.peak_memory_bytes) == ([], None, None, None)


def test_a_pass_with_other_convolutions_than_described_is_an_error():
    with pytest.raises(HookMismatchError, match="1 convolution ran, 2 were expected") as ended:
        measure(nn.Sequential(nn.Conv2d(3, 4, 3)))
    assert failures.classify(ended.value) == failures.Failure("failed", str(ended.value))
    with pytest.raises(HookMismatchError, match="0 ran where one was expected: which convolutions"):
        measure(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)))


class Steps:
    """A model of the pretended GPU: its pass takes the host 1 ms and the GPU 2; it may wait for the GPU in it."""

    def __init__(self, gpu: fakes.Gpu, waits: bool = False) -> None:
        self.gpu, self.waits, self.passes = gpu, waits, 0

    def __call__(self, given: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.gpu.host_ms += 1.0
        self.gpu.work(2.0)
        if self.waits:
            self.gpu.wait()
        return given


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    return made


def on_gpu(model: Steps, notes: list[str]) -> Bench:
    timer: Any = LayerTimer([0.5])
    return Bench(run(device="cuda:0"), cast(nn.Module, model), torch.device("cuda:0"), timer, Meter(), notes.append)


GIVEN = (torch.zeros(1),)


def test_a_pass_in_which_the_host_waits_is_timed_eagerly_and_never_captured(
    gpu: fakes.Gpu, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(passes.graphs, "capture", lambda *_: pytest.fail("a capture of a pass that waits"))
    notes: list[str] = []
    model = Steps(gpu, waits=True)
    made = on_gpu(model, notes)
    made._passes.ask_to_capture(GIVEN)
    times = made._passes.times(GIVEN, samples=3)
    assert model.passes == 2 + 2 * 3  # asked, then sampled at once with the launch
    assert times.way == eager.INCLUDED_METHOD
    assert times.passes_ms == pytest.approx([3.0] * 3)
    assert notes == ["passes are timed eagerly: the host waits for the GPU in the pass"]
    assert made._overhead([times]) is None
    assert bench._method([times, times]) == eager.INCLUDED_METHOD


def refuse(step: object) -> None:
    raise NotCapturableError("the pass cannot be captured as a CUDA graph: operation not permitted")


def test_a_pass_whose_capture_is_refused_is_timed_eagerly_behind_a_spin_and_not_tried_again(
    gpu: fakes.Gpu, monkeypatch: pytest.MonkeyPatch
):
    tried, notes = [], list[str]()
    monkeypatch.setattr(passes.graphs, "capture", lambda step: (tried.append(step), refuse(step)))
    made = on_gpu(Steps(gpu), notes)
    made._passes.ask_to_capture(GIVEN)
    assert notes == []
    placed = [made._passes.times(GIVEN, samples=2) for _ in range(3)]
    assert {times.way for times in placed} == {eager.HIDDEN_METHOD}
    assert placed[0].passes_ms == pytest.approx([2.0] * 2)
    assert len(tried) == 1
    assert notes == ["passes are timed eagerly: the pass cannot be captured as a CUDA graph: operation not permitted"]


def test_an_algorithm_that_cannot_be_captured_in_a_model_that_can_is_an_error_and_not_timed_eagerly(
    gpu: fakes.Gpu, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench.placement, "moved", lambda model, given, place: contextlib.nullcontext(given))
    made = on_gpu(Steps(gpu), [])
    made._device = torch.device("cuda")
    made.reference = Overhead(2.0, 1.0, [1.0])  # as of a calibration that captured the model
    monkeypatch.setattr(passes.graphs, "capture", refuse)
    with pytest.raises(NotCapturableError):
        made.layer_times_ms(GIVEN)
    assert made._passes.refused is None
    made.reference = None  # it did not: the model is timed eagerly then
    made._passes.times(GIVEN, samples=2)
    assert made._passes.refused is not None


def test_an_overhead_far_from_the_reference_gives_way_to_it(gpu: fakes.Gpu):
    made = on_gpu(Steps(gpu), [])
    times = LayerTimes([1.0], [[0.1]], [[0.0025]], [0.05], 0)
    measured = made._overhead([times])
    assert measured is not None
    assert measured.pair_us == pytest.approx((50 - 2.5) / 2)
    made.reference = Overhead(4.7, 2.5, [2.5])
    replaced = made._overhead([times])
    assert replaced is not None
    assert replaced.pair_us == pytest.approx(4.7)


@pytest.mark.parametrize(("readings", "expected"), [([0.1, 30.0, 2.0], 2.0), ([0.1, 30.0, 0.2], None)])
def test_a_reference_is_measured_until_it_can_be(
    gpu: fakes.Gpu, monkeypatch: pytest.MonkeyPatch, readings: list[float], expected: float | None
):
    notes: list[str] = []
    made = on_gpu(Steps(gpu), notes)
    left = iter(readings)
    monkeypatch.setattr(
        made._passes, "times", lambda *_: LayerTimes([1.0], [[0.1]], [[0.0]], [2 * next(left) / 1e3], 0)
    )
    found = made._measured_reference(GIVEN)
    assert (found and found.pair_us) == (pytest.approx(expected) if expected else None)
    said = "the overhead of events read 0.20 µs, which cannot be: each size goes by its own"
    assert notes == ([] if expected else [said])


def test_another_size_is_asked_anew_whether_it_can_be_captured(gpu: fakes.Gpu):
    model = Steps(gpu, waits=True)
    made = on_gpu(model, [])
    made._passes.ask_to_capture(GIVEN)
    assert made._passes.refused is not None
    model.waits = False
    made._passes.ask_to_capture(GIVEN)
    assert (made._passes.refused, made._passes.waits) == (None, None)


def test_ways_of_several_placements_are_all_named():
    one, other = (LayerTimes([1.0], [], [], [], 0, overfull, way) for overfull, way in ((0, "a"), (1, "b")))
    assert bench._method([one, one]) == "a"
    assert bench._method([one, other, one]) == "a; b, launch longer than the queue"


def test_on_a_cpu_the_method_says_that_calls_are_replaced():
    model, x = unusual.Functional().eval(), torch.zeros(1, 3, 12, 12)
    swapped = Swap(model)
    swapped.apply({"conv2d": "direct"})
    timer: Any = LayerTimer([1.0] * 5)
    layers = [layer(name=name, position=index) for index, name in enumerate(unusual.FUNCTIONAL)]
    made = Bench(run(measure_iters=2), model, torch.device("cpu"), timer, Meter(), note=pytest.fail)
    assert made.measure(x.shape[-1], layers, False).method == "time.perf_counter, calls replaced in the pass"
    swapped.restore()
    assert made.measure(x.shape[-1], layers, False).method == "time.perf_counter"


def test_on_a_cpu_a_measurement_has_the_work_of_a_pass_by_operator():
    found = measure(Branching())
    assert found.work_method == "self time of operators (torch.profiler)"
    assert {work.module for work in found.work if work.category == "convolution"} == {"one", "two"}
