"""Models by name, and their convolutions as a forward pass calls them."""

from __future__ import annotations

import importlib.metadata
import urllib.error

import pytest
import torch
import torchvision
from fakes import Branching
from fakes.strategies import Case, cases
from hypothesis import given
from torch import nn

from convscope.convolution import models
from convscope.errors import InputError
from convscope.timing.hooks import convolution_modules, hooked

CONVOLUTIONS = {"vgg16": 13, "densenet121": 120, "resnet152": 155, "googlenet": 57, "alexnet": 5, "resnet50": 53}


@pytest.mark.parametrize(("name", "count"), CONVOLUTIONS.items())
def test_each_model_of_the_catalogue_has_its_number_of_convolutions(name: str, count: int):
    assert len(models.convolutions(name, 224)) == count


def test_the_catalogue_is_the_six_models():
    assert set(models.MODELS) == set(CONVOLUTIONS)


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("alexnet", "alexnet"),
        (" AlexNet ", "alexnet"),
        ("torchvision:vgg16", "vgg16"),
        ("torchvision:mobilenet_v2", "torchvision:mobilenet_v2"),
    ],
)
def test_a_name_is_taken_in_torchvisions_spelling(given_name: str, name: str):
    assert models.check_name(given_name) == name


def test_an_unknown_model_is_answered_with_those_there_are():
    with pytest.raises(InputError, match=r"unknown model 'lenet': choose one of .*, or torchvision:NAME, timm"):
        models.check_name("lenet")


@pytest.mark.parametrize("name", ["torchvision:lenet", "torchvision:quantized_resnet50", "torchvision:"])
def test_what_torchvision_does_not_have_is_refused(name: str):
    with pytest.raises(InputError, match=r"torchvision has no model .*: see --list-models"):
        models.check_name(name)


def test_the_same_seed_draws_the_same_weights():
    one, other = models.build("alexnet", seed=3), models.build("alexnet", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_another_seed_draws_other_weights():
    one, other = models.build("alexnet", seed=3), models.build("alexnet", seed=4)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_building_leaves_the_global_generator_as_it_was():
    before = torch.random.get_rng_state()
    models.build("alexnet", seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_is_built_for_inference():
    assert not models.build("alexnet").training


def test_googlenet_is_built_without_the_heads_that_only_training_uses():
    assert not any(name.startswith("aux") for name in convolution_modules(models.build("googlenet")))


def test_weights_that_cannot_be_downloaded_are_an_input_error(monkeypatch: pytest.MonkeyPatch):
    def offline(*arguments: object, **options: object) -> nn.Module:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(torchvision.models, "get_model", offline)
    with pytest.raises(InputError, match=r"weights of alexnet cannot be downloaded .* or leave out --pretrained"):
        models.build("alexnet", pretrained=True)


def test_the_list_is_in_the_order_and_with_the_shapes_of_a_real_pass():
    model = models.build("googlenet")
    ran: list[tuple[str, tuple[int, ...]]] = []
    with (
        torch.inference_mode(),
        hooked(model, after=lambda name, module, given, output: ran.append((name, tuple(output.shape)))),
    ):
        model(torch.zeros(2, 3, 64, 64))
    listed = models.convolutions("googlenet", 64, batch_size=2)
    assert [(a.name, (a.batch, a.out_channels, a.out_height, a.out_width)) for a in listed] == ran


def test_positions_count_from_zero():
    assert [layer.position for layer in models.convolutions("alexnet", 64)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "size"), [("alexnet", 8), ("torchvision:vit_b_16", 64)])
def test_a_size_that_a_model_cannot_take_is_refused_on_one_line(name: str, size: int):
    with pytest.raises(InputError, match=rf"{name} cannot take {size}×{size} images \(.*\)$") as refused:
        models.convolutions(name, size)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenet_v3_small",
        "inception_v3",
        "swin_t",
        pytest.param(
            "regnet_y_400mf",
        ),
    ],
)
def test_other_models_of_torchvision_are_listed_too(name: str):
    assert len(models.convolutions(f"torchvision:{name}", 224)) > 0


