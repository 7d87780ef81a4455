"""Layers that are calls outside `nn.Conv2d` modules: shapes, operations, columns; and algorithms put in their place."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from fakes import layer, unusual
from torch import nn

from convscope.convolution import swap
from convscope.convolution.layer import MODULE, Layer, has_calls
from convscope.convolution.observation import observe
from convscope.convolution.providers.plan import Execution
from convscope.convolution.swap import Swap
from convscope.errors import InputError
from convscope.timing.calls import Call, watched


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def called(function: Any, x: torch.Tensor, weight: torch.Tensor, **options: Any) -> tuple[Layer, torch.Tensor]:
    """Return the layer that a call of one of PyTorch's functions is, and its output."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x, weight, **options)

    found: list[tuple[Layer, torch.Tensor]] = []

    def after(name: str, call: nn.Module, x: torch.Tensor, output: torch.Tensor) -> None:
        assert isinstance(call, Call)
        found.append((Layer.of_call(name, len(found), call, x.shape), output))

    with watched(Model(), after=after):
        Model()(x)
    return found[0]


SHAPES = [
    (F.conv1d, (2, 4, 20), (6, 2, 5), {"groups": 2, "stride": 3, "padding": 1}),
    (F.conv2d, (2, 4, 9, 7), (6, 4, 3, 2), {"dilation": (2, 1), "bias": torch.zeros(6)}),
    (F.conv2d, (2, 4, 9, 7), (6, 4, 3, 5), {"padding": "same"}),
    (F.conv3d, (1, 2, 5, 6, 7), (3, 2, 1, 3, 3), {"padding": (0, 1, 2)}),
    (F.conv_transpose1d, (2, 6, 10), (6, 4, 3), {"stride": 3, "output_padding": 2}),
    (F.conv_transpose2d, (2, 6, 5, 7), (6, 2, 3, 4), {"groups": 3, "stride": (2, 1), "padding": 1, "dilation": (1, 2)}),
    (F.conv_transpose3d, (1, 2, 3, 4, 5), (2, 3, 2, 2, 2), {"stride": 2, "bias": torch.zeros(3)}),
]


@pytest.mark.parametrize(("function", "given", "weight", "options"), SHAPES)
def test_a_calls_layer_has_the_output_shape_that_pytorch_gives(function, given, weight, options):
    found, output = called(function, torch.randn(given), torch.randn(weight), **options)
    assert found.output == tuple(output.shape)
    assert (found.batch, found.in_channels, found.out_channels) == (given[0], given[1], output.shape[1])
    assert (found.kind, found.bias) == (function.__name__, "bias" in options)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_each_number_of_a_transposed_convolutions_input_meets_each_weight_of_its_channel(stride, padding, groups):
    options = {"stride": stride, "padding": padding, "groups": groups, "bias": torch.zeros(3 * groups)}
    found, output = called(F.conv_transpose2d, torch.randn(2, 4, 5, 6), torch.randn(4, 3, 2, 3), **options)
    assert found.flops == 2 * (2 * 4 * 5 * 6) * (3 * 2 * 3) + output.numel()


def test_without_strides_and_edges_a_transposed_convolution_sums_as_many_products_as_it_has_terms():
    ones = torch.ones(1, 4, 9, 9), torch.ones(4, 3, 3, 3)
    found, output = called(F.conv_transpose2d, *ones, groups=2)
    assert found.terms == output.max() == 2 * 9


def test_a_convolution_and_the_transposed_one_of_its_output_take_the_same_products():
    straight, output = called(F.conv2d, torch.randn(1, 3, 8, 8), torch.randn(5, 3, 3, 3))
    back, given = called(F.conv_transpose2d, output, torch.randn(5, 3, 3, 3))
    assert given.shape == (1, 3, 8, 8)
    assert back.flops == straight.flops == 2 * 36 * 5 * 27


def test_an_input_without_a_batch_is_a_batch_of_one():
    found, _ = called(F.conv1d, torch.randn(4, 20), torch.randn(6, 4, 5))
    assert (found.input, found.batch, found.size) == ((1, 4, 20), 1, (20,))


def test_heights_and_widths_are_of_two_dimensions_only():
    line, _ = called(F.conv1d, torch.randn(1, 4, 20), torch.randn(6, 4, 5), stride=2)
    plane, _ = called(F.conv2d, torch.randn(1, 4, 20, 30), torch.randn(6, 4, 5, 3))
    assert {name: line.columns()[name] for name in ("in_height_px", "kernel_size", "stride", "in_channels")} == {
        "in_height_px": None, "kernel_size": "5", "stride": "2", "in_channels": 4,
    }  # fmt: skip
    assert (plane.columns()["in_height_px"], plane.columns()["in_width_px"]) == (20, 30)


