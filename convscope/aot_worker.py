"""A process that runs an AOTInductor package as it is deployed: it never saw the Python model.

`python -m convscope.aot_worker PACKAGE INPUT DEVICE MATH THREADS`, from `remote.Remote`. PyTorch is imported for its
tensors and the operators that the package calls; its search for cuDNN's plans is on.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from convscope import modes, worker
from convscope.runner import Local


class Package(Local):
    """A loaded package with its input."""

    def __init__(self, package: str, given: torch.Tensor) -> None:
        index = given.device.index if given.is_cuda else -1
        loaded = torch._inductor.aoti_load_package(package, run_single_threaded=True, device_index=index)
        # Its weights lie outside PyTorch's allocator.
        super().__init__(lambda: loaded(given), given.device, captured=False, counted=False)

    def save(self, path: str) -> None:
        """Run once and write the output as float32."""
        np.save(path, self.output().numpy())


def main(arguments: list[str]) -> None:
    """Load, answer, and do what is asked until there is nothing more."""
    package, given, where, math, threads = arguments
    say = worker.channel()
    torch.set_num_threads(int(threads))
    device = torch.device(where)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with torch.no_grad(), modes.math(math), modes.searching(device.type == "cuda"):
        tensor = torch.load(given, map_location=device, weights_only=True)
        started_s = time.perf_counter()
        loaded = Package(package, tensor)
        say(load_s=time.perf_counter() - started_s, version=torch.__version__, has_torch=True)
        worker.serve(loaded, say)


if __name__ == "__main__":
    main(sys.argv[1:])
