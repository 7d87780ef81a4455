"""Kernels of first layers, whole convolutions and a classifier's end, channels last, by Triton's interpreter.

Without bfloat16, whose products the interpreter takes for those of whole numbers, and which it does not round
(`tests/gpu`).
"""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch.nn import functional

from convscope.cudnn.shape import output_extents
from convscope.inference.engines.fused.tails import BY_PYTORCH
from convscope.kernels.blocks import Blocks2d
from convscope.kernels.channels_last import activations, convolution, first, first_pooled, heads, joined, normalisation
from convscope.kernels.channels_last.windows import Window

# images, channels, height, width; filters, kernel; stride, padding
FIRST = {
    "ResNet's": ((2, 3, 16, 18), (64, (7, 7)), (2, 2), (3, 3)),
    "EfficientNet's": ((1, 3, 11, 13), (32, (3, 3)), (2, 2), (1, 1)),
    "ConvNeXt's": ((1, 3, 16, 16), (96, (4, 4)), (4, 4), (0, 0)),
    "VGG's": ((1, 3, 8, 9), (64, (3, 3)), (1, 1), (1, 1)),
    "one channel": ((1, 1, 9, 7), (8, (5, 3)), (1, 2), (2, 0)),
    "four channels": ((1, 4, 8, 8), (24, (3, 3)), (2, 3), (1, 2)),
}
POOLED = {
    "ResNet's": ((2, 3, 30, 32), (64, (7, 7)), (2, 2), (3, 3)),
    "ShuffleNet's": ((1, 3, 21, 19), (24, (3, 3)), (2, 2), (1, 1)),
    "wide": ((1, 4, 9, 150), (8, (3, 2)), (1, 1), (1, 0)),
    "many filters": ((1, 3, 10, 10), (96, (3, 3)), (1, 1), (1, 1)),
    "single row": ((3, 1, 2, 9), (16, (2, 3)), (4, 2), (0, 1)),
}
# images, channels, height, width; filters, kernel; stride, padding, dilation
WHOLE = {
    "3x3": ((1, 64, 7, 6), (32, (3, 3)), (1, 1), (1, 1), (1, 1)),
    "1x1": ((2, 128, 5, 4), (64, (1, 1)), (1, 1), (0, 0), (1, 1)),
    "1x1 with stride": ((1, 64, 7, 7), (32, (1, 1)), (2, 2), (0, 0), (1, 1)),
    "uneven": ((1, 40, 8, 9), (24, (3, 2)), (2, 1), (1, 0), (1, 2)),
    "few channels": ((1, 8, 6, 6), (8, (3, 3)), (1, 1), (1, 1), (1, 1)),
}
BLOCKS = [
    Blocks2d("last", 32, 16, 32, 4, 2),
    Blocks2d("last", 32, 32, 64, 4, 2, splits=2),
    Blocks2d("last", 64, 16, 16, 4, 2, splits=5),
]


