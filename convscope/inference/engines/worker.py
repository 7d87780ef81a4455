"""Protocol of a worker process, the other end of `runners.RemoteRunner`; imports no PyTorch.

The process writes one line of JSON once its model is loaded, then one for each command on the standard input. The
standard output carries these lines alone: the prints of libraries go to the standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Say = Callable[..., None]


class Work(Protocol):
    """A loaded model with its input."""

    def latencies_ms(self, count: int) -> list[float]:
        """Time a number of calls, each alone."""

    def window(self, seconds: float) -> tuple[int, float]:
        """Call repeatedly for about this long; return the calls and the seconds."""

    def call(self) -> None:
        """Run once and wait for the result."""

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of its memory on the GPU, None where it is not counted."""

    def save(self, path: str) -> None:
        """Run once and write the output as a NumPy file, in the data type of the engine or wider."""


def channel() -> Say:
    """Reserve the standard output for answers; where native code crashes, the standard error names the call."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")

    return say


def serve(work: Work, say: Say) -> None:
    """Serve commands until the standard input ends."""
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if "latencies" in command:
            say(latencies_ms=work.latencies_ms(command["latencies"]))
        elif "window_s" in command:
            calls, seconds = work.window(command["window_s"])
            say(calls=calls, seconds=seconds)
        elif "peak" in command:
            say(peak_memory_bytes=work.peak_memory_bytes())
        elif "save" in command:
            work.save(command["save"])
            say()
        elif "call" in command:
            work.call()
            say()
        else:
            raise ValueError(f"nothing is known of {line!r}")
