"""Traces with convolutions in 8 bits, on a CPU: which they are, where numbers are rounded, and how close they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.convolution.fusion import graphs
from convscope.inference import agreement, pictures, weights
from convscope.inference.engines.eight_bits import layers, ranges
from convscope.inference.engines.eight_bits.layers import EightBitConvolution, EightBitRounding
from convscope.inference.engines.fused import steps
from convscope.kernels.eight_bits import numbers


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def fused(model: nn.Module) -> fx.GraphModule:
    made, _ = graphs.fused(graphs.folded(model.eval())[0], steps.step_of)
    assert isinstance(made, fx.GraphModule)
    return made


def kinds(model: nn.Module) -> list[str]:
    """Return what the trace calls, in order, for convolutions and roundings in 8 bits by "8" and "r"."""
    signs: dict[type, str] = {EightBitConvolution: "8", EightBitRounding: "r"}
    called = [model.get_submodule(node.target) for node in model.graph.nodes if node.op == "call_module"]
    return [signs.get(type(module), type(module).__name__) for module in called]


def types(model: fx.GraphModule, given: torch.Tensor) -> list[torch.dtype]:
    """Return the types of what the convolutions in 8 bits return, in order."""
    found = []
    for module in model.modules():
        if isinstance(module, EightBitConvolution):
            module.register_forward_hook(lambda module, given, result: found.append(result.dtype))
    model(given)
    return found


def test_a_resnet_in_8_bits_agrees_as_its_roundings_allow():
    network = models.build("torchvision:resnet18", seed=0).eval()
    images, others = pictures.scenes(8, 64, 1), pictures.scenes(8, 64, 2)
    weights.draw(network, others, seed=0)
    judge = agreement.judged(network, images, [], "int8", "fp32")
    model = fused(network)
    assert layers.with_eight_bits(model, others) == (19, 20)
    assert kinds(model)[:4] == ["FusedConvolution", "MaxPool2d", "r", "8"]
    assert kinds(model).count("r") == 1
    error = judge.error(model(images), network(images).double())
    assert 0.01 < error < judge.allowed
    assert types(model, images) == [torch.int8] * 18 + [torch.float32]  # the last one's output is averaged


class Small(nn.Module):
    """A convolution of few channels, and some of many behind it."""

    def __init__(self, *others: nn.Module) -> None:
        super().__init__()
        self.first, self.others = nn.Conv2d(3, 32, 3, padding=1), nn.Sequential(*others)

    def forward(self, x: torch.Tensor) -> Any:
        return self.others(torch.relu(self.first(x)))


def conv(channels: int, filters: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, filters, 3, **({"padding": 1} | options))


@pytest.mark.parametrize(
    ("others", "side_px", "expected"),
    [
        ((conv(32, 64), nn.ReLU(), conv(64, 64)), 8, ["FusedConvolution", "r", "8", "8"]),
        ((conv(32, 64), nn.Sigmoid(), conv(64, 64)), 8, ["FusedConvolution", "r", "8", "Sigmoid", "r", "8"]),
        ((conv(32, 48), nn.ReLU(), conv(48, 64)), 8, ["FusedConvolution", "FusedConvolution", "Conv2d"]),
        ((conv(32, 64, stride=2), nn.ReLU()), 8, ["FusedConvolution", "r", "8"]),
        ((conv(32, 64, stride=2), nn.ReLU()), 9, ["FusedConvolution", "FusedConvolution"]),
        ((conv(32, 64, groups=2), nn.ReLU()), 8, ["FusedConvolution", "Conv2d", "ReLU"]),
        ((conv(32, 64), nn.Hardtanh(0, 6, inplace=True)), 8, ["FusedConvolution", "Conv2d", "Hardtanh"]),
    ],
)
def test_convolutions_of_many_channels_are_in_8_bits_where_their_sizes_fit(
    others: tuple[nn.Module, ...], side_px: int, expected: list[str]
):
    model, given = fused(Small(*others)), torch.randn(2, 3, side_px, side_px)
    exact = model(given)
    count, _ = layers.with_eight_bits(model, given)
    assert kinds(model) == expected
    assert count == expected.count("8")
    assert (model(given) - exact).norm() < 0.05 * exact.norm()


class Branches(nn.Module):
    """A sum of a convolution of a tensor and the tensor, or a part of it, which something else takes too."""

    def __init__(self, whole: bool, read: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, padding=1)
        self.whole, self.read = whole, read

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.first(x))
        z = torch.relu(self.second(y) + (y if self.whole else y[:, :, :1, :1]))
        return (z, y.mean()) if self.read else z


@pytest.mark.parametrize(
    ("whole", "read", "expected"),
    [(True, False, "r88"), (True, True, "r8r8"), (False, False, "r8FusedConvolution")],
)
def test_a_tensor_is_in_8_bits_where_convolutions_in_8_bits_alone_take_it(whole: bool, read: bool, expected: str):
    model, given = fused(Branches(whole, read)), torch.randn(2, 32, 6, 6)
    exact = model(given)
    layers.with_eight_bits(model, given)
    assert "".join(kinds(model)) == expected
    for found, wanted in zip(*((each if read else (each,)) for each in (model(given), exact)), strict=True):
        assert (found - wanted).norm() < 0.03 * wanted.norm()


class Scaled(nn.Module):
    """A tensor that is changed in place through a view of it before a convolution reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 1)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.sigmoid(x)
        y.view(-1).mul_(0.5)
        return torch.relu(self.conv(y))


def test_numbers_are_rounded_as_they_are_when_a_convolution_reads_them():
    model, given = fused(Scaled()), torch.randn(2, 32, 4, 4)
    exact = model(given)
    assert layers.with_eight_bits(model, given) == (1, 1)
    assert (model(given) - exact).norm() < 0.05 * exact.norm()


def test_what_is_beyond_the_range_of_the_images_is_cut_off():
    model, given = fused(Small(conv(32, 64), nn.ReLU())), torch.randn(2, 3, 8, 8)
    layers.with_eight_bits(model, given)
    (rounding,) = (module for module in model.modules() if isinstance(module, EightBitRounding))
    assert rounding(torch.full((1, 32, 1, 1), 1e6)).unique().tolist() == [127]


def test_a_model_that_is_no_trace_or_has_no_such_convolution_stays():
    assert layers.with_eight_bits(nn.Conv2d(32, 64, 1), torch.zeros(1, 32, 4, 4)) == (0, 0)
    model = fused(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    assert layers.with_eight_bits(model, torch.ones(1, 3, 4, 4)) == (0, 1)
    assert kinds(model) == ["FusedConvolution"]


def test_numbers_that_are_not_finite_have_no_range():
    model = fused(nn.Sequential(nn.Conv2d(32, 64, 1), nn.ReLU()))
    assert layers.with_eight_bits(model, torch.full((1, 32, 4, 4), float("inf"))) == (0, 1)


def test_a_range_is_the_largest_magnitude_of_a_tensor_of_the_pass():
    model = fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.ReLU()))
    nodes = [node for node in model.graph.nodes if node.op != "output"]
    found = ranges.ranges_of(model, nodes[:2], torch.tensor([[[1.0, -3.0]]]))
    assert found == {node: ranges.Range(3.0, size) for node, size in zip(nodes, ((1, 1, 2), (1, 2)), strict=False)}


def test_a_rounding_is_that_of_the_numbers():
    given = torch.randn(2, 32, 4, 4)
    rounded = EightBitRounding(0.02)(given)
    assert torch.equal(rounded, numbers.rounded(given, 0.02))
    assert rounded.is_contiguous(memory_format=torch.channels_last)
