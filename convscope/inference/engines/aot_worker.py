"""A process that runs an AOTInductor package as it is deployed: it never saw the Python model.

`python -m convscope.aot_worker PACKAGE INPUT DEVICE MATH THREADS`, from `remote.Remote`. PyTorch is imported for its
tensors and the operators that the package calls.
"""

from __future__ import annotations

import sys
import time

import torch

from convscope.convolution import backends
from convscope.inference.engines import worker
from convscope.inference.engines.runners import LocalRunner


def main(arguments: list[str]) -> None:
    """Load, answer, and do what is asked until there is nothing more."""
    package, path, where, math, threads = arguments
    say, device = worker.channel(), torch.device(where)
    with backends.engine_process(device, math, int(threads)):
        given = torch.load(path, map_location=device, weights_only=True)
        started_s = time.perf_counter()
        index = device.index if device.type == "cuda" else -1
        loaded = torch._inductor.aoti_load_package(package, run_single_threaded=True, device_index=index)
        # Its weights lie outside PyTorch's allocator.
        runner = LocalRunner(lambda: loaded(given), device, captured=False, counted=False)
        say(load_s=time.perf_counter() - started_s, version=torch.__version__, has_torch=True)
        worker.serve(runner, say)


if __name__ == "__main__":
    main(sys.argv[1:])
