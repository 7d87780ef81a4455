"""Folding and fusing: the same function with fewer steps."""

from __future__ import annotations

import operator
from types import SimpleNamespace

import pytest
import torch
from fakes import Branching, distance, randomized
from torch import nn
from torch.nn.utils import prune

from convscope.convolution import algorithms, models, swap
from convscope.convolution.fusion import graphs
from convscope.convolution.fusion.module import FusedConv2d
from convscope.convolution.observation import observe
from convscope.convolution.reference import rounding_error
from convscope.cudnn.shape import Fused
from convscope.errors import InputError


# Whatever comes before a normalisation of densenet is no convolution, and mobilenet's activation is no ReLU.
@pytest.mark.parametrize(
    ("name", "folded", "norms", "fused"),
    [
        ("torchvision:resnet18", 20, 20, 17),
        ("resnet50", 53, 53, 49),
        ("torchvision:mobilenet_v2", 52, 52, 0),
        ("densenet121", 59, 121, 59),
        pytest.param("torchvision:vgg11_bn", 8, 8, 8, marks=pytest.mark.long),
    ],
)
def test_a_folded_and_a_fused_model_compute_the_same(name: str, folded: int, norms: int, fused: int):
    model = randomized(name)
    smaller, done, count = graphs.folded(model)
    assert (done, count) == (folded, norms)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in smaller.modules()) == norms - folded
    assert distance(model, smaller) < 1e-5
    smallest, number = graphs.fused(smaller)
    assert number == fused
    assert distance(model, smallest) < 1e-5


def test_convolutions_in_groups_are_left_alone():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()).eval()
    other, number = graphs.fused(graphs.folded(model)[0])
    assert number == 1
    assert any(type(module) is nn.Conv2d and module.groups == 2 for module in other.modules())


def test_nothing_but_the_fused_calls_is_left_of_a_residual_block():
    model, _ = graphs.fused(graphs.folded(randomized("torchvision:resnet18"))[0])
    assert not any(node.target in (operator.add, operator.iadd) for node in model.graph.nodes)
    assert not any(isinstance(module, nn.ReLU) for module in model.modules())


def test_the_bias_of_a_convolution_that_is_only_added_moves_into_the_other():
    model, _ = graphs.fused(graphs.folded(randomized("torchvision:resnet18"))[0])
    left = [module for module in model.modules() if type(module) is nn.Conv2d]
    assert len(left) == 3
    assert all(module.bias is None for module in left)


def test_the_model_itself_is_left_as_it_was():
    model = randomized("torchvision:resnet18")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graphs.fused(graphs.folded(model)[0])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert isinstance(model.bn1, nn.BatchNorm2d)


def test_a_model_that_cannot_be_traced_stays_as_it_is():
    model = Branching().eval()
    smaller, done, count = graphs.folded(model)
    assert (done, count) == (0, 0)
    assert graphs.fused(smaller) == (smaller, 0)
    assert smaller is not model


class Shared(nn.Module):
    """One convolution and normalisation called twice, and one whose output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.other, self.relu = nn.Conv2d(3, 3, 1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(self.norm(self.conv(x))))
        y = self.other(x)
        return y + self.relu(y)


class Asks(nn.Module):
    """A model whose code asks what `torch.fx` cannot answer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(x, torch.Tensor)
        return self.conv(x)[: len(x)]


class Kinds(nn.Module):
    """Convolutions with all that can follow them: an addition, a bias, ReLU, nothing, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner, self.bare = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1, bias=False)
        self.grouped, self.last = nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 4, 1)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.relu(self.inner(x) + x)
        return self.last(self.grouped(self.bare(x)))


def test_a_whole_model_has_each_step_behind_a_convolution_in_its_call():
    model = Kinds().eval()
    whole = graphs.fused_whole(model)
    steps = {name: str(each.fused) for name, each in whole.named_modules() if isinstance(each, FusedConv2d)}
    assert steps == {"stem": "bias relu", "inner": "addition bias relu", "last": "bias"}
    assert {name: type(whole.get_submodule(name)) for name in ("grouped", "bare")} == {
        "grouped": nn.Conv2d,
        "bare": nn.Conv2d,
    }
    assert distance(model, whole) < 1e-6
    listed = {each.name: each for each in models.followed("kinds", whole, (2, 3, 64, 64))}
    assert {name: str(each.fused) for name, each in listed.items()} == steps | {"grouped": "", "bare": ""}
    assert not any(each.peculiarity for each in listed.values())
    assert listed["inner"].convolution().fused == Fused(addition=True, bias=True, relu=True)
    assert listed["inner"].cost_key != listed["bare"].cost_key


class Broadcasts(nn.Module):
    """An addition of one number a channel, and one to an output that is one number a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.pooled = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.one(x) + self.pooled(x).mean(1, keepdim=True))
        return torch.relu(self.two(self.pooled(x)) + x)


