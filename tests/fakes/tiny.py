"""A small residual network that stands among torchvision's models: what is compiled or trained takes seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import _api

from convscope.convolution import names

NAME = "torchvision:tiny"
CONVOLUTIONS = 3


class Tiny(nn.Module):
    """Three convolutions with batch normalisation, one of them past an addition, and a fully connected layer."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        x = torch.relu(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def register(patched: pytest.MonkeyPatch, name: str = "tiny", kind: type[nn.Module] = Tiny) -> None:
    """Have torchvision know it, or another model of this name, until the patch is undone."""

    def made(weights: None = None, **options: Any) -> nn.Module:
        return kind(**options)

    made.__module__ = f"torchvision.models.{name}"
    patched.setitem(_api.BUILTIN_MODELS, name, made)
    for listed in ("torchvision_classifiers", "torchvision_models"):
        known = [*(getattr(names, listed)() or ()), name]
        patched.setattr(names, listed, lambda known=known: known)
