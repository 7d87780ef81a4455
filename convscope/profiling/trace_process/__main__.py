"""`python -m convscope.profiling.trace_process`, started by `tracing.TraceProcess`; the two talk over a pipe."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from convscope.profiling.request import Run
from convscope.profiling.trace_process.model import TracedModel
from convscope.profiling.tracing import PREPARE
from convscope.timing import placement


def main(descriptor: str) -> None:
    """Serve the process that started this one until its end of the pipe is closed."""
    pipe = Connection(int(descriptor))
    model: TracedModel | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            number, (first, *more) = pipe.recv()
            if isinstance(first, Run):
                wanted, source = more
                placements = range(placement.PLACEMENTS) if wanted is None else wanted
                reason = None
                if model is None or not model.goes_over_to(first, placements, source):
                    model = None  # it makes room for the next
                    model, reason = _begin(first, placements, source)
                pipe.send((number, reason))
            elif model and first == PREPARE:
                model.prepare(*more)
                pipe.send((number, None))
            elif model:
                pipe.send((number, model.trace(first, *more)))


def _begin(run: Run, placements: Sequence[int], source: bytes | None) -> tuple[TracedModel | None, str | None]:
    gc.unfreeze()
    gc.collect()  # models hold themselves in cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    try:
        model = TracedModel(run, placements, source)
    except Exception as error:  # whatever it takes to build a model
        return None, f"the process that traces cannot begin: {(str(error).splitlines() or [type(error).__name__])[0]}"
    gc.freeze()  # a full collection takes 0.2 s, in the middle of a trace
    return model, None


if __name__ == "__main__":
    main(sys.argv[1])