def test_an_addition_that_is_broadcast_has_no_call_of_its_own():
    model = Broadcasts().eval()
    whole = graphs.fused_whole(model)
    assert distance(model, whole) < 1e-6
    one = whole.get_submodule("one")
    assert isinstance(one, FusedConv2d)
    assert one.output_size((2, 3, 9, 7)) == (2, 8, 7, 5)
    on_a_card = SimpleNamespace(is_cuda=True, dtype=torch.float32, shape=(2, 3, 9, 7), requires_grad=False)
    with torch.inference_mode():
        assert one._has_fused_call(on_a_card, torch.zeros(2, 8, 7, 5))
        assert not one._has_fused_call(on_a_card, torch.zeros(2, 8, 1, 1))
        assert one._has_fused_call(on_a_card, None)
    assert not one._has_fused_call(on_a_card, None)  # a gradient of the weights is wanted


class Moved(nn.Module):
    """Steps that the code of a model may do in another order, in place, or to more than a convolution's output."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.relu = kind, nn.ReLU(inplace=True)
        self.one, self.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 1, groups=4)
        self.few, self.norm = nn.Conv2d(4, 1, 1), nn.BatchNorm2d(4, track_running_stats=False)
        self.stem = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return getattr(self, self.kind)(x)

    def thrown_away_module(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        self.relu(y)
        return y

    def thrown_away_method(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        y.add_(x)
        return self.two(y)

    def input_changed(self, x: torch.Tensor) -> torch.Tensor:
        short = self.one(x)
        return torch.relu(short + self.two(self.relu(x)))

    def input_changed_before_a_grouped_one(self, x: torch.Tensor) -> torch.Tensor:
        short = self.one(x)
        return torch.relu(self.grouped(nn.functional.relu(x, True)) + short)

    def scaled_addition(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.add(self.one(x), 2, x))

    def fewer_filters(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.few(x) + self.one(x))

    def by_keyword(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.one(input=x)) + nn.functional.relu(input=self.two(x))

    def no_statistics(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.one(x)))

    def hooked(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.two(self.relu(self.one(x))))


@pytest.mark.filterwarnings("ignore:This overload of add")
@pytest.mark.parametrize("kind", [name for name in vars(Moved) if not name.startswith("_") and name != "forward"])
def test_what_would_be_lost_or_moved_is_not_fused(kind: str):
    torch.manual_seed(0)
    model = Moved(kind).eval()
    if kind == "hooked":
        model.one.register_forward_hook(lambda module, given, output: 2 * output)
        model.relu.register_forward_hook(lambda module, given, output: output + 1)
        model.two.register_forward_pre_hook(lambda module, given: (given[0] - 1,))
    given = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        whole = graphs.fused_whole(model)
        torch.testing.assert_close(whole(given.clone()), model(given.clone()))
    assert type(whole.get_submodule("stem")) is FusedConv2d


class AddsIntoAnother(nn.Module):
    """An addition in place that `torch.fx` takes for one that makes a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        other = x
        other += self.one(x)
        return torch.relu(other) + x


def test_a_copy_that_returns_something_else_is_refused_where_an_example_shows_it():
    torch.manual_seed(0)
    model, given = AddsIntoAnother().eval(), torch.randn(2, 3, 8, 8)
    with pytest.raises(InputError, match=r"torch\.fx does not follow it rightly, its copy returns something else"):
        graphs.fused_whole(model, given)
    kinds = Kinds().eval()
    assert isinstance(graphs.fused_whole(kinds, given), nn.Module)


def test_weights_that_are_computed_in_each_pass_are_left_alone():
    model = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    whole = graphs.fused_whole(model)
    assert [type(whole.get_submodule(name)) for name in "02"] == [nn.Conv2d, FusedConv2d]
    pruned = nn.Conv2d(3, 4, 3)
    prune.l1_unstructured(pruned, "weight", 0.5)
    with torch.enable_grad(), pytest.raises(InputError, match="cannot be copied, and so not be fused"):
        graphs.fused_whole(nn.Sequential(pruned).eval())


