"""Kernels that start while the kernel before them ends (programmatic dependent launch, from compute capability 9.0 on).

A kernel of some microseconds spends one of them on its launch. One that is launched so is on the card already when the
kernel before it ends, and waits there until all that this one has written can be read.

Once every program of a kernel has released the next one, that comes onto the card wherever there is room. A convolution
releases it at its start (`follow`). A copy has many small programs, which lie anywhere, and releases it at its end
(`wait`, `release`): else the few large programs of the convolution after it come to lie two on one multiprocessor and
none on another.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_HOPPER = (9, 0)  # its compute capability


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait for the kernel before this one; before anything is read or written."""
    if EARLY:
        gdc_wait()


@triton.jit
def release(EARLY: tl.constexpr):
    """Let the next kernel start, once all programs of this one have come here; after `wait`."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait for the kernel before this one, and let the next one start; before anything is read or written."""
    wait(EARLY)
    release(EARLY)


def from_hopper_on(device: torch.device) -> bool:
    """Tell whether a device is an NVIDIA GPU of Hopper or later."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= _HOPPER


def options(x: torch.Tensor) -> dict[str, Any]:
    """Return the options of a launch on a tensor's device, among them EARLY, which these functions take."""
    return {"EARLY": True, "launch_pdl": True} if from_hopper_on(x.device) else {"EARLY": False}
