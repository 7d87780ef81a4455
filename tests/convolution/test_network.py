"""The network of a request: model and inputs in its data type and layout, settled in 16 bits."""

from __future__ import annotations

import pytest
import torch
from fakes import own_models, run
from torch import nn

from convscope.convolution import models
from convscope.convolution.observation import observe
from convscope.convolution.sources.network import Network
from convscope.errors import InputError

CPU = torch.device("cpu")
DEEP = "torchvision:resnet18"


def network(**changes: object) -> Network:
    return Network.of(run(**({"model": DEEP} | changes)))


@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nhwc"), ("bfloat16", "nchw"), ("float32", "nhwc")])
def test_weights_and_inputs_are_of_the_data_type_and_layout(dtype: str, layout: str):
    made = network(dtype=dtype, layout=layout, batch_size=2)
    model, (given,) = made.on(CPU), made.inputs(64, CPU)
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    weight = model.get_parameter("layer1.0.conv1.weight")
    for tensor in (weight, given):
        assert tensor.dtype == getattr(torch, dtype)
        assert tensor.is_contiguous(memory_format=memory)
    assert given.shape == (2, 3, 64, 64)


def test_float32_has_the_numbers_as_they_were_drawn():
    drawn, made = models.build(DEEP, seed=0).state_dict(), network().on(CPU).state_dict()
    assert all(torch.equal(tensor, made[name]) for name, tensor in drawn.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_untrained_model_is_settled_in_16_bits_and_alike_each_time(dtype: str):
    first, second = (network(dtype=dtype).on(CPU) for _ in range(2))
    deepest = first.get_buffer("layer4.1.bn2.running_var")
    assert not torch.equal(deepest, torch.ones_like(deepest))
    assert torch.equal(deepest, second.get_buffer("layer4.1.bn2.running_var"))
    assert all(not module.training for module in first.modules())


def test_settled_numbers_stay_within_half_precision():
    made = network(dtype="float16")
    with torch.inference_mode():
        output = made.on(CPU)(*made.inputs(64, CPU))
    assert output.isfinite().all()
    assert output.abs().max() < 100


def test_a_trained_model_and_one_without_statistics_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    def settle(model: nn.Module, inputs: object) -> None:
        pytest.fail("settled")

    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    models.settle(model, (torch.zeros(1, 5),))  # it is not even run
    monkeypatch.setattr(models, "settle", settle)
    monkeypatch.setattr(models.TorchvisionSource, "_built", lambda source, pretrained: nn.Sequential())
    Network.of(run(model=DEEP, dtype="float16", pretrained=True)).on(CPU)


def test_a_model_that_cannot_be_settled_is_bad_input(monkeypatch: pytest.MonkeyPatch):
    model = nn.Sequential(nn.Conv2d(5, 4, 1), nn.BatchNorm2d(4))
    monkeypatch.setattr(models.TorchvisionSource, "_built", lambda source, pretrained: model)
    with pytest.raises(InputError, match=r"resnet18 cannot be settled for float16 with 224×224 images .*--pretrained"):
        network(dtype="float16").on(CPU)


def test_a_model_whose_numbers_decide_is_listed_with_the_weights_and_inputs_that_are_measured():
    ways = set()
    for seed in range(6):
        made = network(model=f"{own_models.__file__}:Fork", seed=seed)
        model, given = made.on(CPU), made.inputs(32, CPU)
        with torch.inference_mode():
            ran = tuple(seen.name for seen in observe(model, given, check_errors=False))
        assert tuple(layer.name for layer in made.layers(32)) == ran
        ways.add(ran)
    assert ways == {("first", "up"), ("first", "down")}


def test_what_a_model_raises_of_its_own_is_one_line():
    with pytest.raises(InputError, match=r"Keyed cannot take 32×32 images \(IndexError: "):
        network(model=f"{own_models.__file__}:Keyed").layers(32)
