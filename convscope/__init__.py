"""Cost of a convolution on a GPU: time, power and energy, layer by layer, for each algorithm."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


EXPORTS = {
    "pin": "convscope.pinning.pinned", "unpin": "convscope.pinning.pinned", "fused": "convscope.pinning.pinned",
    "renew": "convscope.pinning.pinned", "read": "convscope.report.reading", "profile": "profiler",
    "UnifiedProfiler": "profiler", "PowerMonitor": "profiler", "CUDALayerTimer": "profiler",
}  # fmt: skip
"""Functions and classes of the library: the module of each. `read` alone needs no PyTorch."""


def __getattr__(name: str) -> Any:
    """Import the function or class asked for, and PyTorch where it needs that."""
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if EXPORTS[name] == "profiler":
        from convscope.cli import programs

        return getattr(programs.profiler(), name)
    return getattr(importlib.import_module(EXPORTS[name]), name)
