"""Times of the layers inside a pass: events in a captured graph, the overhead of the events taken off."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol, TypeVar

from convscope.timing import graphs
from convscope.timing.graphs import Captured, EventTimer, LaunchHider
from convscope.timing.summary import PlacedSummary, summarize_placed
from convscope.timing.trace import LayerTrace


class Reading(NamedTuple):
    """Readings of the events in a pass, in ms, a value for each call of a convolution, in order.

    Attributes:
        layers_ms: from the event before the call to the one behind it: its time, and what these two cost it.
        empty_ms: from an event further ahead to the one before the call: what it costs there to record one.
    """

    layers_ms: list[float]
    empty_ms: list[float]

    @classmethod
    def of(cls, marks: Sequence[tuple[Any, Any, Any]], on_gpu: bool) -> Reading:
        """Read, for each call, three CUDA events or, on a CPU, times of the host's clock in seconds."""

        def between_ms(one: Any, other: Any) -> float:
            return float(one.elapsed_time(other)) if on_gpu else (other - one) * 1e3

        layers_ms = [between_ms(start, end) for _, start, end in marks]
        return cls(layers_ms, [between_ms(ahead, start) for ahead, start, _ in marks])


class LayerTimer(contextlib.AbstractContextManager["LayerTimer"], Protocol):
    """Times each convolution of the pass that runs, or is captured, inside its `with` block.

    Attributes:
        calls: the convolutions outside `nn.Conv2d` modules too (`timing.calls`).
    """

    calls: bool

    def read_ms(self) -> list[float]:
        """Return the times of the last pass, one for each call of a convolution, in order."""

    def reader(self) -> Callable[[], Reading]:
        """Return what reads the pass that was captured last, whatever is captured after it."""


T = TypeVar("T")


class Sampler(Protocol):
    """Takes samples of launched work: `graphs.LaunchHider`, or one that does not hide the launch (`eager`)."""

    repeated: int
    overfull: int

    def sample(self, launch: Callable[[], None], read: Callable[[], T]) -> T:
        """Launch the work, and read the sample when it has finished."""


_PLAUSIBLE = 1.3  # factor between two measurements of a pair's overhead in one model
_GROWTH = 1.8  # of a pair's overhead with the reading of an empty pair, on an H200 (docs/timing.md)
_GROWN_US = 1.5  # between readings of empty pairs at most, for which that holds: 1.3 and 2.3 to 2.8 µs were seen
_STATES_US = 0.8  # between those of two states at least; less says nothing (2.3 to 2.8 µs beside 2.9 in a pass)
_PAIR_US = (0.5, 20.0)  # bounds of a pair's overhead on any card
# Half the width of 95 % of the differences between a layer's events and its span, H200, ten models (docs/timing.md).
EVENT_DOUBT_MS = 1.0e-3
_GAP_DOUBT_MS = 0.15e-3  # that tracing adds to a gap between two kernels, there
_LONGEST = 1.25  # of a span by the events around it: other placements differ by a tenth, RegNetY-400MF on an H200
SPAN_METHOD = "first kernel to last in a traced replay (CUPTI, separate process)"


@dataclass(frozen=True)
class Overhead:
    """Overhead of the pair of events around a call, in microseconds.

    It is not the same throughout a pass: behind a convolution that launches the kernels of its groups on several
    streams, it can be 2 µs more or less than before it (docs/timing.md).

    Attributes:
        pair_us: the excess in the reading of a pair, in the mean over a pass.
        empty_us: the reading of an empty pair, likewise.
        levels_us: the reading of an empty pair in each state that the pass is in.
    """

    pair_us: float
    empty_us: float
    levels_us: Sequence[float]

    def at(self, empty_us: float) -> float:
        """Return the overhead in µs of a pair where an empty one reads so much, by the state that is nearest to it."""
        return max(0.0, self.pair_us + _grown_us(_nearest(self.levels_us, empty_us) - self.empty_us))


def _nearest(values: Sequence[float], value: float) -> float:
    return min(values, key=lambda each: abs(each - value))


