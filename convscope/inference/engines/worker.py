"""The far end of `remote.Remote`: a process that has a model, and does what is asked of it. Imports no PyTorch.

One line of JSON is said once the model is loaded, then one to each command on the standard input. The standard output
belongs to these lines alone: what a library prints goes to the standard error.
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
        """Time so many calls, each alone."""

    def window(self, seconds: float) -> tuple[int, float]:
        """Call again and again for about so long; return the calls and the seconds."""

    def call(self) -> None:
        """Run once and wait for the result."""

    def peak_memory_bytes(self) -> int | None:
        """Return the most that it held on the GPU, None where nobody counts."""

    def save(self, path: str) -> None:
        """Run once and write the output as a NumPy file, in the data type of the engine or wider."""


def channel() -> Say:
    """Take the standard output for the answers; where native code crashes, the standard error says in which call."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**what: object) -> None:
        answers.write(json.dumps(what) + "\n")

    return say


def serve(work: Work, say: Say) -> None:
    """Do what is asked until there is nothing more."""
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if "latencies" in asked:
            say(latencies_ms=work.latencies_ms(asked["latencies"]))
        elif "window_s" in asked:
            calls, seconds = work.window(asked["window_s"])
            say(calls=calls, seconds=seconds)
        elif "peak" in asked:
            say(peak_memory_bytes=work.peak_memory_bytes())
        elif "save" in asked:
            work.save(asked["save"])
            say()
        elif "call" in asked:
            work.call()
            say()
        else:
            raise ValueError(f"nothing is known of {line!r}")
