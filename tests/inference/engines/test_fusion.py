"""Folding and fusing: the same function with fewer steps."""

from __future__ import annotations

import operator

import pytest
import torch
from fakes import Branching
from torch import nn

from convscope.convolution import models
from convscope.inference.engines import fusion


def randomized(name: str) -> nn.Module:
    model = models.build(name)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in ((module.running_mean, -0.2, 0.2), (module.running_var, 0.5, 2.0),
                                      (module.weight, 0.5, 1.5), (module.bias, -0.5, 0.5)):  # fmt: skip
                tensor.data.uniform_(low, high, generator=generator)
    return model


def error(model: nn.Module, other: nn.Module) -> float:
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model(given)
        return float((other(given) - expected).norm() / expected.norm())


# Whatever comes before a normalisation of densenet is no convolution, and mobilenet's activation is no ReLU.
@pytest.mark.parametrize(
    ("name", "folded", "norms", "fused"),
    [
        ("torchvision:resnet18", 20, 20, 17),
        ("resnet50", 53, 53, 49),
        ("torchvision:mobilenet_v2", 52, 52, 0),
        ("densenet121", 59, 121, 59),
        ("torchvision:vgg11_bn", 8, 8, 8),
    ],
)
def test_a_folded_and_a_fused_model_compute_the_same(name: str, folded: int, norms: int, fused: int):
    model = randomized(name)
    smaller, done, count = fusion.folded(model)
    assert (done, count) == (folded, norms)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in smaller.modules()) == norms - folded
    assert error(model, smaller) < 1e-5
    smallest, number = fusion.fused(smaller)
    assert number == fused
    assert error(model, smallest) < 1e-5


def channels_last(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = model.to(memory_format=torch.channels_last)(
            given.contiguous(memory_format=torch.channels_last)
        )
    return output


@pytest.mark.parametrize(("channels", "products"), [(4, False), (8, True), (0, True)])
def test_padded_images_and_products_of_matrices_compute_the_same(channels: int, products: bool):
    model = randomized("resnet50")
    other, number = fusion.fused(fusion.folded(model)[0], channels, products)
    assert number == 49
    assert error(model, other) < 1e-5
    kinds = [type(module) for module in other.modules()]
    assert kinds.count(fusion.FusedProduct) == (16 if products else 0)
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = channels_last(model, given)
    assert float((channels_last(other, given) - expected).norm() / expected.norm()) < 1e-5


def test_a_product_of_matrices_copies_nothing_that_lies_channels_last():
    conv = nn.Conv2d(16, 8, 1)
    product = fusion.FusedProduct(conv).to(memory_format=torch.channels_last)
    given = torch.randn(2, 16, 5, 7).contiguous(memory_format=torch.channels_last)
    assert given.permute(0, 2, 3, 1).reshape(-1, 16).data_ptr() == given.data_ptr()
    with torch.inference_mode():
        output = product(given)
        assert output.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(output, torch.relu(conv(given)))


def test_convolutions_in_groups_are_left_alone():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()).eval()
    other, number = fusion.fused(fusion.folded(model)[0])
    assert number == 1
    assert any(type(module) is nn.Conv2d and module.groups == 2 for module in other.modules())


def test_nothing_but_the_fused_calls_is_left_of_a_residual_block():
    model, _ = fusion.fused(fusion.folded(randomized("torchvision:resnet18"))[0])
    assert not any(node.target in (operator.add, operator.iadd) for node in model.graph.nodes)
    assert not any(isinstance(module, nn.ReLU) for module in model.modules())


def test_the_bias_of_a_convolution_that_is_only_added_moves_into_the_other():
    model, _ = fusion.fused(fusion.folded(randomized("torchvision:resnet18"))[0])
    left = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(left) == 3
    assert all(module.bias is None for module in left)


def test_the_model_itself_is_left_as_it_was():
    model = randomized("torchvision:resnet18")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fusion.fused(fusion.folded(model)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert isinstance(model.bn1, nn.BatchNorm2d)


def test_a_model_that_cannot_be_traced_stays_as_it_is():
    model = Branching().eval()
    smaller, done, count = fusion.folded(model)
    assert (done, count) == (0, 0)
    assert fusion.fused(smaller) == (smaller, 0)
    assert smaller is not model


class Shared(nn.Module):
    """One convolution and normalisation called twice, and one whose output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.other, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(self.norm(self.conv(x))))
        y = self.other(x)
        return y + self.relu(y)


def test_what_is_used_twice_is_not_fused():
    model = Shared().eval()
    smaller, done, count = fusion.folded(model)
    assert (done, count) == (0, 1)
    smallest, number = fusion.fused(smaller)
    assert number == 0
    assert error(model, smallest) < 1e-6
