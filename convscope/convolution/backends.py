"""Settings of convolutions for the length of a block: library, layout, TF32, the search for plans; worker threads."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from convscope.cudnn import legacy, library
from convscope.errors import InputError
from convscope.storage import environment
from convscope.storage.environment import Environment

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # by the number of spatial extents


def memory_format(layout: str, extents: int) -> torch.memory_format:
    """Return how PyTorch lays out N × C × spatial tensors of so many spatial extents in a layout, "nchw" or "nhwc"."""
    return _CHANNELS_LAST[extents] if layout == "nhwc" else torch.contiguous_format


def laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor N × C × spatial with the strides of a layout; a copy, unless it has them.

    With one channel both layouts are the same memory, and PyTorch goes by the strides alone which of the two is meant.
    """
    strides = tuple(legacy.strides(tensor.shape, layout))
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@dataclass(frozen=True)
class Settings:
    """Settings of convolutions by algorithm.

    Attributes:
        provider: the library that runs algorithms which more than one has; None takes the first that can.
        layout: "nchw" or "nhwc", in which convolutions are computed; inputs that lie otherwise are copied.
        max_workspace_bytes: block shapes of Triton kernels that need more are left out; None leaves out none. (Whether
            a library's workspace is larger is asked before a run: `operator.CudaOperator.why_refused`.)
    """

    provider: str | None = None
    layout: str = "nchw"
    max_workspace_bytes: int | None = None


_SETTINGS = contextvars.ContextVar("convolution settings", default=Settings())  # noqa: B039 - it is frozen


def settings_in_force() -> Settings:
    """Return the settings of the current context."""
    return _SETTINGS.get()


@contextlib.contextmanager
def settings(
    provider: str | None = None, layout: str | None = None, max_workspace_bytes: int | None = None
) -> Iterator[None]:
    """Change the settings given for the length of the block; None leaves one as it is."""
    before = _SETTINGS.get()
    most = before.max_workspace_bytes if max_workspace_bytes is None else max_workspace_bytes
    _SETTINGS.set(Settings(provider or before.provider, layout or before.layout, most))
    try:
        yield
    finally:
        _SETTINGS.set(before)


def math_in_force() -> str:
    """Return "tf32" or "fp32": the arithmetic permitted to PyTorch's convolutions, and to all others here."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"


@contextlib.contextmanager
def math(mode: str, products: bool = False) -> Iterator[None]:
    """Permit ("tf32") or forbid ("fp32") TF32 in convolutions, PyTorch's and these, for the length of the block.

    Matrix products outside convolutions are forbidden TF32 in "fp32".

    Args:
        products: permit it to them in "tf32"; else they keep PyTorch's default.
    """
    permitted, product = mode == "tf32", torch.backends.cuda.matmul
    changed = switched(product, allow_tf32=permitted and (products or product.allow_tf32))
    with switched(torch.backends.cudnn, allow_tf32=permitted), changed:
        yield


@contextlib.contextmanager
def engine_process(device: torch.device, mode: str, threads: int) -> Iterator[None]:
    """Set up a process that runs one engine: device, threads, TF32 or not, and on a GPU the search among all plans."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with torch.no_grad(), math(mode, products=True), searching(device.type == "cuda", every=True):
        yield


@contextlib.contextmanager
def searching(search: bool = True, every: bool = False) -> Iterator[None]:
    """Have PyTorch time cuDNN's plans for each new shape and keep the fastest (`cudnn.benchmark`), or not.

    PyTorch keeps the plans that a thread has chosen for as long as the thread lives, however they were chosen.

    Args:
        every: time all plans, not only ten, which is PyTorch's default.
    """
    chosen = torch.backends.cudnn
    with switched(chosen, benchmark=search, benchmark_limit=0 if every else chosen.benchmark_limit):
        yield


@contextlib.contextmanager
def switched(switches: Any, **values: object) -> Iterator[None]:
    """Set attributes of an object (PyTorch's global switches) for the length of the block."""
    before = {name: getattr(switches, name) for name in values}
    try:
        for name, value in values.items():
            setattr(switches, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(switches, name, value)


T = TypeVar("T")


class PlanThread(contextlib.ExitStack):
    """Worker thread with its own cuDNN plan cache.

    PyTorch keeps the plans that a thread has chosen for as long as it lives. Work runs without gradients, with the
    device as the current one, in a copy of the caller's context: its settings and recordings hold there too. Leave the
    `with` block, or close it, to end the thread.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self._thread = device, self.enter_context(ThreadPoolExecutor(max_workers=1))

    def run(self, work: Callable[[], T]) -> T:
        """Run work in the thread and return its result, or raise its error."""
        return self._thread.submit(contextvars.copy_context().run, self._with_device, work).result()

    def _with_device(self, work: Callable[[], T]) -> T:
        on_gpu = self._device.type == "cuda"
        with torch.no_grad(), torch.cuda.device(self._device) if on_gpu else contextlib.nullcontext():
            return work()


def check_cudnn() -> None:
    """Check that this project and PyTorch run the same cuDNN; InputError where they do not."""
    try:
        number = torch.backends.cudnn.version()
    except RuntimeError as error:  # PyTorch's own comparison, of what it was built with and what it found
        raise InputError(str(error).splitlines()[0]) from None
    library.check_same_as(number)


def environment_on(device: torch.device, card: Mapping[str, object]) -> Environment:
    """Return the environment of a run on this device, cuDNN's version included.

    Args:
        card: the settings of the card, by the meter (`Meter.settings`).

    Raises:
        InputError: on a GPU, where PyTorch runs another cuDNN (`check_cudnn`).
    """
    if device.type == "cuda":
        check_cudnn()
    return environment.read(device, {**card, "cudnn": library.version()} if device.type == "cuda" else {})
