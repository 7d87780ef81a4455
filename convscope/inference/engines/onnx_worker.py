"""Worker process that runs an ONNX model with ONNX Runtime and NumPy: PyTorch is never imported here.

`python -m convscope.inference.engines.onnx_worker THREADS MODEL INPUT [MODEL INPUT…]`, by `runners.RemoteRunner`. It
computes on the CPU; on a GPU PyTorch's stream and tensors are used (`exported`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convscope.inference.engines import worker
from convscope.inference.serving import mlperf


class Session:
    """A session of ONNX Runtime and its input: from NumPy array to NumPy array."""

    def __init__(self, model: str, given: str, threads: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self.given = np.load(given)
        self.batch_size = len(self.given)
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
        self.outputs()

    def copy_images(self) -> None:
        """Do nothing: it always copies."""

    def peak_memory_bytes(self) -> None:
        """Return None: nothing counts it."""

    def answer(self, images: str, output: str) -> None:
        """Run once on the images of a file, in the input's data type, and write the output."""
        self.given[:] = np.load(images)
        np.save(output, self.outputs())

    def outputs(self) -> NDArray[Any]:
        """Run once and return the output."""
        found: NDArray[Any] = self._session.run(None, {self._input: self.given})[0]
        return found

    def _timed_s(self) -> float:
        started_s = time.perf_counter()
        self.call()
        return time.perf_counter() - started_s


class OnnxEndpoint:
    """Sessions by batch size, fed from images in memory."""

    sizes: Sequence[int]
    overlaps = False

    def __init__(self, sessions: Sequence[Session], library: str) -> None:
        self._sessions = {each.batch_size: each for each in sessions}
        self.sizes = sorted(self._sessions)
        self._images = np.load(library).astype(sessions[0].given.dtype) if library else None

    def begin(self, images: Sequence[int]) -> NDArray[Any]:
        """Run a batch and return its outputs."""
        session = self._sessions[mlperf.fitting(self.sizes, len(images))]
        if self._images is not None:
            np.take(self._images, images, axis=0, out=session.given[: len(images)], mode="clip")  # without a buffer
        return session.outputs()

    def is_done(self, begun: NDArray[Any]) -> bool:
        """Return True: `begin` waits."""
        return True

    def finish(self, begun: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs of `begin`, an image a row."""
        return begun.reshape(len(begun), -1)

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        """Return an image's output as numbers."""
        return row.astype(np.float32)


def main(arguments: list[str]) -> None:
    """Load the models, answer, and serve commands until the input ends."""
    threads, *files = arguments
    say = worker.channel()
    started_s = time.perf_counter()
    pairs = zip(files[::2], files[1::2], strict=True)
    sessions = [Session(model, given, threads) for model, given in pairs]
    for session in sessions:
        session.call()
    load_s = time.perf_counter() - started_s
    say(load_s=load_s, version=sessions[0].version, has_torch="torch" in sys.modules)
    worker.serve(sessions, say, lambda library: OnnxEndpoint(sessions, library))


if __name__ == "__main__":
    main(sys.argv[1:])
