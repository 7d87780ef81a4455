"""Results of the 3-D kernels by Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from fakes import packing

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.conv3d import FMA_ONLY, PLANAR_ONLY, catalogue, layout
from convscope.kernels.conv3d.copies import inputs
from convscope.kernels.conv3d.copies.filters import pack
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.kernels.conv3d.tuned import boxes as of_boxes
from convscope.kernels.conv3d.tuned import candidates


def convolution(
    channels: int = 4, filters: int = 5, size: tuple[int, ...] = (2, 3, 5), **options: object
) -> Convolution:
    kernel = options.pop("kernel", (3, 3, 3))
    images, groups = options.pop("images", 1), options.get("groups", 1)
    given = {"padding": (1, 1, 1), "stride": (1, 1, 1), "dilation": (1, 1, 1), "math": "fp32"} | options
    return Convolution((images, channels, *size), (filters, channels // groups, *kernel), **given)


def error(name: str, shape: Convolution, blocks: Blocks3d | None = None) -> float:
    """Return the relative error against float64, of factors rounded to TF32 where they are to be.

    The memory of the output holds NaN before, that for integers 1.
    """
    torch.manual_seed(0)
    dtype = getattr(torch, shape.dtype)
    memory = torch.channels_last_3d if shape.layout == "nhwc" else torch.contiguous_format
    x, weight = torch.randn(shape.input).to(dtype), torch.randn(shape.weight).to(dtype)
    x = x.contiguous(memory_format=memory)
    empty = torch.empty

    def used(*size: Any, **options: Any) -> torch.Tensor:
        memory = empty(*size, **options)
        return memory.fill_(float("nan") if memory.is_floating_point() else 1)

    try:
        torch.empty = used
        y = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
    finally:
        torch.empty = empty
    options = shape.stride, shape.padding, shape.dilation, shape.groups
    if shape.dtype == "float32" and shape.math == "tf32" and name not in FMA_ONLY:
        x, weight = tf32.rounded(x), tf32.rounded(weight)
    expected = torch.nn.functional.conv3d(x.double(), weight.double(), None, *options)
    assert y.shape == expected.shape
    assert y.is_contiguous(memory_format=memory)
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


@pytest.mark.parametrize("name", catalogue.KERNELS)
def test_factors_are_rounded_to_tf32_and_not_cut(name: str):
    shape = dataclasses.replace(SHAPES["plain"], math="tf32")
    made = catalogue.KERNELS[name].default(shape)
    assert error(name, shape, dataclasses.replace(made, pixels=16, filters=16, depth=min(16, made.depth))) < 1e-6


_ALIKE = {"read where they lie": (32, 5, 1), "padded": (20, 12, 1), "first": (4, 8, 1), "grouped": (40, 6, 2)}


@pytest.mark.parametrize("math", ["fp32", pytest.param("tf32", marks=pytest.mark.long)])
@pytest.mark.parametrize("sizes", _ALIKE.values(), ids=_ALIKE)
@pytest.mark.parametrize("name", [name for name in catalogue.KERNELS if name not in PLANAR_ONLY])
def test_channels_last_in_and_out(name: str, sizes: tuple[int, int, int], math: str):
    channels, filters, groups = sizes
    shape = convolution(
        channels=channels, filters=filters, groups=groups, images=2, size=(2, 2, 5), kernel=(3, 2, 2), layout="nhwc",
        math=math,
    )  # fmt: skip
    made = catalogue.KERNELS[name].default(shape)
    assert error(name, shape, dataclasses.replace(made, pixels=16, filters=16, depth=min(16, made.depth))) < 1e-6


@pytest.mark.parametrize("math", ["tf32", "fp32"])
@pytest.mark.parametrize("variant", ["boxes", "slices", "pipelined"])
def test_channels_last_by_each_variant_with_its_sum_split(variant: str, math: str):
    shape = convolution(channels=32, filters=36, size=(2, 2, 5), kernel=(3, 2, 2), layout="nhwc", math=math)
    assert error("gemm", shape, Blocks3d(variant, 16, 64, 16, 4, 1, splits=3, box=(2, 2, 4))) < 1e-6


def test_an_input_in_channels_last_is_read_where_it_lies_unless_it_is_rounded_or_padded():
    def copies(shape: Convolution, offset: int = 0) -> bool:
        x = torch.randn(shape.input[0] * 32 * 20 * 32 + offset)[offset:]
        images, channels, *size = shape.input
        x = x[: images * channels * 20].view(images, *size, channels).permute(0, 4, 1, 2, 3)
        return inputs.channels_last(x, shape).data_ptr() != x.data_ptr()

    shape = convolution(channels=32, size=(2, 2, 5), layout="nhwc")
    assert not copies(shape)
    assert copies(shape, offset=1)  # not aligned
    assert copies(dataclasses.replace(shape, math="tf32"))
    assert copies(convolution(channels=20, size=(2, 2, 5), layout="nhwc"))
    assert copies(convolution(channels=4, size=(2, 2, 5), layout="nhwc"))


_SAMPLED = {  # name: convolution, what is copied of depth, height and width, the phases of that, variants for it
    "pointwise": ({"channels": 32, "size": (3, 5, 6), "kernel": (1, 1, 1), "stride": (2, 2, 2), "padding": (0, 0, 0)},
                  (2, 2, 2), (1, 1, 1), ("boxes", "pipelined")),
    "by rows": ({"channels": 20, "size": (2, 5, 6), "kernel": (1, 3, 1), "stride": (1, 2, 3), "padding": (0, 1, 0)},
                (1, 1, 3), (1, 2, 1), ("boxes", "pipelined")),
    "padded": ({"channels": 16, "size": (3, 4, 5), "kernel": (1, 1, 1), "stride": (2, 2, 2), "padding": (1, 0, 0)},
               (1, 2, 2), (2, 1, 1), ("boxes", "pipelined")),
    "grouped": ({"channels": 6, "size": (3, 3, 5), "kernel": (1, 1, 1), "stride": (2, 1, 2), "padding": (0, 0, 0),
                 "groups": 2, "filters": 8}, (2, 1, 2), (1, 1, 1), ("boxes", "pipelined")),
    "slices": ({"channels": 16, "size": (3, 4, 5), "kernel": (3, 1, 1), "stride": (1, 2, 2), "padding": (1, 0, 0)},
               (1, 2, 2), (1, 1, 1), ("boxes", "pipelined", "slices")),
    "first": ({"channels": 3, "size": (5, 4, 5), "kernel": (1, 3, 3), "stride": (2, 2, 2), "padding": (0, 1, 1)},
              (2, 1, 1), (1, 2, 1), ("boxes", "pipelined")),
    "first in runs": ({"channels": 3, "size": (5, 3, 8), "kernel": (1, 3, 3), "stride": (2, 1, 1),
                       "padding": (0, 1, 1)}, (2, 1, 1), (1, 1, 1), ("boxes", "pipelined")),
    "in phases": ({"channels": 16, "size": (4, 5, 6), "stride": (2, 2, 2), "padding": (1, 0, 2)},
                  (1, 1, 1), (2, 2, 2), ("boxes", "pipelined")),
    "by two and by three": ({"channels": 6, "size": (5, 5, 7), "kernel": (2, 3, 4), "stride": (1, 2, 3), "groups": 2,
                             "padding": (1, 2, 3), "dilation": (1, 2, 1), "filters": 8},
                            (1, 1, 1), (1, 2, 3), ("boxes", "pipelined", "slices")),
    "first, in phases and runs": ({"channels": 3, "size": (3, 6, 8), "kernel": (3, 5, 5), "stride": (1, 2, 2),
                                   "padding": (1, 2, 2)}, (1, 1, 1), (1, 2, 1), ("boxes", "pipelined", "slices")),
}  # fmt: skip
_BY_VARIANT = {
    "pipelined": Blocks3d("pipelined", 16, 16, 16, 4, 1),
    "boxes": Blocks3d("boxes", 16, 16, 16, 4, 1, box=(2, 2, 4)),
    "slices": Blocks3d("slices", 16, 16, 16, 4, 1, box=(2, 2, 4)),
}


@pytest.mark.parametrize("layout_of", ["nchw", pytest.param("nhwc", marks=pytest.mark.long)])
@pytest.mark.parametrize(("sizes", "sampled", "phases", "usable"), _SAMPLED.values(), ids=_SAMPLED)
def test_strides_of_a_narrow_kernel_are_sampled_and_others_are_in_phases(
    sizes: dict[str, Any], sampled: tuple[int, ...], phases: tuple[int, ...], usable: tuple[str, ...], layout_of: str
):
    shape = convolution(**{"images": 2, "layout": layout_of, "math": "tf32"} | sizes)
    seen, has_runs = layout.problem(shape, in_phases=True), len(layout.runs(shape)) > 1
    assert has_runs == (sizes["channels"] == 3 and sizes["size"][2] == 8)
    assert layout.problem(shape).sampled == seen.sampled == sampled
    assert (seen.phases, seen.stride) == (phases, (1, 1, 1))
    assert candidates.variants(shape) == usable
    for variant in usable:
        assert error("gemm", shape, _BY_VARIANT[variant]) < 1e-6
    for variant in set(usable) - {"pipelined"} if has_runs else ():
        assert error("gemm", shape, dataclasses.replace(_BY_VARIANT[variant], run=2)) < 1e-6


_IN_PLACE = {  # name: one of _SAMPLED, how it differs from it, whether the copy engine reads it where it lies
    "pointwise": ("pointwise", {}, True),
    "phases of several sizes": ("in phases", {}, False),
    "phases of one size": ("in phases", {"size": (4, 4, 6), "images": 2}, True),
    "slices": ("slices", {"size": (3, 4, 6), "images": 2}, True),
    "by two and by three": ("by two and by three", {"size": (5, 6, 9), "channels": 32}, True),
    "few channels of a group": ("grouped", {"images": 2}, False),
    "first": ("first", {}, False),
}


@pytest.mark.parametrize(("like", "sizes", "lies"), _IN_PLACE.values(), ids=_IN_PLACE)
def test_the_copy_engine_reads_pixels_at_a_stride_where_they_lie_if_phases_are_alike(
    like: str, sizes: dict[str, Any], lies: bool
):
    others, sampled, phases, usable = _SAMPLED[like]
    shape = convolution(**{"layout": "nhwc", "dtype": "float16"} | others | sizes)
    alone, in_phases = layout.problem(shape), layout.problem(shape, in_phases=True)
    assert (alone.sampled, alone.phases) == ((1, 1, 1), (1, 1, 1))
    assert (in_phases.sampled, in_phases.phases) == (sampled, phases)
    x = torch.randn(shape.input).half().contiguous(memory_format=torch.channels_last_3d)
    assert (inputs.channels_last(x, shape).data_ptr() == x.data_ptr()) == (shape.weight[1] % 16 == 0)
    assert (inputs.fetched(x, shape).values.data_ptr() == x.data_ptr()) == lies == inputs.is_in_place(shape)
    assert candidates.variants(shape) == usable
    for variant in usable:
        assert error("gemm", shape, _BY_VARIANT[variant]) < 1e-3


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last_3d], ids=["planar", "last"])
@pytest.mark.parametrize("options", [{"math": "tf32"}, {"dtype": "float16"}], ids=["tf32", "float16"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"channels": 16, "filters": 5},
        {"channels": 20, "filters": 7, "kernel": (2, 3, 1)},
        {"channels": 6, "filters": 8, "groups": 2, "kernel": (3, 1, 2)},
        {"channels": 4, "filters": 5, "size": (2, 3, 8)},
        {"channels": 3, "filters": 6, "size": (2, 6, 16), "kernel": (3, 5, 5), "stride": (1, 2, 2)},
        {"channels": 70, "filters": 130, "kernel": (1, 1, 1)},
        {"channels": 17, "filters": 3, "kernel": (4, 3, 4)},
    ],
    ids=str,
)
def test_filters_are_packed_as_kernels_read_them(
    sizes: dict[str, Any], options: dict[str, Any], memory: torch.memory_format, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(layout, "FILTERS_PADDED", 32)  # each of them is a program
    shape = convolution(**sizes, **options)
    torch.manual_seed(0)
    weight = torch.randn(shape.weight).to(getattr(torch, shape.dtype)).contiguous(memory_format=memory)
    weight[0, 0, 0, 0, 0] = torch.inf
    for run in layout.runs(shape):
        assert torch.equal(pack(weight, shape, run), packing.packed(weight, shape, run))


def test_filters_are_packed_from_any_memory():
    shape = convolution(channels=16, filters=4, kernel=(3, 1, 1))
    torch.manual_seed(0)
    transposed = torch.randn(4, 16, 1, 1, 3).transpose(2, 4)
    assert transposed.is_contiguous()
    assert transposed.stride()[-1] != 1  # of an extent of 1 it means nothing
    parts = torch.randn(4, 16, 3, 5, 5)[..., 1:2, 2:3], torch.randn(8, 32, 3, 1, 1)[::2, 1::2]
    for weight in (transposed, *parts):
        assert torch.equal(pack(weight, shape), packing.packed(weight, shape))


def test_kernels_for_ncdhw_say_so():
    shape = convolution(layout="nhwc")
    with pytest.raises(NotImplementedError, match=r"^gemm ncdhw reads and writes NCDHW$"):
        catalogue.Conv3dPlan("gemm ncdhw", shape)


@pytest.mark.parametrize("variant", ["boxes", "slices", "pipelined"])
@pytest.mark.parametrize("channels", [4, pytest.param(20, marks=pytest.mark.long)])
def test_the_tuned_kernel_splits_the_sum(variant: str, channels: int):
    shape = convolution(channels=channels, size=(2, 2, 5), kernel=(3, 2, 2))
    assert error("gemm", shape, Blocks3d(variant, 16, 16, 16, 4, 1, splits=3, box=(2, 2, 4))) < 1e-6


@pytest.mark.parametrize("cut", ["boxes", pytest.param("slices", marks=pytest.mark.long)])
def test_with_64_filters_the_product_is_turned_over(cut: str):
    shape = convolution(channels=17, filters=33, size=(3, 2, 5), kernel=(3, 2, 2))
    assert error("gemm", shape, Blocks3d(cut, 16, 64, 16, 4, 1, splits=2, box=(2, 2, 4))) < 1e-6


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("shape", "splits"),
    [
        (SHAPES["plain"], 1),  # the taps of a row together: 9 of 16 terms
        (convolution(channels=7, size=(2, 2, 5), kernel=(2, 3, 3), dilation=(1, 1, 2), padding=(0, 1, 2)), 2),
        (SHAPES["strided"], 1),
        pytest.param(SHAPES["grouped"], 3, marks=pytest.mark.long),
        (convolution(channels=32, filters=34, size=(2, 3, 3), images=2), 3),
        pytest.param(
            convolution(channels=16, filters=3, size=(3, 4, 5), stride=(2, 1, 2), dilation=(1, 2, 1)), 1,
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_without_the_matrix_unit_pixels_and_filters_are_contiguous(shape: Convolution, splits: int, where: str):
    shape = dataclasses.replace(shape, layout=where)
    assert error("gemm", shape, Blocks3d("planar", 32, 16, 16, 4, 1, splits=splits)) < 1e-6


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("blocks", "channels", "filters", "options"),
    [
        (Blocks3d("boxes", 16, 16, 16, 4, 1, splits=2, box=(1, 2, 8), run=2), 4, 5, {}),
        (Blocks3d("slices", 16, 64, 16, 4, 1, splits=2, box=(2, 2, 4), run=2), 4, 5, {}),
        (Blocks3d("boxes", 16, 32, 16, 4, 1, box=(1, 4, 4), run=4), 3, 6, {"dtype": "float16"}),
        pytest.param(Blocks3d("boxes", 16, 16, 16, 4, 1, box=(1, 4, 4), run=8), 1, 2, {}, marks=pytest.mark.long),
        pytest.param(
            Blocks3d("boxes", 16, 64, 16, 4, 1, box=(2, 2, 4), run=2), 3, 40,
            {"stride": (1, 1, 2), "kernel": (1, 1, 7), "padding": (0, 0, 3)}, marks=pytest.mark.long,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_neighbouring_outputs_of_a_first_layer_are_computed_as_one(
    blocks: Blocks3d, channels: int, filters: int, options: dict[str, Any], where: str
):
    wide = {"channels": channels, "filters": filters, "size": (2, 3, 16), "images": 2, "math": "tf32"}
    shape = convolution(**wide, layout=where, **options)
    assert blocks.run in layout.runs(shape)
    assert error("gemm", shape, blocks) < (3e-4 if shape.dtype == "float16" else 1e-6)


def test_a_run_shares_the_terms_of_a_row():
    shape = convolution(channels=4, filters=32, size=(8, 8, 32))
    alone, of_two = layout.problem(shape), layout.problem(shape, 2)
    assert (alone.channels, alone.filters, alone.pixels) == (16, 32, 8 * 8 * 32)
    assert (of_two.channels, of_two.filters, of_two.pixels) == (16, 64, 8 * 8 * 16)


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ({"size": (2, 3, 8)}, [1, 2, 4, 8]),
        ({"size": (2, 3, 6)}, [1, 2]),  # which divide a row
        ({"size": (2, 3, 8), "filters": 100}, [1]),
        ({"size": (2, 3, 8), "stride": (1, 1, 2)}, [1, 2, 4]),
        ({"size": (2, 4, 8), "stride": (1, 2, 1)}, [1, 2, 4, 8]),
        ({"size": (2, 3, 8), "channels": 32}, [1]),
        ({"size": (2, 3, 8), "math": "fp32"}, [1]),
    ],
    ids=str,
)
def test_runs_are_of_first_layers_on_the_matrix_unit(options: dict[str, Any], runs: list[int]):
    assert layout.runs(convolution(**({"channels": 4, "math": "tf32"} | options))) == runs


def test_slices_with_a_sum_for_each_tap_and_with_one():
    shape = convolution(channels=4, filters=3, size=(3, 2, 5), kernel=(3, 2, 2))
    few, many = (Blocks3d("slices", 16, 64, 16, warps, 1, box=(2, 2, 4)) for warps in (4, 8))
    wide = Blocks3d("slices", 128, 64, 16, 1, 1, box=(2, 8, 8))
    assert [of_boxes.sums(blocks, 3) for blocks in (few, many, wide)] == [3, 3, 1]
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
