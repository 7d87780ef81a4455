"""Repeated times of a step on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

import torch
from torch import nn

from convscope.timing import graphs


def sampler(device: torch.device) -> Callable[[Callable[[], None]], float]:
    """Return what times one piece of work, in ms."""
    if device.type == "cpu":
        return lambda work: times_ms(work, device, 0, 1, 60.0)[0]
    hider = graphs.LaunchHider()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def sample(work: Callable[[], None]) -> float:
        def launch() -> None:
            start.record()
            work()
            end.record()

        return hider.sample(launch, lambda: float(start.elapsed_time(end)))

    return sample


def times_ms(work: Callable[[], object], device: torch.device, warmup: int, count: int, budget_s: float) -> list[float]:
    """Time some work again and again, in ms: replays of a CUDA graph, or by the clock on a CPU.

    Args:
        count: samples, fewer (at least 6) where they would take longer than `budget_s`.
    """
    if device.type == "cpu":
        return _clock_ms(work, warmup, count, budget_s)
    work()
    with graphs.capture(work) as captured:
        first_ms = graphs.replay_times_ms(captured, 1)[0]
        affordable = max(6, int(budget_s * 1e3 / first_ms))
        for _ in range(min(warmup, affordable)):
            captured.replay()
        return graphs.replay_times_ms(captured, min(count, affordable))


def _clock_ms(work: Callable[[], object], warmup: int, count: int, budget_s: float) -> list[float]:
    found: list[float] = []
    begun_s = time.perf_counter()
    for index in range(warmup + count):
        started_s = time.perf_counter()
        if len(found) >= 6 and started_s - begun_s > budget_s:
            break
        work()
        if index >= warmup:
            found.append((time.perf_counter() - started_s) * 1e3)
    return found


EAGER_LEAST = 5  # and this often at least


def wall_times_ms(model: nn.Module, given: torch.Tensor, count: int, enough_s: float = float("inf")) -> list[float]:
    """Time `count` passes as a Python caller sees them, until the result is there; at least 5, then for `enough_s`."""
    times_ms: list[float] = []
    for _ in range(count):
        if len(times_ms) >= EAGER_LEAST and sum(times_ms) >= enough_s * 1e3:
            break
        started_s = time.perf_counter()
        model(given)
        if given.is_cuda:
            torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
    return times_ms


PASSES = 10
BUSY_S = 0.1  # of load before a capture is timed: an idle card's clocks are down


def pass_ms(step: Callable[[], object], given: torch.Tensor) -> float:
    """Time a step on the input's device, in milliseconds: the mean of some replays of a new graph; on a CPU, once."""
    if not given.is_cuda:
        started_s = time.perf_counter()
        step()
        return (time.perf_counter() - started_s) * 1e3
    step()
    with graphs.capture(step) as captured:
        graphs.ReplayLoad(captured, min(graphs.replay_times_ms(captured, 3))).keep_busy(BUSY_S)
        return fmean(graphs.replay_times_ms(captured, PASSES))
