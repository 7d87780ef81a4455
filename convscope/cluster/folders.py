"""Progress of every folder of a place of results: remembered, or read, by several processes where that is much."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, Protocol

from convscope.cluster import plain_files, progress
from convscope.cluster.plain_files import ForeignError
from convscope.cluster.progress import Look, Progress
from convscope.storage.paths import KEPT, STAGES

_PROCESSES_MOST, _LEAST = 8, 1000
"""Processes that read folders, and the folders that make one more worth its start."""


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
    found = Folders([], [])
    root = os.path.realpath(results)
    for stage in stages:
        try:
            entries = _entries(results / stage, root)
        except ForeignError as error:
            found.skipped.append(f"{stage}: {error}")
            continue
        for entry, (_, folder) in zip(entries, _known_or_read(entries, stage, root, memory), strict=True):
            found.progress.extend([folder] if isinstance(folder, Progress) else [])
            if remark := folder.remark if isinstance(folder, Progress) else folder:
                found.skipped.append(f"{stage}/{entry.name}: {remark}")
    return found


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


def _known_or_read(entries: Sequence[os.DirEntry[str]], stage: str, root: str, memory: Memory | None) -> list[_Read]:
    found: list[_Read] = []
    tasks: dict[int, _Task] = {}
    for at, entry in enumerate(entries):
        path, look, known = Path(entry.path), None, None
        try:
            if not entry.is_dir(follow_symlinks=False):
                _check_link(path, root)
            if memory is not None and memory.has(path, stage):
                look = progress.look_at(entry.path)
                known = memory.find(path, stage, look)
            if known is None:
                tasks[at] = _Task(path, stage, look)
            found.append((look, known))
        except ForeignError as error:
            found.append((None, str(error)))
    for at, (look, folder) in zip(tasks, _read_many([*tasks.values()]), strict=True):
        found[at] = look, folder
        if memory is not None and look is not None and isinstance(folder, Progress):
            memory.keep(look, folder)
    return found


def _read_many(tasks: Sequence[_Task]) -> list[_Read]:
    """Read folders; many of them by several processes, where these can be started."""
    processes = min(_PROCESSES_MOST, len(os.sched_getaffinity(0)), len(tasks) // _LEAST)
    if processes > 1:
        with contextlib.suppress(OSError, BrokenProcessPool):
            forked = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(processes, forked, _leave_signals) as pool:
                return [*pool.map(_read, tasks, chunksize=max(1, _LEAST // 4))]
    return [_read(task) for task in tasks]


def _leave_signals() -> None:
    """Leave Ctrl-C to the process that started this one, which says so once, and end when told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
