"""The CosmoFlow network with implementations put in: same outputs, same gradients, times by kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from convscope.conv3d import cosmoflow
from convscope.conv3d.implementations import Implementations, Prepared
from convscope.conv3d.request import Conv3d
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d.layout import Blocks3d

CPU = torch.device("cpu")
ASKED = Conv3d("cosmoflow", ("torch", "direct"), "cpu", "cpu", math="fp32", warmup=0, measure=6, budget_s=0.05)


@pytest.fixture
def workshop(tmp_path: Path):
    with Implementations(CPU, BlockCache(tmp_path / "tuned.json", Blocks3d)) as made:
        yield made


def test_the_network_is_the_one_of_the_paper():
    model = cosmoflow.network(0)
    convolutions = [module for module in model if isinstance(module, nn.Conv3d)]
    assert [conv.out_channels for conv in convolutions] == [32, 64, 128, 256, 512]
    assert [module.in_features for module in model if isinstance(module, nn.Linear)] == [512 * 4**3, 128, 64]


def test_gradients_with_an_implementation_put_in_are_pytorchs(workshop: Implementations):
    model, given = cosmoflow.network(1, side=32, width=1), torch.randn(2, 4, 32, 32, 32)
    swapped = cosmoflow.with_implementation(model, "torch", given, workshop, ASKED)
    assert type(swapped[0]) is cosmoflow.Swapped
    found = []
    for each in (model, swapped):
        model.zero_grad()
        each(given).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert len(found[0]) == 16
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_the_network_is_timed_whole_and_by_kind(workshop: Implementations):
    made = cosmoflow.EndToEnd(ASKED, workshop, batch=1, side=32, width=1)
    made.run(lambda line: None, lambda: False)
    row, refused = made.rows
    assert row.status == "ok"
    assert row.relative_error < 1e-6 < row.tolerance < 1e-3
    assert row.inference_ms > 0  # which of them is longer only an idle machine could tell
    assert row.training_step_ms > 0
    assert refused.status == "unsupported"
    assert "CUDA device" in refused.reason
    assert {kind.kind: kind.layers for kind in made.kinds} == {
        "convolution": 5, "activation": 7, "pooling": 5, "other": 3, "dense": 3
    }  # fmt: skip
    assert sum(kind.share_pct for kind in made.kinds) == pytest.approx(100)


class Wrong(Implementations):
    """PyTorch, with filters that are 1 % too large."""

    def prepare(self, *arguments: Any, **options: Any) -> Prepared:
        ready = super().prepare(*arguments, **options)
        return Prepared(lambda x: ready.call(x) * 1.01, ready.renew, ready.said)


def test_a_network_that_computes_something_else_is_not_timed(tmp_path: Path):
    with Wrong(CPU, BlockCache(tmp_path / "tuned.json", Blocks3d)) as workshop:
        made = cosmoflow.EndToEnd(ASKED, workshop, batch=1, side=32, width=1)
        made.run(lambda line: None, lambda: False)
    row = made.rows[0]
    assert row.status == "wrong"
    assert row.reason.startswith("its output differs from float32 by ")
    assert row.inference_ms is None


def test_an_input_that_no_memory_holds_is_a_row(workshop: Implementations, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: Any, **options: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(torch, "randn", full)
    made = cosmoflow.EndToEnd(ASKED, workshop, batch=1, side=32, width=1)
    made.run(lambda line: None, lambda: True)
    assert [row.status for row in made.rows] == ["oom"]