@triton.jit
def each_gelu(x, y, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(y + at, activations.activated(tl.load(x + at), "gelu"))


def drawn(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return numbers whose products and sums are exact in float32: halves from -2 to 2."""
    x = (torch.randint(-4, 5, size) / 2).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if len(size) == 4 else x


@pytest.mark.parametrize("case", FIRST)
def test_first_layers_are_pytorchs(case: str):
    torch.manual_seed(0)
    size, (filters, kernel), stride, padding = FIRST[case]
    x, weight, bias = drawn(*size), drawn(filters, size[1], *kernel), drawn(filters)
    assert first.takes(weight, stride, padding)
    found = first.convolve(x, first.pack(weight, bias, stride, padding), "relu")
    expected = functional.conv2d(x.float(), weight.float(), bias.float(), stride, padding).relu().half()
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_first_layers_of_large_tensors_are_counted_in_64_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first, "_LONG", 0)
    test_first_layers_are_pytorchs("ResNet's")


@pytest.mark.parametrize("rows_most", [2, 28])
@pytest.mark.parametrize("case", POOLED)
def test_first_layers_and_their_pooling_are_pytorchs(case: str, rows_most: int, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    monkeypatch.setattr(first_pooled, "_ROWS_MOST", rows_most)
    size, (filters, kernel), stride, padding = POOLED[case]
    x, weight, bias = drawn(*size), drawn(filters, size[1], *kernel), drawn(filters)
    packed = first.pack(weight, bias, stride, padding)
    assert first_pooled.takes(weight, stride, padding)
    exact = functional.conv2d(x.float(), weight.float(), bias.float(), stride, padding)
    for kind, outputs in (("relu", exact.relu()), ("", exact)):
        found = first_pooled.convolve(x, packed, kind)
        assert torch.equal(found, functional.max_pool2d(outputs, 3, 2, 1).half())
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_first_layers_with_a_pooling_of_large_tensors_are_counted_in_64_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(first_pooled, "_LONG", 0)
    test_first_layers_and_their_pooling_are_pytorchs("ResNet's", 2, monkeypatch)


def test_what_is_not_a_number_stays_one_behind_the_pooling():
    x = drawn(1, 3, 16, 16)
    x[0, 1, 8, 8] = torch.nan
    packed = first.pack(drawn(8, 3, 3, 3), drawn(8), (2, 2), (1, 1))
    assert first_pooled.convolve(x, packed, "relu")[0, :, 2, 2].isnan().all()
    assert not first_pooled.convolve(x, packed, "relu")[0, :, 0].isnan().any()


@pytest.mark.parametrize(
    ("kernel", "stride", "pool", "takes"),
    [
        ((7, 7), (2, 2), first_pooled.POOL, True),
        ((3, 3), (2, 2), first_pooled.POOL, True),
        ((11, 11), (4, 4), first_pooled.POOL, False),
        ((8, 4), (2, 2), first_pooled.POOL, False),
        ((3, 3), (5, 1), first_pooled.POOL, False),
        ((7, 7), (2, 2), first_pooled.POOL._replace(padding=(0, 0)), False),
    ],
)
def test_first_layers_with_a_pooling_that_are_taken(
    kernel: tuple[int, int], stride: tuple[int, int], pool: Window, takes: bool
):
    assert first_pooled.takes(drawn(16, 3, *kernel), stride, (1, 1), pool) is takes


@pytest.mark.parametrize(
    ("weight", "takes"),
    [
        (torch.zeros(64, 3, 7, 7, dtype=torch.float16), True),
        (torch.zeros(64, 3, 7, 7), False),
        (torch.zeros(64, 8, 3, 3, dtype=torch.float16), False),
        (torch.zeros(64, 3, 99, 99, dtype=torch.float16), False),
    ],
)
def test_first_layers_that_are_taken(weight: torch.Tensor, takes: bool):
    assert first.takes(weight, (2, 2), (3, 3)) is takes


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("case", WHOLE)
def test_whole_convolutions_are_pytorchs(case: str, adds: bool, blocks: Blocks2d):
    torch.manual_seed(0)
    size, (filters, kernel), *options = WHOLE[case]
    x, weight, bias = drawn(*size), drawn(filters, size[1], *kernel), drawn(filters)
    stride, padding, dilation = options
    expected = functional.conv2d(x.float(), weight.float(), bias.float(), *options)
    added = drawn(*expected.shape) if adds else None
    expected = (expected + added.float() if added is not None else expected).relu().half()
    own = convolution.Convolution(weight, bias, Window(kernel, stride, padding, dilation), "relu")
    extents = output_extents(size[2:], kernel, padding, stride, dilation)
    for _ in range(2):  # the counts of parts that are done must be left as they were
        found = own(x, added, (extents[0], extents[1]), blocks)
        assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_convolution_without_activation_keeps_what_is_below_zero():
    torch.manual_seed(0)
    x, weight, bias = drawn(1, 32, 4, 4), drawn(32, 32, 1, 1), drawn(32)
    own = convolution.Convolution(weight, bias, Window((1, 1), (1, 1), (0, 0), (1, 1)))
    found = own(x, None, (4, 4), BLOCKS[0])
    assert torch.equal(found, functional.conv2d(x.float(), weight.float(), bias.float()).half())
    assert (found < 0).any()


def test_blocks_of_few_pixels_are_split_until_they_fill_the_card():
    found = convolution.candidates(512, 512, 9, 49, 132)
    assert len(found) == len(set(found))
    assert max(each.splits for each in found) > 1
    for each in found:
        assert each.channels in (64, 128)
        assert 512 % each.channels == 0
    assert {each.splits for each in convolution.candidates(64, 64, 9, 256 * 56 * 56, 132)} == {1}
    assert {each.channels for each in convolution.candidates(24, 64, 1, 49, 132)} == {32}


@pytest.mark.parametrize(
    ("x", "weight", "takes"),
    [
        (drawn(1, 16, 4, 4), drawn(8, 16, 1, 1), True),
        (drawn(1, 16, 4, 4).float(), drawn(8, 16, 1, 1).float(), False),
        (drawn(1, 12, 4, 4), drawn(8, 12, 1, 1), False),
        (drawn(1, 16, 4, 4), drawn(10, 16, 1, 1), False),
        (drawn(1, 16, 4, 4).contiguous(), drawn(8, 16, 1, 1), False),
        (drawn(1, 16, 4, 4), drawn(8, 8, 1, 1), False),
    ],
)
def test_whole_convolutions_that_are_taken(x: torch.Tensor, weight: torch.Tensor, takes: bool):
    assert convolution.takes(x, weight, (4, 4)) is takes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [(1, 48, 8, 8), (2, 33, 9, 8), (3, 64, 1, 1), (1, 33, 40, 41)])
def test_means_are_pytorchs(size: tuple[int, ...], dtype: torch.dtype):
    torch.manual_seed(0)
    x = drawn(*size, dtype=dtype)
    assert heads.takes_images(x)
    expected = x.float().mean((2, 3), keepdim=True).to(dtype)
    mean = heads.Mean()
    for _ in range(2):  # the counts of parts that are done must be left as they were
        torch.testing.assert_close(mean(x), expected, rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("depth", "outputs"), [(2048, 10), (40, 7), (1030, 4)])
def test_products_of_few_rows_are_pytorchs(depth: int, outputs: int, rows: int):
    torch.manual_seed(0)
    x, weight, bias = drawn(rows, depth), drawn(outputs, depth), drawn(outputs)
    assert heads.takes_rows(x, weight)
    assert torch.equal(heads.linear(x, weight, bias), functional.linear(x.float(), weight.float(), bias.float()).half())


def test_products_of_few_rows_have_an_activation():
    torch.manual_seed(0)
    x, weight, bias = drawn(1, 24), drawn(16, 24), drawn(16)
    expected = functional.linear(x.float(), weight.float(), bias.float()).relu().half()
    assert torch.equal(heads.linear(x, weight, bias, "relu"), expected)


@pytest.mark.parametrize("size", [(2, 24, 5, 7), (1, 3, 40, 40)])
def test_images_are_scaled_by_channel(size: tuple[int, ...]):
    torch.manual_seed(0)
    x, factors = drawn(*size), drawn(*size[:2], 1, 1)
    assert activations.takes_factors(x, factors)
    found = activations.scaled(x, factors)
    assert torch.equal(found, x * factors)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert not activations.takes_factors(x, factors[:, :1])
    assert not activations.takes_factors(x, factors.float())


def test_what_a_head_leaves_to_pytorch():
    assert not heads.takes_rows(drawn(5, 8), drawn(4, 8))
    assert not heads.takes_rows(drawn(1, 2, 8), drawn(4, 8))
    assert not heads.takes_images(drawn(2, 8, 2, 2).contiguous())
    assert not heads.takes_images(drawn(1, 8, 2, 2).contiguous())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [(2, 5, 7, 96), (3, 40), (600, 24), (1, 1)])
def test_rows_are_normalised_as_by_pytorch(size: tuple[int, ...], dtype: torch.dtype):
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*each).to(dtype) for each in (size, size[-1:], size[-1:]))
    assert normalisation.takes(x, size[-1:], weight, bias)
    expected = functional.layer_norm(x.double(), size[-1:], weight.double(), bias.double(), 1e-3)
    found = normalisation.layer_norm(x, weight, bias, 1e-3)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-3 if dtype is torch.float16 else 1e-5)


def test_rows_far_from_zero_keep_their_variance():
    x = 1000 + torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    expected = functional.layer_norm(x.double(), (64,), eps=1e-6)
    found = normalisation.layer_norm(x, torch.ones(64), torch.zeros(64), 1e-6)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-3)


def test_rows_of_large_tensors_are_counted_in_64_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(normalisation, "_SHORT", 0)
    test_rows_are_normalised_as_by_pytorch((3, 40), torch.float16)


def test_rows_that_are_not_taken():
    x, ones = torch.zeros(4, 8), torch.ones(8)
    assert normalisation.takes(x, (8,), ones, ones)
    assert not normalisation.takes(x, (4, 8), ones, ones)
    assert not normalisation.takes(x, (8,), None, ones)
    assert not normalisation.takes(x.half(), (8,), ones, ones)
    assert not normalisation.takes(x.t(), (4,), ones[:4], ones[:4])
    assert not normalisation.takes(torch.zeros(1, 9000), (9000,), torch.ones(9000), torch.ones(9000))


def test_a_tail_adds_before_the_activation():
    torch.manual_seed(0)
    y, bias, added = drawn(2, 24, 3, 5), drawn(24), drawn(2, 24, 3, 5)
    assert activations.takes(y, added)
    expected = (y.float() + bias.float()[:, None, None] + added.float()).relu().half()
    assert torch.equal(activations.do(y, bias, "relu", added), expected)
    assert not activations.takes(y, added[:, :, :1])
    assert not activations.takes(y, added.float())
    assert not activations.takes(y, added.contiguous())


@pytest.mark.filterwarnings("ignore:invalid value")
def test_gelu_is_nearer_to_the_exact_one_than_its_formula_in_float32_with_an_exact_erf():
    x = torch.linspace(-8, 8, 2**14)
    x[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    y, exact = torch.empty_like(x), functional.gelu(x.double())
    each_gelu[1,](x, y, size=len(x))
    assert torch.equal(y[:3].isnan(), torch.tensor([False, True, True]))
    assert y[0] == torch.inf
    formula = 0.5 * x * (1 + torch.erf(x.double() / math.sqrt(2)).float())
    error, formulas = ((found.double() - exact)[3:].abs().max() for found in (y, formula))
    assert error < 4e-7 < formulas


@pytest.mark.parametrize(
    "blocks", [Blocks2d("joined", 32, 64, 32, 4, 2), Blocks2d("joined", 64, 32, 32, 4, 2)], ids=str
)
@pytest.mark.parametrize("kinds", [("relu", "relu"), ("", "relu6")])
def test_two_convolutions_in_one_kernel_are_pytorchs(blocks: Blocks2d, kinds: tuple[str, str]):
    torch.manual_seed(0)
    x, added = drawn(2, 32, 7, 6), drawn(2, 128, 7, 6)
    (first, bias), (second, shift) = (drawn(128, 32, 1, 1), drawn(128)), (drawn(16, 128, 1, 1) / 16, drawn(16))
    assert joined.takes(x, added, first, second)
    y, z = joined.Joined(first, bias, second, shift, kinds)(x, added, blocks)
    exact = BY_PYTORCH[kinds[0]](functional.conv2d(x.float(), first.float(), bias.float()) + added.float()).half()
    assert torch.equal(y, exact)
    exact = BY_PYTORCH[kinds[1]](functional.conv2d(exact.float(), second.float(), shift.float()))
    torch.testing.assert_close(z.float(), exact, rtol=2e-3, atol=1e-2)
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in (y, z))


@pytest.mark.parametrize(
    ("x", "added", "first", "second"),
    [
        (drawn(1, 32, 4, 4, dtype=torch.float32), drawn(1, 64, 4, 4, dtype=torch.float32), (64, 32), (16, 64)),
        (drawn(1, 32, 4, 4), drawn(1, 64, 1, 1), (64, 32), (16, 64)),
        (drawn(1, 32, 4, 4), 1.0, (64, 32), (16, 64)),
        (drawn(1, 24, 4, 4), drawn(1, 64, 4, 4), (64, 24), (16, 64)),
        (drawn(1, 32, 4, 4), drawn(1, 96, 4, 4), (96, 32), (16, 96)),
        (drawn(1, 32, 4, 4), drawn(1, 64, 4, 4), (64, 32), (256, 64)),
        (drawn(1, 32, 4, 4), drawn(1, 64, 4, 4).contiguous(), (64, 32), (16, 64)),
    ],
    ids=[
        "float32",
        "an addition of another size",
        "a number",
        "channels",
        "filters",
        "outputs",
        "an addition that lies otherwise",
    ],
)
def test_pairs_that_are_not_taken(
    x: torch.Tensor, added: torch.Tensor, first: tuple[int, int], second: tuple[int, int]
):
    weights = (drawn(*size, 1, 1, dtype=x.dtype) for size in (first, second))
    assert not joined.takes(x, added, *weights)
