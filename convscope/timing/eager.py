"""Passes that cannot be captured as a CUDA graph: timed as Python launches them.

Behind a long spin the launch is hidden as that of a replay is. Where the host waits for the GPU inside the pass, no
spin can hide it: then events stand around the pass with its launch, and the method says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from convscope.errors import HostTooSlowError
from convscope.timing import graphs
from convscope.timing.graphs import EventTimer, HostLoad, LaunchHider, ReplayLoad
from convscope.timing.layer_times import LayerTimer, LayerTimes, Sampler, launched_times

HIDDEN_METHOD = "eager passes behind a spin kernel, CUDA events"
INCLUDED_METHOD = "eager passes with their launch, CUDA events"
_FIRST_CYCLES = graphs.SPIN_CYCLES * 2**6  # about 6 ms: a launch from Python takes about that long

T = TypeVar("T")


def why_synchronizes(step: Callable[[], object], has_run: bool = False) -> str | None:
    """Return why a step cannot be captured because the host waits for the GPU in it, None where none was seen to.

    The step runs twice, once for what it does at the first call only, unless it `has_run`. Nothing is captured: a
    capture that breaks leaves traces in PyTorch's allocator.
    """
    if not has_run:
        step()
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a mode that does not detect every way to wait
            torch.cuda.set_sync_debug_mode("error")
            step()
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise
        return "the host waits for the GPU in the pass"
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return None


class Unhidden:
    """Takes samples with the launch in them: each begins on an idle GPU. It drops and repeats none."""

    repeated = 0
    overfull = 0

    def sample(self, launch: Callable[[], None], read: Callable[[], T]) -> T:
        """Take one sample, as `graphs.LaunchHider.sample` does."""
        torch.cuda.synchronize()
        launch()
        torch.cuda.synchronize()
        return read()


def eager_times(
    step: Callable[[], object], timer: LayerTimer, samples: int, warmup: int = 0, hides: bool = True,
    before: Callable[[], object] = graphs.nothing,
) -> LayerTimes:  # fmt: skip
    """Time a pass and its layers, launched from Python: passes without and with events around each layer, in turn.

    Args:
        warmup: passes of both kinds before the samples.
        hides: try to hide the launch behind a spin; False where the host waits for the GPU inside the pass.
        before: enqueued before each sample, and not timed.
    """

    def instrumented() -> None:
        with timer:
            step()

    for _ in range(warmup):
        step()
        instrumented()

    def idle() -> None:
        before()
        torch.cuda.synchronize()

    def take(hider: Sampler, way: str) -> LayerTimes:
        first = before if way == HIDDEN_METHOD else idle
        return launched_times(step, instrumented, lambda: timer.reader()(), samples, hider, way, first)

    return _taken(take, hides)


def passes_ms(step: Callable[[], object], samples: int, hides: bool = True) -> list[float]:
    """Time passes alone, launched from Python; `hides` as `eager_times` takes it."""
    timer = EventTimer(step)

    def take(hider: Sampler, way: str) -> list[float]:
        return [hider.sample(timer.launch, timer.read_ms) for _ in range(samples)]

    return _taken(take, hides)


def _taken(take: Callable[[Sampler, str], T], hides: bool) -> T:
    """Take samples with the launch hidden, or with it where that fails; `take` gets the sampler and the way's name."""
    if hides:
        try:
            return take(LaunchHider(_FIRST_CYCLES), HIDDEN_METHOD)
        except HostTooSlowError:  # the host waits in a way that was not seen
            torch.cuda.synchronize()
    return take(Unhidden(), INCLUDED_METHOD)


class _Launches:
    """A step that Python launches, in the place of a captured one."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def replay(self) -> None:
        """Launch it once."""
        self._step()


def eager_load(step: Callable[[], object], times: LayerTimes) -> HostLoad | ReplayLoad:
    """Return the steady load of passes that were timed by `eager_times`.

    Where the launch was hidden they are queued, so that the GPU works on; the host may yet be too slow, and the passes
    of the load longer than those timed. Where it was not, one pass follows the end of the one before.
    """
    if times.way == HIDDEN_METHOD:
        return ReplayLoad(_Launches(step), min(times.passes_ms))

    def waited() -> None:
        step()
        torch.cuda.synchronize()

    return HostLoad(waited)
