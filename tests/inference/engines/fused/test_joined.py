"""Pairs of 1×1 convolutions that one kernel may do: which they are, and that a CPU computes what it did."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.convolution.fusion import branches, graphs
from convscope.inference.engines.fused import joined, own, steps


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(
    ("name", "pairs"), [("resnet50", 15), ("torchvision:resnet18", 0), ("densenet121", 0), ("googlenet", 0)]
)
def test_networks_compute_the_same(name: str, pairs: int, chosen: bool):
    model, _ = graphs.fused(graphs.folded(models.build(name, seed=0).eval())[0], steps.step_of)
    other = copy.deepcopy(model)
    if chosen:
        own.with_chosen(other, {})
    assert joined.with_joined(other, {}) == pairs
    branches.with_branches(other)
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))
    assert joined.count(other) == (f"0 of {pairs} pairs in one kernel" if pairs else "")


class Block(nn.Module):
    """A convolution with an addition, and one that reads its output."""

    def __init__(self, second: nn.Conv2d, twice: bool = False) -> None:
        super().__init__()
        first = nn.Conv2d(8, 16, 1)
        self.first, self.second, self.twice = steps.FusedConvolution(first), steps.FusedConvolution(second), twice

    def forward(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        y = self.first(x, added)
        z: torch.Tensor = self.second(y)
        return z + self.second(y + 1.0) if self.twice else z


class Leaves(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, steps.FusedConvolution)


@pytest.mark.parametrize(
    ("second", "twice", "pairs"),
    [
        (nn.Conv2d(16, 8, 1), False, 1),
        (nn.Conv2d(16, 8, 1), True, 0),
        (nn.Conv2d(16, 8, 3, padding=1), False, 0),
        (nn.Conv2d(16, 8, 1, stride=2), False, 0),
        (nn.Conv2d(16, 8, 1, groups=2), False, 0),
    ],
    ids=["1x1", "called twice", "3x3", "stride", "groups"],
)
def test_the_next_is_a_convolution_of_single_pixels_called_once(second: nn.Conv2d, twice: bool, pairs: int):
    block = Block(second, twice)
    model = fx.GraphModule(block, Leaves().trace(block))
    x, added = torch.randn(1, 8, 4, 4), torch.randn(1, 16, 4, 4)
    expected = model(x, added)
    assert joined.with_joined(model, {}) == pairs
    torch.testing.assert_close(model(x, added), expected)


@pytest.mark.parametrize("by_view", [False, True])
def test_an_output_that_something_changes_in_place_is_left_alone(by_view: bool):
    class Changing(Block):
        def forward(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
            y = self.first(x, added)
            (y.flatten(2) if by_view else y).mul_(2.0)
            z: torch.Tensor = self.second(y)
            return z

    block = Changing(nn.Conv2d(16, 8, 1))
    assert joined.with_joined(fx.GraphModule(block, Leaves().trace(block)), {}) == 0


def test_a_model_that_is_no_trace_stays_as_it_is():
    assert joined.with_joined(nn.Sequential(nn.Conv2d(8, 8, 1)), {}) == 0