@given(cases())
def test_a_described_layer_has_the_shapes_of_the_call(case: Case):
    x = case.input()
    y = case.conv(x)
    found = models.describe("conv", 3, case.conv, x.shape)
    assert (found.batch, found.in_channels, found.in_height, found.in_width) == tuple(x.shape)
    assert (found.batch, found.out_channels, found.out_height, found.out_width) == tuple(y.shape)


@given(cases())
def test_a_described_layer_computes_what_the_convolution_does(case: Case):
    x = case.input()
    y = case.conv(x)
    found = models.describe("conv", 0, case.conv, x.shape)
    weight = torch.empty(found.out_channels, found.in_channels // found.groups, *found.kernel, device="meta")
    again = nn.functional.conv2d(x, weight, None, found.stride, found.padding, found.dilation, found.groups)
    assert again.shape == y.shape


@pytest.mark.parametrize(
    ("options", "padding", "uneven"),
    [
        ({"kernel_size": 3, "padding": "same"}, (1, 1), False),
        ({"kernel_size": (5, 3), "padding": "same", "dilation": 2}, (4, 2), False),
        ({"kernel_size": (3, 4), "padding": "same"}, (1, 1), True),
        ({"kernel_size": 4, "padding": "valid"}, (0, 0), False),
    ],
)
def test_padding_by_name_is_described_in_pixels(options: dict, padding: tuple[int, int], uneven: bool):
    conv = nn.Conv2d(4, 4, **options)
    found = models.describe("conv", 0, conv, torch.Size((1, 4, 9, 9)))
    assert (found.padding, found.uneven_padding) == (padding, uneven)


def test_hooks_call_before_and_after_each_convolution_in_order():
    model, calls = Branching(), []
    with hooked(
        model,
        before=lambda name, module, given: calls.append(("before", name)),
        after=lambda name, module, given, output: calls.append(("after", name)),
    ):
        model(torch.zeros(1, 3, 8, 8))
    assert calls == [("before", "one"), ("after", "one"), ("before", "two"), ("after", "two")]


def test_hooks_are_gone_after_the_block_even_when_it_failed():
    model, calls = Branching(), []
    with (
        pytest.raises(RuntimeError, match="channels"),
        hooked(model, before=lambda name, module, given: calls.append(name)),
    ):
        model(torch.zeros(1, 5, 8, 8))
    model(torch.zeros(1, 3, 8, 8))
    assert calls == ["one"]


@pytest.mark.parametrize("name", ["alexnet", "torchvision:squeezenet1_1"])
def test_a_source_builds_its_model_and_the_inputs_that_it_takes(name: str):
    source = models.find_source(f" {name} ")
    assert source.name == name
    images, again = (source.inputs(64, 2, seed=1) for _ in range(2))
    assert torch.equal(images[0], again[0])
    with torch.inference_mode():
        assert source.build(seed=3)(*images).shape == (2, 1000)


def test_the_digest_of_a_source_is_of_name_and_library(monkeypatch: pytest.MonkeyPatch):
    one, other = models.find_source("alexnet"), models.find_source("vgg16")
    assert one.digest == models.find_source("alexnet").digest != other.digest
    before = one.digest
    monkeypatch.setattr(importlib.metadata, "version", lambda library: "0.0.0")
    assert one.digest != before


def test_a_batch_whose_bytes_cannot_be_counted_is_bad_input():
    with pytest.raises(InputError, match=r"a batch of 2,932,031,007,403 images of 512 px fits into no memory"):
        models.convolutions("alexnet", 512, 2932031007403)


def test_images_need_not_be_square():
    source = models.find_source("alexnet")
    (given,) = source.inputs((96, 128), 2, seed=1)
    assert given.shape == (2, 3, 96, 128)
    first = models.layers_of(source, (96, 128), 2)[0]
    assert first.input == (2, 3, 96, 128)
    assert models.layers_of(source, (96, 96))[0] == models.layers_of(source, 96)[0]
