"""Tolerances: held against errors that were measured, and against arithmetic that is really done in lower precision."""

from __future__ import annotations

import pytest
import torch
from fakes import layer

from convscope.convolution import models, tolerance
from convscope.convolution.reference import reference_of, relative_distance


def error_of(conv: torch.nn.Conv2d, given: torch.Tensor, roundings: int | None = None) -> float:
    """Return a layer's error against float64; with `roundings`, input and weight keep that many mantissa bits."""
    exact = reference_of(conv)(given.double())
    if roundings is not None:
        given = rounded(given, roundings)
        conv.weight.data = rounded(conv.weight.data, roundings)
    return relative_distance(conv(given), exact) or 0.0


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to the nearest float with this many explicit mantissa bits; TF32 has 10."""
    step = 1 << (23 - bits)
    as_integers = values.view(torch.int32)
    return ((as_integers + step // 2) & ~(step - 1)).view(torch.float32)


@pytest.mark.parametrize(("channels", "kernel"), [(1, 1), (3, 7), (16, 1), (64, 3), (256, 3), (512, 5)])
def test_float32_stays_within_its_tolerance_and_rounding_to_tf32_does_not(channels: int, kernel: int):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, 8, kernel, bias=False)
    given = torch.randn(1, channels, 32, 32)
    described = models.describe("0", 0, conv, given.shape)
    allowed = tolerance.tolerance(described, "gemm", "fp32")
    with torch.inference_mode():
        assert error_of(conv, given) <= allowed
        assert allowed < error_of(conv, given, roundings=10) <= tolerance.tolerance(described, "gemm", "tf32")


def test_eight_bits_fewer_than_float32_are_told_from_tf32():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(64, 8, 3, bias=False)
    given = torch.randn(1, 64, 32, 32)
    described = models.describe("0", 0, conv, given.shape)
    with torch.inference_mode():
        assert error_of(conv, given, roundings=7) > tolerance.tolerance(described, "gemm", "tf32")


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 10), (torch.bfloat16, 7)])
@pytest.mark.parametrize(("channels", "kernel"), [(1, 1), (3, 7), (64, 3), (512, 3)])
def test_16_bits_stay_within_their_tolerance_and_two_bits_less_do_not(dtype, bits, channels: int, kernel: int):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, 8, kernel).to(dtype)
    given = torch.randn(1, channels, 32, 32).to(dtype)
    described = models.describe("0", 0, conv, given.shape)
    allowed = tolerance.tolerance(described, "gemm", "fp32", str(dtype).removeprefix("torch."))
    with torch.inference_mode():
        exact = reference_of(conv)(given.double())
        output = torch.nn.functional.conv2d(given.float(), conv.weight.float(), conv.bias.float())
        assert relative_distance(output.to(dtype), exact) <= allowed / 3
        assert relative_distance(rounded(output, bits - 3), exact) > allowed


def test_the_tolerance_grows_with_the_root_of_the_sum():
    small, large = (tolerance.fp32_tolerance(layer(in_channels=count), "gemm") for count in (64, 256))
    assert small < large < 2 * small


def test_winograd_may_err_more_the_larger_its_tile():
    three, five = layer(kernel=(3, 3)), layer(kernel=(5, 5))
    for algorithm in ("winograd", "winograd nonfused"):
        assert tolerance.fp32_tolerance(three, "gemm") < tolerance.fp32_tolerance(three, algorithm)
        assert tolerance.fp32_tolerance(three, algorithm) < tolerance.fp32_tolerance(five, algorithm) / 10


def test_winograd_nonfused_5x5_stays_within_its_tolerance_as_measured_on_an_h200():
    few, many = layer(kernel=(5, 5), in_channels=4), layer(kernel=(5, 5), in_channels=64)
    assert tolerance.fp32_tolerance(few, "winograd nonfused") >= 4.9e-4
    assert 3.4e-4 <= tolerance.fp32_tolerance(many, "winograd nonfused") <= 2e-3


def test_a_model_may_err_as_its_layers_do_together():
    assert tolerance.whole_model_tolerance([3e-4, 4e-4]) == pytest.approx(5e-4)
