"""Cost of a convolution on a GPU: time, power and energy, layer by layer, for each algorithm."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch with it: what reads results works without.

    `pin`, `unpin`, `fused` and `renew` are of `pinning/`; `profile`, `UnifiedProfiler`, `PowerMonitor` and
    `CUDALayerTimer` of `profiler.py`.
    """
    if name in ("pin", "unpin", "fused", "renew"):
        from convscope.pinning import pinned

        return getattr(pinned, name)
    if name in ("profile", "UnifiedProfiler", "PowerMonitor", "CUDALayerTimer"):
        from convscope.cli import programs

        return getattr(programs.profiler(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
