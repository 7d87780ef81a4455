"""Process-wide settings of convolutions, for the length of a block: TF32, the search for plans, the layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from convscope.cudnn import library
from convscope.storage import environment
from convscope.storage.environment import Environment

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
_layout = "nchw"


def layout_in_force() -> str:
    """Return "nchw" or "nhwc": the layout in which convolutions by algorithm are computed."""
    return _layout


@contextlib.contextmanager
def layout(name: str) -> Iterator[None]:
    """Compute convolutions by algorithm in this layout, "nchw" or "nhwc"; inputs that lie otherwise are copied."""
    global _layout
    before, _layout = _layout, name
    try:
        yield
    finally:
        _layout = before


def math_in_force() -> str:
    """Return "tf32" or "fp32": what PyTorch's own convolutions are permitted, and so what cuDNN is told here."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"


@contextlib.contextmanager
def math(mode: str) -> Iterator[None]:
    """Permit ("tf32") or forbid ("fp32") TF32 in convolutions, PyTorch's and these, for the length of the block.

    Matrix products outside convolutions keep PyTorch's default in "tf32" and are forbidden TF32 in "fp32".
    """
    convolution, product = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = mode == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = product and mode == "tf32"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolution, product


@contextlib.contextmanager
def engine_process(device: torch.device, mode: str, threads: int) -> Iterator[None]:
    """Set a process up that runs one engine: device, threads, TF32 or not, and on a GPU the search for plans."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with torch.no_grad(), math(mode), searching(device.type == "cuda"):
        yield


@contextlib.contextmanager
def searching(search: bool = True, every: bool = False) -> Iterator[None]:
    """Have PyTorch time cuDNN's plans for each new shape and keep the fastest (`cudnn.benchmark`), or not.

    PyTorch keeps the plans that a thread has once chosen for as long as the thread lives, however they were chosen.

    Args:
        every: time all plans, not the ten that PyTorch's default is.
    """
    chosen = torch.backends.cudnn
    before = chosen.benchmark, chosen.benchmark_limit
    chosen.benchmark = search
    if every:
        chosen.benchmark_limit = 0
    try:
        yield
    finally:
        chosen.benchmark, chosen.benchmark_limit = before


T = TypeVar("T")


class PlanThread:
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

    def __enter__(self) -> PlanThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment_on(device: torch.device, card: Mapping[str, object]) -> Environment:
    """Return the environment of a run on this device, cuDNN's version included.

    Args:
        card: what the meter knows of the card (`Meter.settings`).
    """
    return environment.read(device, {**card, "cudnn": library.version()} if device.type == "cuda" else {})
