"""Kernels of each layer and their times, according to CUPTI.

CUPTI makes later passes of its process longer: nothing here may run in a process before a time is taken there.

Two kinds of passes are traced. An eager one gives the layer of each kernel: a kernel carries the correlation number of
its launch, and the launch lies inside a range named after the layer. Replays of the captured graph give the times: the
same kernels in the same order, with the gaps they have when the host does not slow them.
"""

from __future__ import annotations

import itertools
import os
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.profiler import record_function

from convscope.errors import TraceMissingError
from convscope.timing import graphs, shares
from convscope.timing.calls import watched
from convscope.timing.cupti import GPU_WORK, record
from convscope.timing.hooks import module_ranges
from convscope.timing.shares import RANGE, Launch, Work

EAGER, REPLAY = RANGE + "eager", RANGE + "replay"
LAYER, MODULE_RANGE = RANGE + "layer:", shares.MODULE
_SILENT = "99"
_NANOSECOND_MS = 1e-6  # resolution of a trace
CPU_REASON = "a CPU launches none"


@dataclass(frozen=True)
class Kernel:
    """One kernel's run on the GPU; times in microseconds since the first one in the trace."""

    name: str
    start_us: float
    duration_us: float
    correlation: int

    @property
    def end_us(self) -> float:
        """The time at which it finished."""
        return self.start_us + self.duration_us


@dataclass(frozen=True)
class LayerTrace:
    """The kernels of one call of one layer.

    `kernel_ms` is the sum of their times, `span_ms` the time from the start of the first to the end of the last (None
    where the replays could not be matched); `kernels` counts them by name. `spans_ms` has the span in each replay, by
    placement; the other two are the mean over the placements of the median of each.
    """

    kernels: Mapping[str, int]
    kernel_ms: float | None = None
    span_ms: float | None = None
    spans_ms: tuple[tuple[float, ...], ...] = ()

    @property
    def sets_or_copies_memory(self) -> bool:
        """True where the driver sets or copies memory in the layer: traced, that takes some microseconds more."""
        return any(name.startswith(("Memset", "Memcpy")) for name in self.kernels)

    @property
    def overlaps(self) -> bool:
        """True where its kernels run beside each other, on several streams."""
        return (
            self.kernel_ms is not None and self.span_ms is not None and self.kernel_ms > self.span_ms + _NANOSECOND_MS
        )


def record_layers(model: nn.Module, inputs: tuple[torch.Tensor, ...], calls: bool = False) -> list[dict[str, Any]]:
    """Trace one eager pass with a range around each convolution, named by its position; `matched` reads the result.

    Args:
        calls: around those outside `nn.Conv2d` modules too.
    """
    opened: list[record_function] = []
    positions = itertools.count()

    def before(name: str, module: nn.Module, given: torch.Tensor) -> None:
        opened.append(record_function(f"{LAYER}{next(positions)}"))
        opened[-1].__enter__()

    def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        opened.pop().__exit__(None, None, None)

    def work() -> None:
        ranges = module_ranges(model, MODULE_RANGE)
        with ranges, watched(model, before, after, calls), record_function(EAGER):
            model(*inputs)

    return record(work)


def record_operators(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[dict[str, Any]]:
    """Trace one pass on a CPU, its modules as ranges; `shares.of_operators` reads the result.

    By the profiler under torch.profiler: that one imports PyTorch's compiler, which takes seconds.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)  # it looks for GPUs, and says on stderr that there are none
    with autograd_profiler.profile() as profiler, module_ranges(model, MODULE_RANGE), record_function(EAGER):
        model(*inputs)
    return [
        {
            "ph": "X", "cat": "user_annotation" if event.name.startswith(RANGE) else "cpu_op", "name": event.name,
            "ts": event.time_range.start, "dur": event.time_range.elapsed_us(), "tid": event.thread,
        }
        for event in profiler.function_events or ()
    ]  # fmt: skip


def record_replays(
    passes: Sequence[graphs.Replayable], replays: int, before: Callable[[], object], hider: graphs.LaunchHider
) -> list[dict[str, Any]]:
    """Trace replays of captured passes, one pass after another, each behind a spin that `hider` makes long enough.

    CUPTI makes the launch of a graph longer. A replay whose launch was not hidden is taken again, and its range is left
    out of the trace: what it begins with would have run before the rest was launched. What is enqueued `before` each,
    behind its spin, is no part of it.

    Raises:
        HostTooSlowError: the host does not stay ahead of the GPU.
    """
    launched, kept = itertools.count(), set[str]()

    def work() -> None:
        for captured in passes:
            for _ in range(replays):
                kept.add(hider.sample(*_replay_in_ranges(captured, before, launched)))

    events = record(work)
    return [event for event in events if not event["name"].startswith(REPLAY) or event["name"] in kept]


def _replay_in_ranges(
    captured: graphs.Replayable, before: Callable[[], object], numbers: Iterator[int]
) -> tuple[Callable[[], None], Callable[[], str]]:
    """Return a launch of a replay inside a range that has the next number, and what returns the range's name."""
    name = REPLAY

    def launch() -> None:
        nonlocal name
        name = f"{REPLAY}:{next(numbers)}"
        before()
        with record_function(name):
            captured.replay()

    return launch, lambda: name


def trace_pass(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], calls: bool = False
) -> tuple[list[LayerTrace], str | None]:
    """Trace an eager pass as `record_layers` does; return the kernels of each layer without times, or none and why."""
    if not inputs[0].is_cuda:
        return [], CPU_REASON
    try:
        return matched(record_layers(model, inputs, calls)).layers(), None
    except TraceMissingError as error:
        return [], str(error)


