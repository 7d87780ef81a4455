"""Names of models without PyTorch: the same as torchvision's, and the facts that save a look at the layers."""

from __future__ import annotations

import pytest
import torchvision

from convscope.convolution import algorithms, models, names
from convscope.errors import InputError


def test_the_names_read_from_torchvisions_source_are_those_it_lists():
    assert names.torchvision_classifiers() == {*torchvision.models.list_models(module=torchvision.models)}


def test_any_case_is_the_same_name():
    assert names.check_model(" TorchVision:ResNet18 ") == "torchvision:resnet18"
    assert names.check_model("Torchvision:VGG16") == "vgg16"


@pytest.mark.parametrize(
    ("name", "near"), [("vgg61", "vgg16"), ("resnet18", "torchvision:resnet18"), ("torchvision:resnet81", "resnet18")]
)
def test_the_nearest_names_are_offered(name: str, near: str):
    with pytest.raises(InputError, match=rf"\(nearest: .*{near}.*\)"):
        names.check_model(name)


def plain(model: str, size: int, device_type: str) -> bool:
    """Tell whether no layer of a model is against an algorithm without a rule on shapes."""
    algorithm = algorithms.find("gemm" if device_type == "cuda" else "direct")
    layers = models.convolutions(model, size)
    return not any(algorithms.why_not_by_rule(algorithm, layer, device_type) for layer in layers)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_the_six_take_the_smallest_size_and_no_layer_is_against_a_device(device_type: str):
    assert all(plain(model, names.SMALLEST_INPUT_PX, device_type) for model in ("alexnet", "vgg16", "googlenet"))


@pytest.mark.long
def test_every_model_takes_usual_sizes_but_for_those_that_are_excepted():
    every = sorted(names.PREFIX + name for name in names.torchvision_classifiers() or ())
    usual = [name for name in every if names.takes_usual_sizes(name)]
    assert len(usual) > 60
    for name in usual[::4]:  # of each family some
        model = models.check_name(name)
        assert all(plain(model, size, "cuda") for size in (names.SMALLEST_INPUT_PX, 512)), name
    assert all(plain(model, size, "cpu") for model in names.MODELS for size in (names.SMALLEST_INPUT_PX, 512))
