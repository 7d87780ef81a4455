"""Operations and bytes of a layer, against PyTorch's own counts."""

from __future__ import annotations

import torch
from fakes import layer
from fakes.strategies import Case, cases
from hypothesis import given
from torch.utils.flop_counter import FlopCounterMode

from convscope.convolution import models


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


@given(cases())
def test_bytes_are_those_of_the_tensors_touched(case: Case):
    x = case.input()
    y = case.conv(x)
    described = models.describe("conv", 0, case.conv, x.shape)
    tensors: list[torch.Tensor] = [x, y, *case.conv.parameters()]
    assert described.minimum_bytes() == sum(tensor.nbytes for tensor in tensors)
