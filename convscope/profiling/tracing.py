"""The process that traces passes, seen from the one that times them. PyTorch is not imported here.

CUPTI makes later passes of its process longer: it starts in `trace_process` alone, and the two talk over a pipe.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from convscope.cli import programs
from convscope.cli.signals import ANSWERED, kept_from_children
from convscope.errors import SensorError
from convscope.power import nvml

if TYPE_CHECKING:
    from convscope.convolution.sources.source import Source
    from convscope.profiling.request import Run
    from convscope.timing.shares import Work
    from convscope.timing.trace import LayerTrace

PROGRAM = "convscope.profiling.trace_process"
_STARTING_S = 120.0
_TRACING_S = 600.0  # a trace that hangs (it was seen to, with events in a graph) must not hold up a study
_ENDING_S = 10.0
PREPARE = "prepare"

Traced = tuple[list["LayerTrace"], str | None]


class Tracer(Protocol):
    """Kernels and spans of the layers of a pass, from another process (`tracing.TraceProcess`).

    `work` has the kernels of the pass that was traced last, `work_method` the way in which they were timed.
    """

    work: list[Work]
    work_method: str

    def trace(self, size: int, algorithms: Mapping[str, str], captures: bool = True) -> Traced:
        """Trace passes at one size with these algorithms by layer; return their layers, or none and the reason.

        A pass that was not captured as a graph here is told so, and traced eagerly alone.
        """

    def prepare(self, size: int, algorithms: Mapping[str, str]) -> None:
        """Capture in the other process, while this one captures, what `trace` will be asked for; returns at once."""

    def wait_until_prepared(self) -> None:
        """Wait until the other process leaves the device alone."""


class TraceProcess:
    """The process that traces passes of one run after another. A context manager; it ends with the block.

    A process that ends or hangs leaves a reason in the place of kernels, and never ends the study; the next run has
    another.

    Attributes:
        work: the kernels of the pass that `trace` traced last, by kind of work and module; `work_method` names the way
            in which they were timed.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self.work: list[Work] = []
        self.work_method = ""
        self._reason: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._numbers = itertools.count()
        self._asked = self._answered = -1  # number of the last message, and of the last answer
        self._has_begun = False

    def start(self) -> None:
        """Start the process unless it is there; returns at once. It imports PyTorch, which takes seconds."""
        if self._process is not None:
            return
        self._pipe, far_end = Pipe()
        with kept_from_children(ANSWERED):  # the end of the pipe ends the process
            self._process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, str(far_end.fileno())],
                env=programs.environment(),
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        far_end.close()

    def begin(self, run: Run, source: Source | None = None, placements: Sequence[int] | None = None) -> None:
        """Go over to a run; returns at once, and the process builds its model meanwhile.

        Args:
            source: of the model, where its name does not say it.
            placements: the numbers that `placement.moved` takes; None is those that a profile has.
        """
        from convscope.convolution.sources.files import ModuleSource  # imports PyTorch

        self._reason = None
        handed: bytes | None = None
        if isinstance(source, ModuleSource):
            try:
                handed = source.pickled()
            except Exception as error:  # whatever the module holds
                why = f"{type(error).__name__}: {error}"
                self._reason = f"the model cannot be handed to the process that traces ({why})"
                return
        self.start()
        self._has_begun = True
        self._send((run, None if placements is None else list(placements), handed))

    def wait_until_ready(self) -> None:
        """Wait until the process has built its model, so that it does not compete with what is timed."""
        if failed := self._receive(_STARTING_S):
            self._reason = failed

    def prepare(self, size: int, algorithms: Mapping[str, str]) -> None:
        """Let the process capture what `trace` will be asked to trace, and hold it; returns at once."""
        self._send((PREPARE, size, dict(algorithms)))

    def wait_until_prepared(self) -> None:
        """Wait until the process leaves the device alone; returns at once where nothing is being prepared.

        What it could not prepare, `trace` begins anew, and says why it cannot be traced.
        """
        self._receive(_TRACING_S)

    def trace(self, size: int, algorithms: Mapping[str, str], captures: bool = True) -> Traced:
        """Trace passes at one size with these algorithms by layer; return their layers, or none and the reason.

        Args:
            captures: the pass may be captured as a graph; one that may not is traced eagerly alone.
        """
        self._send((size, dict(algorithms), captures))
        found, self.work = self._receive(_TRACING_S), []
        if self._reason or found is None:
            return [], self._reason
        layers, reason, self.work, self.work_method = found
        return layers, reason

    def _send(self, message: object) -> None:
        if self._reason is not None or self._pipe is None:
            return
        self._asked = next(self._numbers)
        try:
            self._pipe.send((self._asked, message))
        except OSError:
            self._give_up("the process that traces has ended")

    def _receive(self, patience_s: float) -> Any:
        """Return the answer to the last message, once; answers that nobody waited for are passed over."""
        if self._reason is not None or self._pipe is None or self._answered == self._asked:
            return None
        end_s = time.monotonic() + patience_s
        try:
            while self._pipe.poll(max(0.0, end_s - time.monotonic())):
                number, answer = self._pipe.recv()
                if number == self._asked:
                    self._answered = number
                    return answer
            self._give_up(f"the process that traces said nothing for {patience_s:g} s")
        except (EOFError, OSError):
            self._give_up("the process that traces has ended")
        return None

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._end(0.0)

    def _end(self, patience_s: float) -> None:
        """End the process; the end of its input is its end, in so many seconds, else it is killed."""
        if self._process is None or self._pipe is None:
            return
        self._pipe.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._pipe = None

    def __enter__(self) -> TraceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(_ENDING_S if self._has_begun else 0.0)


_KEPT: contextvars.ContextVar[TraceProcess | None] = contextvars.ContextVar("kept process that traces", default=None)


@contextlib.contextmanager
def kept(at_once: bool = False) -> Iterator[None]:
    """Let all profiles in the block have their passes traced by one process.

    Args:
        at_once: start it now where a GPU is here, so that it is there when the first profile needs it.
    """
    with TraceProcess() as process:
        if at_once and _has_card():
            process.start()
        token = _KEPT.set(process)
        try:
            yield
        finally:
            _KEPT.reset(token)


@contextlib.contextmanager
def begun(run: Run, source: Source | None) -> Iterator[TraceProcess]:
    """Yield the process that traces a run: the kept one, or one that ends with the block."""
    with contextlib.ExitStack() as stack:
        process = _KEPT.get() or stack.enter_context(TraceProcess())
        process.begin(run, source)
        yield process


def _has_card() -> bool:
    """Tell whether this process is shown a GPU, as far as its driver says."""
    try:
        return bool(nvml.visible_uuids(nvml.load(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    except SensorError:
        return False
