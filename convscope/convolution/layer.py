"""One call of a convolution in a network: its place, shape and options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One call of a convolution in a forward pass: its place, shape and options. Pairs are (height, width)."""

    name: str
    position: int
    batch: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    bias: bool
    padding_mode: str = "zeros"
    uneven_padding: bool = False

    @property
    def shape(self) -> tuple[object, ...]:
        """All that the cost of the layer depends on: two layers of one shape are the same work."""
        return dataclasses.astuple(self)[2:]


def dimensions(pair: tuple[int, int]) -> str:
    """Return a pair as the tables write it, "3x3"."""
    return f"{pair[0]}x{pair[1]}"
