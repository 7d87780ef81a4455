"""Times of the layers inside a pass, by events in a captured graph, less the overhead of the events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from convscope.timing.graphs import Captured, LaunchHider, _PassTimer


class LayerTimer(contextlib.AbstractContextManager["LayerTimer"], Protocol):
    """Times the convolutions of the pass that runs, or is captured, inside its `with` block."""

    def read_ms(self) -> list[float]:
        """Return the times of the last pass, a call of a convolution each, in order."""


_PLAUSIBLE = 1.3  # factor between two measurements of a pair's overhead in one model


@dataclass(frozen=True)
class LayerTimes:
    """Repeated times of a pass, and of the layers inside it as their events read, in milliseconds.

    `layers_ms[i][k]` is layer i in sample k, the overhead of its pair of events still in it. `added_ms` is what
    the pairs together added to the pass; `repeated` counts the samples that the host could have slowed.
    """

    passes_ms: list[float]
    layers_ms: list[list[float]]
    added_ms: list[float]
    repeated: int
    overfull: int = 0

    def less(self, overhead_us: float) -> list[list[float]]:
        """Return the times of the layers with this overhead of a pair of events taken off, never below 0."""
        return [[max(0.0, time_ms - overhead_us / 1e3) for time_ms in times] for times in self.layers_ms]


def layer_times(
    plain: Captured, instrumented: Captured, read_layers_ms: Callable[[], list[float]], count: int
) -> LayerTimes:
    """Time a pass and its layers from two graphs of it, one of them with a pair of events around each layer.

    The two are replayed in turn, so that a drift of the clock meets both alike.

    Args:
        read_layers_ms: reads the events of the last replay of `instrumented`, a layer each.
    """
    bare, watched, hider = _PassTimer(plain), _PassTimer(instrumented), LaunchHider()
    passes_ms: list[float] = []
    added_ms: list[float] = []
    samples: list[list[float]] = []
    for _ in range(count):
        passes_ms.append(hider.sample(bare.launch, bare.read_ms))
        watched_ms, layers_ms = hider.sample(watched.launch, lambda: (watched.read_ms(), read_layers_ms()))
        added_ms.append(watched_ms - passes_ms[-1])
        samples.append(layers_ms)
    return LayerTimes(
        passes_ms, [list(times) for times in zip(*samples, strict=True)], added_ms, hider.repeated, hider.overfull
    )


def pair_overhead_us(added_ms: Sequence[float], pairs: int) -> float:
    """Return what a pair of events around a layer reads too much, from what `pairs` of them added to several passes.

    A pair lays two event records between kernels, which makes four boundaries, and sees two of them itself. So its
    overhead is half of what it adds. This holds where the kernels of a pass follow each other on one stream.
    """
    return max(0.0, median(added_ms) * 1e3 / pairs / 2) if pairs else 0.0


def plausible_overhead_us(measured_us: float, reference_us: float) -> float:
    """Return the overhead measured beside the layers, or the reference where the two are too far apart.

    They are where an algorithm spreads over several streams (cuDNN's FFTs): there the events also cost the pass the
    overlap of its streams; and where the pass is so long that its own scatter hides a few microseconds.
    """
    return measured_us if reference_us / _PLAUSIBLE <= measured_us <= reference_us * _PLAUSIBLE else reference_us
