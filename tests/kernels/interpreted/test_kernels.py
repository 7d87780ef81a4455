"""Results of the kernels by Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from convscope.convolution import backends
from convscope.convolution.providers.others import TritonProvider
from convscope.cudnn.shape import Convolution
from convscope.errors import NothingFitsError
from convscope.kernels import catalogue, direct, reduction
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.catalogue import Conv2dPlan
from convscope.kernels.winograd import transforms, variants

CPU = torch.device("cpu")
TAPS = Blocks2d("taps", 32, 32, 16, 4, 1)
GATHERED = Blocks2d("gathered", 32, 32, 16, 4, 1)
THIN = Blocks2d("thin", 1, 64, 1, 4, 1)
F2, F4 = Blocks2d("F2", 32, 16, 16, 8, 1), Blocks2d("F4", 16, 16, 16, 8, 1)
IN_PARTS = Blocks2d("F4", 16, 32, 16, 4, 1, chunk=16)


def convolution(
    channels: int = 16, filters: int = 20, size: tuple[int, int] = (9, 7), **options: object
) -> Convolution:
    kernel = options.pop("kernel", (3, 3))
    images, groups = options.pop("images", 2), options.get("groups", 1)
    given = {"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "math": "fp32"} | options
    return Convolution((images, channels, *size), (filters, channels // groups, *kernel), **given)


def run(algorithm: str, shape: Convolution, blocks: Blocks2d, scale: float = 1.0) -> float:
    """Return the relative error against float64; the memory of the output holds NaN before."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape.input) * scale, torch.randn(shape.weight), torch.randn(shape.weight[0])
    made = Conv2dPlan(algorithm, shape, CPU, blocks)
    empty = torch.empty
    try:
        torch.empty = lambda *size, **options: empty(*size, **options).fill_(float("nan"))
        y = made.run(x, weight, bias)
    finally:
        torch.empty = empty
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), *options)
    assert y.shape == expected.shape
    return float((y - expected).norm() / expected.norm())


@pytest.mark.parametrize("splits", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "shape",
    [
        convolution(),
        convolution(kernel=(1, 1), padding=(0, 0), size=(6, 6)),
        convolution(kernel=(1, 1), padding=(0, 0), stride=(2, 2)),
        convolution(stride=(2, 1), dilation=(1, 2), padding=(0, 3)),
        convolution(channels=32, filters=40, groups=2, images=1),
        convolution(kernel=(5, 2), size=(5, 6)),
    ],
    ids=str,
)
def test_direct_by_taps_agrees_with_float64(shape: Convolution, splits: int):
    assert run("direct", shape, dataclasses.replace(TAPS, splits=splits)) < 1e-6


@pytest.mark.parametrize("splits", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    "shape",
    [
        convolution(channels=3),
        convolution(channels=3, kernel=(7, 7), padding=(3, 3), stride=(2, 2), images=1),
        convolution(channels=10, filters=34, groups=2, dilation=(2, 1)),
    ],
    ids=str,
)
def test_direct_gathered_agrees_with_float64(shape: Convolution, splits: int):
    assert run("direct", shape, dataclasses.replace(GATHERED, splits=splits)) < 1e-6


@pytest.mark.parametrize(
    "shape",
    [
        convolution(channels=6, filters=6, groups=6),
        convolution(channels=4, filters=8, groups=2, stride=(2, 1), dilation=(1, 2), kernel=(2, 5), padding=(1, 4)),
    ],
    ids=str,
)
def test_direct_of_thin_groups_agrees_with_float64(shape: Convolution):
    assert run("direct", shape, THIN) < 1e-6


IN_TILES = {
    "plain": (convolution(channels=20, size=(9, 6)), 1),
    "split in 3": (convolution(channels=40, images=1, padding=(0, 2)), 3),
    "split in 2": (convolution(channels=20, images=1, size=(5, 8), padding=(0, 2)), 2),
    "grouped": (convolution(channels=8, filters=10, groups=2, images=1, size=(5, 8)), 1),
}


@pytest.mark.parametrize(
    ("blocks", "bound", "shape", "splits"),
    [
        pytest.param(blocks, bound, *of, id=f"{name}-{kind}", marks=[] if kind in kinds else pytest.mark.long)
        for name, blocks, bound, kinds in (
            ("F2", F2, 5e-7, ("plain", "split in 2", "grouped")), ("F4", F4, 3e-6, ("split in 2",)),
        )
        for kind, of in IN_TILES.items()
    ],
)  # fmt: skip
def test_winograd_agrees_with_float64(blocks: Blocks2d, bound: float, shape: Convolution, splits: int):
    assert run("winograd", shape, dataclasses.replace(blocks, splits=splits)) < bound