def _grown_us(more_us: float) -> float:
    """Return the change of the overhead of a pair with a change of the reading of an empty one."""
    return _GROWTH * max(-_GROWN_US, min(more_us, _GROWN_US))


@dataclass(frozen=True)
class LayerTimes:
    """Repeated times of a pass, and of the layers inside it as their events read, in milliseconds.

    `layers_ms[i][k]` is layer i in sample k, the overhead of its pair of events still in it, `empty_ms[i][k]` the empty
    pair ahead of it. `added_ms` is the time that all events together added to the pass; `repeated` and `overfull` are
    those of `graphs.LaunchHider`, `way` is the name of the way of timing.
    """

    passes_ms: list[float]
    layers_ms: list[list[float]]
    empty_ms: list[list[float]]
    added_ms: list[float]
    repeated: int
    overfull: int = 0
    way: str = graphs.REPLAY_METHOD

    @property
    def empty_us(self) -> list[float]:
        """Reading of the empty pair ahead of each layer, the median over the samples, in microseconds."""
        return [1e3 * median(times) for times in self.empty_ms]

    def less(self, overhead: Overhead | None) -> list[list[float]]:
        """Return the times of the layers without the overhead of their events, 0 at least; None takes nothing off."""
        if overhead is None:
            return self.layers_ms
        layers = zip(self.layers_ms, map(overhead.at, self.empty_us), strict=True)
        return [[max(0.0, time_ms - pair_us / 1e3) for time_ms in times] for times, pair_us in layers]


def levels(values: Sequence[float]) -> list[float]:
    """Return the median of each state: of values that no step of `_STATES_US` parts from the next."""
    states: list[list[float]] = []
    for value in sorted(values):
        if not states or value - states[-1][-1] >= _STATES_US:
            states.append([])
        states[-1].append(value)
    return [median(state) for state in states]


def layer_times(
    plain: Captured, instrumented: Captured, read: Callable[[], Reading], count: int,
    before: Callable[[], object] = graphs.nothing,
) -> LayerTimes:  # fmt: skip
    """Time a pass and its layers from two graphs of it, one of them with events around each layer.

    The two are replayed in turn, so that a drift of the clock affects both alike.

    Args:
        read: reads the events of the last replay of `instrumented`.
        before: enqueued before each replay, and not timed.
    """
    return launched_times(plain.replay, instrumented.replay, read, count, LaunchHider(), before=before)


def launched_times(
    plain: Callable[[], object], instrumented: Callable[[], object], read: Callable[[], Reading], count: int,
    hider: Sampler, way: str = graphs.REPLAY_METHOD, before: Callable[[], object] = graphs.nothing,
) -> LayerTimes:  # fmt: skip
    """Time a pass and its layers from two functions that launch it, the second with events around each layer."""
    bare, watched = EventTimer(plain, before), EventTimer(instrumented, before)
    passes_ms, added_ms, readings = list[float](), list[float](), list[Reading]()
    for _ in range(count):
        passes_ms.append(hider.sample(bare.launch, bare.read_ms))
        watched_ms, reading = hider.sample(watched.launch, lambda: (watched.read_ms(), read()))
        added_ms.append(watched_ms - passes_ms[-1])
        readings.append(reading)
    layers_ms, empty_ms = (
        [list(times) for times in zip(*all_ms, strict=True)] for all_ms in zip(*readings, strict=True)
    )
    return LayerTimes(passes_ms, layers_ms, empty_ms, added_ms, hider.repeated, hider.overfull, way)


@dataclass(frozen=True)
class InstrumentedPass:
    """A pass as two graphs in the same memory, one with events around each layer, which `read` reads.

    `before` is enqueued before each replay that is timed.
    """

    plain: Captured
    with_events: Captured
    read: Callable[[], Reading]
    before: Callable[[], object] = graphs.nothing

    def times(self, samples: int, warmup: int = 0) -> LayerTimes:
        """Time the pass and its layers after `warmup` replays of both graphs."""
        for _ in range(warmup):
            self.plain.replay()
            self.with_events.replay()
        return layer_times(self.plain, self.with_events, self.read, samples, self.before)


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


