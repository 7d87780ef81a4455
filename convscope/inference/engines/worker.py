"""Protocol of a worker process, the other end of `runners.RemoteRunner`; imports no PyTorch.

The process writes one line of JSON once its model is loaded, then one for each command on the standard input: the
number of a model (there may be one for each batch size), the name of a method of `Work` and its arguments. The standard
output carries these lines alone: the prints of libraries go to the standard error.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from convscope.inference.serving import mlperf
from convscope.inference.serving.mlperf import Endpoint, Load

Say = Callable[..., None]


class Timed(Protocol):
    """Methods of a model with its input, in this process or in another."""

    def latencies_ms(self, count: int) -> list[float]:
        """Time a number of calls, each alone."""

    def window(self, seconds: float) -> tuple[int, float]:
        """Call repeatedly for about this long, without waiting in between; return the calls and the seconds."""

    def call(self) -> None:
        """Run once and wait for the result."""

    def copy_images(self) -> None:
        """Have each call copy its images from host memory, and its output there."""

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of the engine's memory on the GPU since it was built, None where it is not counted."""


class Work(Timed, Protocol):
    """A loaded model with its input."""

    def answer(self, images: str, output: str) -> None:
        """Put the images of a NumPy file (float32) in the input's place, run once, and write the output as another.

        The output is in the data type of the engine or wider.
        """


def channel() -> Say:
    """Reserve the standard output for answers; where native code crashes, the standard error names the call."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")

    return say


def serve(works: Sequence[Work], say: Say, endpoint: Callable[[str], Endpoint]) -> None:
    """Serve commands until the standard input ends: those of `Work` by the model they name, `load` by all of them.

    Args:
        endpoint: returns the models as an endpoint that is fed with the images of a NumPy file, "" for none.
    """
    made = functools.cache(endpoint)
    for line in sys.stdin:
        command = json.loads(line)
        work = works[command.pop("model")]
        ((name, arguments),) = command.items()
        if name == "load":
            load, library = arguments
            say(value=dataclasses.asdict(mlperf.run(Load(**load), made(library))))
        elif hasattr(Work, name):
            say(value=getattr(work, name)(*arguments))
        else:
            raise ValueError(f"nothing is known of {line!r}")
