"""Tracing of passes in a process of its own, with a model of its own: CUPTI never starts where times are taken.

`python -m convscope.profiling.trace_process`, started by `tracing.TraceProcess`; the two talk over a pipe.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import nn

from convscope.convolution import backends, swap
from convscope.convolution.layer import has_calls
from convscope.convolution.operator import release
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs
from convscope.errors import InputError, NotCapturableError, TraceMissingError
from convscope.profiling.request import Run
from convscope.profiling.tracing import PREPARE
from convscope.timing import cupti, graphs, placement, trace
from convscope.timing.shares import Work
from convscope.timing.trace import LayerTrace

TRACED_REPLAYS = 4  # in each placement, where they do not take longer than this:
_RECORDING_S = 20.0  # a pass by FFT may have thousands of kernels, and each takes its time to be recorded
WORK_METHOD = "kernels of traced replays (CUPTI, separate process)"
EAGER_WORK_METHOD = "kernels of a traced eager pass (CUPTI, separate process)"


_OF_MODEL = operator.attrgetter(
    *("model", "model_digest", "device", "batch_size", "seed", "pretrained", "dtype", "layout")
)
_Answer = tuple[list[LayerTrace], str | None, list[Work], str]


class _Tracer:
    """The model of the tracing process."""

    def __init__(self, run: Run, placements: Sequence[int], source: bytes | None) -> None:
        self._run, self._placements, self._source = run, placements, source
        self._device = torch.device(run.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            cupti.start()
        with self._settings():
            self._network = Network.of(run, None if source is None else pickle.loads(source))
            self._model = self._network.on(self._device)
            self._swap = swap.Swap(self._model)
        self._prepared: _Prepared | None = None

    def goes_over_to(self, run: Run, placements: Sequence[int], source: bytes | None) -> bool:
        """Go over to another run of this model and return True; return False where the model is another."""
        if source != self._source or _OF_MODEL(run) != _OF_MODEL(self._run):
            return False
        self._drop()
        self._run, self._placements = run, placements
        return True

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        run = self._run
        settings = backends.settings(run.provider, run.layout, run.max_workspace_bytes)
        with torch.inference_mode(), backends.math(run.math), settings:
            yield

    def trace(self, size: int, algorithms: Mapping[str, str], captures: bool) -> _Answer:
        """Trace passes as `TraceProcess.trace`; return layers and reason as it does, the work, and its method."""
        if self._device.type == "cpu":
            return [], trace.CPU_REASON, [], WORK_METHOD
        found = self._replay_prepared(size, algorithms) if captures else None
        self._drop()
        return found or self._trace_anew(size, algorithms, captures)

    def _trace_anew(self, size: int, algorithms: Mapping[str, str], captures: bool) -> _Answer:
        recording = _Recording(self._model, len(self._placements), captures)
        try:
            with self._settings():
                given = self._inputs(recording, size, algorithms)
                for index in self._placements:
                    with placement.moved(self._model, given, index) as there:
                        recording.add(there)
                    release(self._device)
        except torch.OutOfMemoryError:
            release(self._device)
            if not recording.eager:
                return [], "the process that traces was out of memory", [], WORK_METHOD
        except (RuntimeError, InputError) as error:
            return [], f"the pass cannot be traced: {str(error).splitlines()[0]}", [], WORK_METHOD
        return recording.answer()

    def prepare(self, size: int, algorithms: Mapping[str, str]) -> None:
        """Capture the pass in all placements and trace it eagerly; `trace` has its replays alone to do then."""
        self._drop()
        if self._device.type == "cpu":
            return
        recording = _Recording(self._model, len(self._placements))
        self._prepared = _Prepared(size, algorithms, recording, contextlib.ExitStack())
        try:
            with self._settings():
                given = self._inputs(recording, size, algorithms)
                for index in self._placements:
                    there = self._prepared.held.enter_context(placement.moved(self._model, given, index))
                    recording.capture(there, self._prepared.held)
            torch.cuda.synchronize()
        except (RuntimeError, InputError):
            self._drop()

    def _replay_prepared(self, size: int, algorithms: Mapping[str, str]) -> _Answer | None:
        """Trace the replays of what was prepared; None where that was something else, or the eager trace alone counts.

        Another process had the device too during that eager trace, so its times mean nothing.
        """
        if not self._prepared or (self._prepared.size, self._prepared.algorithms) != (size, algorithms):
            return None
        recording = self._prepared.recording
        try:
            with self._settings():
                recording.replay()
        except RuntimeError:
            return None
        answer = recording.answer()
        return None if answer[-1] == EAGER_WORK_METHOD else answer

    def _inputs(self, recording: _Recording, size: int, algorithms: Mapping[str, str]) -> Inputs:
        images = self._run.image_size(size)
        recording.calls = has_calls(self._network.layers(images))
        self._swap.apply(algorithms)
        return self._network.inputs(images, self._device)

    def _drop(self) -> None:
        """Free what was prepared."""
        if self._prepared:
            self._prepared.held.close()
            self._prepared = None
            release(self._device)


class _Prepared(NamedTuple):
    """What was captured ahead of its trace; `held` keeps the graphs, and the model where it was moved last."""

    size: int
    algorithms: Mapping[str, str]
    recording: _Recording
    held: contextlib.ExitStack


class _Recording:
    """Traces of one pass: an eager one, which says whose each kernel is, and replays in one placement after another.

    `add` traces a placement at once; `capture` keeps its graph, and `replay` traces those of all placements together.

    `replays` is their number in each placement: by what the eager trace took, as many as end within `_RECORDING_S`. A
    pass that may not or cannot be captured has the eager trace alone. `calls` as `trace.record_layers` takes it.
    """

    def __init__(self, model: nn.Module, placements: int, captures: bool = True) -> None:
        self._model, self._count, self._captures = model, placements, captures
        self.eager: list[dict[str, Any]] = []
        self.placements: list[list[dict[str, Any]]] = []
        self.replays = TRACED_REPLAYS
        self.calls = False
        self._captured: list[graphs.Captured] = []
        self._last: Callable[[], object] = lambda: None  # the step that was captured last

    def add(self, given: Inputs) -> None:
        """Trace the pass of these inputs where they lie, unless replays would take too long."""
        if not self.replays:
            return
        step = partial(self._model, *given)
        try:
            if not self._captures:
                self._give_up_replays(given)
                return
            with graphs.capture(step) as plain:
                graphs.settle(plain)
                self._trace_eagerly(given)
                if self.replays:
                    self.placements.append(trace.record_replays([plain], self.replays))
        except NotCapturableError:
            self._give_up_replays(given)

    def capture(self, given: Inputs, held: contextlib.ExitStack) -> None:
        """Capture the pass of these inputs where they lie, for as long as `held` is open, for `replay`."""
        self._last = partial(self._model, *given)
        self._captured.append(held.enter_context(graphs.capture(self._last)))
        self._trace_eagerly(given)

    def replay(self) -> None:
        """Trace the replays of what was captured, once one more graph is.

        The work of another process makes graphs faster that were captured before it, until this one captures again.
        """
        if self.replays:
            with graphs.capture(self._last):
                graphs.settle(self._captured[0])
                self.placements.append(trace.record_replays(self._captured, self.replays))

    def _trace_eagerly(self, given: Inputs) -> None:
        if not self.eager:
            began_s = time.monotonic()
            self.eager = trace.record_layers(self._model, given, self.calls)
            self.replays = replays_within(_RECORDING_S, time.monotonic() - began_s, self._count)

    def _give_up_replays(self, given: Inputs) -> None:
        self.replays = 0
        self.eager = self.eager or trace.record_layers(self._model, given, self.calls)

    def answer(self) -> _Answer:
        """Return what was traced, as `_Tracer.trace` does."""
        try:
            found = trace.matched(self.eager, self.placements, self.replays)
        except TraceMissingError as error:
            return [], str(error), [], WORK_METHOD
        return found.layers(), None, found.work(), WORK_METHOD if found.placements else EAGER_WORK_METHOD


def replays_within(budget_s: float, pass_s: float, placements: int) -> int:
    """Return how many replays to trace in each placement, 0 to `TRACED_REPLAYS`, if a traced pass takes `pass_s`."""
    return min(TRACED_REPLAYS, int(budget_s / (pass_s * placements)))


def main(descriptor: str) -> None:
    """Serve the process that started this one until its end of the pipe is closed."""
    # Theirs to act on: the end of the pipe ends this process.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    pipe = Connection(int(descriptor))
    tracer: _Tracer | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number, (first, *more) = pipe.recv()
            if isinstance(first, Run):
                wanted, source = more
                placements = range(placement.PLACEMENTS) if wanted is None else wanted
                reason = None
                if tracer is None or not tracer.goes_over_to(first, placements, source):
                    tracer = None  # its model makes room for the next
                    tracer, reason = _begin(first, placements, source)
                pipe.send((number, reason))
            elif tracer and first == PREPARE:
                tracer.prepare(*more)
                pipe.send((number, None))
            elif tracer:
                pipe.send((number, tracer.trace(first, *more)))


def _begin(run: Run, placements: Sequence[int], source: bytes | None) -> tuple[_Tracer | None, str | None]:
    gc.unfreeze()
    gc.collect()  # models hold themselves in cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        tracer = _Tracer(run, placements, source)
    except Exception as error:  # whatever it takes to build a model
        return None, f"the process that traces cannot begin: {(str(error).splitlines() or [type(error).__name__])[0]}"
    gc.freeze()  # a full collection takes 0.2 s, in the middle of a trace
    return tracer, None


if __name__ == "__main__":
    main(sys.argv[1])
