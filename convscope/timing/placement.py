"""Placement of a pass in a GPU's memory: weights, buffers and input moved, so that one place does not decide a time.

The same kernels take some percent longer in one place than in another (docs/timing.md). A figure therefore rests on
several placements, and its interval covers the spread between them. Convolutions that make no network are not to find
in the second-level cache what their replay before left there: it is evicted.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from convscope.timing import graphs
from convscope.timing.layer_times import InstrumentedPass, LayerTimer, LayerTimes, instrumented

PLACEMENTS = 5  # of a pass; with three, Student's t makes the interval 1.9 times as wide at the same spread
_BLOCKS = 24
_BLOCK_BYTES_MOST = 32 * 2**20
_SHARE = 0.5  # of the free memory, for a pass in all placements at the same time
_PROCESSES = 2  # that have it: the one that times it and the one that traces it
L2_MULTIPLE = 2.0  # of the second-level cache: so much data leaves nothing in it of what was there before


def evicting_bytes(device: torch.device) -> float:
    """Return how much data leaves nothing else in a GPU's second-level cache."""
    return L2_MULTIPLE * float(torch.cuda.get_device_properties(device).L2_cache_size)


class Eviction:
    """Evicts what a replay left in a GPU's second-level cache, when called before the next one.

    In a network a layer finds in the cache what the layers before it left there. Convolutions beside each other would
    find their own data of the replay before, if there are few enough of them.

    Attributes:
        nbytes: the memory that it takes; 0 where nothing is to be evicted (`is_asked`).
    """

    def __init__(self, device: torch.device, is_asked: bool) -> None:
        self.nbytes = 0
        if is_asked:
            self._filler = torch.zeros(math.ceil(evicting_bytes(device) / 4), device=device)
            self._sum = torch.zeros((), device=device)
            self.nbytes = self._filler.nbytes

    def __call__(self) -> None:
        """Enqueue it: other data are read, not written, which would leave them to be written back meanwhile."""
        if self.nbytes:
            torch.sum(self._filler, dim=0, out=self._sum)


def fits_in_all(device: torch.device) -> bool:
    """Tell whether a pass that has just run fits well in all placements at the same time, by the peak of its memory."""
    free_bytes, _ = torch.cuda.mem_get_info(device)
    each_bytes = torch.cuda.max_memory_allocated(device) + _BLOCKS * _BLOCK_BYTES_MOST // 2
    return _PROCESSES * PLACEMENTS * each_bytes < _SHARE * free_bytes


@contextlib.contextmanager
def moved(model: nn.Module, inputs: tuple[torch.Tensor, ...], index: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Move a model's weights and buffers for the length of the block, and yield its inputs, moved too.

    What is captured inside lies elsewhere too: free memory is broken up first, and of some blocks of random sizes a
    random half is kept until the end. Then the model is back where it was.

    Args:
        index: number of the placement; 0 leaves everything where it is, as does a model on a CPU.

    Raises:
        torch.OutOfMemoryError: no room for a second copy of the weights, or for the blocks (at most 0.8 GB).
    """
    if index == 0 or not inputs[0].is_cuda:
        yield inputs
        return
    drawn = random.Random(index)
    sizes = [drawn.randrange(1, _BLOCK_BYTES_MOST) for _ in range(_BLOCKS)]
    blocks = [torch.empty(size, dtype=torch.uint8, device=inputs[0].device) for size in sizes]
    held = drawn.sample(blocks, _BLOCKS // 2)
    del blocks
    torch.cuda.empty_cache()
    homes = [(tensor, tensor.data) for tensor in itertools.chain(model.parameters(), model.buffers())]
    try:
        for tensor, home in homes:
            tensor.data = home.clone()
        yield tuple(given.clone() for given in inputs)
    finally:
        for tensor, home in homes:
            tensor.data = home
        held.clear()


@dataclass(frozen=True)
class PlacedPasses:
    """A pass captured in every placement, the first where it lay; `peak_bytes` is the memory that this one took."""

    passes: list[InstrumentedPass]
    peak_bytes: int

    def times(self, samples: int, warmup: int) -> list[LayerTimes]:
        """Time the pass and its layers in each placement; the clocks settle once, for the GPU then never waits."""
        graphs.settle(self.passes[0].plain)
        return [each.times(samples, warmup) for each in self.passes]

    def load(self) -> graphs.ReplayLoad:
        """Return the steady load of the pass in the last placement, of a GPU that is warm."""
        return graphs.ReplayLoad.of(self.passes[-1].plain)


@contextlib.contextmanager
def captured_in_all(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], timer: LayerTimer, become_quiet: Callable[[], object],
    before: Callable[[], object] = graphs.nothing,
) -> Iterator[PlacedPasses]:  # fmt: skip
    """Capture a pass in every placement, and keep all of them for the length of the block.

    Args:
        become_quiet: called before the last capture; from then on no other process may work on the GPU. What one does
            there makes graphs faster that were captured before, until this process captures again (docs/timing.md).
        before: as an `InstrumentedPass` has it.

    Raises:
        NotCapturableError: as `graphs.capture` does.
        torch.OutOfMemoryError: they do not fit into the memory at the same time.
    """
    passes: list[InstrumentedPass] = []
    peak_bytes = 0
    with contextlib.ExitStack() as held:
        for index in range(PLACEMENTS):
            if index == PLACEMENTS - 1:
                become_quiet()
            step = partial(model, *held.enter_context(moved(model, inputs, index)))
            plain = held.enter_context(graphs.capture(step))
            passes.append(held.enter_context(instrumented(plain, step, timer, before)))
            peak_bytes = peak_bytes or torch.cuda.max_memory_allocated()
        yield PlacedPasses(passes, peak_bytes)
