"""The kernel of the steps behind a convolution, by Triton's interpreter, against PyTorch in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from convscope.convolution.tolerance import STORAGE_ROUNDOFF
from convscope.kernels import steps

SIZE = (2, 7, 19, 9)  # more than two programs, the last one not full
MEMORY = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@pytest.mark.parametrize(("has_bias", "adds", "relu"), [*itertools.product((False, True), repeat=3)][1:])
@pytest.mark.parametrize("layout", MEMORY)
@pytest.mark.parametrize("dtype", ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_steps_are_done_in_place_and_rounded_once(dtype: str, layout: str, has_bias: bool, adds: bool, relu: bool):
    torch.manual_seed(0)
    y, added = (torch.randn(SIZE).to(getattr(torch, dtype)).contiguous(memory_format=MEMORY[layout]) for _ in range(2))
    bias = torch.randn(SIZE[1]).to(y.dtype)
    exact = y.double() + has_bias * bias.double().view(1, -1, 1, 1) + adds * added.double()
    exact = exact.relu() if relu else exact
    found = steps.do(y, bias if has_bias else None, added if adds else None, relu, last=layout == "nhwc")
    assert found is y
    # The interpreter cuts bits of bfloat16 off where a GPU rounds (test_half.py).
    roundoff = {"float32": 2.0**-22, "float16": STORAGE_ROUNDOFF["float16"]}.get(
        dtype, 2 * STORAGE_ROUNDOFF["bfloat16"]
    )
    torch.testing.assert_close(found.double(), exact, rtol=roundoff, atol=1e-6, check_stride=False)


def test_what_is_not_a_number_stays_so_behind_relu():
    y = torch.tensor([float("nan"), float("inf"), -float("inf"), -1.0]).view(1, 4, 1, 1)
    found = steps.do(y, None, None, relu=True).flatten()
    assert found[0].isnan()
    assert found[1:].tolist() == [float("inf"), 0.0, 0.0]


def test_large_tensors_are_counted_in_64_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "_SHORT", 0)
    y, bias = torch.zeros(SIZE), torch.arange(SIZE[1]).float()
    assert torch.equal(steps.do(y, bias, None, relu=False), bias.view(1, -1, 1, 1).expand(SIZE))
