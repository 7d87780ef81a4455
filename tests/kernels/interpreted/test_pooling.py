"""The kernel of maxima of windows, by Triton's interpreter, against PyTorch: to the last bit."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import max_pool2d

from convscope.kernels.channels_last import pooling, windows

# images, channels, height, width; kernel, stride, padding, dilation
CASES = {
    "resnet's": ((2, 64, 9, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "few channels": ((3, 5, 7, 6), (2, 2), (2, 2), (0, 0), (1, 1)),
    "many channels": ((1, 96, 4, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    "uneven": ((2, 16, 11, 7), (3, 2), (1, 3), (1, 0), (2, 1)),
    "one window": ((1, 8, 5, 5), (5, 5), (5, 5), (0, 0), (1, 1)),
}


def drawn(size: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(size).to(getattr(torch, dtype)).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_maxima_are_pytorchs(case: str, dtype: str):
    size, *options = CASES[case]
    x = drawn(size, dtype)
    expected = max_pool2d(x.float(), *options).to(x.dtype)
    found = pooling.max_pool2d(x, *options, tuple(expected.shape[2:]))
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_the_last_window_of_a_rounded_up_size_goes_on_outside_the_image():
    x = drawn((1, 8, 6, 6))
    expected = max_pool2d(x, 3, 2, 0, ceil_mode=True)
    assert torch.equal(pooling.max_pool2d(x, (3, 3), (2, 2), (0, 0), (1, 1), tuple(expected.shape[2:])), expected)


def test_what_is_not_a_number_and_infinities_go_through_as_in_pytorch():
    x = drawn((1, 8, 6, 6))
    x[0, 0, 2, 2], x[0, 1, 1, 1], x[0, 2], x[0, 3, 4, 4] = float("nan"), float("inf"), -float("inf"), float("nan")
    expected = max_pool2d(x, 3, 2, 1)
    found = pooling.max_pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1), tuple(expected.shape[2:]))
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))


def test_large_tensors_are_counted_in_64_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(windows, "_SHORT", 0)
    x = drawn((2, 8, 6, 6))
    assert torch.equal(pooling.max_pool2d(x, (2, 2), (2, 2), (0, 0), (1, 1), (3, 3)), max_pool2d(x, 2))


@pytest.mark.parametrize(
    ("x", "kernel", "takes"),
    [
        (drawn((1, 8, 6, 6)), (3, 3), True),
        (torch.zeros(2, 8, 6, 6), (3, 3), False),  # planes
        (drawn((1, 8, 6, 6), "float64"), (3, 3), False),
        (drawn((1, 8, 9, 9)), (9, 9), False),
        (torch.zeros(8, 6, 6), (3, 3), False),
    ],
)
def test_what_the_kernel_takes(x: torch.Tensor, kernel: tuple[int, int], takes: bool):
    assert pooling.takes(x, kernel) is takes
