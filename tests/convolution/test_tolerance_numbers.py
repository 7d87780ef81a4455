"""Tolerances as exact numbers: no factor, exponent or unit roundoff changes unseen."""

from __future__ import annotations

import pytest
from fakes import layer

from convscope.convolution import tolerance

UNIT = 2.0**-24


@pytest.mark.parametrize(
    ("algorithm", "kernel", "channels", "units"),
    [
        ("gemm", (3, 3), 16, 16 + 8 * 12),
        ("gemm", (5, 5), 4, 16 + 8 * 10),
        ("fft", (1, 1), 64, 16 + 8 * 8),
        ("winograd", (3, 3), 16, 8 * 16 + 8 * 12),
        ("winograd nonfused", (1, 3), 12, 8 * 16 + 8 * 6),
        ("winograd nonfused", (5, 5), 4, 1024 * 16 + 8 * 10),
        ("winograd nonfused", (5, 3), 15, 1024 * 16 + 8 * 15),
        ("winograd nonfused", (7, 7), 1, 16 + 8 * 7),
    ],
)
def test_float32_errs_by_a_fixed_part_and_the_root_of_the_sum(algorithm, kernel, channels, units):
    one = layer(kernel=kernel, in_channels=channels)
    assert tolerance.fp32_tolerance(one, algorithm) == units * UNIT
    assert tolerance.tolerance(one, algorithm, "fp32") == units * UNIT
    assert tolerance.tolerance(one, algorithm, "tf32") == units * UNIT + 2 * 2.0**-11


@pytest.mark.parametrize(("stride", "growth"), [((1, 1), 8), ((2, 2), 1), ((1, 2), 1)])
def test_pytorch_may_take_winograds_algorithm_where_the_stride_is_1(stride: tuple[int, int], growth: int):
    assert tolerance.fp32_tolerance(layer(stride=stride), "torch") == (growth * 16 + 8 * 12) * UNIT


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, None),
        (0.0005, None),
        (0.001, None),
        (0.00123, "relative error 0.0012, tolerance 0.001"),
        (float("nan"), "relative error nan, tolerance 0.001: numbers of this layer are not finite"),
        (float("inf"), "relative error inf, tolerance 0.001: numbers of this layer are not finite"),
    ],
)
def test_an_error_above_its_tolerance_or_not_a_number_is_wrong(error: float | None, reason: str | None):
    assert tolerance.why_wrong(error, 0.001) == reason


@pytest.mark.parametrize(("dtype", "rounding"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.parametrize(
    ("algorithm", "kernel", "units", "roundings"),
    [
        ("gemm", (3, 3), 16 + 8 * 12, 2),
        ("fft", (3, 3), 16 + 8 * 12, 2),
        ("winograd", (3, 3), 8 * 16 + 8 * 12, 2 + 2 * 8),
        ("winograd nonfused", (5, 5), 1024 * 16 + 8 * 20, 2),
        ("torch", (3, 3), 8 * 16 + 8 * 12, 2),
    ],
)
def test_16_bits_round_what_is_stored_in_either_math_mode(dtype, rounding, math, algorithm, kernel, units, roundings):
    one = layer(kernel=kernel)
    assert tolerance.tolerance(one, algorithm, math, dtype) == units * UNIT + roundings * rounding


@pytest.mark.parametrize(("dtype", "rounding"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
@pytest.mark.parametrize("math", ["fp32", "tf32"])
def test_storage_in_fewer_bits_rounds_both_factors_and_the_result(dtype: str, rounding: float, math: str):
    assert tolerance.stored_tolerance(layer(), dtype, math) == (16 + 8 * 12) * UNIT + 3 * rounding


@pytest.mark.parametrize(("math", "rounding"), [("fp32", 0.0), ("tf32", 2 * 2.0**-11)])
def test_storage_in_float32_rounds_nothing_more(math: str, rounding: float):
    assert tolerance.stored_tolerance(layer(), "float32", math) == (16 + 8 * 12) * UNIT + rounding


@pytest.mark.parametrize(
    ("arithmetic", "dtype", "transformed", "allowed"),
    [
        ("fp32", "float32", False, (16 + 8 * 8) * UNIT),
        ("fp32", "float32", True, (16 * 16 + 8 * 8) * UNIT),
        ("tf32", "float32", False, (16 + 8 * 8) * UNIT + 8 * 2.0**-23 + 4 * 2.0**-10),
        ("fp16", "float32", False, (16 + 8 * 8) * UNIT + 8 * 2.0**-23),
        ("fp16", "float16", False, (16 + 8 * 8) * UNIT + 8 * 2.0**-23 + 2.0**-11),
        ("fp32", "bfloat16", False, (16 + 8 * 8) * UNIT + 2.0**-8),
    ],
)
def test_an_element_errs_by_its_sums_its_factors_and_its_storage(arithmetic, dtype, transformed, allowed):
    assert tolerance.elementwise_tolerance(64, arithmetic, dtype, transformed) == allowed


def test_an_element_is_of_float32_and_not_transformed_where_nothing_is_said():
    assert tolerance.elementwise_tolerance(64, "fp32") == (16 + 8 * 8) * UNIT


def test_the_errors_of_layers_add_as_the_root_of_their_squares():
    assert tolerance.whole_model_tolerance([3.0, 4.0, 12.0]) == 13.0
