"""An engine in a process of its own: what it crashes of is a row, and what it must not import is not there."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_ROOT = Path(__file__).parents[1]
_PATIENCE_S = 20.0  # for a process to end that nothing more is asked of


class WorkerError(RuntimeError):
    """The process that runs an engine ended; the message is the last that it said."""


class Remote:
    """A model in a process of its own (`worker`).

    What is asked of it raises `WorkerError` where the process ends over it.

    Attributes:
        timing_method: how it times a call.
        load_s: seconds that it took there to load the model and to run it once.
        version: of the library that runs it.
        has_torch: PyTorch was imported there.
        ready: all that it said when it was ready.
    """

    def __init__(self, engine: str, command: Sequence[str], folder: Path, timing_method: str) -> None:
        """Start the process and wait until the model is loaded.

        Args:
            engine: what messages call it.
            command: the program and its arguments.
            folder: for the output and the errors.
            timing_method: how it times a call, in words.

        Raises:
            WorkerError: the model could not be loaded or run.
        """
        self.timing_method = timing_method
        self._engine, self._output, self._errors = engine, folder / "output.npy", folder / "errors.txt"
        if torch.cuda.is_initialized():  # what this process no longer uses is the other's
            gc.collect()
            torch.cuda.empty_cache()
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        try:
            self.ready = self._answer()
            self.load_s, self.version = float(self.ready["load_s"]), str(self.ready["version"])
            self.has_torch = bool(self.ready["has_torch"])
        except BaseException:
            self.close()
            raise

    def _ask(self, **what: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, or its lack, says why
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):  # nothing, or what it had written of a line when it ended
            raise WorkerError(f"{self._engine}: {self._last_word()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(f"{self._engine}: its process said {line.strip()!r}") from None
        return answer

    def _last_word(self) -> str:
        code = self._ended()
        said = self._errors.read_text(errors="replace").strip()
        if code < 0:
            return f"its process was ended by {_signal(-code)}{_where(said)}"
        return said.splitlines()[-1] if said else "the process ended without a word"

    def _ended(self) -> int:
        """Wait for the process to end, and end it where it does not."""
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def output(self) -> torch.Tensor:
        """Run once there, and fetch the output."""
        self._ask(save=str(self._output))
        return torch.from_numpy(np.load(self._output).astype(np.float32))

    def latencies_ms(self, count: int) -> list[float]:
        """Time so many calls there."""
        return [float(time_ms) for time_ms in self._ask(latencies=count)["latencies_ms"]]

    def window(self, seconds: float) -> tuple[int, float]:
        """Call again and again there; return the calls and the seconds."""
        answer = self._ask(window_s=seconds)
        return int(answer["calls"]), float(answer["seconds"])

    def call(self) -> None:
        """Run once there, and wait for the word that it is done."""
        self._ask(call=True)

    def peak_memory_bytes(self) -> int | None:
        """Ask what it held there at most."""
        peak_bytes: int | None = self._ask(peak=True)["peak_memory_bytes"]
        return peak_bytes

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._ended()
        self._process.stdout.close()


def module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this package."""
    return [sys.executable, "-m", f"convscope.{name}", *map(str, arguments)]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals have no names
        return f"signal {number}"


def _where(said: str) -> str:
    """Return the innermost call of Python that `faulthandler` named."""
    found = re.search(r'Current thread .*\n  File "(.*)", line (\d+) in (\S+)', said)
    return f" in {found[3]} ({Path(found[1]).name}:{found[2]})" if found else ""
