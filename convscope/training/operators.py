"""Operators and kernels of a training step, by torch.profiler: a few steps, traced after the timing.

An operator's time is its own: on a GPU that of the kernels it launched, on a CPU without the operators it called.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from convscope.timing import trace
from convscope.training.step import RANGE

CONVOLUTION, NORMALISATION, ACTIVATION, COPIES = "convolution", "normalisation", "activation", "copies"
OPTIMIZER, COMMUNICATION, FUSED, OTHER = "optimizer", "communication", "fused", "other"

# The first pattern that matches an operator's name decides. Names that torch.compile makes list what they fuse.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (FUSED, r"^triton_|^graph_\d+_cpp_fused|cpp_fused"),
    (CONVOLUTION, r"conv"),
    (NORMALISATION, r"norm"),
    (COMMUNICATION, r"nccl|gloo|c10d|all_?reduce|broadcast|Reducer"),
    (ACTIVATION, r"relu|threshold|clamp_min|gelu|silu|sigmoid|hardswish"),
    (COPIES, r"copy|memcpy|memset|aten::(to|contiguous|clone|zero_|fill_)$"),
)


@dataclass(frozen=True)
class Operator:
    """One operator in one phase of the step: its calls and its own time (ms) a step."""

    name: str
    phase: str
    calls: float
    cpu_ms: float
    device_ms: float

    @property
    def category(self) -> str:
        """The kind of work: that of the optimizer's phase is its own, the rest goes by name."""
        return OPTIMIZER if self.phase == "optimizer" else category(self.name)


@dataclass(frozen=True)
class KernelTotal:
    """One kernel by its name: launches and milliseconds a step."""

    name: str
    launches: float
    kernel_ms: float


@dataclass(frozen=True)
class MemorySample:
    """Memory held by PyTorch's allocator after one allocation or release, and its time (ms) since the trace's first."""

    time_ms: float
    device: str
    allocated_bytes: int


@dataclass(frozen=True)
class StepProfile:
    """Operators, kernels and memory of the traced steps; all but `memory` is for one step.

    `busy_ms` is the time in which at least one kernel ran, 0 on a CPU.
    """

    operators: Sequence[Operator]
    kernels: Sequence[KernelTotal]
    memory: Sequence[MemorySample]
    busy_ms: float

    def own_ms(self, operator: Operator) -> float:
        """Return an operator's time: its kernels', or without any (on a CPU) its own."""
        return operator.device_ms if self.kernels else operator.cpu_ms

    def total_ms(self, phases: Sequence[str]) -> float:
        """Return the time of all operators of some phases."""
        return sum(self.own_ms(operator) for operator in self.operators if operator.phase in phases)

    def shares_pct(self) -> dict[str, float]:
        """Return the share of each category in the time of all operators, largest first."""
        sums: dict[str, float] = defaultdict(float)
        for operator in self.operators:
            sums[operator.category] += self.own_ms(operator)
        whole_ms = sum(sums.values())
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return {name: 100 * sum_ms / whole_ms for name, sum_ms in ordered} if whole_ms else {}


def category(name: str) -> str:
    """Return the kind of work that an operator does, by its name."""
    return next((kind for kind, pattern in _PATTERNS if re.search(pattern, name, re.IGNORECASE)), OTHER)


def record(work: Callable[[], None], steps: int, on_gpu: bool, memory: bool, path: Path) -> StepProfile:
    """Trace some steps, keep the trace as a file, and return its operators, kernels and memory.

    Args:
        work: runs that many training steps, their phases in ranges (`step.PhaseRanges`).
        memory: follow the allocator too.
        path: the trace's file, in Chrome's format (Perfetto; TensorBoard wants `.pt.trace.json`).
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with profile(activities=activities, profile_memory=memory, acc_events=True) as profiler:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text(errors="replace"))["traceEvents"]
    kernels = trace.kernels_in_order(events)
    return StepProfile(
        operators=_operators(profiler.events(), steps),
        kernels=_kernel_totals(kernels, steps),
        memory=memory_samples(events),
        busy_ms=busy_us(kernels) / 1e3 / steps,
    )


def _operators(events: Any, steps: int) -> list[Operator]:
    on_host = [event for event in events if event.device_type.name == "CPU"]
    ranges = sorted(
        (event.time_range.start, event.time_range.end, event.name.removeprefix(RANGE))
        for event in on_host
        if event.name.startswith(RANGE)
    )
    starts = [start for start, _, _ in ranges]
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for event in on_host:
        phase = bisect_right(starts, event.time_range.start) - 1
        if event.name.startswith(RANGE) or phase < 0 or event.time_range.start > ranges[phase][1]:
            continue
        totals = sums[event.name, ranges[phase][2]]
        for index, value in enumerate((1, event.self_cpu_time_total / 1e3, event.self_device_time_total / 1e3)):
            totals[index] += value / steps
    operators = [Operator(name, phase, *values) for (name, phase), values in sums.items()]
    return sorted(operators, key=lambda operator: (-operator.device_ms, -operator.cpu_ms))


def _kernel_totals(kernels: Sequence[trace.Kernel], steps: int) -> list[KernelTotal]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        by_name[kernel.name].append(kernel.duration_us)
    totals = [KernelTotal(name, len(times) / steps, sum(times) / 1e3 / steps) for name, times in by_name.items()]
    return sorted(totals, key=lambda kernel: -kernel.kernel_ms)


def busy_us(kernels: Sequence[trace.Kernel]) -> float:
    """Return the time in which at least one of these kernels ran; they come by start time."""
    total_us, until_us = 0.0, 0.0
    for kernel in kernels:
        total_us += max(0.0, kernel.end_us - max(kernel.start_us, until_us))
        until_us = max(until_us, kernel.end_us)
    return total_us


def memory_samples(events: Sequence[Mapping[str, Any]]) -> list[MemorySample]:
    """Return the allocator's marks of a trace, by time."""
    marks = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    first_us = marks[0]["ts"] if marks else 0.0
    return [
        MemorySample(
            (event["ts"] - first_us) / 1e3,
            "cpu" if event["args"]["Device Type"] == 0 else f"cuda:{event['args']['Device Id']}",
            int(event["args"]["Total Allocated"]),
        )
        for event in marks
    ]
