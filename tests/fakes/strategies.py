"""Convolutions of many kinds, for hypothesis to draw, and how many examples of a kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn


def more_examples(factor: float) -> settings:
    """Return settings with that many times the examples that are drawn by default (tests/conftest.py)."""
    assert settings.default is not None
    return settings(max_examples=round(factor * settings.default.max_examples))


@dataclass(frozen=True)
class Case:
    """A convolution and the shape of an input that it takes."""

    conv: nn.Conv2d
    shape: tuple[int, int, int, int]

    def input(self) -> torch.Tensor:
        """Return an input of this shape, without content where the convolution is."""
        return torch.randn(self.shape, device=self.conv.weight.device)


@st.composite
def cases(draw: st.DrawFn, device: str = "meta", groups: tuple[int, ...] = (1, 2, 4)) -> Case:
    """Draw kernels, strides, paddings and dilations, each its own way in height and width."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    conv = nn.Conv2d(
        in_channels=4 * draw(st.integers(1, 2)),
        out_channels=4 * draw(st.integers(1, 3)),
        kernel_size=pair(1, 4),
        stride=pair(1, 3),
        padding=pair(0, 3),
        dilation=pair(1, 2),
        groups=draw(st.sampled_from(groups)),
        bias=draw(st.booleans()),
        device=device,
    )
    return Case(conv, (draw(st.integers(1, 3)), conv.in_channels, *pair(7, 14)))
