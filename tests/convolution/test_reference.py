"""Bounds on the effect of roundings on a model's output, held against models that really compute in half precision."""

from __future__ import annotations

import pytest
import torch
from fakes import layer
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.convolution.reference import (
    allowed_error,
    cut_to_tf32,
    relative_distance,
    relative_error,
    rounding_error,
)

SIDE_PX = 64


def settled(name: str) -> nn.Module:
    model = models.find_source(name).build(0)
    models.settle_statistics(model, SIDE_PX, 0)
    return model.eval()


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(1))


def distance(output: torch.Tensor, model: nn.Module, given: torch.Tensor) -> float:
    return relative_distance(output, model(given).double()) or 0.0


@pytest.mark.parametrize("name", ["torchvision:resnet18", "resnet50"])
def test_bfloat16_differs_by_what_its_roundings_are_said_to(name: str):
    model, given = settled(name), images()
    said = rounding_error(model, given, "bfloat16")
    with torch.inference_mode():
        before = model(given)
        error = distance(settled(name).bfloat16()(given.bfloat16()), model, given)
        assert torch.equal(model(given), before)  # the model is left as it was
    assert 0.5 * said < error < 2 * said


def test_an_untrained_deep_model_amplifies_what_its_layers_lose():
    given = images()
    assert rounding_error(settled("resnet50"), given, "float16") > 3 * rounding_error(
        settled("torchvision:resnet18"), given, "float16"
    )


def tolerated(model: nn.Module, dtype: str, math: str) -> float:
    found = allowed_error(model, images(), LAYERS, dtype, math)
    assert found is not None
    return found


LAYERS: list[Layer] = [layer(in_channels=64, kernel=(3, 3))]


def test_what_is_allowed_follows_the_type_and_admits_no_wrong_model():
    model = settled("resnet50")
    exact, tf32, half, short = (
        tolerated(model, *way)
        for way in (("float32", "fp32"), ("float32", "tf32"), ("float16", "tf32"), ("bfloat16", "tf32"))
    )
    assert exact < tf32 / 10
    assert tf32 < short
    assert half < short
    wrong = settled("resnet50")
    wrong.get_submodule("layer3.0.bn2").bias.data += 0.3
    with torch.inference_mode():
        error = distance(wrong(images()), model, images())
        assert error > half
        assert distance(model.half()(images().half()), settled("resnet50"), images()) < half


def test_a_model_that_amplifies_nothing_is_allowed_what_its_layers_are():
    model = nn.Conv2d(3, 4, 1)
    one = allowed_error(model, images(), LAYERS, "float16", "tf32")
    assert one == pytest.approx(allowed_error(nn.Identity(), images(), LAYERS, "float16", "tf32"))
    assert rounding_error(nn.Identity(), images(), "float16") == 0.0


def test_a_model_that_leaves_the_range_of_a_type_has_no_tolerance():
    model = nn.Conv2d(3, 4, 1)
    model.weight.data *= 1e6
    assert allowed_error(model, images(), LAYERS, "float16", "tf32") is None
    assert allowed_error(model, images(), LAYERS, "bfloat16", "tf32") is not None


def test_tf32_keeps_ten_digits_and_cuts_the_rest_off():
    given = torch.tensor([1 + 2.0**-10 + 2.0**-11, -(1 + 2.0**-9 + 2.0**-23), 2.0**-100 * (1 + 2.0**-11)])
    assert cut_to_tf32(given).tolist() == [1 + 2.0**-10, -(1 + 2.0**-9), 2.0**-100]


def test_an_image_without_a_batch_is_compared_as_a_batch_of_one():
    conv = nn.Conv2d(3, 8, 3)
    image = torch.randn(3, 9, 9)
    with torch.inference_mode():
        error = relative_error(conv, image, conv(image))
        assert error == relative_error(conv, image[None], conv(image[None]))
        assert relative_error(conv, image, 2 * conv(image)) == pytest.approx(1.0, abs=1e-4)
