"""Model in the process that traces: built once for a run, captured and traced at each size."""

from __future__ import annotations

import contextlib
import operator
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from convscope.convolution import backends, swap
from convscope.convolution.layer import has_calls
from convscope.convolution.operator import release
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs
from convscope.errors import InputError
from convscope.profiling.request import Run
from convscope.profiling.trace_process.recording import EAGER_WORK_METHOD, WORK_METHOD, Answer, Recording
from convscope.timing import cupti, placement, trace

_OF_MODEL = operator.attrgetter(
    *("model", "model_digest", "device", "batch_size", "seed", "pretrained", "dtype", "layout")
)


class _Prepared(NamedTuple):
    """A pass that was captured ahead of its trace; `held` keeps the graphs, and the model where it was moved last."""

    size: int
    algorithms: Mapping[str, str]
    recording: Recording
    held: contextlib.ExitStack


class TracedModel:
    """The model of a run in the process that traces, and its passes at one size after another."""

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
            self._evict = placement.Eviction(self._device, run.evicts)
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

    def trace(self, size: int, algorithms: Mapping[str, str], captures: bool) -> Answer:
        """Trace passes as `TraceProcess.trace`; return layers and reason as it does, the work, and its method."""
        if self._device.type == "cpu":
            return [], trace.CPU_REASON, [], WORK_METHOD
        found = self._replay_prepared(size, algorithms) if captures else None
        self._drop()
        return found or self._trace_anew(size, algorithms, captures)

    def _trace_anew(self, size: int, algorithms: Mapping[str, str], captures: bool) -> Answer:
        recording = Recording(self._model, len(self._placements), captures, self._evict)
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
        recording = Recording(self._model, len(self._placements), before=self._evict)
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

    def _replay_prepared(self, size: int, algorithms: Mapping[str, str]) -> Answer | None:
        """Trace the replays of what was prepared; None where that was something else, or the eager trace alone counts,
        as where nothing hides the launch.

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

    def _inputs(self, recording: Recording, size: int, algorithms: Mapping[str, str]) -> Inputs:
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
