"""Numbers of 8 bits, and convolutions of them as PyTorch computes them; which blocks there are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from convscope.kernels.channels_last.windows import Window
from convscope.kernels.eight_bits import convolution, numbers

ONE = Window((1, 1), (1, 1), (0, 0), (1, 1))


def window(side: int, stride: int, padding: int) -> Window:
    return Window((side, side), (stride, stride), (padding, padding), (1, 1))


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_numbers_are_rounded_to_the_nearest_and_ties_to_even():
    given = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, -0.75, 63.4, 63.6, 1e9, -1e9])
    assert numbers.rounded(given, 0.5).tolist() == [0, 0, 0, 1, 2, -2, 127, 127, 127, -127]


def test_the_step_of_a_tensor_reaches_its_largest_number():
    given = drawn(3, 5)
    step = numbers.step_of(given)
    assert numbers.rounded(given, step).abs().max() == 127
    assert (numbers.rounded(given, step) * step - given).abs().max() <= step / 2 * (1 + 1e-6)
    assert numbers.step_of(torch.zeros(3)) == 1


def test_each_filter_has_a_step_and_one_of_zeros_has_one_too():
    weight = drawn(3, 4, 3, 3) * torch.tensor([1.0, 1e-3, 0.0]).view(-1, 1, 1, 1)
    steps = numbers.steps_of(weight)
    assert steps[2] == 1
    assert [int(each.abs().max()) for each in numbers.rounded(weight, steps.view(-1, 1, 1, 1))] == [127, 127, 0]


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("kind", ["", "relu"])
@pytest.mark.parametrize("where", [ONE, window(1, 2, 0), window(3, 1, 1), window(3, 2, 1)])
def test_a_convolution_of_numbers_is_that_of_what_they_stand_for(where: Window, kind: str, adds: bool):
    x, weight, bias = drawn(2, 32, 8, 6), drawn(64, 32, *where.kernel, seed=1), drawn(64, seed=2)
    step, steps = numbers.step_of(x), numbers.steps_of(weight).view(-1, 1, 1, 1)
    x8 = numbers.rounded(x, step).contiguous(memory_format=torch.channels_last)
    stands_for = x8.double() * step, numbers.rounded(weight, steps).double() * steps.double()
    expected = nn.functional.conv2d(*stands_for, bias.double(), where.stride, where.padding)
    added = numbers.rounded(drawn(*expected.shape, seed=3), 0.1) if adds else None
    expected = expected + (0 if added is None else added.double() * 0.1)
    expected = expected.relu() if kind else expected
    in_16_bits = convolution.Convolution8(weight, bias, where, kind, step, 0.1, None, torch.float32)
    torch.testing.assert_close(in_16_bits.exactly(x8, added).double(), expected, rtol=1e-5, atol=1e-4)
    step_out = numbers.step_of(expected)
    in_8_bits = convolution.Convolution8(weight, bias, where, kind, step, 0.1, step_out).exactly(x8, added)
    assert in_8_bits.dtype == torch.int8
    assert (in_8_bits.double() * step_out - expected).abs().max() < 0.51 * step_out


@pytest.mark.parametrize(
    ("size", "where", "kind", "is_taken"),
    [
        ((64, 32, 1, 1), ONE, "", True),
        ((64, 32, 3, 3), window(3, 2, 1), "relu", True),
        ((64, 48, 3, 3), window(3, 1, 1), "relu", False),
        ((32, 64, 3, 3), window(3, 1, 1), "relu", False),
        ((64, 32, 3, 3), window(3, 3, 1), "relu", False),
        ((64, 32, 3, 3), window(3, 1, 1), "silu", False),
        ((64, 4096, 7, 7), window(7, 1, 0), "relu", False),  # its sums leave the range of int32
        ((64, 32, 3, 1), Window((3, 1), (1, 1), (1, 0), (1, 1)), "relu", False),
        ((64, 32, 3, 3), Window((3, 3), (1, 1), (1, 1), (2, 2)), "relu", False),
    ],
)
def test_which_convolutions_are_taken(size: tuple[int, ...], where: Window, kind: str, is_taken: bool):
    assert convolution.takes(torch.empty(size), where, kind) == is_taken


def test_with_stride_2_both_extents_are_even():
    sizes = [(1, 32, 8, 8), (1, 32, 7, 8), (1, 32, 8, 7), (0, 32, 8, 8)]
    assert [convolution.takes_size(size, window(3, 2, 1)) for size in sizes] == [True, False, False, False]
    assert [convolution.takes_size(size, window(3, 1, 1)) for size in sizes] == [True, True, True, False]


@pytest.mark.parametrize("pixels", [64, 128, 256])
@pytest.mark.parametrize("size", [(256, 56, 56), (256, 28, 28), (256, 14, 14), (256, 7, 7), (1, 7, 7), (1, 1, 12544)])
def test_a_box_has_the_fewest_programs_of_all_boxes_of_so_many_pixels(size: tuple[int, int, int], pixels: int):
    def programs(box: tuple[int, ...]) -> int:
        return math.prod(-(-extent // side) for extent, side in zip(size, box, strict=True))

    box = convolution.box_of(pixels, *size)
    assert math.prod(box) == pixels
    sides = [2**power for power in range(9)]
    others = [(n, h, w) for n in sides for h in sides for w in sides if n * h * w == pixels]
    assert programs(box) == min(map(programs, others))


@pytest.mark.parametrize(
    ("images", "filters", "expected"),
    [
        (256, 256, ["256x128 P", "128x128 P", "128x128", "128x64", "64x64"]),
        (256, 64, ["256x64 P", "128x64 P", "128x64", "64x64"]),
        (16, 256, ["128x128", "128x64", "64x64"]),
        (8, 256, ["128x64", "64x64"]),
        (1, 256, ["64x64"]),
        (1, 64, ["64x64"]),
    ],
)
def test_candidates_fill_the_card_and_divide_the_channels(images: int, filters: int, expected: list[str]):
    x = torch.empty(images, 96, 28, 28, dtype=torch.int8)
    kernel = convolution.Convolution8(drawn(filters, 96, 3, 3), drawn(filters), window(3, 1, 1), "", 0.1)
    found = kernel.candidates(x, 132)
    assert {blocks.channels for blocks in found} == {32}
    sizes = [f"{math.prod(each.box)}x{each.filters}{' P' if each.persistent else ''}" for each in found]
    assert sizes == expected


def test_a_tensor_on_a_cpu_or_of_another_type_is_not_for_the_kernel():
    kernel = convolution.Convolution8(drawn(64, 32, 1, 1), drawn(64), ONE, "", 0.1)
    assert not kernel.is_for(torch.zeros(1, 32, 4, 4, dtype=torch.int8), None)
    assert not kernel.is_for(torch.zeros(1, 32, 4, 4), None)
