"""The order of the steps at one size, on a CPU with instruments that are handed in."""

from __future__ import annotations

import time

import pytest
import torch
from fakes import Branching, LayerTimer, Meter, layer, run
from torch import nn

from convscope.convolution.assignment import Assignment
from convscope.convolution.providers import Execution
from convscope.convolution.swap import Swap
from convscope.errors import HookMismatchError
from convscope.profiling.bench import Bench
from convscope.profiling.measurement import Measurement, layer_rows

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


class Slowing(Branching):
    """Its first convolution takes 20 ms more in the passes whose layers are timed: another program came in between."""

    def __init__(self, timer: LayerTimer) -> None:
        super().__init__()
        self.one.register_forward_hook(lambda *_: time.sleep(0.02 if timer.entered else 0))


def test_on_a_cpu_the_shares_of_layers_are_of_the_passes_that_they_were_timed_in():
    timer = LayerTimer([15.0, 0.1])
    model = Slowing(timer)
    found = measure(model, timer, warmup_iters=0)
    assert found.passes.mean_ms < 20 < (found.layers_pass_ms or 0)
    rows = layer_rows(run(), 8, LAYERS, found, Assignment({}, {}))
    assert rows[0].percentage == pytest.approx(100 * 15.0 / found.layers_pass_ms)
    assert 50 < sum(row.percentage or 0 for row in rows) < 100


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
    with pytest.raises(HookMismatchError, match="1 convolutions ran, 2 were expected"):
        measure(nn.Sequential(nn.Conv2d(3, 4, 3)))
