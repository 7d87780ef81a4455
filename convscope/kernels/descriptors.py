"""Tensor descriptors of float32 numbers that Hopper's copy engine rounds to TF32 as it fetches them.

It rounds to the nearest, of two as near to the even one (a rounded copy, `kernels.tf32`, to the one away from zero).
Infinities stay, and so does a NaN, as 0x7fffe000. No memory is read or written for it, where a copy reads and writes
the whole tensor. From Triton 3.7 on a descriptor has an option for it. Before, the engine knows the type and Triton
does not: it is put in where a launch encodes a descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from convscope.kernels.following import from_hopper_on

_TF32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32


def can_round(device: torch.device | None = None) -> bool:
    """Tell whether the copy engine of a device rounds what it fetches; by default of the current GPU, where one is."""
    if device is None:
        return torch.cuda.is_available() and from_hopper_on(torch.device("cuda", torch.cuda.current_device()))
    return from_hopper_on(device)


def of(
    values: torch.Tensor, size: Sequence[int], strides: Sequence[int], block: Sequence[int], rounded: bool
) -> TensorDescriptor:
    """Return a descriptor of numbers that lie at `strides`, fetched in blocks.

    Args:
        rounded: round them to TF32; they are of float32, on a device that `can_round`.
    """
    descriptor = TensorDescriptor(values, list(size), list(strides), list(block))
    descriptor.round_f32_to_tf32 = rounded
    return descriptor


def with_type(encode: Callable[[Any, Any], list[Any]]) -> Callable[[Any, Any], list[Any]]:
    """Return what encodes a descriptor for a launch as `encode` does, as one of TF32 if it is to round.

    What it returns raises NotImplementedError for one that is to round where no copy engine fetches (no `meta`).
    """

    def encoded(descriptor: Any, meta: Mapping[str, Any] | None) -> list[Any]:
        if getattr(descriptor, "round_f32_to_tf32", False):
            if meta is None:
                raise NotImplementedError("only numbers that the copy engine fetches are rounded by it")
            meta = {**meta, "elem_type": _TF32}
        return encode(descriptor, meta)

    return encoded


if not hasattr(TensorDescriptor, "round_f32_to_tf32"):
    from triton.backends.nvidia import driver

    driver.make_tensordesc_arg = with_type(driver.make_tensordesc_arg)
