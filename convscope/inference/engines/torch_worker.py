"""A process that sets one engine up and runs it: what crashes there is a row in the table, and not the end of a study.

`python -m convscope.engine_worker ENGINE TASK THREADS`, from `remote.Remote`; TASK is what `compilers.apart` saved.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import torch

from convscope.convolution import backends
from convscope.inference.engines import compilers, worker


def main(arguments: list[str]) -> None:
    """Set up, answer, and do what is asked until there is nothing more."""
    name, path, threads = arguments
    say = worker.channel()
    task = compilers.saved_task(path)
    with backends.engine_process(task.device, task.math, int(threads)):
        started_s = time.perf_counter()
        runner, setup = compilers.APART[name](task)
        told = dataclasses.asdict(setup)
        load_s = time.perf_counter() - started_s
        version, method = torch.__version__, runner.timing_method
        say(load_s=load_s, version=version, has_torch=True, setup=told, timing_method=method)
        worker.serve(runner, say)


if __name__ == "__main__":
    main(sys.argv[1:])