@pytest.mark.parametrize(
    ("shape", "blocks", "bound"),
    [
        (convolution(channels=20, size=(9, 8), padding=(1, 2)), IN_PARTS, 3e-6),  # more than one chunk
        (convolution(channels=8, filters=10, groups=2, images=1, size=(5, 7)), IN_PARTS, 3e-6),
        pytest.param(
            convolution(channels=36, size=(9, 6)),
            dataclasses.replace(IN_PARTS, variant="F2", channels=32), 5e-7, marks=pytest.mark.long,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_winograd_in_parts_agrees_with_float64(shape: Convolution, blocks: Blocks2d, bound: float):
    assert run("winograd", shape, blocks) < bound


def test_filters_that_are_not_finite_stay_in_their_channel():
    """The last block of channels must not multiply the next point's filters by 0."""
    shape = convolution(channels=8, filters=8, images=1, size=(5, 5))
    x, weight = torch.randn(shape.input), torch.randn(shape.weight)
    weight[3] = torch.nan
    y = Conv2dPlan("winograd", shape, CPU, IN_PARTS).run(x, weight, None)
    assert y[:, 3].isnan().all()
    y[:, 3] = 0
    assert y.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_the_error_of_winograd_does_not_depend_on_the_scale_of_the_input(scale: float):
    torch.manual_seed(0)
    shape = convolution(channels=8, filters=10, images=1, size=(6, 6))
    x, weight = torch.randn(shape.input) * scale, torch.randn(shape.weight)
    y = Conv2dPlan("winograd", shape, CPU, F4).run(x, weight, None)
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    assert (y - expected).norm() / expected.norm() < 3e-6


@pytest.mark.filterwarnings("ignore:invalid value")  # in the filters that fill a block up and are not stored
def test_infinity_reaches_only_the_outputs_that_see_it():
    shape = convolution(channels=5, images=1, size=(8, 8))
    x, weight = torch.randn(shape.input), torch.randn(shape.weight)
    x[0, 3, 0, 0] = float("inf")
    y = Conv2dPlan("direct", shape, CPU, GATHERED).run(x, weight, None)
    assert not y[0, :, :2, :2].isfinite().any()
    y[..., :2, :2] = 0
    assert y.isfinite().all()


def test_the_filters_are_laid_out_again_after_they_were_written_to():
    shape = convolution(images=1, size=(5, 5))
    x, weight = torch.randn(shape.input), torch.randn(shape.weight)
    made = Conv2dPlan("direct", shape, CPU, TAPS)
    first = made.run(x, weight, None)
    weight.mul_(2)
    assert torch.allclose(made.run(x, weight, None), 2 * first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [convolution(), convolution(groups=4, dilation=(1, 2), stride=(2, 1))], ids=str)
def test_the_reference_of_direct_is_the_definition(shape: Convolution):
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in (shape.input, shape.weight, shape.weight[:1]))
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    expected = torch.nn.functional.conv2d(x, weight, bias, *options)
    assert torch.allclose(direct.reference(x, weight, bias, shape), expected)


@pytest.mark.parametrize("size", [(9, 7), (8, 8), (3, 4)])
def test_the_reference_of_winograd_is_a_convolution(size: tuple[int, int]):
    shape = convolution(size=size, padding=(1, 0))
    x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in (shape.input, shape.weight, shape.weight[:1]))
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=shape.padding)
    assert torch.allclose(transforms.reference(x, weight, bias, shape), expected)


