"""Models as users have them: with arguments, two inputs, control flow, example inputs; and what goes wrong."""

from __future__ import annotations

import torch
from torch import nn


class Branch(nn.Module):
    """Two convolutions; the sum of what the first returns decides about the sign."""

    def __init__(self, width: int = 8, num_classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.second = nn.Conv2d(width, num_classes, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        x = self.second(x) if x.sum() > 0 else -self.second(x)
        return x.mean((2, 3))


class Narrow(nn.Module):
    """Takes images of at most 80 pixels, as it says itself when it computes, not when its shapes are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] > 80 and not x.is_meta:
            raise RuntimeError("my model wants at most 80 px")
        return self.conv(x).mean((2, 3))


class Fork(nn.Module):
    """Which of two convolutions comes second goes by what the first returns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return (self.up(x) if x.mean() > 0 else self.down(x)).mean((2, 3))


class Keyed(nn.Module):
    """Takes a mapping, which nobody gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.conv(batch["image"])


class Pair(nn.Module):
    """An image and a vector; returns a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(3, 4, 3)
        self.read = nn.Linear(5, 4)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": self.look(image).mean((2, 3)) + self.read(vector)}


def pair() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Pair(), (torch.randn(1, 3, 40, 48), torch.randn(1, 5))


def breaks() -> nn.Module:
    raise RuntimeError("no weights here")


def text() -> str:
    return "no module"


def words() -> tuple[nn.Module, str]:
    return Pair(), "no tensor"


NUMBER = 3
