"""Cost of a convolution on a GPU: time, power and energy, layer by layer, for each algorithm."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `pin`, `unpin`, `fused` and `renew` when they are asked for: what reads results works without PyTorch."""
    if name in ("pin", "unpin", "fused", "renew"):
        from convscope.pinning import pinned

        return getattr(pinned, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
