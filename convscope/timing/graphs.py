"""CUDA graphs of a step: capture, times of replays without the host's launch, steady load.

A captured step launches without the host's help. A spin kernel in front of each replay holds the GPU until the launch
is complete; a sample for which it did not hold long enough is dropped and taken again.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import torch

from convscope import failures
from convscope.errors import HostTooSlowError, NotCapturableError
from convscope.timing.completions import Completions


class HostLoad:
    """Steady load of a CPU (`power.meter.SteadyLoad`): each step runs one pass, without a pause between them."""

    pause_s = 0.0
    starved = 0

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._done = 0
        self.completions = Completions()

    def step(self) -> None:
        """Run one pass."""
        self._step()
        self._done += 1
        now_s = time.perf_counter()
        self.completions.add(self._done, now_s, now_s)

    def detune(self) -> bool:
        """Return False: passes that a host launches one by one keep no step with anything."""
        return False


T = TypeVar("T")

SPIN_CYCLES = 200_000  # about 0.1 ms
_SPIN_CYCLES_MOST = SPIN_CYCLES * 2**9  # about 0.05 s: a longer spin would not help a launch that takes more
_AHEAD_SHARE = 0.1  # of the time from launch to end
_QUEUED_MS = 20.0  # of replays kept in the queue under steady load
_QUEUED_MOST = 256
_CYCLES_PER_MS = 2_000_000  # of a spin, at the clocks of a busy card: roughly
_SHIFT_MOST_MS = 0.25
_SHIFT_EACH_MS = 200.0  # so it is 0.06 % of the time at most; in less, a sensor cannot see each part as often
_REST_SHARE = 0.015  # of a replay
_DETUNED_MOST_MS = 20.0  # a sensor looks at many parts of a longer replay
SETTLING_S = 0.1  # of load before times are taken: an idle card's clocks are down

REPLAY_METHOD = "replays of a CUDA graph, CUDA events"
OVERFULL = ", launch longer than the queue"  # see LaunchHider


_HELD: contextvars.ContextVar[list[object] | None] = contextvars.ContextVar("held by a capture", default=None)


@contextlib.contextmanager
def holding() -> Iterator[list[object]]:
    """Collect what is asked to be held in the block."""
    held: list[object] = []
    before = _HELD.set(held)
    try:
        yield held
    finally:
        _HELD.reset(before)


def hold(thing: object) -> bool:
    """Keep a thing for as long as the graph that `capture` is making; return False where it is making none."""
    held = _HELD.get()
    if held is not None:
        held.append(thing)
    return held is not None


class Captured(contextlib.AbstractContextManager["Captured"]):
    """A step as a CUDA graph. Leave its `with` block, or close it, to free the graph and its memory.

    A graph knows addresses only: the step is kept with it, so that the model and the input in its closure stay alive,
    and so is what the step asked to `hold`.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, step: Callable[[], object], held: Sequence[object] = ()) -> None:
        self.graph = graph
        self._step: Callable[[], object] | None = step
        self._held = held

    def replay(self) -> None:
        """Launch the step once on the current stream."""
        self.graph.replay()

    def close(self) -> None:
        """Wait for the GPU and free the graph."""
        torch.cuda.synchronize()
        self.graph.reset()
        self._step, self._held = None, ()

    def __exit__(self, *_: object) -> None:
        self.close()


def run_on_side_stream(step: Callable[[], object]) -> None:
    """Run a step on the stream of captures, between the current stream's work before it and after it."""
    side, current = _side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        step()
    current.wait_stream(side)


