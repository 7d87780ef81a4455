"""Tensor descriptors of float32 numbers that Hopper's copy engine rounds to TF32 as it fetches them.

It rounds to the nearest, ties to even; infinities stay, and so does a NaN, as 0x7fffe000. Nothing is read or written
for it, where a rounded copy (`kernels.tf32`) reads and writes the whole tensor. From Triton 3.7 on a descriptor has an
option for it. Before, the engine knows the type and Triton does not: it is put in where a launch encodes a descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from triton.backends.nvidia import driver
from triton.tools.tensor_descriptor import TensorDescriptor

_CAPABILITY = (9, 0)
_HAS_OPTION = hasattr(TensorDescriptor, "round_f32_to_tf32")
_TF32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32


def can_round(device: torch.device | None = None) -> bool:
    """Tell whether the copy engine of a device rounds what it fetches; by default of the current GPU, where one is."""
    if device is None:
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= _CAPABILITY
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


def of(
    values: torch.Tensor, size: Sequence[int], strides: Sequence[int], block: Sequence[int], rounded: bool
) -> TensorDescriptor:
    """Return a descriptor of numbers that lie at `strides`, fetched in blocks.

    Args:
        rounded: round them to TF32; they are of float32, on a device that `can_round`.
    """
    if not rounded:
        return TensorDescriptor(values, list(size), list(strides), list(block))
    if _HAS_OPTION:
        return TensorDescriptor(values, list(size), list(strides), list(block), round_f32_to_tf32=True)
    descriptor = TensorDescriptor(values, list(size), list(strides), list(block))
    descriptor.round_f32_to_tf32 = True
    return descriptor


def _encoded_with_type(descriptor: TensorDescriptor, layout: Mapping[str, Any] | None) -> list[Any]:
    """Encode a descriptor for a launch as Triton does, as one of TF32 where it is to round."""
    if getattr(descriptor, "round_f32_to_tf32", False):
        if layout is None:
            raise NotImplementedError("numbers that no copy engine fetches are not rounded")
        layout = {**layout, "elem_type": _TF32}
    encoded: list[Any] = _encoded(descriptor, layout)
    return encoded


if not _HAS_OPTION:
    _encoded = driver.make_tensordesc_arg
    driver.make_tensordesc_arg = _encoded_with_type
