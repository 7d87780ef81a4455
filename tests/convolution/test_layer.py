"""A layer's sizes, and its operations and bytes against PyTorch's own counts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fakes import layer, layer3d
from fakes.strategies import Case, cases
from hypothesis import given
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from convscope.convolution import models
from convscope.cudnn.shape import dimensions


def test_a_multiply_and_an_add_count_as_two():
    one_by_one = layer(kernel=(1, 1), padding=(0, 0), in_channels=16, out_channels=32, bias=False)
    assert one_by_one.flops == 2 * 16 * 32 * 56 * 56


def test_a_bias_adds_one_operation_for_each_output():
    assert layer(bias=True).flops - layer(bias=False).flops == 32 * 56 * 56


def test_groups_divide_the_operations():
    assert layer(groups=16, bias=False).flops * 16 == layer(groups=1, bias=False).flops


def test_half_precision_moves_half_the_bytes():
    assert layer().minimum_bytes(element_bytes=2) * 2 == layer().minimum_bytes()


@given(cases())
def test_operations_are_those_that_pytorch_counts(case: Case):
    x = case.input()
    with FlopCounterMode(display=False) as counted:
        y = case.conv(x)
    described = models.describe("conv", 0, case.conv, x.shape)
    bias = y.numel() if case.conv.bias is not None else 0
    assert described.flops == counted.get_total_flops() + bias


def touched(tensor: torch.Tensor | None) -> int:
    """Return how many elements of a tensor a sum of positive products depends on."""
    return 0 if tensor is None or tensor.grad is None else int(tensor.grad.count_nonzero())


@given(cases(device="cpu"))
def test_bytes_are_those_that_are_touched(case: Case):
    x = torch.ones(case.shape, requires_grad=True)
    for parameter in case.conv.parameters():
        nn.init.ones_(parameter)
    y = case.conv(x)
    y.sum().backward()
    described = models.describe("conv", 0, case.conv, x.shape)
    read = sum(map(touched, (x, case.conv.weight, case.conv.bias)))
    assert described.minimum_bytes() == 4 * (read + y.numel())


def test_a_pointwise_layer_with_stride_2_reads_a_quarter_of_its_input():
    strided = layer(kernel=(1, 1), padding=(0, 0), stride=(2, 2), in_channels=16, out_channels=32, bias=False)
    assert strided.minimum_bytes() == 4 * (16 * 28 * 28 + 16 * 32 + 32 * 28 * 28)


def test_a_transposed_convolution_reads_all_of_its_input():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 1, stride=3, bias=False)).eval()
    (found,) = models.followed("transposed", model, (1, 4, 5, 5))
    assert found.minimum_bytes() == 4 * (4 * 25 + 24 + 6 * 13 * 13)


def test_a_layer_that_is_padded_otherwise_reads_all_of_its_input():
    strided = layer(kernel=(1, 1), padding=(0, 0), stride=(2, 2), in_channels=16, out_channels=32, bias=False)
    read = 16 * 56 * 56 + 16 * 32
    assert dataclasses.replace(strided, padding_mode="reflect").elements_read == read
    assert dataclasses.replace(strided, uneven_padding=True).elements_read == read


def test_a_layer_resized_keeps_all_but_the_changes():
    grouped = layer(groups=4, bias=False, padding_mode="reflect")
    assert grouped.weight == (32, 4, 3, 3)
    assert grouped.resized(groups=1).weight == (32, 16, 3, 3)
    assert grouped.resized(groups=1) == layer(bias=False, padding_mode="reflect")


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("rank", [2, 3])
def test_padding_same_with_an_even_extent_keeps_the_size(rank: int):
    module = (torch.nn.Conv2d, torch.nn.Conv3d)[rank - 2](3, 4, 4, padding="same", device="meta")
    x = torch.empty(2, 3, *range(7, 7 + rank), device="meta")
    described = models.describe("conv", 0, module, x.shape)
    assert described.uneven_padding
    assert described.padding == (1,) * rank
    assert described.output == tuple(module(x).shape)
    assert described.output_size == described.size


def test_the_cost_depends_on_shape_and_options_not_on_the_place():
    assert layer(name="a", position=3).cost_key == layer().cost_key
    changes = {"batch": 2, "in_height": 8, "kernel": (1, 1), "groups": 2, "bias": False, "padding_mode": "reflect"}
    assert all(layer(**{name: value}).cost_key != layer().cost_key for name, value in changes.items())


def test_a_layer_as_a_library_takes_it_has_no_place():
    one, other = layer(), layer(name="other", position=4, bias=False)
    assert one.convolution("float16", "fp32", "nhwc") == other.convolution("float16", "fp32", "nhwc")
    assert one.convolution().output == one.output == (1, 32, 56, 56)


def test_sizes_are_written_each_or_once_where_they_are_equal():
    assert dimensions((3, 3)) == "3x3"
    assert [dimensions(sizes, short=True) for sizes in ((3, 3, 3), (1, 3, 3), (5,))] == ["3", "1x3x3", "5"]
    small = layer3d(4, 8, (6, 6, 6), (1, 3, 3), batch=2, stride=(1, 2, 2), groups=2)
    assert str(small) == "4-8 1x3x3 on 6, stride 1x2x2, groups 2, batch 2"
