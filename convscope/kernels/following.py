"""Kernels that start while the kernel before them ends (programmatic dependent launch, from compute capability 9.0 on).

A kernel of some microseconds spends one of them on its launch. One that is launched so is on the card already when the
kernel before it ends, and waits there until all that this one has written can be read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_CAPABILITY = (9, 0)


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait for the kernel before this one, and let the next one start; before anything is read or written."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


def options(x: torch.Tensor) -> dict[str, Any]:
    """Return the options of a launch on a tensor's device: EARLY, the constant that `follow` takes, among them."""
    early = x.is_cuda and torch.cuda.get_device_capability(x.device) >= _CAPABILITY
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
