"""Branches of a model that run side by side: the same numbers, and only where nothing could tell."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import fx, nn

from convscope.convolution.fusion import branches, graphs


def traced(model: nn.Module) -> fx.GraphModule:
    return fx.symbolic_trace(model.eval())


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet50", 4), ("googlenet", 27), ("squeezenet1_0", 8), ("regnet_y_400mf", 4), ("mobilenet_v2", 0)],
)
def test_a_model_with_branches_computes_the_same(name: str, count: int):
    torch.manual_seed(0)
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model, _ = graphs.fused(graphs.folded(torchvision.models.get_model(name, **options).eval())[0])
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = model(x)
        assert branches.with_branches(model) == count
        assert torch.equal(model(x), expected)


class Forked(nn.Module):
    """A tensor that two branches leave, of one and of two convolutions, to be added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.short, self.one, self.two = (nn.Conv2d(4, 4, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.between(self.two(self.one(x)) + self.short(x), x)

    def between(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y


def test_the_longest_branch_stays_and_its_input_is_kept_until_they_meet():
    model = traced(Forked())
    short = model.short
    assert branches.with_branches(model) == 1
    assert [*model.branch_0.steps] == [short]
    nodes = {str(node.target): node for node in model.graph.nodes if node.op == "call_module"}
    assert nodes["meeting_0"].args == (nodes["branch_0"], nodes["first"])
    order = [str(node.target) for node in model.graph.nodes if node.op == "call_module"]
    assert order == ["first", "branch_0", "one", "two", "meeting_0"]


class Overwritten(Forked):
    def between(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return y + x.relu_()


def test_a_tensor_that_is_changed_in_place_keeps_its_branches():
    model = traced(Overwritten())
    assert branches.with_branches(model) == 0
    x = torch.randn(1, 4, 3, 3)
    with torch.inference_mode():
        model(x)


class Skipping(Forked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.two(self.one(x)) + x


def test_a_branch_beside_which_nothing_runs_stays():
    assert branches.with_branches(traced(Skipping())) == 0


class Gated(Forked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = self.one(x)
        return y * torch.sigmoid(y) + self.short(x)


def test_the_other_branch_may_be_of_any_form():
    model = traced(Gated())
    assert branches.with_branches(model) == 1
    assert len(model.branch_0.steps) == 1


def test_a_module_that_is_no_trace_stays_as_it_is():
    model = Forked().eval()
    assert branches.with_branches(model) == 0
    assert not hasattr(model, "branch_0")
