"""Elementwise errors of 3-D convolutions and what is allowed of them: what they show, and what they let pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import layer3d

from convscope.conv3d import comparison
from convscope.conv3d.layersets import load
from convscope.convolution import tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.reference import Reference, reference

LAYER = layer3d(6, 5, (4, 5, 6), (3, 3, 2), batch=2, padding=(1, 1, 0))


def small() -> tuple[torch.Tensor, torch.Tensor, Reference]:
    shape = LAYER.convolution("float32", "fp32")
    x, weight = comparison.tensors(shape, torch.device("cpu"), 0)
    return x, weight, reference(x, weight, shape)


def test_one_product_left_out_of_one_output_is_found():
    x, weight, expected = small()
    output = expected.exact.float()
    assert expected.error(output) < 1e-6
    output[1, 2, 1, 1, 1] -= x[1, 3, 1, 1, 1] * weight[2, 3, 1, 1, 0]
    for arithmetic in ("fp32", "tf32", "fp16"):
        assert expected.error(output) > tolerance.elementwise_tolerance(LAYER.terms, arithmetic)


def test_outputs_that_float16_rounds_as_subnormal_numbers_are_right():
    layer = layer3d(3, 195, (13, 9, 1), (1, 1, 3), padding=(1, 0, 1), groups=3)  # one product an output, many outputs
    shape = layer.convolution("float16", "fp32")
    x, weight = comparison.tensors(shape, torch.device("cpu"), 124)
    expected = reference(x, weight, shape)
    output = expected.exact.half()
    allowed = tolerance.elementwise_tolerance(layer.terms, "fp16", "float16")
    small = (expected.exact.abs() > 0) & (expected.exact.abs() < 1e-5)
    assert small.any()
    assert expected.error(output) < allowed
    output[small] = 0
    assert expected.error(output) > allowed


def test_what_is_not_finite_is_an_infinite_error():
    _, _, expected = small()
    output = expected.exact.float()
    output[0, 0, 0, 0, 0] = float("nan")
    assert expected.error(output) == float("inf")


@pytest.mark.parametrize("layer", load("cosmoflow"), ids=lambda layer: layer.name)
def test_a_product_left_out_stands_above_the_tolerance_in_all_of_cosmoflow(layer: Layer):
    assert tolerance.elementwise_tolerance(layer.terms, "tf32") < 0.5 / layer.terms**0.5


def test_factors_cut_off_to_tf32_are_within_the_tolerance():
    layer = layer3d(64, 8, (6, 6, 6), (3, 3, 3), padding=(1, 1, 1))
    shape = layer.convolution("float32", "tf32")
    x, weight = comparison.tensors(shape, torch.device("cpu"), 1)
    cut = [torch.from_numpy((each.numpy().view(np.int32) & ~0x1FFF).view(np.float32)) for each in (x, weight)]
    output = torch.nn.functional.conv3d(cut[0], cut[1], padding=1)
    error = reference(x, weight, shape).error(output)
    assert tolerance.elementwise_tolerance(layer.terms, "fp32") < error
    assert error < tolerance.elementwise_tolerance(layer.terms, "tf32")
