"""Depthwise convolution, and bias with activation, by Triton's interpreter against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from convscope.inference.engines.fused.tails import packed
from convscope.kernels.channels_last import activations, depthwise, windows

KINDS = {
    "": nn.Identity(), "relu": nn.ReLU(), "relu6": nn.ReLU6(), "silu": nn.SiLU(), "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(), "sigmoid": nn.Sigmoid(), "gelu": nn.GELU(),
}  # fmt: skip
# images, channels, height, width; kernel, stride, padding, dilation
CASES = {
    "efficientnet's": ((2, 96, 9, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "convnext's": ((1, 64, 7, 9), (7, 7), (1, 1), (3, 3), (1, 1)),
    "few channels": ((3, 5, 7, 6), (5, 5), (1, 1), (2, 2), (1, 1)),
    "uneven": ((2, 80, 11, 7), (3, 2), (1, 3), (1, 0), (2, 1)),
    "uneven columns": ((2, 40, 9, 11), (5, 3), (2, 1), (2, 2), (1, 2)),
    "no padding": ((1, 16, 6, 6), (3, 3), (1, 1), (0, 0), (1, 1)),
}


def drawn(size: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    x = 3 * torch.randn(size, generator=torch.Generator().manual_seed(0))
    return x.to(getattr(torch, dtype)).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("kind", "dtype"), [("", "float16"), ("silu", "float32")])
@pytest.mark.parametrize("many", [1, 2**30])
@pytest.mark.parametrize("case", CASES)
def test_a_depthwise_convolution_is_pytorchs(
    case: str, kind: str, dtype: str, many: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(depthwise, "_MANY", many)
    size, kernel, stride, padding, dilation = CASES[case]
    x, channels = drawn(size, dtype), size[1]
    weight, bias = (drawn((channels, 1, *kernel), dtype) / 3), torch.linspace(-1, 1, channels).to(x.dtype)
    exact = KINDS[kind](
        functional.conv2d(x.double(), weight.double(), bias.double(), stride, padding, dilation, channels)
    )
    found = depthwise.convolve(x, packed(weight), bias, kernel, stride, padding, dilation, tuple(exact.shape[2:]), kind)
    assert found.is_contiguous(memory_format=torch.channels_last)
    limit = 1e-5 if dtype == "float32" else 2e-3
    assert float((found.double() - exact).abs().max()) <= limit * float(exact.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_pytorchs(kind: str):
    y, bias = drawn((2, 24, 5, 7)), torch.linspace(-4, 4, 24)
    y[0, :, 0, 0] = torch.linspace(-20, 20, 24)
    exact = KINDS[kind]((y + bias.view(1, -1, 1, 1)).double())
    found = activations.do(y.clone(memory_format=torch.preserve_format), bias, kind)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_stays_so(kind: str):
    y = drawn((1, 8, 2, 2))
    y[0, 3, 1, 1] = float("nan")
    found = activations.do(y, torch.zeros(8), kind)
    assert torch.equal(found.isnan(), y.isnan())
    assert int(found.isnan().sum()) == 1


@pytest.mark.parametrize("many", [1, 2**30])
def test_large_tensors_are_counted_in_64_bits(many: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(depthwise, "_MANY", many)
    for module in (activations, windows):
        monkeypatch.setattr(module, "_SHORT", 0)
    x, bias = drawn((2, 8, 6, 6)), torch.ones(8)
    weight = drawn((8, 1, 3, 3))
    found = depthwise.convolve(x, packed(weight), bias, (3, 3), (1, 1), (1, 1), (1, 1), (6, 6))
    torch.testing.assert_close(found, functional.conv2d(x, weight, bias, 1, 1, 1, 8))
    torch.testing.assert_close(
        activations.do(x.clone(memory_format=torch.preserve_format), bias, "relu"), (x + 1).relu()
    )


@pytest.mark.parametrize(
    ("x", "kernel", "takes"),
    [
        (drawn((1, 8, 4, 4)), (3, 3), True),
        (drawn((1, 8, 4, 4)).contiguous(), (3, 3), False),
        (drawn((1, 8, 4, 4)).double(), (3, 3), False),
        (drawn((1, 8, 4, 4)), (8, 8), False),
        (drawn((0, 8, 4, 4)), (3, 3), False),
    ],
    ids=["channels last", "channels first", "float64", "many taps", "no image"],
)
def test_what_it_takes(x: torch.Tensor, kernel: tuple[int, int], takes: bool):
    assert depthwise.takes(x, kernel) is takes
