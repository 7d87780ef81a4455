"""Times of layers at their edges: the overhead of events as exact numbers, and where it is believed."""

from __future__ import annotations

import fakes
import pytest

from convscope.timing.layer_times import (
    InstrumentedPass,
    LayerTimes,
    layer_times,
    pair_overhead_us,
    plausible_overhead_us,
)

TIMES = LayerTimes([8.0, 8.0], [[0.5, 0.25], [2.0, 0.125]], [0.25, 0.5, 1.0], repeated=0)


def test_the_overhead_of_a_pair_is_half_of_what_the_pairs_add():
    assert pair_overhead_us([0.25, 0.5, 1.0], pairs=4) == 62.5
    assert TIMES.pair_overhead_us == 125.0


@pytest.mark.parametrize(("added_ms", "pairs"), [([-0.5], 4), ([0.0], 4), ([0.5], 0)])
def test_pairs_that_add_nothing_have_no_overhead(added_ms: list[float], pairs: int):
    assert pair_overhead_us(added_ms, pairs) == 0.0


def test_the_overhead_is_taken_off_each_time_down_to_nothing():
    assert TIMES.less(125.0) == [[0.375, 0.125], [1.875, 0.0]]
    assert TIMES.less(0.5e3) == [[0.0, 0.0], [1.5, 0.0]]


@pytest.mark.parametrize(
    ("measured_us", "taken_us"), [(13.0, 13.0), (13.001, 10.0), (10.0 / 1.3, 10.0 / 1.3), (7.69, 10.0), (10.5, 10.5)]
)
def test_an_overhead_is_believed_up_to_thirty_percent_from_the_reference(measured_us: float, taken_us: float):
    assert plausible_overhead_us(measured_us, reference_us=10.0) == taken_us


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    return made


def test_each_pass_with_events_is_compared_with_the_one_before_it(gpu: fakes.Gpu):
    plain, watched = fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.5)

    def read_ms() -> list[float]:
        plain.duration_ms *= 2
        watched.duration_ms *= 2
        return [0.25]

    found = layer_times(plain, watched, read_ms, count=3)
    assert found.passes_ms == pytest.approx([1.0, 2.0, 4.0])
    assert found.added_ms == pytest.approx([0.5, 1.0, 2.0])
    assert (found.layers_ms, found.overfull) == ([[0.25] * 3], 0)


@pytest.mark.parametrize(("options", "replays"), [({}, 0), ({"warmup": 3}, 3)])
def test_both_graphs_are_warmed_up_as_often_as_asked(gpu: fakes.Gpu, options: dict[str, int], replays: int):
    counts = []
    for warmed in ({}, options):
        plain, watched = fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.5)
        InstrumentedPass(plain, watched, lambda: [0.25]).times(2, **warmed)
        counts.append((plain.replays, watched.replays))
    assert [after - before for before, after in zip(*counts, strict=True)] == [replays, replays]
    assert counts[0] == (2, 2)


def test_a_queue_that_was_never_overfull_needs_no_remark():
    assert TIMES.overfull == 0
