"""Passes of one model on a GPU: captured as graphs, or launched from Python where they cannot be, and timed.

A pass is timed in several placements in memory (docs/timing.md): captured in all of them at the same time where they
fit, else in one after another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from convscope.cli.display import several
from convscope.convolution.operator import release
from convscope.convolution.sources.source import Inputs
from convscope.errors import NotCapturableError
from convscope.profiling.request import Run
from convscope.timing import eager, graphs, placement
from convscope.timing.graphs import ReplayLoad
from convscope.timing.layer_times import LayerTimer, LayerTimes, instrumented


class Passes:
    """Times passes of one model as a run asks for them.

    Attributes:
        refused: why the pass cannot be captured, None where it can, as far as that is known.
        waits: why no launch of it can be hidden.
    """

    def __init__(
        self, run: Run, model: nn.Module, device: torch.device, timer: LayerTimer, note_once: Callable[[str], None]
    ) -> None:
        self._run, self._model, self._device, self._timer = run, model, device, timer
        self._note_once = note_once
        self._evict = placement.Eviction(device, run.evicts)
        self._samples = math.ceil(run.measure_iters / placement.PLACEMENTS)  # in each placement
        self.refused: str | None = None
        self.waits: str | None = None

    def ask_to_capture(self, given: Inputs, has_run: bool = False) -> None:
        """Find out whether the pass of these inputs may be captured, as far as that is known without a capture."""
        self.refused = self.waits = eager.why_synchronizes(partial(self._model, *given), has_run)
        if self.waits:
            self._refuse(self.waits)

    def times(self, given: Inputs, samples: int, warmup: int = 0, may_refuse: bool = True) -> LayerTimes:
        """Time a pass and its layers by replays of graphs, or eagerly where the pass cannot be captured.

        Raises:
            NotCapturableError: it cannot be captured, and may not be timed eagerly: `may_refuse` is False.
        """
        step = partial(self._model, *given)
        if self.refused is None:
            try:
                with graphs.capture(step) as plain, instrumented(plain, step, self._timer, self._evict) as watched:
                    graphs.settle(plain)
                    return watched.times(samples, warmup)
            except NotCapturableError as error:
                if not may_refuse:
                    raise
                self._refuse(str(error))
        return eager.eager_times(step, self._timer, samples, warmup, self.waits is None, self._evict)

    def fit_together(self) -> bool:
        """Tell whether the pass, which has just run, can be captured and fits in all placements at the same time."""
        return self.refused is None and placement.fits_in_all(self._device)

    @contextlib.contextmanager
    def together(
        self, given: Inputs, become_quiet: Callable[[], object]
    ) -> Iterator[tuple[list[LayerTimes], int, ReplayLoad]]:
        """Yield the times in each placement, the peak of memory in the first, and the load of the pass in the last.

        Args:
            become_quiet: as `placement.captured_in_all` takes it.

        Raises:
            NotCapturableError, torch.OutOfMemoryError: as there; after the first the pass is timed eagerly.
        """
        try:
            with placement.captured_in_all(self._model, given, self._timer, become_quiet, self._evict) as passes:
                placed = passes.times(self._samples, self._run.warmup_iters)
                yield placed, passes.peak_bytes - self._evict.nbytes, passes.load()
        except NotCapturableError as error:
            self._refuse(str(error))
            raise

    def one_by_one(self, given: Inputs) -> tuple[list[LayerTimes], int]:
        """Time the pass and its layers in each placement; return the times, and the peak of memory in the first."""
        placed = [self._in_placement(given, 0)]
        peak_bytes = torch.cuda.max_memory_allocated() - self._evict.nbytes
        try:
            for index in range(1, placement.PLACEMENTS):
                release(self._device)
                placed.append(self._in_placement(given, index))
        except torch.OutOfMemoryError:
            self._note_once(f"times rest on {several(len(placed), 'placement')}: there is no memory to move weights in")
        finally:
            release(self._device)
        return placed, peak_bytes

    def _in_placement(self, given: Inputs, index: int) -> LayerTimes:
        with placement.moved(self._model, given, index) as there:
            return self.times(there, self._samples, self._run.warmup_iters)

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self._note_once(f"passes are timed eagerly: {reason}")
