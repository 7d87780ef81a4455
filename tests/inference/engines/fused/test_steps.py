"""Modules of the engine `fused` on a CPU: padded images, products of matrices, maxima of windows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from fakes import distance, randomized
from torch import nn

from convscope.convolution.fusion import graphs
from convscope.inference.engines.fused import steps


def channels_last(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        output: torch.Tensor = model.to(memory_format=torch.channels_last)(
            given.contiguous(memory_format=torch.channels_last)
        )
    return output


@pytest.mark.parametrize(("channels", "products"), [(4, False), (8, True), (0, True)])
def test_padded_images_and_products_of_matrices_compute_the_same(channels: int, products: bool):
    model = randomized("resnet50")
    make = partial(steps.step_of, channels=channels, products=products)
    other, number = graphs.fused(graphs.folded(model)[0], make)
    assert number == 49
    assert distance(model, other) < 1e-5
    kinds = [type(module) for module in other.modules()]
    assert kinds.count(steps.FusedProduct) == (16 if products else 0)
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = channels_last(model, given)
    assert float((channels_last(other, given) - expected).norm() / expected.norm()) < 1e-5


def test_a_product_of_matrices_copies_nothing_that_lies_channels_last():
    conv = nn.Conv2d(16, 8, 1)
    product = steps.FusedProduct(conv).to(memory_format=torch.channels_last)
    given = torch.randn(2, 16, 5, 7).contiguous(memory_format=torch.channels_last)
    assert given.permute(0, 2, 3, 1).reshape(-1, 16).data_ptr() == given.data_ptr()
    with torch.inference_mode():
        output = product(given)
        assert output.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(output, torch.relu(conv(given)))


@pytest.mark.parametrize("options", [
    {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)},
    {"kernel_size": 2, "stride": 2, "ceil_mode": True, "padding": 1},
])  # fmt: skip
def test_maxima_have_pytorchs_size_and_values(options: dict[str, Any]):
    pool = nn.MaxPool2d(**options)
    made = steps.MaximumPooling(pool)
    for height, width in ((7, 8), (12, 9), (6, 6)):
        x = torch.randn(1, 2, height, width)
        assert torch.equal(made(x), pool(x))
        assert (made._extent(height, 0), made._extent(width, 1)) == tuple(pool(x).shape[2:])


def test_every_plain_max_pooling_is_replaced_and_no_other():
    model = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(2))
    model[2].register_forward_hook(lambda module, given, output: output + 1)
    assert steps.with_maxima(model) == 1
    assert [type(module).__name__ for module in model] == ["MaximumPooling", "AvgPool2d", "MaxPool2d"]
