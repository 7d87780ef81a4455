"""A step as torch.profiler saw it: operators by phase and kind, kernels, memory."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from convscope.timing import trace
from convscope.training import operators
from convscope.training.operators import KernelTotal, Operator, StepProfile
from convscope.training.step import PHASES, PhaseRanges, Stepper


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::cudnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("ai3::conv2d", "convolution"),
        ("aten::native_batch_norm_backward", "normalisation"),
        ("aten::cudnn_batch_norm", "normalisation"),
        ("aten::threshold_backward", "activation"),
        ("aten::clamp_min_", "activation"),
        ("aten::copy_", "copies"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("nccl:all_reduce", "communication"),
        ("c10d::allreduce_", "communication"),
        ("triton_poi_fused__native_batch_norm_legit_functional_relu_4", "fused"),
        ("aten::addmm", "other"),
    ],
)
def test_an_operator_is_of_its_kind_by_name(name: str, kind: str):
    assert operators.category(name) == kind


def test_what_the_optimizer_does_is_its_own_whatever_the_name():
    assert Operator("aten::add_", "optimizer", 1, 1.0, 0.0).category == "optimizer"
    assert Operator("aten::add_", "forward", 1, 1.0, 0.0).category == "other"


def kernel(start_us: float, duration_us: float) -> trace.Kernel:
    return trace.Kernel("k", start_us, duration_us, 0)


def test_kernels_that_run_at_once_keep_the_gpu_busy_once():
    assert operators.busy_us([kernel(0, 10), kernel(5, 2), kernel(8, 4), kernel(20, 1)]) == 13
    assert operators.busy_us([]) == 0


def profile_of(*operators: Operator, kernels: tuple[KernelTotal, ...] = ()) -> StepProfile:
    return StepProfile(operators, kernels, [], 0.0)


def test_on_a_gpu_kernels_count_and_on_a_cpu_the_operators_own_time():
    conv = Operator("aten::cudnn_convolution", "forward", 1, cpu_ms=9.0, device_ms=3.0)
    norm = Operator("aten::cudnn_batch_norm", "forward", 1, cpu_ms=1.0, device_ms=1.0)
    assert profile_of(conv, norm).shares_pct() == {"convolution": 90, "normalisation": 10}
    on_gpu = profile_of(conv, norm, kernels=(KernelTotal("k", 1, 4.0),))
    assert on_gpu.shares_pct() == {"convolution": 75, "normalisation": 25}
    assert on_gpu.total_ms(["forward"]) == 4


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(x)).relu().mean((2, 3))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepProfile, Path]:
    stepper = Stepper(Small(), torch.device("cpu"), learning_rate=0.1, momentum=0.0, weight_decay=0.0, steps=5)
    batch = torch.randn(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
    ranges = PhaseRanges()

    def work() -> None:
        ranges.start()
        for _ in range(2):
            stepper.step(iter([batch]), ranges.mark)
        ranges.close()

    path = tmp_path_factory.mktemp("trace") / "cell" / "rank0.pt.trace.json"
    return operators.record(work, 2, on_gpu=False, memory=True, path=path), path


def test_each_operator_is_counted_in_the_phase_that_called_it(traced: tuple[StepProfile, Path]):
    found = {(operator.name, operator.phase): operator.calls for operator in traced[0].operators}
    assert found["aten::conv2d", "forward"] == 1
    assert found["aten::convolution_backward", "backward"] == 1
    assert found["Optimizer.step#SGD.step", "optimizer"] == 1
    assert not [name for name, _ in found if name.startswith("convscope:")]


def test_the_operators_are_no_more_than_the_phases_that_hold_them(traced: tuple[StepProfile, Path]):
    events = json.loads(traced[1].read_text())["traceEvents"]
    phases_ms = {
        phase: sum(event["dur"] for event in events if event.get("name") == f"convscope:{phase}") / 1e3 / 2
        for phase in PHASES
    }
    for phase in ("forward", "optimizer"):  # on this thread alone; a backward pass has one of its own
        assert 0 < traced[0].total_ms([phase]) <= phases_ms[phase] * 1.001


def test_the_trace_has_what_perfetto_and_tensorboard_ask_for(traced: tuple[StepProfile, Path]):
    document = json.loads(traced[1].read_text())
    complete = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    assert complete
    assert all({"name", "ts", "dur", "pid", "tid"} <= event.keys() for event in complete)
    assert {"convscope:forward", "convscope:backward"} <= {event["name"] for event in complete}


def test_memory_is_followed_allocation_by_allocation(traced: tuple[StepProfile, Path]):
    memory = traced[0].memory
    assert memory[0].time_ms == 0
    assert all(a.time_ms <= b.time_ms for a, b in pairwise(memory))
    output_bytes = 4 * 32 * 32 * 32 * 4
    assert max(mark.allocated_bytes for mark in memory) >= 2 * output_bytes
    assert {mark.device for mark in memory} == {"cpu"}
