"""The 2-D kernels in float16, bfloat16 and channels last by Triton's interpreter, against PyTorch in float64.

NumPy has no bfloat16: the interpreter keeps its bits in integers, cuts bits off where a GPU rounds to the nearest, and
would multiply matrices of those integers. So here PyTorch rounds, and products are computed on the factors in float32,
which is exact, as on a matrix unit.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from fakes import nonfinite
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from convscope.convolution.tolerance import STORAGE_ROUNDOFF
from convscope.cudnn.shape import Convolution
from convscope.kernels import direct, reduction
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.catalogue import Conv2dPlan
from convscope.kernels.winograd import variants

CPU = torch.device("cpu")
MEMORY_FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
TAPS, GATHERED = Blocks2d("taps", 32, 32, 16, 4, 1), Blocks2d("gathered", 32, 32, 16, 4, 1)
THIN = Blocks2d("thin", 16, 32, 1, 4, 1)
F2, F4 = Blocks2d("F2", 16, 16, 16, 8, 1), Blocks2d("F4", 16, 16, 16, 8, 1)
PLAIN = Convolution((1, 16, 7, 6), (20, 16, 3, 3), (1, 1), (1, 1), (1, 1), math="fp32")
KINDS = {
    "plain": (PLAIN, TAPS),
    "batch of 3, split": (dataclasses.replace(PLAIN, input=(3, 16, 5, 6)), dataclasses.replace(TAPS, splits=3)),
    "strided": (dataclasses.replace(PLAIN, stride=(2, 1), padding=(0, 0)), TAPS),
    "padded": (dataclasses.replace(PLAIN, padding=(3, 2)), TAPS),
    "dilated": (dataclasses.replace(PLAIN, dilation=(2, 1)), TAPS),
    "grouped": (dataclasses.replace(PLAIN, input=(2, 32, 5, 4), weight=(48, 16, 3, 3), groups=2), TAPS),
    "grouped by few channels": (
        dataclasses.replace(PLAIN, input=(2, 10, 5, 4), weight=(34, 5, 3, 2), groups=2), GATHERED,
    ),
    "1x1": (dataclasses.replace(PLAIN, input=(2, 32, 6, 4), weight=(24, 32, 1, 1), padding=(0, 0)), TAPS),
    "1x1 strided": (dataclasses.replace(PLAIN, weight=(20, 16, 1, 1), padding=(0, 0), stride=(2, 2)), TAPS),
    "first layer": (
        dataclasses.replace(PLAIN, input=(2, 3, 9, 8), weight=(24, 3, 5, 4), stride=(2, 2), padding=(2, 1)), GATHERED,
    ),
    "depthwise": (dataclasses.replace(PLAIN, input=(2, 8, 7, 5), weight=(8, 1, 3, 3), groups=8), THIN),
    "depthwise strided": (
        dataclasses.replace(PLAIN, input=(1, 17, 7, 5), weight=(17, 1, 3, 2), groups=17, stride=(2, 2)), THIN,
    ),
    "thin groups": (
        dataclasses.replace(PLAIN, input=(2, 8, 7, 5), weight=(12, 2, 2, 3), groups=4, dilation=(1, 2)), THIN,
    ),
}  # fmt: skip
WINOGRAD = {
    "plain": (dataclasses.replace(PLAIN, input=(2, 20, 7, 6), weight=(18, 20, 3, 3)), F2),
    "split": (
        dataclasses.replace(PLAIN, input=(1, 40, 5, 8), weight=(24, 40, 3, 3)), dataclasses.replace(F2, splits=3),
    ),
    "grouped": (dataclasses.replace(PLAIN, input=(1, 16, 5, 4), weight=(32, 8, 3, 3), groups=2, padding=(0, 2)), F2),
    "in parts": (
        dataclasses.replace(PLAIN, input=(2, 20, 7, 6), weight=(18, 20, 3, 3)),
        Blocks2d("F2", 32, 16, 32, 4, 1, chunk=16),
    ),
}  # fmt: skip
each = pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param("float16", "nchw", marks=pytest.mark.long),
        ("bfloat16", "nhwc"),
        pytest.param("float16", "nhwc", marks=pytest.mark.long),
        pytest.param("bfloat16", "nchw", marks=pytest.mark.long),
    ],
)
each_dtype = pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.long)])
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])


def bits_of(values: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 numbers of an array of float32, as the interpreter keeps them."""
    nearest = torch.from_numpy(np.ascontiguousarray(values)).bfloat16().view(torch.int16)
    return nearest.numpy().view(np.uint16).reshape(values.shape)


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch: pytest.MonkeyPatch):
    multiply, convert = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(builder: Any, handle: Any) -> Any:
        return convert(builder, handle, tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle

    def create_dot(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        return multiply(builder, widened(builder, a), widened(builder, b), *others)

    def cast_impl(builder: Any, source: Any, wanted: Any) -> Any:
        if (source.dtype.scalar, wanted.scalar) == (tl.float32, tl.bfloat16):
            return TensorHandle(bits_of(source.data), tl.bfloat16)
        return convert(builder, source, wanted)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)


def operands(shape: Convolution) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return input, filters and bias in the type and layout of a shape."""
    torch.manual_seed(0)
    dtype, memory = getattr(torch, shape.dtype), MEMORY_FORMATS[shape.layout]
    x, weight = (torch.randn(size).to(dtype).to(memory_format=memory) for size in (shape.input, shape.weight))
    return x, weight, torch.randn(shape.weight[0]).to(dtype)


def exact(shape: Convolution, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.nn.functional.conv2d(
        x.double(), weight.double(), None if bias is None else bias.double(), *shape.options
    )


def error(algorithm: str, shape: Convolution, blocks: Blocks2d, with_bias: bool = True) -> float:
    """Return the relative error against float64; the memory of the output and of partial sums holds NaN before."""
    x, weight, bias = operands(shape)
    plan = Conv2dPlan(algorithm, shape, CPU, blocks)
    empty = torch.empty
    try:
        torch.empty = lambda *size, **options: empty(*size, **options).fill_(float("nan"))
        y = plan.run(x, weight, bias if with_bias else None)
    finally:
        torch.empty = empty
    expected = exact(shape, x, weight, bias if with_bias else None)
    assert (y.shape, y.dtype) == (expected.shape, x.dtype)
    assert y.is_contiguous(memory_format=MEMORY_FORMATS[shape.layout])
    return float((y.double() - expected).norm() / expected.norm())


@each
@pytest.mark.parametrize("kind", KINDS)
def test_direct_in_16_bits_errs_by_the_rounding_of_its_output_alone(kind: str, dtype: str, layout: str):
    shape, blocks = KINDS[kind]
    assert error("direct", dataclasses.replace(shape, dtype=dtype, layout=layout), blocks) < STORAGE_ROUNDOFF[dtype]


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("batch of 3, split", "grouped", "first layer", "thin groups")
        else pytest.param(kind, marks=pytest.mark.long)
        for kind in KINDS
    ],
)  # fmt: skip
def test_direct_in_float32_reads_channels_last(kind: str):
    shape, blocks = KINDS[kind]
    assert error("direct", dataclasses.replace(shape, layout="nhwc"), blocks) < 1e-6


@each_layout
@each_dtype
def test_direct_in_16_bits_without_a_bias(dtype: str, layout: str):
    shape = dataclasses.replace(PLAIN, dtype=dtype, layout=layout)
    assert error("direct", shape, TAPS, with_bias=False) < STORAGE_ROUNDOFF[dtype]


@each
@pytest.mark.parametrize("kind", WINOGRAD)
def test_winograd_in_16_bits_errs_by_the_rounding_of_factors_and_output(kind: str, dtype: str, layout: str):
    shape, blocks = WINOGRAD[kind]
    found = error("winograd", dataclasses.replace(shape, dtype=dtype, layout=layout), blocks)
    assert found < 3 * STORAGE_ROUNDOFF[dtype]


@pytest.mark.parametrize(
    ("kind", "blocks", "math", "bound"),
    [
        ("split", F2, "fp32", 5e-7),
        ("grouped", F2, "tf32", 1e-3),
        *(
            pytest.param(kind, *of, marks=pytest.mark.long)
            for kind in WINOGRAD
            for of in ((F2, "fp32", 5e-7), (F2, "tf32", 1e-3), (F4, "fp32", 3e-6))
        ),
    ],
)
def test_winograd_in_float32_reads_channels_last(kind: str, blocks: Blocks2d, math: str, bound: float):
    shape, chosen = WINOGRAD[kind]
    blocks = dataclasses.replace(blocks, splits=chosen.splits, chunk=chosen.chunk)
    assert error("winograd", dataclasses.replace(shape, layout="nhwc", math=math), blocks) < bound


@each
@pytest.mark.parametrize("kind", ["plain", "1x1", "first layer", "depthwise"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_direct_in_16_bits_gives_what_pytorch_gives_of_nan_and_infinity(kind: str, dtype: str, layout: str):
    shape, blocks = KINDS[kind]
    shape = dataclasses.replace(shape, dtype=dtype, layout=layout)
    x, weight, _ = operands(shape)
    x = nonfinite.planted(x, "nan of a GPU", "inf", "-inf")
    y = Conv2dPlan("direct", shape, CPU, blocks).run(x, weight)
    assert nonfinite.same(y, exact(shape, x, weight), STORAGE_ROUNDOFF[dtype])


@each
@pytest.mark.parametrize("blocks", [F2, WINOGRAD["in parts"][1]], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_winograd_in_16_bits_keeps_nan_and_what_is_not_finite_where_it_is_seen(
    blocks: Blocks2d, dtype: str, layout: str
):
    shape = dataclasses.replace(PLAIN, input=(1, 16, 9, 10), weight=(16, 16, 3, 3), dtype=dtype, layout=layout)
    x, weight, _ = operands(shape)
    x = nonfinite.planted(x, "nan of a GPU", "inf", "-inf")
    y, by_torch = Conv2dPlan("winograd", shape, CPU, blocks).run(x, weight), exact(shape, x, weight)
    assert y[nonfinite.seeing(shape, x.isnan())].isnan().all()
    assert not y[~by_torch.isfinite()].isfinite().any()
    assert nonfinite.close(y, by_torch, by_torch.isfinite(), 3 * STORAGE_ROUNDOFF[dtype])


@each_layout
@pytest.mark.parametrize(("input_scale", "filter_scale"), [(65504.0, 1e-3), (1e-3, 65504.0)])
def test_winograd_in_float16_does_not_overflow_on_the_way(layout: str, input_scale: float, filter_scale: float):
    shape = dataclasses.replace(PLAIN, dtype="float16", layout=layout)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(4, 3)[
        :7, :6
    ]  # what the transform adds up, it adds up whole
    x = (signs.roll(1, 0).expand(shape.input) * input_scale).half().contiguous(memory_format=MEMORY_FORMATS[layout])
    weight = torch.full(shape.weight, filter_scale).half()
    weight[:, 1::2] *= -1
    weight[:, 0] *= 0.5
    expected = exact(shape, x, weight)
    y = Conv2dPlan("winograd", shape, CPU, F2).run(x, weight)
    assert expected.abs().max() < 65504
    assert float((y.double() - expected).norm() / expected.norm()) < 3 * STORAGE_ROUNDOFF["float16"]


@each_dtype
def test_partial_sums_of_float32_are_rounded_once_with_the_bias(dtype: str):
    parts, bias = torch.randn(3, 2, 4, 5, 7), torch.randn(7).to(getattr(torch, dtype))  # splits, N, P, Q, K in memory
    y = torch.full((2, 7, 4, 5), torch.nan, dtype=bias.dtype).contiguous(memory_format=torch.channels_last)
    reduction.add(parts.view(3, 2, 7, 4, 5), bias, y, last=True)
    total = parts.double().sum(0) + bias.double()
    np.testing.assert_allclose(y.permute(0, 2, 3, 1).double(), total, rtol=STORAGE_ROUNDOFF[dtype], atol=1e-6)


@each_dtype
def test_partial_sums_without_a_bias_are_rounded_once(dtype: str):
    parts = torch.randn(3, 2, 5, 4, 3, 7)
    y = reduction.total(parts, getattr(torch, dtype))
    assert (y.shape, y.dtype) == (parts.shape[1:], getattr(torch, dtype))
    np.testing.assert_allclose(y.double(), parts.double().sum(0), rtol=STORAGE_ROUNDOFF[dtype], atol=1e-6)


@each_layout
@each_dtype
def test_filters_are_packed_in_the_type_of_the_weight(dtype: str, layout: str):
    for module, shape, blocks in ((direct, *KINDS["plain"]), (direct, *KINDS["depthwise"]), (variants, PLAIN, F2)):
        shape = dataclasses.replace(shape, dtype=dtype, layout=layout)
        assert module.pack(operands(shape)[1], shape, blocks).dtype == getattr(torch, dtype)


@each_dtype
def test_filters_may_lie_in_either_layout(dtype: str):
    shape = dataclasses.replace(PLAIN, dtype=dtype, layout="nhwc")
    x, weight, bias = operands(shape)
    plan = Conv2dPlan("direct", shape, CPU, TAPS)
    assert torch.equal(plan.run(x, weight, bias), plan.run(x, weight.contiguous(), bias))


def test_block_shapes_are_chosen_for_each_type_and_layout():
    options = itertools.product(("float32", "float16", "bfloat16"), ("nchw", "nhwc"))
    shapes = [dataclasses.replace(PLAIN, dtype=dtype, layout=layout) for dtype, layout in options]
    assert len({Conv2dPlan("direct", shape, CPU).key for shape in shapes}) == 6


@each_layout
@each_dtype
@pytest.mark.parametrize("size", [(7, 7), (224, 224)])
def test_candidates_in_16_bits_are_few_and_different(size: tuple[int, int], dtype: str, layout: str):
    shape = dataclasses.replace(PLAIN, input=(1, 64, *size), weight=(64, 64, 3, 3), dtype=dtype, layout=layout)
    for kernel in (direct, variants):
        found = kernel.candidates(shape, shape.output, 132)
        assert 0 < len(found) == len(set(found)) <= 12
    assert {blocks.variant for blocks in found} == {"F2"}  # no digits are left for the larger tiles


def test_the_interpreter_multiplies_bfloat16_as_numbers():
    numbers = bits_of(np.array([[3.0, -0.5]], np.float32))
    row, column = TensorHandle(numbers, tl.bfloat16), TensorHandle(numbers.T, tl.bfloat16)
    zero = TensorHandle(np.zeros((1, 1), np.float32), tl.float32)
    assert InterpreterBuilder().create_dot(row, column, zero, None, 0).data.item() == 9.25
