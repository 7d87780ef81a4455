"""Parts of a fit that are computed at the same time, in threads; their number changes no result.

BLAS, LightGBM and scikit-learn's trees release the interpreter's lock while they compute. Each part is computed by one
thread.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from threadpoolctl import threadpool_limits

MOST = 4
"""Threads at most."""
_state = threading.local()
_processes = 1

Item = TypeVar("Item")
Result = TypeVar("Result")


def share_cores(processes: int) -> None:
    """Share the cores among this number of processes, of which this is one."""
    global _processes
    _processes = processes


def count() -> int:
    """Return how many threads compute at the same time; a thread that computes a part starts no further ones."""
    if getattr(_state, "is_computing", False):
        return 1
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // _processes))


def parallel_map(function: Callable[[Item], Result], items: Iterable[Item], most: int = MOST) -> list[Result]:
    """Return what a function returns for each item, in their order.

    An interrupt does not wait for the parts that are being computed. The error of a part is raised when the others that
    were begun have ended; no further ones are.

    Args:
        most: threads at most.
    """
    given = [*items]
    threads = min(count(), most, len(given))
    if threads <= 1:
        return [*map(function, given)]
    waiting = queue.SimpleQueue[int]()
    for place in range(len(given)):
        waiting.put(place)
    found, errors = dict[int, Result](), list[BaseException]()

    def compute() -> None:
        _state.is_computing = True
        try:
            with threadpool_limits(limits=1, user_api="blas"):  # which some BLAS keep for each thread
                while not errors:
                    place = waiting.get_nowait()
                    found[place] = function(given[place])
        except queue.Empty:
            return
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=compute, daemon=True) for _ in range(threads)]
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    except BaseException as interrupt:
        errors.append(interrupt)
        raise
    if errors:
        raise errors[0]
    return [found[place] for place in range(len(given))]