def test_a_fused_convolution_takes_what_it_adds_and_nothing_else():
    conv, x = nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 4, 4)
    adds, alone = FusedConv2d(conv, Fused(True, True, True)), FusedConv2d(conv, Fused(bias=True))
    with pytest.raises(InputError, match="addition bias relu is fused with this convolution: it takes its input and"):
        adds(x)
    with pytest.raises(InputError, match="bias is fused with this convolution: it takes its input alone"):
        alone(x, x)


def test_the_roundings_of_a_fused_model_are_those_of_the_model():
    model = randomized("torchvision:resnet18")
    given = torch.randn(1, 3, 64, 64)
    found = [rounding_error(each, given, "float16") for each in (model, graphs.fused_whole(model))]
    assert found[1] < 2 * found[0] < 0.1


def test_an_addition_that_is_broadcast_is_not_fused_where_an_example_shows_its_size():
    model, given = Broadcasts().eval(), torch.randn(2, 3, 9, 7)
    for example, steps in (((), "addition bias relu"), ((given,), "bias")):
        whole = graphs.fused_whole(model, *example)
        found = {name: str(each.fused) for name, each in whole.named_modules() if isinstance(each, FusedConv2d)}
        assert found == dict.fromkeys(("one", "two"), steps)
    kinds = graphs.fused_whole(Kinds().eval(), given)
    assert str(kinds.get_submodule("inner").fused) == "addition bias relu"


def test_only_plans_take_what_is_fused():
    listed = models.followed("kinds", graphs.fused_whole(Kinds().eval()), (2, 3, 64, 64))
    stem = next(each for each in listed if each.name == "stem")
    for name in ("implicit gemm", "direct", "guess"):
        reason = algorithms.why_not_by_rule(algorithms.find(name), stem, "cuda")
        assert reason == f"{name} has nothing fused into it: only plans take bias relu with the convolution"
    for name in ("torch", "heuristic a", "plan:38"):
        assert algorithms.why_not_by_rule(algorithms.find(name), stem, "cuda") is None


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Branching().eval(), "torch.fx cannot follow it"),
        (nn.Sequential(nn.Conv2d(3, 3, 1, bias=False)).eval(), "has nothing to fuse"),
        (Kinds(), "is in training mode, and cannot be fused: call its eval"),
        (nn.Sequential(Kinds()).eval().append(nn.Dropout()), "is in training mode"),
        (Asks().eval(), "torch.fx cannot follow it"),
    ],
    ids=["not followed", "nothing", "training", "a part in training", "asks"],
)
def test_a_model_that_cannot_be_fused_is_one_line(model: nn.Module, why: str):
    with pytest.raises(InputError, match=why):
        graphs.fused_whole(model)


def test_a_swap_gives_a_fused_convolution_its_plan_and_takes_it_back():
    whole = graphs.fused_whole(Kinds().eval())
    before = dict(whole.named_modules())
    swapped = swap.Swap(whole)
    swapped.apply({"stem": "plan:38", "bare": "direct"})
    stem = whole.get_submodule("stem")
    assert (swap.carried(stem), swap.carried(whole.get_submodule("bare"))) == ("plan:38", "direct")
    assert swap.carried(whole.get_submodule("inner")) == "torch"
    assert isinstance(stem, FusedConv2d)
    assert stem.weight is before["stem"].weight
    assert str(stem.fused) == "bias relu"
    assert swap.carried(swap.original(stem)) == "torch"
    swapped.restore()
    assert all(whole.get_submodule(name) is module for name, module in before.items() if name)


def test_what_is_added_is_unknown_to_the_check_of_one_layer():
    model = graphs.fused_whole(Kinds().eval())
    with torch.inference_mode():
        seen = {each.name: each for each in observe(model, (torch.randn(2, 3, 16, 16),), check_errors=True)}
    assert seen["inner"].unchecked == "not compared with float64: what is added to it is not known here"
    assert all(each.relative_error < 1e-6 for name, each in seen.items() if name != "inner")


def test_what_is_used_twice_is_not_fused():
    model = Shared().eval()
    smaller, done, count = graphs.folded(model)
    assert (done, count) == (0, 1)
    smallest, number = graphs.fused(smaller)
    assert number == 0
    assert distance(model, smallest) < 1e-6
