"""Traces of one pass in the process that traces: an eager one, and replays in one placement after another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from convscope.convolution.sources.source import Inputs
from convscope.errors import HostTooSlowError, NotCapturableError, TraceMissingError
from convscope.timing import graphs, trace
from convscope.timing.shares import Work
from convscope.timing.trace import LayerTrace

TRACED_REPLAYS = 4  # in each placement, where they do not take longer than this:
_RECORDING_S = 20.0  # a pass by FFT may have thousands of kernels, and each takes its time to be recorded
WORK_METHOD = "kernels of traced replays (CUPTI, separate process)"
EAGER_WORK_METHOD = "kernels of a traced eager pass (CUPTI, separate process)"

Answer = tuple[list[LayerTrace], str | None, list[Work], str]
"""Layers, the reason where there are none, the work of the pass, and the way in which it was timed."""


class Recording:
    """Traces of one pass: an eager one, which says whose each kernel is, and replays in one placement after another.

    `add` traces a placement at once; `capture` keeps its graph, and `replay` traces those of all placements together.

    `replays` is their number in each placement: by what the eager trace took, as many as end within `_RECORDING_S`. A
    pass that may not or cannot be captured, or whose launch nothing hides, has the eager trace alone. `calls` as
    `trace.record_layers` takes it, and `before` as `trace.record_replays` does.
    """

    def __init__(
        self, model: nn.Module, placements: int, captures: bool = True, before: Callable[[], object] = graphs.nothing
    ) -> None:
        self._model, self._count, self._captures, self._before = model, placements, captures, before
        self.eager: list[dict[str, Any]] = []
        self.placements: list[list[dict[str, Any]]] = []
        self.replays = TRACED_REPLAYS
        self.calls = False
        self._hider = graphs.LaunchHider()
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
                    self.placements.append(trace.record_replays([plain], self.replays, self._before, self._hider))
        except (NotCapturableError, HostTooSlowError):
            self._give_up_replays(given)

    def capture(self, given: Inputs, held: contextlib.ExitStack) -> None:
        """Capture the pass of these inputs where they lie, for as long as `held` is open, for `replay`."""
        self._last = partial(self._model, *given)
        self._captured.append(held.enter_context(graphs.capture(self._last)))
        self._trace_eagerly(given)

    def replay(self) -> None:
        """Trace the replays of what was captured, once one more graph is.

        The work of another process makes graphs faster that were captured before it, until this one captures again.

        Raises:
            HostTooSlowError: the host does not stay ahead of the GPU.
        """
        if self.replays:
            with graphs.capture(self._last):
                graphs.settle(self._captured[0])
                self.placements.append(trace.record_replays(self._captured, self.replays, self._before, self._hider))

    def _trace_eagerly(self, given: Inputs) -> None:
        if not self.eager:
            began_s = time.monotonic()
            self.eager = trace.record_layers(self._model, given, self.calls)
            self.replays = replays_within(_RECORDING_S, time.monotonic() - began_s, self._count)

    def _give_up_replays(self, given: Inputs) -> None:
        self.replays, self.placements = 0, []
        self.eager = self.eager or trace.record_layers(self._model, given, self.calls)

    def answer(self) -> Answer:
        """Return what was traced, as `model.TracedModel.trace` does."""
        try:
            found = trace.matched(self.eager, self.placements, self.replays)
        except TraceMissingError as error:
            return [], str(error), [], WORK_METHOD
        return found.layers(), None, found.work(), WORK_METHOD if found.placements else EAGER_WORK_METHOD


def replays_within(budget_s: float, pass_s: float, placements: int) -> int:
    """Return how many replays to trace in each placement, 0 to `TRACED_REPLAYS`, if a traced pass takes `pass_s`."""
    return min(TRACED_REPLAYS, int(budget_s / (pass_s * placements)))
