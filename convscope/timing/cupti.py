"""Work of a GPU as CUPTI sees it, with the host's calls and ranges, through PyTorch's profiler.

CUPTI makes later passes of its process longer: nothing here may run in a process before a time is taken there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler

_DRIVERS_WORK = {"gpu_memset": "Memset", "gpu_memcpy": "Memcpy"}
GPU_WORK = ("kernel", *_DRIVERS_WORK)
_CUDA_CALL = re.compile(r"cu(da)?[A-Z]\w*$")
_OVERHEADS = (
    *("Unknown", "Driver Compiler", "Buffer Flush", "Instrumentation", "Resource", "Runtime Triggered Module Loading"),
    *("Lazy Function Loading", "Command Buffer Full", "Activity Buffer Request", "UVM Activity Init"),
)


def start() -> None:
    """Start CUPTI for the rest of the process; call it before the first capture.

    A graph captured before CUPTI's first start must not be traced after it: that fails or hangs (PyTorch issue 75504).
    """
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    record(torch.cuda.synchronize)


def record(work: Callable[[], None]) -> list[dict[str, Any]]:
    """Run `work` under PyTorch's profiler and return the trace's events (Chrome's trace format, times in µs).

    They are read from memory: no file is written and read again.

    A graph with event records inside must not be replayed in `work`: with CUPTI watching, that hangs the process
    (seen with driver 580, CUDA 13.0, torch 2.11).
    """
    with autograd_profiler.profile(use_kineto=True, use_device="cuda") as profiler:  # waits for the GPU at its end
        work()
    return _events(profiler)


def _events(profiler: autograd_profiler.profile) -> list[dict[str, Any]]:
    """Return what a profiler has recorded, in Chrome's trace format."""
    results: Any = profiler.kineto_results
    begun_ns = results.trace_start_ns()
    return [described for event in results.events() if (described := _in_chromes_format(event, begun_ns))]


def _in_chromes_format(event: Any, begun_ns: int) -> dict[str, Any] | None:
    """Return an event of the profiler as it would be exported, None for an overhead of CUPTI's own.

    Its kind is not among its attributes before PyTorch 2.12.
    """
    name, on_device = event.name(), event.device_type().name == "CUDA"
    correlation = event.correlation_id()
    if event.is_user_annotation():
        kind = "gpu_user_annotation" if on_device else "user_annotation"
    elif on_device:
        kind = next((kind for kind, start in _DRIVERS_WORK.items() if name.startswith(start)), "kernel")
    elif runtime := _CUDA_CALL.match(name):
        kind = "cuda_runtime" if runtime[1] else "cuda_driver"
    elif name in _OVERHEADS:
        return None
    else:
        kind = "cpu_op"
    described: dict[str, Any] = {
        "ph": "X", "cat": kind, "name": name, "ts": (event.start_ns() - begun_ns) / 1e3,
        "dur": event.duration_ns() / 1e3, "tid": event.start_thread_id(),
    }  # fmt: skip
    if on_device or kind in ("cuda_runtime", "cuda_driver"):
        described["args"] = {"correlation": correlation}
    return described
