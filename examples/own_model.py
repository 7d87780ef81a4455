"""Custom model for `run_profile.py --model examples/own_model.py:make`, with modules and one functional convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Own(nn.Module):
    """Stem, depthwise convolution as a functional call, body and head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3)
        self.depthwise = nn.Parameter(torch.randn(width, 1, 5, 5) / 5)
        self.body = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return N × 10 scores of N × 3 × height × width images."""
        x = F.relu(self.stem(images))
        x = F.conv2d(x, self.depthwise, padding=2, groups=x.shape[1])
        return self.head(F.relu(self.body(x)).mean((2, 3)))


def make(width: int = 64) -> nn.Module:
    """Return the model; `--model-args width=128` makes it wider."""
    return Own(width)