def test_a_transposed_convolution_is_other_work_than_a_straight_one_of_its_sizes():
    x, weight = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)
    straight, back = (called(function, x, weight)[0] for function in (F.conv2d, F.conv_transpose2d))
    assert straight.cost_key != back.cost_key
    assert (straight.transposed, back.transposed) == (False, True)


def test_a_network_has_calls_where_one_of_its_layers_is_no_module():
    call, _ = called(F.conv2d, torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3))
    assert layer().kind == MODULE
    assert [has_calls([]), has_calls([layer()]), has_calls([layer(), call])] == [False, False, True]


PLAIN = {"conv2d": "direct", "block.conv2d": "smm", "last": "direct"}


def functional() -> tuple[unusual.Functional, torch.Tensor]:
    torch.manual_seed(0)
    return unusual.Functional().eval(), torch.randn(2, 3, 12, 12)


def ran(model: nn.Module, x: torch.Tensor) -> dict[str, Execution]:
    return dict(zip(unusual.FUNCTIONAL, [seen.execution for seen in observe(model, (x,), False)], strict=True))


def test_calls_run_the_algorithms_that_they_are_given_by_name():
    model, x = functional()
    expected = model(x)
    Swap(model).apply(PLAIN)
    assert {name: (one.algorithm, one.provider) for name, one in ran(model, x).items()} == {
        "conv2d": ("direct", "ai3"),
        "block.conv2d": ("smm", "ai3"),
        "block.conv2d#2": ("torch", "torch"),
        "block.conv2d#3": ("torch", "torch"),
        "last": ("direct", "ai3"),
    }
    assert torch.allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(model(x), expected)  # it is another algorithm's rounding


def test_errors_of_calls_are_those_of_float32():
    model, x = functional()
    Swap(model).apply(PLAIN)
    errors = [seen.relative_error for seen in observe(model, (x,), True)]
    assert all(error is not None and 0 < error < 1e-6 for error in errors)


def test_a_restored_model_calls_pytorch_again():
    model, x = functional()
    expected, swapped = model(x), Swap(model)
    swapped.apply(PLAIN)
    assert swap.replaces_calls(model)
    swapped.restore()
    assert not swap.replaces_calls(model)
    assert "forward" not in vars(model)
    assert torch.equal(model(x), expected)
    assert {one.provider for one in ran(model, x).values()} == {"torch"}


def test_a_forward_that_was_put_into_the_model_is_put_back():
    model, x = functional()
    stem = model.forward
    model.forward = lambda x: 2 * stem(x)  # type: ignore[method-assign]
    mine, expected, swapped = model.forward, model(x), Swap(model)
    swapped.apply({"conv2d": "direct"})
    assert torch.allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    swapped.restore()
    assert model.forward is mine


def test_a_second_assignment_of_calls_takes_the_place_of_the_first():
    model, x = functional()
    swapped = Swap(model)
    swapped.apply({"conv2d": "direct"})
    swapped.apply({"block.conv2d": "smm"})
    assert [ran(model, x)[name].algorithm for name in ("conv2d", "block.conv2d")] == ["torch", "smm"]


@pytest.mark.parametrize("assignment", [{}, {"last": "direct"}, {"conv2d": "torch"}])
def test_where_no_call_is_replaced_the_model_runs_without_a_dispatch_mode(assignment: dict[str, str]):
    model, _ = functional()
    Swap(model).apply(assignment)
    assert not swap.replaces_calls(model)


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        (unusual.Functional, "block.conv2d#2", "the weight of a call of conv2d is computed in the pass"),
        (unusual.Dimensions, "up.conv_transpose2d", "conv_transpose2d is transposed"),
        (unusual.Dimensions, "volume.conv3d", "conv3d is not 2-D"),
    ],
)
def test_a_call_that_nothing_can_take_the_place_of_is_refused_when_it_is_made(kind, name: str, why: str):
    model = kind().eval()
    Swap(model).apply({name: "direct"})
    with pytest.raises(InputError) as caught:
        model(torch.randn(1, 3, 12, 12))
    assert str(caught.value) == f"{name} cannot run direct: only plain convolutions can be replaced, and {why}"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_call_with_uneven_padding_is_refused():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, 2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, self.weight, padding="same")

    model = Model()
    Swap(model).apply({"conv2d": "direct"})
    with pytest.raises(InputError, match=r"and its padding 'same' is uneven$"):
        model(torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("copying", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_copy_of_a_model_whose_calls_are_replaced_runs_them_with_weights_that_are_the_copys(copying, has_run: bool):
    model, x = functional()
    Swap(model).apply(PLAIN)
    expected = model(x) if has_run else None
    copied = copying(model)
    assert [one.algorithm for one in ran(copied, x).values()] == ["direct", "smm", "torch", "torch", "direct"]
    copied.stem.mul_(2)
    assert not torch.equal(copied(x), model(x))
    assert expected is None or torch.equal(model(x), expected)
