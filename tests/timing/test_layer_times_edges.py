"""Times of layers at their edges: which replays are compared, and how often graphs are warmed up."""

from __future__ import annotations

import fakes
import pytest

from convscope.timing.layer_times import InstrumentedPass, LayerTimes, Reading, layer_times


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> fakes.Gpu:
    made = fakes.Gpu()
    made.patch(monkeypatch)
    return made


def test_each_pass_with_events_is_compared_with_the_one_before_it(gpu: fakes.Gpu):
    plain, watched = fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.5)

    def read() -> Reading:
        plain.duration_ms *= 2
        watched.duration_ms *= 2
        return Reading([0.25], [0.0])

    found = layer_times(plain, watched, read, count=3)
    assert found.passes_ms == pytest.approx([1.0, 2.0, 4.0])
    assert found.added_ms == pytest.approx([0.5, 1.0, 2.0])
    assert (found.layers_ms, found.overfull) == ([[0.25] * 3], 0)


@pytest.mark.parametrize(("options", "replays"), [({}, 0), ({"warmup": 3}, 3)])
def test_both_graphs_are_warmed_up_as_often_as_asked(gpu: fakes.Gpu, options: dict[str, int], replays: int):
    counts = []
    for warmed in ({}, options):
        plain, watched = fakes.Captured(gpu, 1.0), fakes.Captured(gpu, 1.5)
        InstrumentedPass(plain, watched, lambda: Reading([0.25], [0.0])).times(2, **warmed)
        counts.append((plain.replays, watched.replays))
    assert [after - before for before, after in zip(*counts, strict=True)] == [replays, replays]
    assert counts[0] == (2, 2)


def test_a_queue_that_was_never_overfull_needs_no_remark():
    assert LayerTimes([8.0], [[0.5]], [[0.0]], [0.25], repeated=0).overfull == 0
