"""Products of rows with what follows them, as modules of the engine `fused`: same results on a CPU."""

from __future__ import annotations

import pytest
import torch
from fakes import distance, randomized
from torch import fx, nn
from torch.nn import functional

from convscope.convolution.fusion import graphs
from convscope.inference.engines.fused import own, rows, steps


def traced(model: nn.Module) -> fx.GraphModule:
    found, _ = graphs.fused(graphs.folded(model.eval())[0], steps.step_of)
    assert isinstance(found, fx.GraphModule)
    return found


def kept(model: fx.GraphModule) -> list[str]:
    """Return the names of what a trace computes without a module."""
    return [node.name for node in model.graph.nodes if node.op in ("call_function", "call_method")]


@pytest.mark.parametrize(
    ("name", "count"), [("torchvision:convnext_tiny", 60), ("torchvision:swin_t", 57), ("torchvision:resnet18", 1)]
)
def test_networks_compute_the_same(name: str, count: int):
    model = randomized(name)
    for key, scale in model.named_parameters():
        if key.endswith("layer_scale"):
            nn.init.normal_(scale)
    other = traced(model)
    assert rows.with_rows(other) == count
    assert not [each for each in kept(other) if each.startswith(("mul", "stochastic_depth"))]
    assert own.with_chosen(other, {}) > 0
    assert distance(model, other) < 1e-5


class Block(nn.Module):
    """ConvNeXt's block, over images with the channels first, with one more addition of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8, bias=False)
        self.gelu, self.factors = nn.GELU(), nn.Parameter(torch.randn(8))
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(self.gelu(self.wide(self.norm(x.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        x = x + y.mul(self.factors.reshape(1, -1, 1, 1))
        y = self.last(functional.layer_norm(x.permute(0, 2, 3, 1), (8,))).permute([0, 3, 1, 2])
        return y + x.mean((2, 3), keepdim=True)


def test_a_block_of_convnext_is_three_products_and_two_normalisations():
    model = Block().eval()
    other = fx.symbolic_trace(model)
    assert rows.with_rows(other) == 5
    assert kept(other) == ["permute", "reshape", "permute_2", "layer_norm", "mean"]
    given = torch.randn(2, 8, 3, 5)
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))


class Odd(nn.Module):
    """Factors of rows and not of channels, a shared layer, one with a hook, one whose input is changed later."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.hooked, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.factors = nn.Parameter(torch.randn(4, 1))
        self.hooked.register_forward_hook(lambda module, given, output: output + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.hooked(self.shared(self.shared(x)))
        y = self.last(x) * self.factors
        z = self.last(x)
        x.add_(1.0)
        return z + y + x


def test_what_does_something_else_is_left_alone():
    model = Odd().eval()
    other = fx.symbolic_trace(model)
    assert rows.with_rows(other) == 0  # the last is called twice too
    given = torch.randn(4, 4)
    with torch.inference_mode():
        assert torch.equal(other(given.clone()), model(given.clone()))


@pytest.mark.parametrize("size", [(4, 1), (1,), (1, 1, 4), (4, 4)])
def test_factors_that_are_not_one_for_each_output_are_not_folded(size: tuple[int, ...]):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factors = nn.Linear(4, 4), nn.Parameter(torch.randn(size))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factors * self.linear(x)

    model = Scaled().eval()
    other = fx.symbolic_trace(model)
    assert rows.with_rows(other) == 1
    assert kept(other) == ["mul"]
    given = torch.randn(4, 4)
    with torch.inference_mode():
        assert torch.equal(other(given), model(given))


def test_factors_of_rows_and_inputs_that_change_later_are_not_taken_along():
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.factors = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.randn(4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, z = self.one(x) * self.factors, self.two(x)
            x.add_(1.0)
            return z + x + y

    model = Changed().eval()
    other = fx.symbolic_trace(model)
    assert rows.with_rows(other) == 2
    assert kept(other) == ["mul", "add_", "add", "add_1"]
    given = torch.randn(4, 4)
    with torch.inference_mode():
        torch.testing.assert_close(other(given.clone()), model(given.clone()))


def test_a_model_that_is_no_trace_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4))
    assert rows.with_rows(model) == 0
    assert type(model[0]) is nn.Linear
