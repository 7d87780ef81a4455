"""The CosmoFlow network with implementations put in: same outputs, same gradients, times by kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from convscope import cosmoflow
from convscope.conv3d import Conv3d
from convscope.implementations import Workshop
from convscope.kernels.conv3d_layout import Blocks
from convscope.kernels.tuning import Memory

CPU = torch.device("cpu")
ASKED = Conv3d("cosmoflow", ("torch", "direct"), "cpu", "cpu", math="fp32", warmup=0, measure=6, budget_s=0.05)


@pytest.fixture
def workshop(tmp_path: Path):
    with Workshop(CPU, Memory(tmp_path / "tuned.json", Blocks)) as made:
        yield made


def test_the_network_is_the_one_of_the_paper():
    model = cosmoflow.network(0)
    convolutions = [module for module in model if isinstance(module, nn.Conv3d)]
    assert [conv.out_channels for conv in convolutions] == [32, 64, 128, 256, 512]
    assert [module.in_features for module in model if isinstance(module, nn.Linear)] == [512 * 4**3, 128, 64]


def test_gradients_with_an_implementation_put_in_are_pytorchs(workshop: Workshop):
    model, given = cosmoflow.network(1, side=32, width=1), torch.randn(2, 4, 32, 32, 32)
    swapped = cosmoflow.put_in(model, "torch", given, workshop, ASKED)
    assert type(swapped[0]) is cosmoflow.Swapped
    found = []
    for each in (model, swapped):
        model.zero_grad()
        each(given).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(found[0]) == 16
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_the_network_is_timed_whole_and_by_kind(workshop: Workshop):
    made = cosmoflow.EndToEnd(ASKED, workshop, batch=1, side=32, width=1)
    made.run(lambda line: None)
    row, refused = made.rows
    assert row.status == "ok"
    assert row.relative_error < 1e-6
    assert 0 < row.inference_ms < row.training_step_ms
    assert refused.status == "unsupported"
    assert "CUDA device" in refused.reason
    assert {kind.kind: kind.layers for kind in made.kinds} == {
        "convolution": 5, "activation": 7, "pooling": 5, "other": 3, "dense": 3
    }  # fmt: skip
    assert sum(kind.share_pct for kind in made.kinds) == pytest.approx(100)
