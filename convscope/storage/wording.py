"""Texts of `timing_method` in tables of earlier versions, and the present texts for the same methods.

A comparison of two rows takes the present text of both: a method that was only renamed is the same method.
"""

from __future__ import annotations

PRESENT = {
    "cuda graph replay, cuda events": "replays of a CUDA graph, CUDA events",
    "cuda events, eager behind a spin": "eager passes behind a spin kernel, CUDA events",
    "cuda events, eager: launch included": "eager passes with their launch, CUDA events",
    "cuda events, launched from Python behind a spin kernel": "calls from Python behind a spin kernel, CUDA events",
    "events around the call in replays of a captured pass of other convolutions": (
        "CUDA events around the call, in replays of a captured pass"
    ),
    "one time of the source": "one time, as published",
}
"""Present text of each earlier one; a method may name several, or have a remark behind it."""


def present(method: str | None) -> str | None:
    """Return a timing method in its present text, None where there is none."""
    if method is None:
        return None
    for earlier, now in PRESENT.items():
        method = method.replace(earlier, now)
    return method
