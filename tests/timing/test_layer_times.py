"""Time of a layer by the better of two witnesses, its events and its traced spans."""

from __future__ import annotations

import math

import pytest

from convscope.timing import layer_times
from convscope.timing.layer_times import SPAN_METHOD, layer_time
from convscope.timing.summary import summarize_placed
from convscope.timing.trace import LayerTrace

EVENTS_MS = [[0.010, 0.012], [0.011, 0.013]]
SPANS_MS = ((0.009, 0.009), (0.010, 0.010))


def traced(kernels: dict[str, int], kernel_ms: float = 0.008) -> LayerTrace:
    return LayerTrace(kernels, kernel_ms, span_ms=0.0095, spans_ms=SPANS_MS)


IN_ONE_PLACE = LayerTrace({"k": 1}, 0.008, 0.009, spans_ms=SPANS_MS[:1])


@pytest.mark.parametrize("seen", [None, LayerTrace({"k": 1}), IN_ONE_PLACE, traced({"k": 1, "Memset (Device)": 1})])
def test_events_hold_where_no_span_can(seen: LayerTrace | None):
    found = layer_time(EVENTS_MS, seen, "events")
    assert (found.method, found.times) == ("events", summarize_placed(EVENTS_MS, layer_times.EVENT_DOUBT_MS))


def test_a_kernel_alone_goes_by_its_span_and_nothing_but_its_placements_is_in_doubt():
    found = layer_time(EVENTS_MS, traced({"k": 1}), "events")
    assert (found.method, found.times) == (SPAN_METHOD, summarize_placed(SPANS_MS))


def test_each_gap_between_kernels_adds_to_the_doubt():
    alone, three = (layer_time(EVENTS_MS, traced(kernels), "") for kernels in ({"k": 1}, {"k": 2, "l": 1}))
    assert three.times.ci95_ms == pytest.approx(math.hypot(alone.times.ci95_ms, 0.3e-3))


def test_a_span_of_so_many_kernels_that_their_gaps_are_in_more_doubt_than_events_gives_way():
    assert layer_time(EVENTS_MS, traced({"k": 7}), "events").method == SPAN_METHOD
    assert layer_time(EVENTS_MS, traced({"k": 8}), "events").method == "events"


def test_kernels_on_several_streams_go_by_their_span_for_events_would_part_them():
    assert layer_time(EVENTS_MS, traced({"k": 8}, kernel_ms=0.02), "events").method == SPAN_METHOD


@pytest.mark.parametrize(("kernel_ms", "method"), [(0.02, "events"), (0.008, SPAN_METHOD)])
def test_kernels_on_several_streams_that_begin_a_pass_go_by_events(kernel_ms: float, method: str):
    """The start of a graph delays all but the first of them: 16.5 µs where equal ones later span 9.5 (H200)."""
    found = layer_time(EVENTS_MS, traced({"k": 6}, kernel_ms), "events", is_first=True)
    assert found.method == method


@pytest.mark.parametrize(
    ("kernels", "factor", "method"),
    [
        ({"k": 6}, 10.0, "events"),
        ({"k": 6}, 1.3, SPAN_METHOD),
        ({"k": 6}, 1.7, "events"),
        ({"k": 1}, 10.0, SPAN_METHOD),
    ],
)
def test_a_span_much_longer_than_the_events_around_it_was_delayed_by_the_trace(
    kernels: dict[str, int], factor: float, method: str
):
    """Seen where the launch of a traced pass outlasted its spin: 0.1 ms between the kernels that it begins with."""
    spans_ms = tuple(tuple(factor * time_ms for time_ms in times) for times in SPANS_MS)
    seen = LayerTrace(kernels, kernel_ms=0.02, span_ms=0.0095 * factor, spans_ms=spans_ms)
    assert layer_time(EVENTS_MS, seen, "events").method == method
