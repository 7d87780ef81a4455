"""First layers, and the max pooling behind them in the same kernel: on a CPU they are what they replace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.convolution.fusion import graphs
from convscope.inference.engines.fused import first, own, steps


@pytest.mark.parametrize("own_pools", [False, True])
@pytest.mark.parametrize(
    ("name", "pooled"),
    [
        ("torchvision:resnet18", 1),
        ("densenet121", 1),
        ("googlenet", 0),
        pytest.param("vgg16", 0, marks=pytest.mark.long),
    ],
)
def test_networks_compute_the_same(name: str, pooled: int, own_pools: bool):
    folded, _, _ = graphs.folded(models.build(name, seed=0).eval())
    model, _ = graphs.fused(folded, steps.step_of)
    other = copy.deepcopy(model)
    if own_pools:
        assert steps.with_maxima(other) > 0
    assert first.with_first(other) == 1
    assert first.with_pooled_first(other) == pooled, "GoogLeNet's pooling rounds up, VGG-16 has a layer before it"
    assert sum(isinstance(module, first.PooledFirstConvolution) for module in other.modules()) == pooled
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))


def test_the_dilated_are_not_first_layers():
    assert first.with_first(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 8, 3, dilation=2)))) == 0
    assert first.with_first(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 8, 3)))) == 1


class Stem(nn.Module):
    """A first layer and a pooling; `twice` uses the layer's output again behind the pooling."""

    def __init__(self, pool: nn.Module, twice: bool = False) -> None:
        super().__init__()
        self.conv, self.pool, self.twice = nn.Conv2d(3, 8, 3, 2, 1), pool, twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        z: torch.Tensor = self.pool(y)
        return z + y.mean() if self.twice else z


def hooked() -> nn.Module:
    pool = nn.MaxPool2d(3, 2, 1)
    pool.register_forward_hook(lambda module, given, output: output)
    return pool


@pytest.mark.parametrize(
    ("model", "pooled"),
    [
        (Stem(nn.MaxPool2d(3, 2, 1)), 1),
        (Stem(nn.MaxPool2d((3, 3), (2, 2), (1, 1))), 1),
        (Stem(nn.MaxPool2d(3, 2, 1), twice=True), 0),
        (Stem(nn.MaxPool2d(3, 2)), 0),
        (Stem(nn.MaxPool2d(2)), 0),
        (Stem(nn.MaxPool2d(3, 2, 1, ceil_mode=True)), 0),
        (Stem(nn.AvgPool2d(3, 2, 1)), 0),
        (Stem(hooked()), 0),
    ],
)
def test_only_the_usual_pooling_that_alone_reads_the_layer_is_joined(model: Any, pooled: int):
    trace = fx.symbolic_trace(model)
    assert first.with_first(trace) == 1
    assert first.with_pooled_first(trace) == pooled
    x = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(trace(x), model(x))


class Called(nn.Module):
    """A first layer that is called with an addition, or by the name of its input."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.conv: nn.Module = nn.Conv2d(3, 3, 1) if named else steps.FusedConvolution(nn.Conv2d(3, 3, 3, padding=1))
        self.named = named

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(input=x) if self.named else self.conv(x, x)
        return y


class Leaves(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return True


@pytest.mark.parametrize("named", [False, True])
def test_a_layer_with_other_inputs_is_left_alone(named: bool):
    model = Called(named)
    trace = fx.GraphModule(model, Leaves().trace(model))
    assert first.with_first(trace) == 0
    assert own.with_chosen(trace, {}) == 0
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(trace(x), model(x))


def test_filters_that_the_pooled_kernel_does_not_take_keep_their_pooling():
    trace = fx.symbolic_trace(nn.Sequential(nn.Conv2d(4, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1)).half())
    assert first.with_first(trace) == 1
    assert first.with_pooled_first(trace) == 0


def test_a_model_that_is_no_trace_stays_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, 1))
    assert (first.with_first(model), first.with_pooled_first(model)) == (0, 0)
