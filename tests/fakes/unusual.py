"""Models whose convolutions are no `nn.Conv2d` modules, that have none, or that cannot be captured."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Functional(nn.Module):
    """Calls: two of `conv2d` with one weight, a grouped and a computed one; a module, called last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Parameter(0.2 * torch.randn(4, 3, 3, 3))
        self.block = Block()
        self.last = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(F.conv2d(x, self.stem, padding=1)))


class Block(nn.Module):
    """Calls `conv2d` three times."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(4, 4, 3, 3))
        self.grouped = nn.Parameter(0.2 * torch.randn(8, 2, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(x, self.weight, stride=2)
        x = F.conv2d(x, self.weight / 2, padding="same")
        return F.conv2d(x, self.grouped, groups=2)


FUNCTIONAL = ("conv2d", "block.conv2d", "block.conv2d#2", "block.conv2d#3", "last")


class Dimensions(nn.Module):
    """A transposed, a 1-D and a 3-D module, and a transposed 1-D call."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1)
        self.line = nn.Conv1d(4, 6, 5, padding=2, dilation=1)
        self.volume = nn.Conv3d(1, 2, 3, padding=1, bias=False)
        self.down = nn.Parameter(torch.randn(6, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.line(self.up(x).flatten(2))
        x = F.conv_transpose1d(x, self.down, stride=3)
        return self.volume(x.unsqueeze(1).unsqueeze(1))


DIMENSIONS = ("up.conv_transpose2d", "line.conv1d", "conv_transpose1d", "volume.conv3d")


class Perceptron(nn.Module):
    """No convolution at all: pooled, then two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(48, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(F.adaptive_avg_pool2d(x, 4).flatten(1))))


class Bodiless(nn.Module):
    """Not a parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Deciding(nn.Module):
    """Its way goes by a number that the device has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.two(x) if (x * 0).sum() >= 0 else x


class Fetching(nn.Module):
    """Brings a tensor to the host in the middle of its pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).cpu().to(x.device))


class Waiting(nn.Module):
    """Waits for the GPU in a way that PyTorch's debug mode does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        if x.is_cuda:
            torch.cuda.current_stream(x.device).synchronize()
        return self.two(x)


class Guided(nn.Module):
    """Two inputs; the numbers of the second, and those computed of the first, say which calls are made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(0.2 * torch.randn(6, 3, 3, 3))
        self.again = nn.Parameter(0.2 * torch.randn(6, 6, 3, 3))
        self.look = nn.Conv2d(6, 4, 3)
        self.read = nn.Linear(5, 4)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        x = F.conv2d(image, self.first)
        if x.abs().sum() > 0:
            x = F.conv2d(x, self.again.transpose(0, 1), padding=1)
        for _ in range(int(vector[0, 0].item())):
            x = F.conv2d(x, self.again, padding=1)
        return {"sum": self.look(x).mean((2, 3)) + self.read(vector)}


GUIDED = ("conv2d", "conv2d#2", "conv2d#3", "conv2d#4", "look")


def guided() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Guided(), (torch.randn(1, 3, 20, 24), torch.tensor([[2.0, 0.0, 1.0, 0.0, 1.0]]))
