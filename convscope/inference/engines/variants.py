"""Execution variants of one engine; each is built and timed, the fastest is kept.

cuDNN's heuristic against PyTorch's search, which times a kernel of some microseconds by one launch from an idle host;
images padded to as many channels as matrix units read at once, or not; 1×1 convolutions as matrix products, or not;
pooling, depthwise convolutions, activations, means, layer normalisation, first layers, and each convolution or product,
by the libraries or by kernels of this project; branches one after another or side by side.
The fastest depends on the batch and the card: no rule decides.
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
    """One execution variant.

    Attributes:
        channels: number of channels that images are padded to with zeros, 0 for no padding.
        products: 1×1 convolutions with stride 1 and a ReLU are products of matrices.
        pools: maxima of windows are taken by this project's kernel.
        tails: depthwise convolutions, and activations and additions with the bias before them, are this project's
            kernels.
        heads: means of all pixels are this project's kernel.
        rows: layer normalisation, what follows fully connected layers, and these for few rows, are this project's.
        first: convolutions of few channels are this project's kernel.
        pooled: max pooling behind such a convolution is part of that kernel.
        own: each other convolution is this project's kernel, or a plan of cuDNN, where that is faster.
        joined: pairs of 1×1 convolutions, the end of a block and the begin of the next, are one kernel where faster.
        branches: branches that meet again run side by side, on streams of their own.
        searched: plans are chosen by PyTorch's search, else by cuDNN's heuristic.
    """

    channels: int = 0
    products: bool = False
    pools: bool = False
    tails: bool = False
    heads: bool = False
    rows: bool = False
    first: bool = False
    pooled: bool = False
    own: bool = False
    joined: bool = False
    branches: bool = False
    searched: bool = False

    def __str__(self) -> str:
        parts = ["plans searched" if self.searched else "plans by heuristic"]
        parts += [f"images padded to {self.channels} channels"] if self.channels else []
        return ", ".join([*parts, *(words for name, words in _WORDS.items() if getattr(self, name))])


_WORDS = {
    "products": "1x1 as matrix products",
    "pools": "max pooling by Triton",
    "tails": "depthwise and activations by Triton",
    "heads": "means by Triton",
    "rows": "rows by Triton",
    "first": "first layer by Triton",
    "pooled": "max pooling in the first layer",
    "own": "convolutions by Triton where faster",
    "joined": "pairs of 1x1 convolutions in one kernel where faster",
    "branches": "branches side by side",
}

FUSED_STEPS: tuple[Mapping[str, int], ...] = (
    {"channels": 4},
    {"channels": 8},
    {"products": True},
    {"searched": True},
    {"pools": True},
    {"tails": True},
    {"heads": True},
    {"rows": True},
    {"first": True, "channels": 0},
    {"first": True, "pooled": True, "channels": 0},
    {"own": True},
    {"joined": True},
    {"branches": True},
)
IN_16_BITS = ("first", "pooled", "own", "joined")
CHANNELS_LAST = (*IN_16_BITS, "pools", "tails", "heads")
"""Changes that are kernels for such a data type, or such a layout."""
EIGHT_BIT_STEPS: tuple[Mapping[str, int], ...] = (
    {"searched": True},
    {"pools": True},
    {"heads": True},
    {"first": True},
    {"first": True, "pooled": True},
    {"branches": True},
)
GRAPH_STEPS: tuple[Mapping[str, int], ...] = ({"searched": True},)


def fastest(
    build: Callable[[Variant], LocalRunner], device: torch.device, steps: Sequence[Mapping[str, int]]
) -> tuple[LocalRunner, Variant, list[float]]:
    """Time the plain variant, then step by step each change to the best so far, and keep the fastest.

    Each variant is built in its own thread, and has its own plans with it; they live as long as the returned runner.

    Returns:
        the runner of the fastest variant, the variant, and the times in ms of all that could be timed, rising.

    Raises:
        Exception: that of the first variant, where none works.
    """
    trials: list[_Trial] = []
    errors: list[Exception] = []
    with contextlib.ExitStack() as threads:
        for step in ({}, *steps):
            plain = trials[0].variant if trials else Variant()
            variant = dataclasses.replace(plain, **step)  # type: ignore[arg-type]
            trial = _Trial(variant, threads.enter_context(PlanThread(device)))
            try:
                trial.time_ms = trial.run(lambda variant=variant: _time_ms(build(variant)))  # type: ignore[misc]
                trials = sorted([*trials, trial], key=lambda each: each.time_ms)
            except Exception as error:
                if failures.classify(error) is None:
                    raise
                errors.append(error.with_traceback(None))  # which would keep the model alive
        if not trials:
            raise errors[0]
        best = trials[0]
        gc.collect()  # models are reference cycles: the memory of the others must not count
        held_bytes = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        runner = best.run(lambda: build(best.variant))
        runner.held_before_bytes = held_bytes
        runner.when_closed(threads.pop_all().close)
    return runner, best.variant, [trial.time_ms for trial in trials]


def fastest_of(builds: Mapping[str, Callable[[], LocalRunner]]) -> tuple[LocalRunner, str, int]:
    """Build and time an engine in each of some ways in the calling thread, and build the fastest again.

    Returns:
        the runner, the name of its way, and the number of ways that could be timed.

    Raises:
        Exception: that of the first way, where none works.
    """
    times_ms: dict[str, float] = {}
    errors: list[Exception] = []
    for name, build in builds.items():
        try:
            times_ms[name] = _time_ms(build())
        except Exception as error:
            if failures.classify(error) is None:
                raise
            errors.append(error.with_traceback(None))
        gc.collect()  # two are never in memory at once
    if not times_ms:
        raise errors[0]
    best = min(times_ms, key=times_ms.__getitem__)
    return builds[best](), best, len(times_ms)


@dataclass
class _Trial:
    variant: Variant
    thread: PlanThread
    time_ms: float = math.inf

    def run(self, work: Callable[[], T]) -> T:
        with backends.searching(self.variant.searched, every=True):
            return self.thread.run(work)


def _time_ms(runner: LocalRunner) -> float:
    with contextlib.closing(runner):
        runner.latencies_ms(_WARMUP)
        return statistics.median(runner.latencies_ms(_SAMPLES))
