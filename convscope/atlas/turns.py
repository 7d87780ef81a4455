"""Turns of processes that share a GPU: any number may try candidates at once, one alone takes times.

To try plans is work of the host, to time them work of the GPU that nothing may disturb. Processes that name the same
file do the first side by side and pause while one of them does the second. The file is locked by `flock` and left as it
is: a process that dies lets go by dying. It should lie on a local disk, as the GPU is one machine's.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from convscope.errors import InputError


class Turns:
    """This process's place among those that name the same file.

    Args:
        path: the file, made if it is not there, and one beside it named `.gate`; None where no other process is.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._files: tuple[IO[str], IO[str]] | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU in the block while others do too, but none times; no such block is inside of another.

        Raises:
            InputError: the file cannot be made.
        """
        with contextlib.ExitStack() as opened:
            if self._path is not None:
                gate = self._path.with_name(f"{self._path.name}.gate")
                try:
                    self._files = opened.enter_context(self._path.open("a")), opened.enter_context(gate.open("a"))
                except OSError as error:
                    why = f"--turns {self._path}: {error.strerror}; name a file that this process may write"
                    raise InputError(why) from None
            self._take(fcntl.LOCK_SH)
            try:
                yield
            finally:
                self._files = None  # closed, which lets go

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the GPU alone in this block inside of one of `shared`; the others wait."""
        self._leave()
        self._take(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._leave()
            self._take(fcntl.LOCK_SH)

    def give_way(self) -> None:
        """Wait, inside a block of `shared`, until no process is alone or wants to be."""
        self._leave()
        self._take(fcntl.LOCK_SH)

    def _take(self, kind: int) -> None:
        """Lock the file; whoever waits holds the gate meanwhile, so that no later one comes before it."""
        if self._files is None:
            return
        file, gate = self._files
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(file, kind)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)

    def _leave(self) -> None:
        if self._files is not None:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)


NO_TURNS = Turns()
"""The place of a process that shares its GPU with none."""