def capture(
    step: Callable[[], object],
    around: contextlib.AbstractContextManager[object] | None = None,
    memory_of: Captured | None = None,
    has_run: bool = False,
    error_mode: str = "global",
) -> Captured:
    """Run a step once on a side stream, then capture it; nothing in it may wait for the GPU.

    Raises:
        NotCapturableError: CUDA or PyTorch refuses to capture it; the device can be used all the same.

    Args:
        around: entered for the captured step only.
        memory_of: a graph of the same step whose memory the new graph uses, address by address; the two must never be
            replayed at the same time. Times depend on where tensors lie (by 10 µs a layer, GoogLeNet on an H200), so
            graphs that are compared must share memory.
        has_run: the step was run by `run_on_side_stream`, and is captured without another run.
        error_mode: as of `torch.cuda.graph`: "thread_local" where other threads may call CUDA meanwhile.
    """
    side, current = _side_stream(torch.cuda.current_device()), torch.cuda.current_stream()
    if not has_run:
        run_on_side_stream(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    pool = memory_of.graph.pool() if memory_of else torch.cuda.graph_pool_handle()
    try:
        captured = torch.cuda.graph(graph, pool, stream=side, capture_error_mode=error_mode)
        with holding() as held, around or contextlib.nullcontext(), captured:
            step()
    except RuntimeError as error:
        torch.cuda.set_stream(current)  # PyTorch leaves the side stream the current one
        _end_broken(pool)
        if reason := capture_refusal(error):
            raise NotCapturableError(f"the pass cannot be captured as a CUDA graph: {reason}") from error
        raise
    return Captured(graph, step, held)


def capture_refusal(error: BaseException) -> str | None:
    """Return why a capture failed, the first line of the first error that speaks of it; None for other errors."""
    links = list(failures.chain(error))
    if any(isinstance(link, torch.OutOfMemoryError) for link in links):
        return None
    said = [str(link).strip().splitlines()[0] for link in links if "captur" in str(link)]
    return said[-1] if said else None


def _end_broken(pool: tuple[int, int]) -> None:
    """End what PyTorch leaves open where a capture breaks: allocations from its pool, and the generator's part."""
    index = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # the capture was ended in order: the error was in the step, not in the capture
        return
    torch._C._cuda_releasePool(index, pool)
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
    torch.cuda.synchronize()


@functools.cache
def _side_stream(device_index: int) -> torch.cuda.Stream:
    """Return the one stream for all captures of a device: cuBLAS keeps a workspace for each stream it has seen."""
    return torch.cuda.Stream(device_index)


def timing_event() -> torch.cuda.Event:
    """Return an event for use inside a captured graph: each replay overwrites its time."""
    return torch.cuda.Event(enable_timing=True, external=True)


class LaunchHider:
    """Takes samples while the host is ahead: each behind a spin kernel that must outlast the launch.

    `repeated` counts the samples dropped because the spin was too short; it is then doubled and stays doubled. A graph
    of tens of thousands of kernels does not fit the queue, so its launch cannot end before the spin does. There the
    host counts as ahead if a good part of the work was left when the launch returned; `overfull` counts such samples,
    which are not proved as the others are.
    """

    def __init__(self, cycles: int = SPIN_CYCLES) -> None:
        """Begin with a spin of some clock cycles."""
        self.repeated = 0
        self.overfull = 0
        self._cycles = cycles
        self._spun = torch.cuda.Event()

    def sample(self, launch: Callable[[], None], read: Callable[[], T]) -> T:
        """Take one sample.

        Args:
            launch: enqueues the work and returns; it must not wait.
            read: called when the GPU has finished; returns the sample.

        Raises:
            HostTooSlowError: the longest spin was too short, and the host did not stay ahead of the GPU.
        """
        while True:
            torch.cuda._sleep(self._cycles)
            self._spun.record()
            started_s = time.perf_counter()
            launch()
            hidden, launched_s = not self._spun.query(), time.perf_counter()
            torch.cuda.synchronize()
            if hidden:
                return read()
            if self._cycles < _SPIN_CYCLES_MOST:
                self.repeated += 1
                self._cycles *= 2
            elif stayed_ahead(started_s, launched_s, time.perf_counter()):
                self.overfull += 1
                return read()
            else:
                raise HostTooSlowError(
                    f"launching outlasted a spin of {self._cycles} cycles: the host is too busy to measure beside it"
                )


def stayed_ahead(started_s: float, launched_s: float, finished_s: float) -> bool:
    """Tell whether a launch that filled the queue returned well before the GPU had done the work."""
    return finished_s - launched_s >= _AHEAD_SHARE * (finished_s - started_s)


def nothing() -> None:
    """Do nothing before a sample."""


class EventTimer:
    """Times a launch by a pair of events around it; what is enqueued `before` stands in front of the first."""

    def __init__(self, enqueue: Callable[[], object], before: Callable[[], object] = nothing) -> None:
        self._enqueue, self._before = enqueue, before
        self._start, self._end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def launch(self) -> None:
        """Enqueue the work between the two events; returns at once."""
        self._before()
        self._start.record()
        self._enqueue()
        self._end.record()

    def read_ms(self) -> float:
        """Return the time between the events of the last launch, once it has finished."""
        return float(self._start.elapsed_time(self._end))


def replay_times_ms(captured: Captured, count: int, hider: LaunchHider | None = None) -> list[float]:
    """Time `count` replays of a graph, in milliseconds, by a pair of events around each."""
    timer, hider = EventTimer(captured.replay), hider or LaunchHider()
    return [hider.sample(timer.launch, timer.read_ms) for _ in range(count)]


def replay_method(overfull: int) -> str:
    """Return the name of this way of timing for the tables, with a remark where samples were overfull."""
    return REPLAY_METHOD + (OVERFULL if overfull else "")


class Replayable(Protocol):
    """Work that can be launched again and again."""

    def replay(self) -> None:
        """Launch it once on the current stream."""


class Shifts:
    """Shifts of repeated passes against a power sensor: now and then a wait of a random part of a pass.

    A sensor that looks at moments sees the same part of each pass, for seconds, where the passes keep step with it.
    """

    def __init__(self, pass_ms: float) -> None:
        self._pass_ms, self._most_ms = pass_ms, min(pass_ms, _SHIFT_MOST_MS)
        self._unshifted_ms = 0.0
        self._draw = random.Random(0)

    def next_cycles(self) -> int:
        """Count one pass; return how long to spin after it: mostly not at all."""
        self._unshifted_ms += self._pass_ms
        if self._unshifted_ms < _SHIFT_EACH_MS:
            return 0
        self._unshifted_ms = 0.0
        return round(self._draw.random() * self._most_ms * _CYCLES_PER_MS)


class ReplayLoad:
    """Steady load of a GPU (`power.meter.SteadyLoad`): replays of a graph, `completions` noted at each step.

    Enough replays are queued that the host's pauses do not reach the GPU. `starved` counts how often the queue was
    empty all the same; it is made deeper each time.

    The replays are shifted against a power sensor (`Shifts`): what was hidden from it is scatter.
    """

    pause_s = 0.0005

    def __init__(self, captured: Replayable, pass_ms: float) -> None:
        self._captured = captured
        self.pass_ms = pass_ms
        self._depth = max(2, min(_QUEUED_MOST, round(_QUEUED_MS / max(pass_ms, 1e-3))))
        self._queued: deque[torch.cuda.Event] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._finished = 0
        self._looked_s = time.perf_counter()  # nothing that was still queued had finished by then
        self.completions = Completions()
        self.starved = 0
        self._rest_cycles = 0
        self._shifts = Shifts(pass_ms)

    @classmethod
    def of(cls, captured: Captured) -> ReplayLoad:
        """Return the load of a graph, its queue as deep as the shortest of three replays asks for."""
        return cls(captured, min(replay_times_ms(captured, 3)))

    def step(self) -> None:
        """Count the finished replays and fill the queue; returns at once."""
        was_busy = bool(self._queued)
        self._count_finished()
        if was_busy and not self._queued:
            self.starved += 1
            self._depth = min(_QUEUED_MOST, 2 * self._depth)
        while len(self._queued) < self._depth:
            event = self._spare.pop() if self._spare else torch.cuda.Event()
            self._captured.replay()
            if cycles := self._rest_cycles + self._shifts.next_cycles():
                torch.cuda._sleep(cycles)
            event.record()
            self._queued.append(event)

    def _count_finished(self) -> None:
        began_s = time.perf_counter()
        while self._queued and self._queued[0].query():
            self._spare.append(self._queued.popleft())
            self._finished += 1
        self.completions.add(self._finished, self._looked_s, time.perf_counter())
        self._looked_s = began_s

    def detune(self) -> bool:
        """Rest after each replay from now on, with each call a little longer; False where replays are long.

        Waits until what is queued without a rest is done.
        """
        if self.pass_ms > _DETUNED_MOST_MS:
            return False
        torch.cuda.synchronize()
        self._count_finished()
        self._rest_cycles += math.ceil(_REST_SHARE * self.pass_ms * _CYCLES_PER_MS)
        return True

    def keep_busy(self, seconds: float) -> None:
        """Replay for some seconds."""
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            self.step()


def settle(captured: Captured, seconds: float = SETTLING_S) -> ReplayLoad:
    """Replay a graph until the GPU's clocks have settled; return the load, which can go on."""
    load = ReplayLoad.of(captured)
    load.keep_busy(seconds)
    return load


def full_load() -> Callable[[], None]:
    """Return a function that keeps all multiprocessors busy for a few milliseconds and waits for the result."""
    left = torch.randn(8192, 8192, dtype=torch.float16, device="cuda")

    def work() -> None:
        for _ in range(4):
            left @ left
        torch.cuda.synchronize()

    work()
    return work
