"""Placement of a pass in a GPU's memory: weights, buffers and input moved, so that one place does not decide a time.

The same kernels take some percent longer in one place than in another (docs/timing.md). A figure therefore rests on
several placements, and its interval covers the spread between them.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import torch
from torch import nn

PLACEMENTS = 5  # of a pass; with three, Student's t makes the interval 1.9 times as wide at the same spread
_BLOCKS = 24
_BLOCK_BYTES_MOST = 32 * 2**20


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