def record_each(steps: Sequence[Callable[[], object]]) -> list[LayerTrace]:
    """Run each step once, and return the kernels that each launched.

    Raises:
        TraceMissingError: CUPTI recorded no kernels.
    """

    def work() -> None:
        with record_function(EAGER):
            for position, step in enumerate(steps):
                with record_function(f"{LAYER}{position}"):
                    step()

    return matched(record(work)).layers()


def kernels_in_order(events: Sequence[Mapping[str, Any]]) -> list[Kernel]:
    """Return all work of the GPU by start time, copies and memsets included."""
    work = [event for event in events if event.get("cat") in GPU_WORK and event.get("ph") == "X"]
    # The trace counts from the machine's start; subtracted, so that differences keep their nanoseconds.
    zero_us = min((event["ts"] for event in work), default=0.0)
    kernels = (
        Kernel(event["name"], event["ts"] - zero_us, float(event["dur"]), int(event["args"]["correlation"]))
        for event in work
    )
    return sorted(kernels, key=lambda kernel: kernel.start_us)


@dataclass(frozen=True)
class PassTrace:
    """Kernels of an eager pass, and of the replays of the same pass as a graph in one placement after another.

    Attributes:
        eager: the kernels of the eager pass, by start; `owners` has the range of the layer that launched each.
        placements: the kernels of each replay, by placement; none where replays launched others than the eager pass.
        events: the trace of the eager pass.
    """

    eager: Sequence[Kernel]
    owners: Sequence[str | None]
    placements: Sequence[Sequence[Sequence[Kernel]]]
    events: Sequence[Mapping[str, Any]]

    def layers(self) -> list[LayerTrace]:
        """Return the kernels of each layer, in the order of the layers' positions."""
        positions = sorted(int(named.name.removeprefix(LAYER)) for named in _ranges(self.events, LAYER))
        names = (f"{LAYER}{position}" for position in positions)
        return [_layer_trace(name, self.eager, self.owners, self.placements) for name in names]

    def work(self) -> list[Work]:
        """Return the kernels of the pass by kind of work and module.

        Their times are those in the replays, the mean over the placements of the median of each, or those in the eager
        pass where the replays could not be matched.
        """
        times_us = [kernel.duration_us for kernel in self.eager]
        if self.placements:
            places = [[_in_order_of(self.eager, self.owners, part) for part in place] for place in self.placements]
            times_us = [fmean(_median_us(place, index) for place in places) for index in range(len(self.eager))]
        calls = _launch_calls(self.events)
        launches = [
            Launch(
                kernel.name,
                float(calls[kernel.correlation]["ts"]),
                calls[kernel.correlation].get("tid"),
                time_us / 1e3,
            )
            for kernel, time_us in zip(self.eager, times_us, strict=True)
        ]
        return shares.of_launches(self.events, launches)


def matched(
    events: Sequence[Mapping[str, Any]], recorded: Sequence[Sequence[Mapping[str, Any]]] = (), replays: int = 0
) -> PassTrace:
    """Match replays with an eager pass, kernel by kernel.

    Args:
        events: a trace of one eager pass inside a range `EAGER`, with a range for each layer inside it.
        recorded: traces of the same pass as a graph, each with `replays` replays in one or more placements, one after
            another; each replay is inside a range whose name begins with `REPLAY`.

    Raises:
        TraceMissingError: the trace has no kernels.
    """
    kernels = kernels_in_order(events)
    if not kernels:
        raise TraceMissingError("CUPTI recorded no kernels (clusters often reserve it to administrators)")
    launches, layers = _launch_times_us(events), _ranges(events, LAYER)
    eager = _launched_inside(_ranges(events, EAGER), kernels, launches)
    owners = [_range_at(layers, launches[kernel.correlation]) for kernel in eager]
    traces = [_split(_replayed(trace), replays, eager, owners) for trace in recorded]
    placements = [passes[at : at + replays] for passes in traces for at in range(0, len(passes), replays)]
    return PassTrace(eager, owners, placements if all(traces) else [], events)


