"""Worker process that runs an ONNX model with ONNX Runtime and NumPy: PyTorch is never imported here.

`python -m convscope.inference.engines.onnx_worker MODEL INPUT PROVIDER THREADS MATH`, started by `runners.RemoteRunner`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from convscope.inference.engines import worker


def options_of(provider: str, math: str) -> dict[str, str]:
    """Return the options of an execution provider: CUDA's takes TF32 for float32 unless it is forbidden."""
    return {"use_tf32": str(int(math == "tf32"))} if provider == "CUDAExecutionProvider" else {}


class Session:
    """A session of ONNX Runtime and its input: from NumPy array to NumPy array."""

    def __init__(self, model: str, given: str, provider: str, threads: str, math: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        self._session = onnxruntime.InferenceSession(model, options, providers=[(provider, options_of(provider, math))])
        self._input = self._session.get_inputs()[0].name
        self._feed = {self._input: np.load(given)}
        self.version = onnxruntime.__version__

    def latencies_ms(self, count: int) -> list[float]:
        """Time a number of calls, each alone."""
        return [self._timed_s() * 1e3 for _ in range(count)]

    def window(self, seconds: float) -> tuple[int, float]:
        """Call repeatedly for about this long; return the calls and the seconds."""
        calls, started_s = 0, time.perf_counter()
        while (passed_s := time.perf_counter() - started_s) < seconds or not calls:
            self.call()
            calls += 1
        return calls, passed_s

    def call(self) -> None:
        """Run once."""
        self._output()

    def peak_memory_bytes(self) -> None:
        """Return None: nothing counts it."""

    def answer(self, images: str, output: str) -> None:
        """Run once on the images of a file, in the input's data type, and write the output."""
        self._feed = {self._input: np.load(images).astype(self._feed[self._input].dtype)}
        np.save(output, self._output())

    def _output(self) -> Any:
        return self._session.run(None, self._feed)[0]

    def _timed_s(self) -> float:
        started_s = time.perf_counter()
        self.call()
        return time.perf_counter() - started_s


def main(arguments: list[str]) -> None:
    """Load the model, answer, and serve commands until the input ends."""
    say = worker.channel()
    started_s = time.perf_counter()
    session = Session(*arguments)
    session.call()
    load_s = time.perf_counter() - started_s
    say(load_s=load_s, version=session.version, has_torch="torch" in sys.modules)
    worker.serve(session, say)


if __name__ == "__main__":
    main(sys.argv[1:])
