"""Signals that ask a run to stop, and how it ends.

USR2 is SLURM's warning before the time limit (`--signal=USR2@180`; not USR1, which NCCL may catch): the run finishes
the input size at hand, however long that takes, and ends with `STOPPED`; the batch script knows that number and puts
the job into the queue again. TERM, INT, HUP and USR1 mean the end: the size at hand has `GRACE_S` seconds to be
finished, then the process ends where it is. That loses no size that is whole: files are replaced, never written in
place (`tables`). A second INT ends it at once. The exit code is then `ENDED`. HUP stays ignored where it is (`nohup`).
SLURM sends a signal to every process of a step, a terminal to every process of its group; `kept_from_children` keeps it
from those that a run has started for its work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType

from convscope.errors import CONTINUE

STOPPED = 85
"""The exit code of a run that was warned and has sizes left; running the same command again continues."""
ENDED = 75
"""The exit code of a run that was told to end and has sizes left (EX_TEMPFAIL); continued likewise."""

GRACE_S = 20.0
"""Less than SLURM's KillWait, 30 s unless a site sets it, from TERM to KILL."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
WARNING = (signal.SIGUSR2,)
"""The signal after which the size or cell at hand is finished, and so all that works for it."""
ANSWERED = (*_ENDING, *WARNING)


def answered(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those of some signals that a program is to answer: HUP only where the caller has not had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in numbers if not (number == signal.SIGHUP and ignored)]


@contextlib.contextmanager
def kept_from_children(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Start processes in the block that some signals do not end: what they were doing would be lost with them.

    A process inherits the blocked signals of the thread that starts it, and so do the processes that it starts. One
    from which TERM is kept has to end by itself when its pipe or its input does, and nothing that it starts may need
    TERM. This process gets a signal in a thread that does not block it, else after the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StopSignal:
    """Within the `with` block, remembers whether a signal has come: calling the object tells.

    A thread of its own keeps the time, for Python's handlers wait while the main thread is inside a long call.

    Args:
        grace_s: how long after TERM, INT, HUP or USR1 the block may go on.
        name: first word of the last line.
        at_end: called when the process ends without unwinding.
    """

    def __init__(
        self, grace_s: float = GRACE_S, name: str = "run_profile.py", at_end: Callable[[], None] = lambda: None
    ) -> None:
        self._grace_s, self._name, self._at_end = grace_s, name, at_end
        self.number: int | None = None
        self._left = threading.Event()

    def __enter__(self) -> StopSignal:
        self._told, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        self._before = {number: signal.signal(number, self._remember) for number in answered(ANSWERED)}
        self._wakeup = signal.set_wakeup_fd(self._tell.fileno())
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._left.set()
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._tell.close()  # which ends the thread's wait
        self._thread.join()
        self._told.close()

    def __call__(self) -> bool:
        """Tell whether a signal has come."""
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """The exit code of a run that was stopped; to be read only once a signal has come."""
        return STOPPED if self.number == signal.SIGUSR2 else ENDED

    @property
    def said(self) -> str:
        """The name of the signal that has come, "TERM"."""
        return signal.Signals(self.number or 0).name.removeprefix("SIG")

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number in (None, signal.SIGUSR2):
            self.number = number

    def _watch(self) -> None:
        """Wait for the signals as the kernel gives them; end the process when the block outlasts its grace."""
        interrupted = False
        timer: threading.Timer | None = None
        while numbers := self._told.recv(64):
            for number in numbers:
                if number == signal.SIGINT and interrupted:
                    self._end(number)
                interrupted |= number == signal.SIGINT
                if number in _ENDING and timer is None:
                    timer = threading.Timer(self._grace_s, self._end, [number])
                    timer.daemon = True
                    timer.start()
        if timer is not None:
            timer.cancel()

    def _end(self, number: int) -> None:
        """End the process where it is, without its lock and without unwinding what may never return."""
        if self._left.is_set():
            return
        self._at_end()
        name = signal.Signals(number).name.removeprefix("SIG")
        line = f"{self._name}: ended by {name}; {CONTINUE}\n"
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(ENDED)
