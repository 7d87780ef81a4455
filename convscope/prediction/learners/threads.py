"""Parts of a fit side by side, each by a thread of its own: the number of threads changes no result.

BLAS, LightGBM and scikit-learn's trees let other threads compute beside them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MOST = 4
"""Threads at most: a part can need 2.5 GB of memory."""
_here = threading.local()
_processes = 1

Item = TypeVar("Item")
Found = TypeVar("Found")


def share_cores(processes: int) -> None:
    """Share the cores among so many processes, of which this is one."""
    global _processes
    _processes = processes


def count() -> int:
    """Return how many threads compute side by side; those that are computing start no further ones."""
    if getattr(_here, "is_computing", False):
        return 1
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // _processes))


def each(function: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """Return what a function returns for each item, in their order."""
    threads = count()
    if threads == 1:
        return [*map(function, items)]
    with ThreadPoolExecutor(threads, initializer=_begin) as pool:
        return [*pool.map(function, items)]


def _begin() -> None:
    _here.is_computing = True
