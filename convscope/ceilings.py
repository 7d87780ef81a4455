"""What the device at hand reaches at most, measured: the ceilings that a roofline is drawn with.

Copy bandwidth: a copy of a large tensor, bytes read and written, by PyTorch's copy or by a kernel, whichever is faster:
in a CUDA graph the former is the driver's, which on an H200 moved 2.8 TB/s where kernels moved 4. Rates: a product of
square matrices by PyTorch, in float32 without TF32 (FMA), with TF32, and in half precision. Best of several: a ceiling
is what was reached once.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from convscope import graphs

_ON_GPU = 2**28, 8192, 10  # elements of the copy, side of the matrices, repetitions
_ON_CPU = 2**22, 384, 3


@dataclass(frozen=True)
class Ceilings:
    """Measured on one device: copy bandwidth, and operations per second by arithmetic ("fp32", "tf32", "fp16")."""

    copy_gbps: float
    tflops: dict[str, float]

    def attainable_ms(self, flops: float, bytes_moved: float, arithmetic: str) -> float:
        """Return the least time that these ceilings allow."""
        return max(flops / self.tflops[arithmetic] / 1e9, bytes_moved / self.copy_gbps / 1e6)


def measure(device: torch.device) -> Ceilings:
    """Measure them; takes well under a second on a GPU."""
    elements, side, count = _ON_GPU if device.type == "cuda" else _ON_CPU
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    copies = (lambda: target.copy_(source), lambda: torch.mul(source, 1.0, out=target))
    copy_ms = min(_best_ms(copy, device, count) for copy in copies)
    left = torch.randn(side, side, device=device)
    rates = {}
    for name in ("fp32", "tf32", "fp16") if device.type == "cuda" else ("fp32",):
        factor = left.half() if name == "fp16" else left
        with _tf32(name == "tf32"):
            best_ms = _best_ms(functools.partial(torch.matmul, factor, factor), device, count)
        rates[name] = 2 * side**3 / best_ms / 1e9
    return Ceilings(2 * source.nbytes / copy_ms / 1e6, rates)


@contextlib.contextmanager
def _tf32(permitted: bool) -> Iterator[None]:
    """Permit or forbid TF32 in products of matrices for the length of the block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = permitted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _best_ms(work: Callable[[], object], device: torch.device, count: int) -> float:
    return min(times_ms(work, device, 1, count, 60.0))


def times_ms(work: Callable[[], object], device: torch.device, warmup: int, count: int, budget_s: float) -> list[float]:
    """Time some work again and again, in ms: replays of a CUDA graph, or by the clock on a CPU.

    Args:
        count: samples, fewer (at least 6) where they would take longer than `budget_s`.
    """
    if device.type == "cpu":
        return _clock_ms(work, warmup, count, budget_s)
    work()
    with graphs.capture(work) as captured:
        first_ms = graphs.replay_times_ms(captured, 1)[0]
        affordable = max(6, int(budget_s * 1e3 / first_ms))
        for _ in range(min(warmup, affordable)):
            captured.replay()
        return graphs.replay_times_ms(captured, min(count, affordable))


def _clock_ms(work: Callable[[], object], warmup: int, count: int, budget_s: float) -> list[float]:
    found: list[float] = []
    begun_s = time.perf_counter()
    for index in range(warmup + count):
        started_s = time.perf_counter()
        if len(found) >= 6 and started_s - begun_s > budget_s:
            break
        work()
        if index >= warmup:
            found.append((time.perf_counter() - started_s) * 1e3)
    return found
