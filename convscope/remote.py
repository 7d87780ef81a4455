"""An engine in a process of its own: what it crashes of is a row, and what it must not import is not there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_ROOT = Path(__file__).parents[1]


class WorkerError(RuntimeError):
    """The process that runs an engine ended; the message is the last that it said."""


class Remote:
    """A model in a process of its own (`worker`).

    Attributes:
        load_s: seconds that it took there to load the model and to run it once.
        version: of the library that runs it.
        has_torch: PyTorch was imported there.
    """

    def __init__(self, engine: str, module: str, arguments: Sequence[str], folder: Path, timing_method: str) -> None:
        """Start the process and wait until the model is loaded.

        Args:
            engine: what messages call it.
            module: of this package, run with the arguments.
            folder: for the output and the errors.

        Raises:
            WorkerError: the model could not be loaded or run.
        """
        self.timing_method = timing_method
        self._engine, self._output, self._errors = engine, folder / "output.npy", folder / "errors.txt"
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"convscope.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        try:
            ready = self._answer()
        except WorkerError:
            self.close()
            raise
        self.load_s, self.version = float(ready["load_s"]), str(ready["version"])
        self.has_torch = bool(ready["has_torch"])

    def _ask(self, **what: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, or its lack, says why
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self._engine}: {self._last_word()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_word(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        said = self._errors.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else "the process ended without a word"

    def output(self) -> torch.Tensor:
        """Run once there, and fetch the output."""
        self._ask(save=str(self._output))
        return torch.from_numpy(np.load(self._output).astype(np.float32))

    def latencies_ms(self, count: int) -> list[float]:
        """Time so many calls there."""
        return [float(time_ms) for time_ms in self._ask(latencies=count)["latencies_ms"]]

    def window(self, seconds: float) -> tuple[int, float]:
        """Call again and again there."""
        answer = self._ask(window_s=seconds)
        return int(answer["calls"]), float(answer["seconds"])

    def call(self) -> None:
        """Run once there, and wait for the word that it is done."""
        self._ask()

    def peak_memory_bytes(self) -> None:
        """Nobody counts."""

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
