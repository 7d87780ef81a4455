"""The processes that measure together: one a GPU, under torchrun or by `launch` (gloo on CPUs), or this one alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(minutes=5)
_LOOK_S = 0.05
_ENDED_WELL = (0, 1)  # of a command of this project: everything measured, or some rows with a reason


@dataclass(frozen=True)
class Ranks:
    """This process among those that work together; `local` numbers those of one host."""

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


def launch(command: Sequence[str], count: int, stop: Callable[[], bool]) -> int:
    """Run a command in so many processes of this machine that find each other; return the largest exit code.

    Where one ends badly the others, which would wait for it, are ended too; so are all where `stop` says True.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    running = [
        subprocess.Popen(command, env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    try:
        while any(process.poll() is None for process in running):
            if stop() or any(process.returncode not in (None, *_ENDED_WELL) for process in running):
                break
            time.sleep(_LOOK_S)
        codes = [abs(process.returncode) for process in running if process.returncode is not None]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return max(codes, default=0)


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
