"""Progress of every folder of a place of results: remembered, or read, by several processes where that is much."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, Protocol

from convscope.cluster import plain_files, progress
from convscope.cluster.plain_files import ForeignError
from convscope.cluster.progress import Look, Progress
from convscope.storage.paths import KEPT, STAGES

_PROCESSES_MOST, _LEAST, _AT_ONCE = 8, 1000, 200
"""Processes that read folders, the folders that make one more worth its start, and those that it returns at once."""


class Folders(NamedTuple):
    """Progress of every folder, and a remark about each thing that was skipped."""

    progress: list[Progress]
    skipped: list[str]


class Memory(Protocol):
    """Progress of folders that was read before, by what their files looked like then."""

    def has(self, path: Path, stage: str) -> bool:
        """Tell whether a folder was read before."""

    def find(self, path: Path, stage: str, look: Look) -> Progress | None:
        """Return the progress of a folder that still looks so, None where that is not known."""

    def keep(self, look: Look, progress: Progress) -> None:
        """Remember the progress of a folder that looked so before it was read."""


class _Task(NamedTuple):
    """A folder to be read; where it was looked at already, with its look."""

    path: Path
    stage: str
    look: Look | None


_Read = tuple["Look | None", "Progress | str | None"]
"""A folder's look and progress, why it is skipped, or None for an empty one."""


def read_all(results: Path, stages: Sequence[str] = STAGES, memory: Memory | None = None) -> Folders:
    """Return the progress of every folder under `results/<stage>/`, in order; empty folders are left out.

    Args:
        memory: what is asked before a folder is read, and told after it.
    """
    root = os.path.realpath(results)
    read: dict[str, _Read] = {}
    tasks: dict[str, _Task] = {}
    for stage in stages:
        entries, fault = _listed(results / stage, root)
        if fault:
            read[stage] = None, fault
        for entry in entries:
            name, known = f"{stage}/{entry.name}", _known(entry, stage, root, memory)
            if isinstance(known, _Task):
                tasks[name] = known
            read[name] = (None, None) if isinstance(known, _Task) else known  # keeps its place in the order
    for name, (look, folder) in zip(tasks, _read_many([*tasks.values()]), strict=True):
        read[name] = look, folder
        if memory is not None and look is not None and isinstance(folder, Progress):
            memory.keep(look, folder)
    found = Folders([], [])
    for name, (_, folder) in read.items():
        found.progress.extend([folder] if isinstance(folder, Progress) else [])
        if remark := folder.remark if isinstance(folder, Progress) else folder:
            found.skipped.append(f"{name}: {remark}")
    return found


def _listed(path: Path, root: str) -> tuple[list[os.DirEntry[str]], str]:
    """Return what `_entries` returns, and why it cannot, "" where it can."""
    try:
        return _entries(path, root), ""
    except ForeignError as error:
        return [], str(error)


def _entries(path: Path, root: str) -> list[os.DirEntry[str]]:
    """Return the entries of a stage's directory that may be folders: no plain files, as logs are, no kept results."""
    if not os.path.lexists(path):
        return []
    _check_link(path, root)
    try:
        with os.scandir(path) as entries:
            found = [each for each in entries if not each.is_file(follow_symlinks=False)]
    except OSError as error:
        raise ForeignError(f"cannot be read ({error.strerror})") from None
    named = (each for each in found if not each.name.startswith(".") and KEPT not in each.name)
    return sorted(named, key=lambda each: each.name)


def _known(entry: os.DirEntry[str], stage: str, root: str, memory: Memory | None) -> _Read | _Task:
    """Return what is remembered of a folder that still looks so, or why it is skipped; else the task to read it."""
    path, look = Path(entry.path), None
    try:
        if not entry.is_dir(follow_symlinks=False):
            _check_link(path, root)
        if memory is not None and memory.has(path, stage):
            look = progress.look_at(entry.path)
            if known := memory.find(path, stage, look):
                return look, known
    except ForeignError as error:
        return None, str(error)
    return _Task(path, stage, look)


def _read_many(tasks: Sequence[_Task]) -> Iterator[_Read]:
    """Read folders, in order; many of them by several processes, where these can be started."""
    processes = min(_PROCESSES_MOST, len(os.sched_getaffinity(0)), len(tasks) // _LEAST)
    done = 0
    if processes > 1:
        with contextlib.suppress(OSError, BrokenProcessPool):
            forked = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(processes, forked, _begin, (tasks,)) as pool:
                for read in pool.map(_read_some, range(0, len(tasks), _AT_ONCE)):
                    done += len(read)
                    yield from read
    yield from map(_read, tasks[done:])


_inherited: Sequence[_Task] = ()
"""Tasks that a process which reads folders was forked with: they need no way to it."""


def _begin(tasks: Sequence[_Task]) -> None:
    """Keep the tasks; leave Ctrl-C to the process that started this one, which says so once, and end when told to."""
    global _inherited
    _inherited = tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read_some(first: int) -> list[_Read]:
    return [_read(task) for task in _inherited[first : first + _AT_ONCE]]


def _read(task: _Task) -> _Read:
    try:
        look = task.look or progress.look_at(os.fspath(task.path))
        return look, progress.read_as(task.path, task.stage, look)
    except ForeignError as error:
        return None, str(error)


def _check_link(path: Path, root: str) -> None:
    """Raise a ForeignError unless this is a directory, or a link to one within the results."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            if not os.path.realpath(path).startswith(f"{root}{os.sep}"):
                raise ForeignError("a link that leads out of the results, not followed")
            mode = path.stat().st_mode
    except OSError as error:
        raise ForeignError(f"cannot be read ({error.strerror})") from None
    if not stat.S_ISDIR(mode):
        raise ForeignError(f"{plain_files.kind(mode)}, no folder")
