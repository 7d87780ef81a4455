"""Cases of the tests of the public ai3 (github.com/KLab-AI3/ai3, commit cc5ccb4) exercise, written anew for any device.

The convolutions of `test/unit/conv2d.py`, the models of `model_zoo`, which `test/swap_conv2d.py` runs, and the
gradients, the compiled network and the training of `test/ops`. Their trained weights and MNIST need a network: weights
are drawn here, and digits are made up.
"""

from __future__ import annotations

import copy
import math as mathematics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from convscope.convolution import models, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.reference import relative_distance
from convscope.timing.hooks import hooked


@dataclass(frozen=True)
class Unit:
    """One convolution of `test/unit/conv2d.py`: the shape of its input, with a batch or without, and its options."""

    name: str
    shape: tuple[int, ...]
    out_channels: int
    kernel: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, device: str) -> tuple[nn.Conv2d, torch.Tensor]:
        """Return the convolution and an input."""
        torch.manual_seed(0)
        options = {"padding": 1, "bias": True} | self.options
        conv = nn.Conv2d(self.shape[-3], self.out_channels, self.kernel, **options)
        return conv.to(device), torch.randn(self.shape).to(device)


_IMAGE = (4, 30, 40)
# Their "multi channel with bias" stands there twice, and here once.
UNITS = (
    Unit("no padding", (1, 1, 5, 5), 1, (4, 4), {"padding": 0, "bias": False}),
    Unit("bias", (1, 100, 150), 1, (15, 12), {"padding": 5}),
    Unit("1d dilation", (1, 7, 7), 1, (3, 3), {"padding": 0, "dilation": 2, "bias": False}),
    Unit("2d dilation", _IMAGE, 6, (7, 5), {"dilation": (1, 2)}),
    Unit("same, odd kernel", _IMAGE, 6, (7, 5), {"padding": "same", "dilation": (2, 2)}),
    Unit("same, even kernel", _IMAGE, 6, (8, 4), {"padding": "same", "dilation": (2, 2)}),
    Unit("valid, even kernel", _IMAGE, 6, (8, 4), {"padding": "valid", "dilation": (1, 2)}),
    Unit("valid, odd kernel", _IMAGE, 6, (7, 5), {"padding": "valid", "dilation": (1, 2)}),
    Unit("1d padding", _IMAGE, 6, (7, 5), {"padding": 5}),
    Unit("2d padding", _IMAGE, 6, (7, 5), {"padding": (2, 5)}),
    Unit("1d stride", _IMAGE, 6, (7, 5), {"stride": 2}),
    Unit("2d stride", _IMAGE, 6, (7, 5), {"stride": (2, 3)}),
    Unit("kernel as large as the input", (1, 10, 15), 1, (10, 15)),
    Unit("channels", (3, 50, 150), 4, (10, 10), {"bias": False}),
    Unit("channels and bias", (4, 50, 150), 6, (10, 10)),
    Unit("batch, channels and bias", (5, 4, 50, 150), 6, (5, 5)),
)


