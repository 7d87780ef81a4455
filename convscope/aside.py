"""A thread in which something runs from beginning to end, on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class Aside:
    """Runs work in a thread of its own, and so with cuDNN plans of its own.

    PyTorch keeps the plans that a thread has once chosen for as long as it lives, whoever chose them. Work runs without
    gradients, with the device as the current one. Leave its `with` block, or close it, to end it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._thread = device, ThreadPoolExecutor(max_workers=1)

    def run(self, work: Callable[[], T]) -> T:
        """Run work there and return, or raise, what it does."""
        return self._thread.submit(self._with_device, work).result()

    def _with_device(self, work: Callable[[], T]) -> T:
        on_gpu = self._device.type == "cuda"
        with torch.no_grad(), torch.cuda.device(self._device) if on_gpu else contextlib.nullcontext():
            return work()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
