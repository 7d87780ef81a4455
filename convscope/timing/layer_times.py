"""Times of the layers inside a pass: events in a captured graph, the overhead of the events taken off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from convscope.timing import graphs
from convscope.timing.graphs import Captured, EventTimer, LaunchHider
from convscope.timing.summary import PlacedSummary, summarize_placed
from convscope.timing.trace import LayerTrace


class LayerTimer(contextlib.AbstractContextManager["LayerTimer"], Protocol):
    """Times each convolution of the pass that runs, or is captured, inside its `with` block.

    Attributes:
        calls: the convolutions outside `nn.Conv2d` modules too (`timing.calls`).
    """

    calls: bool

    def read_ms(self) -> list[float]:
        """Return the times of the last pass, one for each call of a convolution, in order."""

    def reader(self) -> Callable[[], list[float]]:
        """Return what reads, as `read_ms` does, the pass that was captured last, whatever is captured after it."""


T = TypeVar("T")


class Sampler(Protocol):
    """Takes samples of launched work: `graphs.LaunchHider`, or one that does not hide the launch (`eager`)."""

    repeated: int
    overfull: int

    def sample(self, launch: Callable[[], None], read: Callable[[], T]) -> T:
        """Launch the work, and read the sample when it has finished."""


_PLAUSIBLE = 1.3  # factor between two measurements of a pair's overhead in one model
_PAIR_US = (0.5, 20.0)  # bounds of a pair's overhead on any card: an empty pair alone reads 1.3 µs on an H200
# Half the width of 95 % of the differences between a layer's events and its span, H200, ten models (docs/timing.md).
EVENT_DOUBT_MS = 1.0e-3
_GAP_DOUBT_MS = 0.15e-3  # that tracing adds to a gap between two kernels, there
SPAN_METHOD = "first kernel to last in a traced replay (CUPTI, separate process)"


@dataclass(frozen=True)
class LayerTimes:
    """Repeated times of a pass, and of the layers inside it as their events read, in milliseconds.

    `layers_ms[i][k]` is layer i in sample k, the overhead of its pair of events still in it. `added_ms` is the time
    that all pairs together added to the pass; `repeated` and `overfull` are those of `graphs.LaunchHider`, `way` is
    the name of the way of timing.
    """

    passes_ms: list[float]
    layers_ms: list[list[float]]
    added_ms: list[float]
    repeated: int
    overfull: int = 0
    way: str = graphs.REPLAY_METHOD

    @property
    def pair_overhead_us(self) -> float:
        """The overhead of one pair of events, by this measurement."""
        return pair_overhead_us(self.added_ms, len(self.layers_ms))

    def less(self, overhead_us: float) -> list[list[float]]:
        """Return the times of the layers without this overhead of a pair of events, never below 0."""
        return [[max(0.0, time_ms - overhead_us / 1e3) for time_ms in times] for times in self.layers_ms]


def layer_times(
    plain: Captured, instrumented: Captured, read_layers_ms: Callable[[], list[float]], count: int,
    before: Callable[[], object] = graphs.nothing,
) -> LayerTimes:  # fmt: skip
    """Time a pass and its layers from two graphs of it, one of them with a pair of events around each layer.

    The two are replayed in turn, so that a drift of the clock affects both alike.

    Args:
        read_layers_ms: reads the events of the last replay of `instrumented`, one time for each layer.
        before: enqueued before each replay, and not timed.
    """
    return launched_times(plain.replay, instrumented.replay, read_layers_ms, count, LaunchHider(), before=before)


def launched_times(
    plain: Callable[[], object], instrumented: Callable[[], object], read_layers_ms: Callable[[], list[float]],
    count: int, hider: Sampler, way: str = graphs.REPLAY_METHOD, before: Callable[[], object] = graphs.nothing,
) -> LayerTimes:  # fmt: skip
    """Time a pass and its layers from two functions that launch it, the second with events around each layer."""
    bare, watched = EventTimer(plain, before), EventTimer(instrumented, before)
    passes_ms, added_ms, samples = list[float](), list[float](), list[list[float]]()
    for _ in range(count):
        passes_ms.append(hider.sample(bare.launch, bare.read_ms))
        watched_ms, layers_ms = hider.sample(watched.launch, lambda: (watched.read_ms(), read_layers_ms()))
        added_ms.append(watched_ms - passes_ms[-1])
        samples.append(layers_ms)
    by_layer = [list(times) for times in zip(*samples, strict=True)]
    return LayerTimes(passes_ms, by_layer, added_ms, hider.repeated, hider.overfull, way)


@dataclass(frozen=True)
class InstrumentedPass:
    """A pass as two graphs in the same memory, one with a pair of events around each layer, which `read_ms` reads.

    `before` is enqueued before each replay that is timed.
    """

    plain: Captured
    with_events: Captured
    read_ms: Callable[[], list[float]]
    before: Callable[[], object] = graphs.nothing

    def times(self, samples: int, warmup: int = 0) -> LayerTimes:
        """Time the pass and its layers after `warmup` replays of both graphs."""
        for _ in range(warmup):
            self.plain.replay()
            self.with_events.replay()
        return layer_times(self.plain, self.with_events, self.read_ms, samples, self.before)


@contextlib.contextmanager
def instrumented(
    plain: Captured, step: Callable[[], object], timer: LayerTimer, before: Callable[[], object] = graphs.nothing
) -> Iterator[InstrumentedPass]:
    """Capture a step once more, in the memory of its plain graph and with the timer's events.

    The graph with events exists for the length of the block: CUPTI must never see it.
    """
    with graphs.capture(step, timer, memory_of=plain, has_run=True) as with_events:
        yield InstrumentedPass(plain, with_events, timer.reader(), before)


@dataclass(frozen=True)
class LayerTime:
    """Time of one layer over the placements, and the name of the way in which it was taken."""

    times: PlacedSummary
    method: str


def layer_time(events_ms: Sequence[Sequence[float]], traced: LayerTrace | None, event_method: str) -> LayerTime:
    """Return the time of a layer by the better of two witnesses.

    Events are exact to 1 µs where kernels follow each other, and cost kernels on several streams their overlap. A span
    is exact to 0.15 µs for each gap between kernels, but what the driver sets or copies takes 3 to 7 µs more under a
    trace.

    Args:
        events_ms: readings of the layer's events by placement, the overhead of a pair taken off.
        traced: the layer in another process, None where CUPTI may not be used. In fewer placements, for want of memory
            there or of time, its spans say less than the events.
    """
    if traced is None or len(traced.spans_ms) < len(events_ms) or traced.sets_or_copies_memory:
        return LayerTime(summarize_placed(events_ms, EVENT_DOUBT_MS), event_method)
    doubt_ms = _GAP_DOUBT_MS * (sum(traced.kernels.values()) - 1)
    if doubt_ms > EVENT_DOUBT_MS and not traced.overlaps:
        return LayerTime(summarize_placed(events_ms, EVENT_DOUBT_MS), event_method)
    return LayerTime(summarize_placed(traced.spans_ms, doubt_ms), SPAN_METHOD)


def plausible_reference_us(measured_us: float) -> float | None:
    """Return a reference of a pair's overhead, None where it cannot be one: the host or another process disturbed."""
    return measured_us if _PAIR_US[0] <= measured_us <= _PAIR_US[1] else None


def pair_overhead_us(added_ms: Sequence[float], pairs: int) -> float:
    """Return the excess in the reading of one pair of events around a layer, from the time that `pairs` add to passes.

    A pair puts two event records between kernels, which makes four boundaries, and sees two of them itself. So its
    overhead is half of the time that it adds. This holds where the kernels of a pass follow each other on one stream.
    """
    return max(0.0, median(added_ms) * 1e3 / pairs / 2) if pairs else 0.0


def plausible_overhead_us(measured_us: float, reference_us: float) -> float:
    """Return the overhead measured with the layers, or the reference where the two are too far apart.

    They are far apart where an algorithm spreads over several streams (cuDNN's FFTs), because the events also cost the
    pass the overlap of its streams; and where the pass is so long that its scatter hides a few microseconds.
    """
    return measured_us if reference_us / _PLAUSIBLE <= measured_us <= reference_us * _PLAUSIBLE else reference_us
