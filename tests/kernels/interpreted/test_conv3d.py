"""Results of the 3-D kernels by Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from convscope.cudnn.shape import Convolution
from convscope.kernels.conv3d import candidates, catalogue, gemm
from convscope.kernels.conv3d.layout import Blocks3d


def convolution(
    channels: int = 4, filters: int = 5, size: tuple[int, ...] = (2, 3, 5), **options: object
) -> Convolution:
    kernel = options.pop("kernel", (3, 3, 3))
    images, groups = options.pop("images", 1), options.get("groups", 1)
    given = {"padding": (1, 1, 1), "stride": (1, 1, 1), "dilation": (1, 1, 1), "math": "fp32"} | options
    return Convolution((images, channels, *size), (filters, channels // groups, *kernel), **given)


def error(name: str, shape: Convolution, blocks: Blocks3d | None = None) -> float:
    """Return the relative error against float64; the memory of the output holds NaN before."""
    torch.manual_seed(0)
    dtype = getattr(torch, shape.dtype)
    x, weight = torch.randn(shape.input).to(dtype), torch.randn(shape.weight).to(dtype)
    empty = torch.empty
    try:
        torch.empty = lambda *size, **options: empty(*size, **options).fill_(float("nan"))
        y = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
    finally:
        torch.empty = empty
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    expected = torch.nn.functional.conv3d(x.double(), weight.double(), None, *options)
    assert y.shape == expected.shape
    assert y.dtype == dtype
    return float((y - expected).norm() / expected.norm())


SHAPES = {
    "plain": convolution(channels=3, size=(2, 2, 5), kernel=(3, 2, 3)),
    "strided": convolution(
        stride=(1, 2, 2), dilation=(2, 1, 1), padding=(2, 0, 1), kernel=(2, 3, 2), channels=3, size=(3, 4, 5)
    ),
    "grouped": convolution(
        channels=4, filters=6, groups=2, images=2, size=(2, 3, 4), kernel=(1, 2, 2), padding=(0, 1, 0)
    ),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(kernel, SHAPES[kind], id=f"{kernel}-{kind}", marks=[] if kind in kinds else [pytest.mark.long])
        for kernel, kinds in zip(
            catalogue.KERNELS, itertools.cycle((["strided"], ["plain"], ["grouped"])), strict=False
        )
        for kind in SHAPES
    ],
)
def test_every_kernel_agrees_with_float64(name: str, shape: Convolution):
    made = catalogue.KERNELS[name].default(shape)
    small = dataclasses.replace(made, pixels=16, filters=16, depth=min(16, made.depth))
    assert error(name, shape, small) < 1e-6


@pytest.mark.parametrize("variant", ["boxes", "slices", "pipelined"])
@pytest.mark.parametrize("channels", [4, pytest.param(20, marks=pytest.mark.long)])
def test_the_tuned_kernel_splits_the_sum(variant: str, channels: int):
    shape = convolution(channels=channels, size=(2, 2, 5), kernel=(3, 2, 2))
    assert error("gemm", shape, Blocks3d(variant, 16, 16, 16, 4, 1, splits=3, box=(2, 2, 4))) < 1e-6


@pytest.mark.parametrize("cut", ["boxes", pytest.param("slices", marks=pytest.mark.long)])
def test_with_64_filters_the_product_is_turned_over(cut: str):
    shape = convolution(channels=17, filters=33, size=(3, 2, 5), kernel=(3, 2, 2))
    assert error("gemm", shape, Blocks3d(cut, 16, 64, 16, 4, 1, splits=2, box=(2, 2, 4))) < 1e-6


def test_slices_with_a_sum_for_each_tap_and_with_one():
    shape = convolution(channels=4, filters=3, size=(3, 2, 5), kernel=(3, 2, 2))
    few, many = (Blocks3d("slices", 16, 64, 16, warps, 1, box=(2, 2, 4)) for warps in (4, 8))
    wide = Blocks3d("slices", 128, 64, 16, 1, 1, box=(2, 8, 8))
    assert [gemm.sums(blocks, 3) for blocks in (few, many, wide)] == [3, 3, 1]
    assert error("gemm", shape, few) < 1e-6
    assert error("gemm", shape, wide) < 1e-6


def test_slices_that_hang_over_the_end_are_not_stored():
    shape = convolution(channels=20, size=(4, 2, 5), kernel=(2, 1, 2), padding=(1, 0, 0))
    assert error("gemm", shape, Blocks3d("slices", 64, 16, 16, 4, 1, box=(4, 2, 8))) < 1e-6


def test_the_cuts_of_the_stress_test_are_right():
    shape = convolution(channels=3, size=(2, 2, 3), kernel=(2, 1, 2), math="tf32")
    every = candidates.samples(shape)
    assert {blocks.variant for blocks in every} == {"pipelined", "boxes", "slices"}
    assert all(error("gemm", shape, blocks) < 1e-6 for blocks in every)
