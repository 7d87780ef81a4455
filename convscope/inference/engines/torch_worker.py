"""Worker process that runs one engine of PyTorch's: a crash there is a failed row, and the study goes on.

`python -m convscope.inference.engines.torch_worker`, started by `runners.RemoteRunner`, with one of two modes:

- `engine NAME THREADS WORKLOAD [WORKLOAD…]` builds an engine of PyTorch's compiler from the workload in a file.
- `package DEVICE MATH THREADS CAPTURED PACKAGE INPUT [PACKAGE INPUT…]` loads an AOTInductor package, as it is
  deployed, without the Python model; as a CUDA graph where CAPTURED is 1.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from convscope.convolution import backends
from convscope.inference.engines import worker
from convscope.inference.engines.endpoint import endpoint_of_file
from convscope.inference.engines.runners import LocalRunner


def run_engine(say: worker.Say, name: str, threads: str, *paths: str) -> None:
    """Build the engine of each workload, answer, and serve commands until the input ends."""
    from convscope.inference.engines import compilers  # not in the other mode: a package's process has no model

    # Objects, pickled into this user's own temporary directory alone.
    workloads = [torch.load(path, weights_only=False) for path in paths]
    with backends.engine_process(workloads[0].device, workloads[0].math, int(threads)):
        started_s = time.perf_counter()
        runners, costs = zip(*(compilers.compiled_here(name, each) for each in workloads), strict=True)
        load_s, method = time.perf_counter() - started_s, runners[0].timing_method
        _serve(runners, say, load_s, setup=dataclasses.asdict(costs[0]), timing_method=method)


def run_package(say: worker.Say, device_name: str, math: str, threads: str, captured: str, *files: str) -> None:
    """Load packages, each with its input behind it, answer, and serve commands until the input ends."""
    device = torch.device(device_name)
    with backends.engine_process(device, math, int(threads)):
        started_s = time.perf_counter()
        is_graph = captured == "1"
        runners = [_package(*pair, device, is_graph) for pair in zip(files[::2], files[1::2], strict=True)]
        _serve(runners, say, time.perf_counter() - started_s, timing_method=runners[0].timing_method)


def _package(package: str, path: str, device: torch.device, captured: bool) -> LocalRunner:
    given = torch.load(path, map_location=device, weights_only=True)
    index = device.index if device.type == "cuda" else -1
    loaded = torch._inductor.aoti_load_package(package, run_single_threaded=True, device_index=index)
    # Its weights lie outside PyTorch's allocator.
    return LocalRunner(lambda: loaded(given), given, captured, counted=False)


def _serve(runners: Sequence[LocalRunner], say: worker.Say, load_s: float, **more: Any) -> None:
    say(load_s=load_s, version=torch.__version__, has_torch=True, **more)
    worker.serve(runners, say, functools.partial(endpoint_of_file, runners))


def main(arguments: list[str]) -> None:
    """Run the mode that the command line names."""
    mode, *rest = arguments
    modes: dict[str, Callable[..., None]] = {"engine": run_engine, "package": run_package}
    modes[mode](worker.channel(), *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
