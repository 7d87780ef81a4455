"""NaN and infinities in the input, by Triton's interpreter: where PyTorch has them, and nowhere else."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fakes import nonfinite

from convscope.cudnn.shape import Convolution
from convscope.kernels import tf32
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.catalogue import Conv2dPlan
from convscope.kernels.conv3d import PLANAR_ONLY, catalogue, layout
from convscope.kernels.conv3d.layout import Blocks3d

CPU = torch.device("cpu")
# NumPy's: of products that are not stored, and of infinities that meet.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:invalid value")]

EVERY = ("nan of a GPU", "inf", "-inf"), ("nan", "negative nan"), ("nan of a GPU",), ("inf",)
PLANE = Convolution((4, 16, 9, 10), (20, 16, 3, 3), (1, 1), (1, 1), (1, 1), math="fp32")
IN_2D = {
    "taps": (PLANE, Blocks2d("taps", 32, 32, 16, 4, 1)),
    "pointwise": (
        dataclasses.replace(PLANE, weight=(20, 16, 1, 1), padding=(0, 0)), Blocks2d("taps", 32, 32, 16, 4, 1, 2)
    ),
    "gathered": (
        dataclasses.replace(PLANE, input=(4, 3, 9, 10), weight=(20, 3, 3, 3), stride=(2, 1)),
        Blocks2d("gathered", 32, 32, 16, 4, 1, 2),
    ),
    "thin": (dataclasses.replace(PLANE, weight=(16, 1, 3, 3), groups=16), Blocks2d("thin", 1, 64, 1, 4, 1)),
}  # fmt: skip
SPACE = Convolution((4, 4, 2, 3, 7), (3, 4, 2, 2, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), math="fp32")
WIDE = Convolution((4, 16, 2, 3, 5), (3, 16, 2, 2, 3), (1, 0, 1), (1, 1, 1), (1, 1, 1), math="fp32")
GROUPED = Convolution((4, 6, 2, 3, 5), (4, 3, 2, 2, 3), (0, 1, 1), (1, 2, 2), (1, 1, 1), 2, math="fp32")
VARIANTS = [Blocks3d(variant, 16, 16, 16, 4, 1, 2, (2, 2, 4)) for variant in ("boxes", "slices", "pipelined")]
RUNS = [
    Blocks3d("boxes", 16, 16, 16, 4, 1, 2, (2, 2, 4), 2),
    Blocks3d("slices", 16, 16, 16, 4, 1, 2, (2, 2, 4), 2),
    Blocks3d("boxes", 16, 16, 16, 4, 1, 1, (2, 4, 2), 4),
]


def tensors(shape: Convolution) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an input, each image of which has other values of EVERY, and filters."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape.input), torch.randn(shape.weight)
    images = zip(x.split(1), EVERY, strict=True)
    return torch.cat([nonfinite.planted(image, *names) for image, names in images]), weight


@pytest.mark.parametrize("variant", IN_2D)
def test_direct_gives_what_pytorch_gives(variant: str):
    shape, blocks = IN_2D[variant]
    x, weight = tensors(shape)
    y = Conv2dPlan("direct", shape, CPU, blocks).run(x, weight)
    assert nonfinite.same(y, nonfinite.expected(shape, x, weight), 1e-6)


@pytest.mark.parametrize(
    ("tile", "math", "chunk"), [(2, "fp32", 0), (2, "tf32", 0), (4, "fp32", 0), (2, "tf32", 32), (4, "fp32", 16)]
)
def test_winograd_keeps_nan_and_what_is_not_finite_in_its_tile(tile: int, math: str, chunk: int):
    shape = dataclasses.replace(PLANE, math=math)
    x, weight = tensors(shape)
    blocks = Blocks2d(f"F{tile}", 16, 16, 16, 8, 1, chunk=chunk)
    y = Conv2dPlan("winograd", shape, CPU, blocks).run(x, weight)
    by_torch = nonfinite.expected(shape, x, weight)
    assert y[nonfinite.seeing(shape, x.isnan())].isnan().all()
    assert not y[~by_torch.isfinite()].isfinite().any()
    outside = by_torch.isfinite() if tile == 2 else ~nonfinite.tiles(~by_torch.isfinite(), tile)
    for image, own, where in zip(y, by_torch, outside, strict=True):
        assert where.any()
        assert nonfinite.close(image, own, where, 1e-3 if math == "tf32" else 3e-6)


@pytest.mark.parametrize("shape", [SPACE, pytest.param(GROUPED, marks=pytest.mark.long)], ids=["folded", "grouped"])
@pytest.mark.parametrize("name", catalogue.KERNELS)
def test_every_3d_kernel_gives_what_pytorch_gives(name: str, shape: Convolution):
    made = catalogue.KERNELS[name].default(shape)
    blocks = dataclasses.replace(made, pixels=16, filters=16, depth=min(16, made.depth))
    x, weight = tensors(shape)
    y = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
    assert nonfinite.same(y, nonfinite.expected(shape, x, weight), 1e-6)


@pytest.mark.parametrize("shape", [SPACE, GROUPED, WIDE], ids=["folded", "grouped", "as it lies"])
@pytest.mark.parametrize("name", [name for name in catalogue.KERNELS if name not in PLANAR_ONLY])
def test_every_3d_kernel_that_knows_channels_last_gives_what_pytorch_gives_in_it(name: str, shape: Convolution):
    shape = dataclasses.replace(shape, layout="nhwc")
    made = catalogue.KERNELS[name].default(shape)
    blocks = dataclasses.replace(made, pixels=16, filters=16, depth=min(16, made.depth))
    x, weight = tensors(shape)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    y = catalogue.Conv3dPlan(name, shape, blocks=blocks).run(x, weight)
    assert nonfinite.same(y, nonfinite.expected(shape, x, weight), 1e-6)


@pytest.mark.parametrize("channels", [pytest.param(4, marks=pytest.mark.long), 5])
@pytest.mark.parametrize("blocks", VARIANTS, ids=lambda blocks: blocks.variant)
def test_every_variant_of_the_tuned_kernel_gives_what_pytorch_gives(blocks: Blocks3d, channels: int):
    shape = dataclasses.replace(SPACE, input=(4, channels, 2, 3, 7), weight=(3, channels, 2, 2, 3), math="tf32")
    x, weight = tensors(shape)
    y = catalogue.Conv3dPlan("gemm", shape, blocks=blocks).run(x, weight)
    by_torch = nonfinite.expected(shape, tf32.rounded(x), tf32.rounded(weight))
    assert nonfinite.same(y, by_torch, 1e-6)


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize("blocks", RUNS, ids=lambda blocks: f"{blocks.variant}, runs of {blocks.run}")
def test_outputs_that_are_computed_in_runs_are_what_pytorch_gives(blocks: Blocks3d, where: str):
    check_runs(dataclasses.replace(SPACE, input=(4, 4, 2, 3, 8), math="tf32", layout=where), blocks)


@pytest.mark.parametrize("where", ["nchw", "nhwc"])
@pytest.mark.parametrize("blocks", RUNS, ids=lambda blocks: f"{blocks.variant}, runs of {blocks.run}")
def test_outputs_in_runs_of_an_input_in_phases_are_what_pytorch_gives(blocks: Blocks3d, where: str):
    shape = dataclasses.replace(SPACE, input=(4, 4, 2, 3, 8), stride=(1, 2, 1), math="tf32", layout=where)
    assert layout.problem(shape, blocks.run, in_phases=True).phases == (1, 2, 1)
    check_runs(shape, blocks)


def check_runs(shape: Convolution, blocks: Blocks3d) -> None:
    """Check that what is computed in runs, of an input with such values, is what PyTorch gives."""
    x, weight = tensors(shape)
    x = x.contiguous(memory_format=torch.channels_last_3d if shape.layout == "nhwc" else torch.contiguous_format)
    y = catalogue.Conv3dPlan("gemm", shape, blocks=blocks).run(x, weight)
    by_torch = nonfinite.expected(shape, tf32.rounded(x), tf32.rounded(weight))
    assert by_torch.isfinite().any()
    assert nonfinite.same(y, by_torch, 1e-6)


@pytest.mark.parametrize("name", nonfinite.VALUES)
def test_filters_that_are_not_finite_are_packed_as_what_they_are(name: str):
    value = torch.tensor([nonfinite.VALUES[name]], dtype=torch.int32).view(torch.float32)
    rounded = tf32.rounded(value)
    assert torch.equal(rounded, value) or (rounded.isnan().all() and value.isnan().all())


def test_a_nan_whose_digits_would_be_cut_off_is_rounded_to_a_nan():
    value = torch.tensor([0x7F800001, 0x7F801FFF, 0xFF800001 - 2**32], dtype=torch.int32).view(torch.float32)
    assert (tf32.rounded(value).view(torch.int32) & 0x7FFFE000 > 0x7F800000).all()


def test_finite_numbers_are_rounded_to_the_nearest_of_tf32():
    value = torch.tensor([1.0, 1.0 + 2**-11, 1.0 + 2**-12, -3.0 - 3 * 2**-11, 0.0])
    assert tf32.rounded(value).tolist() == [1.0, 1.0 + 2**-10, 1.0, -3.0 - 2**-9, 0.0]
