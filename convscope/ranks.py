"""The processes that train together: one a GPU under torchrun (gloo on CPUs), or this one alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; `local` numbers those of one host."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_first(self) -> bool:
        """The first process writes and prints, for all."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return what each process says, in order; all must call it."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, value)
        return found

    def wrapped(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Return the model such that its gradients are the mean over all processes."""
        if self.world == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def from_environment() -> Ranks:
    """Return this process's place as torchrun says it; alone without torchrun."""
    rank, world, local = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Ranks(rank, max(world, 1), local)


@contextlib.contextmanager
def joined(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Meet the other processes for the length of the block; alone, nothing is to be done."""
    if ranks.world == 1:
        yield
        return
    on_gpu = device.type == "cuda"
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT, device_id=device if on_gpu else None)
    try:
        yield
    finally:
        distributed.destroy_process_group()
