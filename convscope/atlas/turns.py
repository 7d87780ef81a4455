"""Turns of processes that share a GPU: any number may try candidates at once, one alone takes times.

To try plans is mostly work of the host, to time them work of the GPU that nothing may disturb. Processes that name the
same file do the first side by side and pause while one of them does the second. The file is locked by `flock`, empty,
and not removed: a process that dies lets go of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from convscope.errors import InputError


class Turns:
    """This process's place among those that name the same file; it waits for every other, one of its own too.

    Args:
        path: the file, made if it is not there, and one beside it named `.gate`; None where no other process is.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._files: tuple[int, int] | None = None

    def join(self) -> None:
        """Share the GPU from now on with others, none of whom times. A process stays until it ends or leaves.

        Raises:
            InputError: the file cannot be made or locked.
        """
        if self._path is None or self._files is not None:
            return
        try:
            gate = self._path.with_name(f"{self._path.name}.gate")
            self._files = _opened(self._path), _opened(gate)
            self._take(fcntl.LOCK_SH)
        except (OSError, ValueError) as error:
            self.leave()
            reason = error.strerror if isinstance(error, OSError) else error
            why = f"--turns {self._path}: {reason}; name a file on a local disk that this process may write"
            raise InputError(why) from None

    def leave(self) -> None:
        """Share the GPU no more."""
        files, self._files = self._files, None
        for each in files or ():
            os.close(each)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the GPU alone in the block, after `join`; the others wait. No such block is inside of another."""
        self._let_go()
        self._take(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.give_way()

    def give_way(self) -> None:
        """Wait, after `join`, until no process is alone or wants to be."""
        self._let_go()
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

    def _let_go(self) -> None:
        if self._files is not None:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)


NO_TURNS = Turns()
"""The place of a process that shares its GPU with none."""


def file_of(what: str) -> Path:
    """Return the file of all processes of this user on this machine that share something, such as a GPU's UUID."""
    name = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"convscope_{os.getuid()}_{name}.turns"


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