def layer_time(
    events_ms: Sequence[Sequence[float]], traced: LayerTrace | None, event_method: str, is_first: bool = False
) -> LayerTime:
    """Return the time of a layer by the better of two witnesses.

    Events are exact to 1 µs where kernels follow each other, and cost kernels on several streams their overlap. A span
    is exact to 0.15 µs for each gap between kernels, but what the driver sets or copies takes 3 to 7 µs more under a
    trace, and where a pass begins with kernels on several streams, the start of the graph delays all but the first of
    them. Any other span that is longer than the events around it was delayed by the trace.

    Args:
        events_ms: readings of the layer's events by placement, the overhead of a pair taken off.
        traced: the layer in another process, None where CUPTI may not be used. In fewer placements, for want of memory
            there or of time, its spans say less than the events.
        is_first: the layer is the first convolution of the pass.
    """
    if traced is None or len(traced.spans_ms) < len(events_ms) or traced.sets_or_copies_memory:
        return LayerTime(summarize_placed(events_ms, EVENT_DOUBT_MS), event_method)
    doubt_ms = _GAP_DOUBT_MS * (sum(traced.kernels.values()) - 1)
    events, spans = summarize_placed(events_ms, EVENT_DOUBT_MS), summarize_placed(traced.spans_ms, doubt_ms)
    is_delayed = doubt_ms > 0 and spans.mean_ms > _LONGEST * events.mean_ms + EVENT_DOUBT_MS
    is_delayed |= is_first and traced.overlaps
    if is_delayed or (doubt_ms > EVENT_DOUBT_MS and not traced.overlaps):
        return LayerTime(events, event_method)
    return LayerTime(spans, SPAN_METHOD)


def overhead_of(placed: Sequence[LayerTimes], is_row: bool = False) -> Overhead | None:
    """Return the overhead of a pair of events around a layer, by what all events of passes add to them.

    Around a layer between other kernels three records make five boundaries, where two were. The pair sees two of them,
    the empty pair ahead of it one, so the overhead of a pair is half of what is added beside the empty pair. Where one
    layer follows the other directly there are two empty pairs, and a pair's overhead once. This holds where the kernels
    of a pass follow each other on one stream.

    Args:
        placed: times of the same layers in several placements.
        is_row: the layers of the pass follow each other directly.

    Returns: None where there are no layers.
    """
    layers = len(placed[0].layers_ms)
    if not layers:
        return None
    is_replay = all(times.way == graphs.REPLAY_METHOD for times in placed)
    read_us = [reading for times in placed for reading in times.empty_us]
    levels_us = levels(read_us) if is_replay else [median(read_us)]
    own_us = [fmean(_nearest(levels_us, reading) for reading in times.empty_us) for times in placed]
    mean_us, joined = fmean(own_us), layers - 1 if is_row else 0
    pairs_us = [
        (1e3 * added_ms - (layers + joined) * empty_us) / (2 * layers - joined) - _grown_us(empty_us - mean_us)
        for times, empty_us in zip(placed, own_us, strict=True)
        for added_ms in times.added_ms
    ]
    return Overhead(max(0.0, median(pairs_us)), mean_us, levels_us)


def is_plausible_reference(overhead: Overhead) -> bool:
    """Tell whether this can be the overhead of a pair: not where the host or another process disturbed."""
    return _PAIR_US[0] <= overhead.pair_us <= _PAIR_US[1]


def plausible_overhead(measured: Overhead, reference: Overhead) -> Overhead:
    """Return the overhead measured with the layers, or that of the reference where the two are too far apart.

    They are far apart where an algorithm spreads over several streams (cuDNN's FFTs), because the events also cost the
    pass the overlap of its streams; and where the pass is so long that its scatter hides a few microseconds.
    """
    more_us = measured.empty_us - reference.empty_us
    expected_us = reference.pair_us + (_grown_us(more_us) if abs(more_us) >= _STATES_US else 0.0)
    is_near = expected_us / _PLAUSIBLE <= measured.pair_us <= expected_us * _PLAUSIBLE
    return measured if is_near or expected_us < _PAIR_US[0] else dataclasses.replace(measured, pair_us=expected_us)
