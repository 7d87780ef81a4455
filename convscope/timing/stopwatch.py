"""Stopwatch: repeated times of a step on a device.

On a GPU the step is captured as a CUDA graph and its replays are timed by events; on a CPU the host's clock is read.
Every study times through this class. Times of layers inside a pass are in `layer_times`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch

from convscope.errors import NotCapturableError
from convscope.timing import eager, graphs

CPU_METHOD = "time.perf_counter"
LAUNCHED_METHOD = "calls from Python behind a spin kernel, CUDA events"
PASS_SAMPLES = 10  # of a capture whose mean is one time
EAGER_LEAST = 5  # eager samples before `enough_s` may end them
BUDGET_LEAST = 6  # samples, whatever they take: fewer give no interval of the median


@dataclass(frozen=True)
class Times:
    """Repeated times of a step in milliseconds, by capture.

    `repeated` counts the samples that the host could have slowed and that were taken again; `overfull` those whose
    launch was longer than the queue (see `graphs.LaunchHider`).
    """

    samples_ms: tuple[tuple[float, ...], ...]
    method: str
    repeated: int = 0
    overfull: int = 0

    @property
    def all_ms(self) -> list[float]:
        """The samples of all captures."""
        return list(itertools.chain.from_iterable(self.samples_ms))

    @property
    def means_ms(self) -> list[float]:
        """The mean of each capture."""
        return [fmean(samples) for samples in self.samples_ms]

    @property
    def best_ms(self) -> float:
        """The shortest sample."""
        return min(self.all_ms)


class Stopwatch:
    """Times steps on one device. A step enqueues its work and returns; its result is dropped.

    Every method raises HostTooSlowError where the host cannot launch fast enough to be left out of a GPU's times.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def measure(
        self, step: Callable[[], object], *, captures: int = 1, samples: int = 20, warmup: int = 0,
        settle_s: float = 0.0, budget_s: float | None = None,
    ) -> Times:  # fmt: skip
        """Time a step without its launch: replays of a CUDA graph; on a CPU by the host's clock.

        Args:
            captures: graphs made one after another, each with its own place in memory.
            samples: of each capture; fewer, at least 6, where they would take longer than `budget_s`.
            warmup: replays (on a CPU passes) before the samples.
            settle_s: seconds of load before the replays, on a GPU: an idle card's clocks are down.
        """
        if not self._on_gpu:
            clocked = (_clock_ms(step, warmup, samples, budget_s) for _ in range(captures))
            return Times(tuple(clocked), CPU_METHOD)
        hiders = [graphs.LaunchHider() for _ in range(captures)]
        return _times([_replays_ms(step, samples, warmup, settle_s, budget_s, hider) for hider in hiders], hiders)

    def pass_ms(self, step: Callable[[], object]) -> float:
        """Return the mean time of a step over one capture with settled clocks; on a CPU, the time of one pass.

        A step that cannot be captured is launched from Python (`eager`).
        """
        if not self._on_gpu:
            return self.measure(step, samples=1).means_ms[0]
        waits = eager.why_synchronizes(step) is not None
        if not waits:
            with contextlib.suppress(NotCapturableError):
                return self.measure(step, samples=PASS_SAMPLES, settle_s=graphs.SETTLING_S).means_ms[0]
        return fmean(eager.passes_ms(step, PASS_SAMPLES, hides=not waits))

    def measure_calls(
        self, step: Callable[[], object], *, calls: Callable[[float], int], samples: int, probes: int
    ) -> Times:
        """Time one call of a short step by capturing several in a row.

        Args:
            calls: returns the number in a row, given the shortest time of a single call in ms.
            probes: samples of a single call; where one in a row is enough and these are no fewer than `samples`, they
                are the result.
        """
        if not self._on_gpu:
            return self.measure(step, samples=samples)
        step()
        hider = graphs.LaunchHider()
        with graphs.capture(step) as captured:
            single_ms = graphs.replay_times_ms(captured, probes, hider)
        count = max(1, calls(min(single_ms)))
        if count == 1 and probes >= samples:
            return _times([single_ms], [hider])
        hider = graphs.LaunchHider()
        with graphs.capture(lambda: [step() for _ in range(count)]) as captured:
            row_ms = graphs.replay_times_ms(captured, samples, hider)
        return _times([[time_ms / count for time_ms in row_ms]], [hider])

    def eager(self, step: Callable[[], object], *, samples: int, enough_s: float = math.inf) -> Times:
        """Time a step as a Python caller sees it, launch included, until the result is there.

        Args:
            samples: fewer, at least 5, where they together take `enough_s`.
        """
        times_ms: list[float] = []
        for _ in range(samples):
            if len(times_ms) >= EAGER_LEAST and sum(times_ms) >= enough_s * 1e3:
                break
            started_s = time.perf_counter()
            step()
            if self._on_gpu:
                torch.cuda.synchronize()
            times_ms.append((time.perf_counter() - started_s) * 1e3)
        return Times((tuple(times_ms),), CPU_METHOD)

    def launched(self, step: Callable[[], object], *, samples: int, warmup: int = 0) -> Times:
        """Time a step that cannot be captured: launched from Python after `warmup` calls, each behind a spin kernel."""
        for _ in range(warmup):
            step()
        if not self._on_gpu:
            return Times((_clock_ms(step, 0, samples, None),), CPU_METHOD)
        hider, timer = graphs.LaunchHider(), graphs.EventTimer(step)
        times_ms = [hider.sample(timer.launch, timer.read_ms) for _ in range(samples)]
        return Times((tuple(times_ms),), LAUNCHED_METHOD, hider.repeated, hider.overfull)

    def spans_ms(
        self, parts: Sequence[Callable[[torch.Tensor], torch.Tensor]], given: torch.Tensor, *, samples: int = 20
    ) -> list[float]:
        """Return the median time of each part of a pass, marked by events between the parts in one graph.

        Args:
            parts: each takes the output of the one before, the first takes `given`.
            samples: replays; on a CPU the parts run once, whatever is said here.
        """
        return _replayed_spans_ms(parts, given, samples) if self._on_gpu else _clocked_spans_ms(parts, given)