def test_partial_sums_are_added_with_the_bias():
    parts, bias = torch.randn(3, 2, 5, 4, 7), torch.randn(5)
    y = torch.full(parts.shape[1:], float("nan"))
    reduction.add(parts, bias, y)
    np.testing.assert_allclose(y, parts.sum(0) + bias.view(1, 5, 1, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "shape", "reason"),
    [
        ("gemm", convolution(), "gemm has no Triton kernel: choose direct or winograd"),
        ("direct", convolution(dtype="float64"), "direct by Triton takes float32, float16 and bfloat16, not float64"),
        ("direct", convolution(layout="chwn"), "direct by Triton reads nchw and nhwc, not chwn"),
        ("winograd", convolution(kernel=(5, 5)), "winograd by Triton needs 3×3 kernels"),
        ("winograd", convolution(stride=(1, 2)), "winograd by Triton needs 3×3 kernels with stride 1"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_with_a_reason(algorithm: str, shape: Convolution, reason: str):
    assert (catalogue.why_no_kernel(algorithm, shape) or "").startswith(reason)
    with pytest.raises(NotImplementedError, match=reason):
        Conv2dPlan(algorithm, shape, CPU)


@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.parametrize("size", [(7, 7), (224, 224)])
def test_candidates_are_few_and_different(size: tuple[int, int], math: str):
    shape = convolution(channels=64, filters=64, size=size, math=math)
    for kernel in (direct, variants):
        found = kernel.candidates(shape, shape.output, 132)
        assert 0 < len(found) == len(set(found)) <= 12


def test_a_small_image_has_its_reduction_split_and_a_large_one_not():
    small, large = convolution(512, 512, (7, 7), images=1), convolution(512, 512, (112, 112), images=8)
    assert direct.candidates(small, small.output, 132)[0].splits > 1
    assert direct.candidates(large, large.output, 132)[0].splits == 1


def test_many_tiles_are_also_tried_in_parts_and_few_are_not():
    small, large = convolution(512, 512, (7, 7), images=1), convolution(64, 64, (224, 224), images=32)
    depthwise = convolution(64, 64, (224, 224), images=32, groups=64)
    for each in (small, depthwise):
        assert not any(found.chunk for found in variants.candidates(each, each.output, 132))
    found = variants.candidates(large, large.output, 132)
    assert {bool(blocks.chunk) for blocks in found} == {True, False}
    assert len({blocks.chunk for blocks in found if blocks.chunk}) == 2
    assert all(variants.workspace_bytes(large, blocks) <= 1.05 * 2**29 for blocks in found)


def test_the_workspace_of_winograd_is_that_of_its_transformed_tiles():
    shape = convolution(channels=20, size=(9, 8), dtype="float16")
    assert variants.workspace_bytes(shape, F2) == 0
    assert variants.workspace_bytes(shape, dataclasses.replace(F2, splits=3)) == 4 * 3 * 2 * 20 * 9 * 8
    assert variants.workspace_bytes(shape, dataclasses.replace(F2, chunk=16)) == 16 * 16 * (2 * 20 + 4 * 20)


def test_tf32_leaves_no_digits_for_the_larger_tiles():
    shape = convolution(channels=64, filters=64, math="tf32")
    assert {found.variant for found in variants.candidates(shape, shape.output, 132)} == {"F2"}


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_block_shapes_over_a_limit_of_workspace_are_left_out(algorithm: str):
    shape = convolution(channels=64, filters=64, size=(56, 56), images=32)
    every = catalogue.KERNELS[algorithm].candidates(shape, shape.output, 132)

    def needed(most: int | None) -> list[int]:
        plan = Conv2dPlan(algorithm, shape, CPU, max_workspace_bytes=most)
        return [catalogue.KERNELS[algorithm].workspace_bytes(shape, blocks) for blocks in plan.within_limit(every)]

    all_needed = needed(None)
    assert len(all_needed) == len(every)
    assert needed(max(all_needed)) == all_needed
    for most in {each - 1 for each in all_needed if each}:
        assert needed(most) == [each for each in all_needed if each <= most]
    assert set(needed(0)) == {0}


def test_a_limit_that_no_block_shapes_keep_is_said():
    shape = convolution(channels=64, filters=64, size=(56, 56), images=32)
    plan = Conv2dPlan("winograd", shape, CPU, max_workspace_bytes=10_000)
    with pytest.raises(NothingFitsError, match=r"workspace over the limit: winograd needs .* MB, 0.01 MB are allowed"):
        plan.within_limit([IN_PARTS])


def test_a_plan_has_the_limit_in_force_when_it_is_made():
    shape = convolution(channels=64, filters=64, size=(56, 56), images=32)
    every = catalogue.KERNELS["winograd"].candidates(shape, shape.output, 132)
    with backends.settings(max_workspace_bytes=0), backends.settings(layout="nchw"):
        limited = TritonProvider().plan("winograd", shape, CPU)
    free = TritonProvider().plan("winograd", shape, CPU)
    assert len(limited._plan.within_limit(every)) < len(free._plan.within_limit(every)) == len(every)