class TwoConvolutions(nn.Module):
    """The network of `example/manual_conv2d.py`; that of `test/ops/compile.py` is the same without the second bias."""

    def __init__(self, second_bias: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.maxpool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=second_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(torch.relu(self.conv1(x)))
        return torch.flatten(torch.relu(self.conv2(x)), 1)


# The models of their model_zoo by torchvision's names; they skip those with groups, their kernels have none.
ZOO = (
    "two convolutions",
    "alexnet",
    "densenet121",
    "googlenet",
    "inception_v3",
    "resnet152",
    "squeezenet1_1",
    "swin_b",
    "vgg16",
    "vit_b_16",
)
GROUPED_ZOO = (
    "convnext_base",
    "efficientnet_v2_s",
    "maxvit_t",
    "mnasnet1_0",
    "mobilenet_v3_large",
    "regnet_y_16gf",
    "shufflenet_v2_x2_0",
)


def zoo_model(name: str, device: str) -> nn.Module:
    """Build a model of the zoo on a device, in evaluation mode, with drawn weights."""
    with torch.device(device):
        if name == "two convolutions":
            torch.manual_seed(0)
            return TwoConvolutions().eval()
        model = models.build(models.PREFIX + name)
    for module in model.modules():  # drawn weights may shrink what the convolutions say far below the last bias
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if name == "vit_b_16":  # torchvision begins with a head of zeros, which would hide everything
        nn.init.normal_(model.heads.head.weight, std=0.02)
    return model


@dataclass(frozen=True)
class Expected:
    """A model, an input, its convolutions in order, and its output in float64."""

    model: nn.Module
    given: torch.Tensor
    layers: list[Layer]
    reference: torch.Tensor

    def error(self) -> float | None:
        """Return how far the model's output is from float64, relative to its length."""
        with torch.inference_mode():
            return relative_distance(self.model(self.given), self.reference)

    def tolerance(self, algorithm: str, math: str) -> float:
        """Return the largest error to be expected if every convolution runs this algorithm."""
        return tolerance.whole_model_tolerance(tolerance.tolerance(layer, algorithm, math) for layer in self.layers)


def expect(model: nn.Module, given: torch.Tensor) -> Expected:
    """Run a model with PyTorch's own convolutions: once to see them, once in float64."""
    layers: list[Layer] = []

    def note(name: str, module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> None:
        batched = x if x.dim() == 4 else x[None]
        layers.append(models.describe(name, len(layers), module, batched.shape))

    with torch.inference_mode():
        with hooked(model, after=note):
            model(given)
        reference = copy.deepcopy(model).double()(given.double())
    return Expected(model, given, layers, reference)


# test/ops/backward.py: shape of the input, output channels, kernel.
GRADIENTS = {
    "no batch": ((10, 300, 300), 32, (3, 3)),
    "batch of 1": ((1, 3, 224, 224), 16, (4, 3)),
    "batch of 10": ((10, 10, 512, 52), 5, (5, 5)),
}


def gradient_case(name: str, device: str, most_px: int = 512) -> tuple[nn.Sequential, torch.Tensor]:
    """Return a convolution in a model, and an input with sides of at most `most_px` that asks for its gradient too."""
    shape, out_channels, kernel = GRADIENTS[name]
    shape = *shape[:-2], *(min(side, most_px) for side in shape[-2:])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(shape[-3], out_channels, kernel))
    return model.to(device), torch.randn(shape).to(device).requires_grad_()


def gradients(model: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of the mean squared distance from a fixed target, in the input and in each parameter."""
    output = model(given)
    target = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return list(torch.autograd.grad(nn.functional.mse_loss(output, target), [given, *model.parameters()]))


def exact_gradients(model: nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    """Return the same in float64."""
    return gradients(copy.deepcopy(model).double(), given.detach().double().requires_grad_())


def gradient_error(model: nn.Module, given: torch.Tensor, exact: list[torch.Tensor]) -> float:
    """Return how far the worst of a model's gradients is from float64, relative to its length."""
    together = zip(gradients(model, given), exact, strict=True)
    return max(relative_distance(found, wanted) or 0.0 for found, wanted in together)


def gradient_tolerance(given: torch.Tensor, math: str) -> float:
    """Return the largest relative error to be expected of a gradient.

    A weight's gradient sums a product for each place of the input, of an output that is a sum of fewer itself; TF32
    rounds both factors of each product, forward and backward.
    """
    terms = given.numel() // given.shape[-3]
    exact = 2 * tolerance.UNIT_ROUNDOFF["fp32"] * (16 + 8 * mathematics.sqrt(terms))
    return exact + (4 * tolerance.UNIT_ROUNDOFF["tf32"] if math == "tf32" else 0.0)


class Digits(nn.Module):
    """The network that `test/ops/train.py` trains on MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 7 * 7, 128), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def digits(device: str, batches: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of ten noisy images of ten classes, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randn(10, 1, 28, 28, generator=generator)
    for _ in range(batches):
        labels = torch.randint(10, (10,), generator=generator)
        noise = torch.randn(10, 1, 28, 28, generator=generator)
        yield (classes[labels] + noise).to(device), labels.to(device)


def train(model: nn.Module, device: str, batches: int) -> list[float]:
    """Train with Adam as they do; return the loss of each batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
    for images, labels in digits(device, batches):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
