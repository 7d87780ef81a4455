"""Convolutions with their activation, and depthwise ones, as modules of the engine `fused`: same results on a CPU."""

from __future__ import annotations

import pytest
import torch
from fakes import distance, randomized
from torch import fx, nn
from torchvision.ops import stochastic_depth

from convscope.convolution.fusion import graphs
from convscope.inference.engines.fused import steps, tails


def traced(model: nn.Module) -> fx.GraphModule:
    found, _ = graphs.fused(graphs.folded(model.eval())[0], steps.step_of)
    assert isinstance(found, fx.GraphModule)
    return found


@pytest.mark.parametrize(
    ("name", "tailed", "depthwise"),
    [
        ("torchvision:mobilenet_v2", 35, 17),
        ("torchvision:mobilenet_v3_large", 34, 15),
        ("torchvision:efficientnet_b0", 65, 16),
        ("torchvision:convnext_tiny", 4, 18),
        ("resnet50", 0, 0),
    ],
)
def test_networks_compute_the_same(name: str, tailed: int, depthwise: int):
    model = randomized(name)
    other = traced(model)
    assert tails.with_tails(other) == (tailed, depthwise)
    assert distance(model, other) < 1e-5


@pytest.mark.parametrize("activation", [each() for each in tails.ACTIVATIONS], ids=lambda each: type(each).__name__)
def test_each_activation_is_taken_along(activation: nn.Module):
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), activation, nn.Conv2d(8, 8, 3, groups=8, bias=False)).eval()
    given = 3 * torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    other = fx.symbolic_trace(model)
    assert tails.with_tails(other) == (1, 1)
    kinds = [type(module) for module in other.children()]
    assert kinds == [tails.TailedConvolution, tails.DepthwiseConvolution]
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))


class Twice(nn.Module):
    """A convolution whose output has two users, one called twice, a GELU that is no exact one, one with a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.two_users, self.called_twice, self.inexact, self.hooked = (nn.Conv2d(4, 4, 1) for _ in range(4))
        self.silu, self.gelu = nn.SiLU(), nn.GELU(approximate="tanh")
        self.hooked.register_forward_hook(lambda module, given, output: output + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.two_users(x)
        y = y + self.silu(y)
        y = self.silu(self.called_twice(self.silu(self.called_twice(y))))
        return self.silu(self.hooked(self.gelu(self.inexact(y))))


def test_what_has_other_users_or_does_more_is_left_alone():
    model = Twice().eval()
    other = fx.symbolic_trace(model)
    assert tails.with_tails(other) == (2, 0)  # their bias alone
    kinds = {name: each.kind for name, each in other.named_children() if isinstance(each, tails.TailedConvolution)}
    assert kinds == {"two_users": "", "inexact": ""}
    given = torch.randn(1, 4, 3, 3)
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))


def test_products_of_tensors_are_scaled_channels_where_they_fit():
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
            return factors * x * 2.0

    other = fx.symbolic_trace(Scaled())
    tails.with_tails(other)
    assert [type(module) for module in other.children()] == [tails.ScaledChannels]  # not that with a number
    x, factors = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 1, 1)
    assert torch.equal(other(x, factors), factors * x * 2.0)


def test_products_of_sizes_stay_numbers():
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.size(0), x.size(1) * x.size(2))

    other = fx.symbolic_trace(Flat())
    tails.with_tails(other)
    x = torch.randn(2, 4, 3)
    assert torch.equal(other(x), x.flatten(1))


def test_an_activation_in_place_and_an_input_changed_later_are_the_same():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act = nn.Conv2d(4, 4, 1), nn.SiLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            x.add_(1.0)
            return self.act(y) + x

    model = InPlace().eval()
    other = fx.symbolic_trace(model)
    assert tails.with_tails(other) == (1, 0)
    given = torch.randn(1, 4, 3, 3)
    with torch.inference_mode():
        torch.testing.assert_close(other(given.clone()), model(given.clone()))


class Sums(nn.Module):
    """Convolutions whose output is added to something of the same size, of another, and to a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (nn.Conv2d(4, 4, 1) for _ in range(4))
        self.drop, self.idle = nn.Dropout(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.first(self.idle(x)))
        x = stochastic_depth(self.second(x), 0.5, "row", training=self.training) + x
        x = self.third(x) + x.mean((2, 3), keepdim=True)
        return self.fourth(x) + x.size(0)


def test_additions_are_taken_along():
    model = Sums().eval()
    other = fx.symbolic_trace(model)
    assert tails.with_tails(other) == (4, 0)
    assert {node.op for node in other.graph.nodes if node.name.startswith("add")} == set()
    given = torch.randn(2, 4, 3, 3)
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))


def test_an_addition_is_not_taken_along_past_a_change_of_the_input():
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            x.add_(1.0)
            return y + x

    model = Changed().eval()
    other = fx.symbolic_trace(model)
    assert tails.with_tails(other) == (1, 0)  # its bias alone
    given = torch.randn(1, 4, 3, 3)
    with torch.inference_mode():
        torch.testing.assert_close(other(given.clone()), model(given.clone()))


def test_dropout_in_training_is_no_identity():
    other = fx.symbolic_trace(nn.Sequential(nn.Dropout(), nn.Identity(), nn.Conv2d(4, 4, 1)).train())
    tails.with_tails(other)
    assert [type(module) for module in other.children()] == [nn.Dropout, tails.TailedConvolution]


def test_a_model_that_is_no_trace_stays_as_it_is():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU())
    assert tails.with_tails(model) == (0, 0)
    assert type(model[0]) is nn.Conv2d