def _median_us(replays: Sequence[Sequence[Kernel]], index: int) -> float:
    return statistics.median(kernels[index].duration_us for kernels in replays)


def _in_order_of(eager: Sequence[Kernel], owners: Sequence[str | None], part: Sequence[Kernel]) -> list[Kernel]:
    """Return a replay's kernels in the order of the eager pass's; those of one name in a run of one owner by start."""
    ordered: list[Kernel] = []
    for _, run in itertools.groupby(range(len(eager)), key=lambda index: owners[index]):
        indices = list(run)
        waiting: dict[str, deque[Kernel]] = defaultdict(deque)
        for index in indices:
            waiting[part[index].name].append(part[index])
        ordered += [waiting[eager[index].name].popleft() for index in indices]
    return ordered


def _replayed(events: Sequence[Mapping[str, Any]]) -> list[Kernel]:
    return _launched_inside(_ranges(events, REPLAY), kernels_in_order(events), _launch_times_us(events))


def _layer_trace(
    name: str, eager: Sequence[Kernel], owners: Sequence[str | None], placements: Sequence[Sequence[Sequence[Kernel]]]
) -> LayerTrace:
    indices = [index for index, owner in enumerate(owners) if owner == name]
    counts = Counter(eager[index].name for index in indices)
    if not indices or not placements:
        return LayerTrace(counts)
    runs = [[[kernels[index] for index in indices] for kernels in passes] for passes in placements]
    sums_ms = [[sum(kernel.duration_us for kernel in run) / 1e3 for run in place] for place in runs]
    spans_ms = tuple(tuple(_span_ms(run) for run in place) for place in runs)
    return LayerTrace(counts, fmean(map(statistics.median, sums_ms)), fmean(map(statistics.median, spans_ms)), spans_ms)


def _span_ms(run: Sequence[Kernel]) -> float:
    return (max(kernel.end_us for kernel in run) - min(kernel.start_us for kernel in run)) / 1e3


def _launch_times_us(events: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Map each correlation number to the time of the host's call."""
    return {correlation: float(event["ts"]) for correlation, event in _launch_calls(events).items()}


def _launch_calls(events: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Map each correlation number to the host's call."""
    return {
        int(event["args"]["correlation"]): event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }


class _Range(NamedTuple):
    start_us: float
    end_us: float
    name: str


def _ranges(events: Sequence[Mapping[str, Any]], prefix: str) -> list[_Range]:
    """Return the host's ranges whose names begin with `prefix`, by start; they do not overlap."""
    return sorted(
        _Range(float(event["ts"]), float(event["ts"]) + float(event["dur"]), event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(prefix)
    )


def _range_at(ranges: Sequence[_Range], time_us: float) -> str | None:
    index = bisect_right(ranges, time_us, key=lambda named: named.start_us) - 1
    return ranges[index].name if index >= 0 and time_us <= ranges[index].end_us else None


def _launched_inside(
    ranges: Sequence[_Range], kernels: Sequence[Kernel], launches: Mapping[int, float]
) -> list[Kernel]:
    launched = [kernel for kernel in kernels if kernel.correlation in launches]
    return [kernel for kernel in launched if _range_at(ranges, launches[kernel.correlation]) is not None]


def _split(
    replayed: Sequence[Kernel], replays: int, eager: Sequence[Kernel], owners: Sequence[str | None]
) -> list[Sequence[Kernel]]:
    """Return the kernels of each replay in the order of the eager pass's layers, nothing if the kernels differ.

    There are `replays`, or a multiple of that.

    Inside a layer the order is free: some algorithms (FFT) spread over several streams.
    """
    count = len(eager)
    if not replayed or not count * replays or len(replayed) % (count * replays):
        return []
    expected = _names_by_run([kernel.name for kernel in eager], owners)
    passes = [replayed[at : at + count] for at in range(0, len(replayed), count)]
    same = all(_names_by_run([kernel.name for kernel in part], owners) == expected for part in passes)
    return passes if same else []


def _names_by_run(names: Sequence[str], owners: Sequence[str | None]) -> list[Counter[str]]:
    """Count the names in each run of neighbours with one owner."""
    together = itertools.groupby(zip(owners, names, strict=True), key=lambda pair: pair[0])
    return [Counter(name for _, name in run) for _, run in together]
