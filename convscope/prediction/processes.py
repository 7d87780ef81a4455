"""Work in several processes, which share the cores and end with the process that started them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from convscope.errors import InputError
from convscope.prediction.learners import threads

Found = TypeVar("Found")


def starmap(each: Callable[..., Found], work: Sequence[tuple[Any, ...]], processes: int) -> Iterator[Found]:
    """Yield what a function returns for each tuple of arguments, in order; one process is this one.

    Args:
        each: function that can be pickled, as its arguments and what it returns.

    Raises:
        InputError: a process was ended.
    """
    if processes == 1 or len(work) <= 1:
        yield from itertools.starmap(each, work)
        return
    others = {*multiprocessing.active_children()}
    count = min(processes, len(work))
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (count,))
    try:
        yield from pool.map(each, *zip(*work, strict=True))
    except BrokenProcessPool:
        raise InputError("a process was ended, for want of memory perhaps: fewer --processes") from None
    except BaseException:  # Ctrl-C is not to wait for a split, which takes minutes
        for process in {*multiprocessing.active_children()} - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(processes: int) -> None:
    """Share the cores; leave Ctrl-C to the process that started this one, and end when that ends, however it does."""
    threads.share_cores(processes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
