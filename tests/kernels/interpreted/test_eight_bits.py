"""Convolutions of 8-bit integers by Triton's interpreter: the numbers that PyTorch computes from the same integers."""

from __future__ import annotations

import pytest
import torch

from convscope.kernels.channels_last.windows import Window
from convscope.kernels.eight_bits import convolution, numbers
from convscope.kernels.eight_bits.convolution import Blocks8, Convolution8


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_numbers_become_what_pytorch_rounds_them_to():
    x = drawn(3, 7, 11, 5).half()
    x[0, 0, 0, :4] = torch.tensor([0.05, -0.15, 1e4, -1e4])  # ties, and beyond the range
    assert torch.equal(numbers.to_eight_bits(x, 0.1), numbers.rounded(x, 0.1))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(
    ("side", "stride", "padding", "kind", "adds", "box"),
    [
        (1, 1, 0, "relu", True, (1, 1, 16)),
        (1, 2, 0, "", False, (2, 4, 2)),
        (3, 1, 1, "relu", True, (1, 4, 4)),
        (3, 2, 1, "", True, (1, 2, 8)),
        (7, 2, 3, "relu", False, (2, 2, 4)),
        (3, 1, 0, "", False, (1, 2, 8)),
    ],
)
def test_integers_are_multiplied_exactly_and_what_follows_is_done(
    side: int, stride: int, padding: int, kind: str, adds: bool, box: tuple[int, int, int], is_int8: bool,
    persistent: bool, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr(convolution, "_multiprocessors", lambda device: 3)
    where = Window((side, side), (stride, stride), (padding, padding), (1, 1))
    weight, bias = drawn(64, 64, side, side), drawn(64, seed=1)
    x = numbers.rounded(drawn(3, 64, 10, 8, seed=2), 0.03).contiguous(memory_format=torch.channels_last)
    scale = 0.05 if is_int8 else None
    kernel = Convolution8(weight, bias, where, kind, 0.03, 0.2, scale and scale * side, torch.float32)
    added = None
    if adds:
        added = numbers.rounded(drawn(3, 64, *kernel.size(x), seed=3), 0.02)
        added = added.contiguous(memory_format=torch.channels_last)
    exact = kernel.exactly(x, added)
    y = kernel(x, added, Blocks8(box, 32, 32, 4, 2, persistent))
    assert y.shape == exact.shape
    assert y.is_contiguous(memory_format=torch.channels_last)
    if is_int8:
        assert exact.unique().numel() > 100
        assert (y.int() - exact.int()).abs().max() <= 1
        assert (y != exact).double().mean() < 1e-3
    else:
        torch.testing.assert_close(y, exact, rtol=1e-5, atol=1e-4)
