"""Ways to run one engine's model that no rule decides between: each is set up and timed, the fastest is kept.

cuDNN's heuristic against PyTorch's search, which times a kernel of some microseconds by one launch from an idle host;
the few channels of an image padded to what matrix units read at once, or not; 1×1 convolutions as matrix products, or
not. Which is faster depends on the batch and the card.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from convscope import failures
from convscope.convolution import backends
from convscope.convolution.backends import PlanThread
from convscope.inference.engines.runners import LocalRunner

T = TypeVar("T")
_WARMUP, _SAMPLES = 10, 30


@dataclass(frozen=True)
class Variant:
    """One way.

    Attributes:
        channels: images have their channels padded with zeros to so many, 0 for not.
        products: 1×1 convolutions with stride 1 and a ReLU are products of matrices.
        searched: plans are those that PyTorch's search found, else those of cuDNN's heuristic.
    """

    channels: int = 0
    products: bool = False
    searched: bool = False

    def __str__(self) -> str:
        parts = ["plans searched" if self.searched else "plans by heuristic"]
        if self.channels:
            parts.append(f"images padded to {self.channels} channels")
        if self.products:
            parts.append("1x1 as matrix products")
        return ", ".join(parts)


FUSED_STEPS: tuple[Mapping[str, int], ...] = ({"channels": 4}, {"channels": 8}, {"products": True}, {"searched": True})
GRAPH_STEPS: tuple[Mapping[str, int], ...] = ({"searched": True},)


def fastest(
    make: Callable[[Variant], LocalRunner], device: torch.device, steps: Sequence[Mapping[str, int]]
) -> tuple[LocalRunner, Variant, int]:
    """Try the plain way, then step by step each change to the best so far.

    Each way has a thread of its own, and with it its own plans; they live as long as what is returned.

    Args:
        make: sets the engine up in the current thread.
        steps: changes of fields of `Way`.

    Returns:
        the fastest, set up; its way; how many ways could be timed.

    Raises:
        RuntimeError: that of the first way, where none works.
    """
    trials: list[_Trial] = []
    errors: list[RuntimeError] = []
    with contextlib.ExitStack() as threads:
        for step in ({}, *steps):
            way = dataclasses.replace(_best(trials).way if trials else Variant(), **step)  # type: ignore[arg-type]
            trial = _Trial(way, threads.enter_context(PlanThread(device)))
            try:
                trial.time_ms = trial.run(lambda way=way: _time_ms(make(way)))  # type: ignore[misc]
                trials.append(trial)
            except RuntimeError as refused:
                if failures.classify(refused) is None:
                    raise
                errors.append(refused.with_traceback(None))  # which would keep the model alive
        if not trials:
            raise errors[0]
        best = _best(trials)
        gc.collect()  # models are cycles: what the others held must not count
        held_bytes = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        runner = best.run(lambda: make(best.way))
        runner.held_before_bytes = held_bytes
        runner.when_closed(threads.pop_all().close)
    return runner, best.way, len(trials)


@dataclass
class _Trial:
    way: Variant
    aside: PlanThread
    time_ms: float = math.inf

    def run(self, work: Callable[[], T]) -> T:
        with backends.searching(self.way.searched, every=True):
            return self.aside.run(work)


def _best(trials: Sequence[_Trial]) -> _Trial:
    return min(trials, key=lambda trial: trial.time_ms)


def _time_ms(runner: LocalRunner) -> float:
    with contextlib.closing(runner):
        runner.latencies_ms(_WARMUP)
        return statistics.median(runner.latencies_ms(_SAMPLES))
