"""The floor of a card: bytes and operations of a whole model, against figures that are known."""

from __future__ import annotations

import pytest
from fakes import layer
from torch import nn

from convscope import gpus
from convscope.convolution import models, roofline
from convscope.errors import InputError

H200, V100 = gpus.identify("NVIDIA H200"), gpus.identify("Tesla V100-SXM2-16GB")


def test_resnet50_has_the_operations_and_weights_that_are_known():
    layers = roofline.layers_of("resnet50", models.build("resnet50"), (1, 3, 224, 224))
    least = roofline.hardware_limit(layers, H200, "float16", "tf32")
    assert len(layers) == 54
    assert least.flops == pytest.approx(2 * 4.09e9, rel=0.01)
    weights = sum(one.out_channels * one.in_channels * one.kernel[0] * one.kernel[1] for one in layers)
    assert weights == 25_502_912
    assert least.compute_ms == pytest.approx(least.flops / 989.5e9)
    assert least.memory_ms == pytest.approx(least.minimum_bytes / 4.8e9)


def test_the_floor_takes_the_longer_of_both_for_each_layer():
    small = layer(in_channels=1, out_channels=1)
    large = layer(in_channels=2048, out_channels=2048)
    one, two, both = (
        roofline.hardware_limit(layers, H200, "float16", "tf32") for layers in ([small], [large], [small, large])
    )
    assert one.time_ms == one.memory_ms > one.compute_ms
    assert two.time_ms == two.compute_ms > two.memory_ms
    assert both.time_ms == pytest.approx(one.time_ms + two.time_ms)
    assert both.time_ms > max(both.memory_ms, both.compute_ms)


def test_a_larger_batch_reads_its_weights_once():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 64, 1000))
    one, eight = (
        roofline.hardware_limit(roofline.layers_of("it", model, (size, 3, 8, 8)), H200, "float32", "fp32")
        for size in (1, 8)
    )
    assert eight.flops == 8 * one.flops
    weights = 4 * (3 * 4 + 4 + 4 * 64 * 1000 + 1000)
    assert eight.minimum_bytes - weights == 8 * (one.minimum_bytes - weights)


@pytest.mark.parametrize(
    ("gpu", "dtype", "math", "tflops"),
    [
        (H200, "float16", "fp32", 989.5),
        (H200, "bfloat16", "tf32", 989.5),
        (H200, "float32", "tf32", 494.5),
        (H200, "float32", "fp32", 67.0),
        (V100, "float32", "tf32", 15.7),
    ],
)
def test_the_rate_is_that_of_the_data_type(gpu: gpus.Gpu, dtype: str, math: str, tflops: float):
    assert gpu.tflops(dtype, math) == tflops


def test_a_size_that_the_model_cannot_take_is_said():
    with pytest.raises(InputError, match="cannot take 8×8 images"):
        roofline.layers_of("alexnet", models.build("alexnet"), (1, 3, 8, 8))
