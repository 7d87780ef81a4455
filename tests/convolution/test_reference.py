"""Bounds on the effect of roundings on a model's output, held against models that really compute in half precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from convscope.convolution import models
from convscope.convolution.reference import (
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


@pytest.mark.parametrize("name", ["torchvision:resnet18", pytest.param("resnet50", marks=pytest.mark.long)])
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
