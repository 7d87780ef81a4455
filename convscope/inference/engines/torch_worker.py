"""Worker process that runs one engine of PyTorch's: a crash there is a failed row, and the study goes on.

`python -m convscope.inference.engines.torch_worker`, started by `runners.RemoteRunner`, with one of two modes:

- `engine WORKLOAD THREADS` builds the engine compile-max from the workload in a file.
- `package PACKAGE INPUT DEVICE MATH THREADS` loads an AOTInductor package, as it is deployed, without the Python model.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from convscope.convolution import backends
from convscope.inference.engines import worker
from convscope.inference.engines.runners import LocalRunner


def run_engine(say: worker.Say, path: str, threads: str) -> None:
    """Build an engine, answer, and serve commands until the input ends."""
    from convscope.inference.engines import compilers  # not in the other mode: a package's process has no model

    workload = torch.load(path, weights_only=False)  # objects, pickled into this user's own temporary directory alone
    with backends.engine_process(workload.device, workload.math, int(threads)):
        started_s = time.perf_counter()
        runner, cost = compilers.compiled_most_here(workload)
        load_s = time.perf_counter() - started_s
        _serve(runner, say, load_s, setup=dataclasses.asdict(cost), timing_method=runner.timing_method)


def run_package(say: worker.Say, package: str, path: str, device_name: str, math: str, threads: str) -> None:
    """Load a package, answer, and serve commands until the input ends."""
    device = torch.device(device_name)
    with backends.engine_process(device, math, int(threads)):
        given = torch.load(path, map_location=device, weights_only=True)
        started_s = time.perf_counter()
        index = device.index if device.type == "cuda" else -1
        loaded = torch._inductor.aoti_load_package(package, run_single_threaded=True, device_index=index)
        # Its weights lie outside PyTorch's allocator.
        runner = LocalRunner(lambda: loaded(given), given, captured=False, counted=False)
        _serve(runner, say, time.perf_counter() - started_s)


def _serve(runner: LocalRunner, say: worker.Say, load_s: float, **more: Any) -> None:
    say(load_s=load_s, version=torch.__version__, has_torch=True, **more)
    worker.serve(runner, say)


def main(arguments: list[str]) -> None:
    """Run the mode that the command line names."""
    mode, *rest = arguments
    modes: dict[str, Callable[..., None]] = {"engine": run_engine, "package": run_package}
    modes[mode](worker.channel(), *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