def _times(samples_ms: Sequence[Sequence[float]], hiders: Sequence[graphs.LaunchHider]) -> Times:
    repeated, overfull = sum(hider.repeated for hider in hiders), sum(hider.overfull for hider in hiders)
    return Times(tuple(map(tuple, samples_ms)), graphs.replay_method(overfull), repeated, overfull)


def _replays_ms(
    step: Callable[[], object], samples: int, warmup: int, settle_s: float, budget_s: float | None,
    hider: graphs.LaunchHider,
) -> list[float]:  # fmt: skip
    """Run a step once, capture it, and time replays of it."""
    step()
    with graphs.capture(step) as captured:
        if settle_s > 0:
            graphs.settle(captured, settle_s)
        if budget_s is not None:
            first_ms = graphs.replay_times_ms(captured, 1)[0]
            affordable = max(BUDGET_LEAST, int(budget_s * 1e3 / first_ms))
            samples, warmup = min(samples, affordable), min(warmup, affordable)
        for _ in range(warmup):
            captured.replay()
        return graphs.replay_times_ms(captured, samples, hider)


def _clock_ms(step: Callable[[], object], warmup: int, samples: int, budget_s: float | None) -> tuple[float, ...]:
    times_ms: list[float] = []
    first_s = time.perf_counter()
    for index in range(warmup + samples):
        started_s = time.perf_counter()
        if len(times_ms) >= BUDGET_LEAST and budget_s is not None and started_s - first_s > budget_s:
            break
        step()
        if index >= warmup:
            times_ms.append((time.perf_counter() - started_s) * 1e3)
    return tuple(times_ms)


def _replayed_spans_ms(
    parts: Sequence[Callable[[torch.Tensor], torch.Tensor]], given: torch.Tensor, samples: int
) -> list[float]:
    marks = [graphs.timing_event() for _ in range(len(parts) + 1)]

    def marked() -> torch.Tensor:
        x = given
        capturing = torch.cuda.is_current_stream_capturing()
        for mark, part in zip(marks[:-1], parts, strict=True):
            if capturing:
                mark.record()
            x = part(x)
        if capturing:
            marks[-1].record()
        return x

    def read_ms() -> list[float]:
        return [float(start.elapsed_time(end)) for start, end in itertools.pairwise(marks)]

    hider = graphs.LaunchHider()
    with graphs.capture(marked) as captured:
        spans_ms = [hider.sample(captured.replay, read_ms) for _ in range(samples)]
    return [median(times) for times in zip(*spans_ms, strict=True)]


def _clocked_spans_ms(parts: Sequence[Callable[[torch.Tensor], torch.Tensor]], given: torch.Tensor) -> list[float]:
    spans_ms, x = [], given
    for part in parts:
        started_s = time.perf_counter()
        x = part(x)
        spans_ms.append((time.perf_counter() - started_s) * 1e3)
    return spans_ms
