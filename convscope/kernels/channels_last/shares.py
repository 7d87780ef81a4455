"""Sums that several programs share, added in the same kernel: each stores its part, the last one done adds all.

The order of the addition is fixed, so that results are the same every time. Which program is the last is told by a
count for each block, which is 0 before and after.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_up(total, stored, arrived, number, part, parts, element, SIZE: tl.constexpr):
    """Return the sum of all parts of a block, and whether this program has it; else its own part, and False.

    `number` is the block's, `element` the places of its SIZE elements.
    """
    is_last = parts == 1
    if parts > 1:
        own = stored + number * parts * SIZE + element
        tl.store(own + part * SIZE, total)
        tl.debug_barrier()  # the stores of all threads come before the count
        is_last = tl.atomic_add(arrived + number, 1, sem="acq_rel") == parts - 1
        if is_last:
            total = tl.zeros_like(total)
            for other in range(parts):
                total += tl.load(own + other * SIZE, cache_modifier=".cg")
            tl.store(arrived + number, 0)
    return total, is_last


class Shares:
    """Memory of `add_up` for one place of a model, whose runs must follow one another: they count in the same."""

    def __init__(self) -> None:
        self._arrived: dict[int, torch.Tensor] = {}  # by the number of blocks; graphs go on counting in it

    def memory(self, blocks: int, parts: int, elements: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return room for the parts of so many blocks of so many elements, and the count of each block."""
        if blocks not in self._arrived:
            self._arrived[blocks] = torch.zeros(blocks, dtype=torch.int32, device=device)
        stored = torch.empty(blocks * parts * elements if parts > 1 else 0, dtype=torch.float32, device=device)
        return stored, self._arrived[blocks]
