"""Algorithms put into a model through ai3 and taken out again, and what they compute on a CPU."""

from __future__ import annotations

import ai3
import pytest
import torch
from fakes import Branching
from fakes.strategies import Case, cases
from hypothesis import given, settings
from torch import nn

from convscope.convolution import models, swap
from convscope.convolution.operator import cpu_operator, recording
from convscope.convolution.providers.plan import Execution
from convscope.convolution.reference import relative_error
from convscope.convolution.swap import Swap, SwappedConv2d
from convscope.timing.hooks import convolution_modules


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def two_convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2))


def kinds(model: nn.Module) -> dict[str, str]:
    """Return the algorithm in each convolution of a model."""
    return {
        name: module.algorithm if isinstance(module, SwappedConv2d) else "torch"
        for name, module in convolution_modules(model).items()
    }


def test_each_layer_gets_the_algorithm_that_it_is_given():
    model = two_convolutions()
    Swap(model).apply({"0": "direct", "2": "smm"})
    assert kinds(model) == {"0": "direct", "2": "smm"}


def test_a_layer_without_an_entry_stays_with_pytorch():
    model = two_convolutions()
    Swap(model).apply({"2": "direct"})
    assert kinds(model) == {"0": "torch", "2": "direct"}


def test_restoring_puts_back_the_very_same_modules():
    model = two_convolutions()
    before = list(model)
    swapped = Swap(model)
    swapped.apply({"0": "direct", "2": "smm"})
    swapped.restore()
    assert all(now is then for now, then in zip(model, before, strict=True))


def test_a_second_assignment_replaces_the_first():
    model = two_convolutions()
    swapped = Swap(model)
    swapped.apply({"0": "direct", "2": "smm"})
    swapped.apply({"0": "smm"})
    assert kinds(model) == {"0": "smm", "2": "torch"}


def test_the_same_assignment_again_changes_nothing():
    model = two_convolutions()
    swapped = Swap(model)
    swapped.apply({"0": "direct"})
    module = model[0]
    swapped.apply({"0": "direct", "2": "torch"})
    assert model[0] is module


def test_weights_are_shared_not_copied():
    model = two_convolutions()
    address = model[0].weight.data_ptr()
    Swap(model).apply({"0": "direct"})
    assert model[0].weight.data_ptr() == address


@pytest.mark.parametrize("algorithm", ["fft tiling", "winograd nonfused", "guess"])
def test_names_that_ai3_does_not_list_can_be_put_in(algorithm: str):
    model = two_convolutions()
    Swap(model).apply({"0": algorithm})
    assert kinds(model)["0"] == algorithm


def test_the_list_of_ai3_is_left_as_it_was():
    Swap(two_convolutions()).apply({"0": "fft tiling"})
    assert "fft tiling" not in ai3.utils.SUPPORTED_ALGORITHMS["conv2d"]


def test_a_model_that_no_symbolic_trace_follows_is_swapped_all_the_same():
    model = Branching()
    Swap(model).apply({"one": "direct", "two": "smm"})
    assert kinds(model) == {"one": "direct", "two": "smm"}


class Lengths(nn.Module):
    """Asks for the length of its input, which a symbolic trace refuses with a RuntimeError."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.conv(x[at : at + 1]) for at in range(len(x))])


def test_whatever_a_symbolic_trace_raises_a_model_is_swapped():
    model, given = Lengths(), torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        expected = model(given)
        Swap(model).apply({"conv": "direct"})
        assert isinstance(model.conv, SwappedConv2d)
        assert torch.allclose(model(given), expected, atol=1e-5)


def test_a_convolution_with_two_names_is_swapped_under_both():
    model = nn.Sequential(nn.Conv2d(3, 3, 3))
    model.append(model[0])
    swapped = Swap(model)
    swapped.apply({"0": "direct"})
    assert isinstance(model[0], SwappedConv2d)
    assert model[1] is model[0]
    swapped.restore()
    assert model[1] is model[0]
    assert isinstance(model[0], nn.Conv2d)


@pytest.mark.parametrize("name", models.MODELS)
def test_every_convolution_of_the_catalogues_models_can_be_swapped(name: str):
    model = models.find_source(name).shapes()
    swapped = Swap(model)
    swapped.apply(dict.fromkeys(swapped.originals, "direct"))
    assert set(kinds(model).values()) == {"direct"}
    swapped.restore()


@pytest.mark.parametrize("algorithm", ["direct", "smm"])
@settings(max_examples=25)
@given(case=cases(device="cpu", groups=(1,)))
def test_on_a_cpu_a_swapped_layer_agrees_with_float64(algorithm: str, case: Case):
    model = nn.Sequential(case.conv)
    Swap(model).apply({"0": algorithm})
    x = case.input()
    assert relative_error(case.conv, x, model(x)) < 1e-5


@pytest.mark.parametrize("options", [{"padding": "same"}, {"padding": "valid"}, {"padding": "same", "dilation": 2}])
def test_padding_by_name_is_kept(options: dict):
    conv = nn.Conv2d(3, 4, 3, **options)
    model, x = nn.Sequential(conv), torch.randn(1, 3, 12, 12)
    Swap(model).apply({"0": "direct"})
    assert relative_error(conv, x, model(x)) < 1e-5


def lying(kind: str, x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, lying in memory otherwise than one after the other."""
    if kind == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if kind == "half of the channels":
        return torch.cat([x, x], dim=1).chunk(2, dim=1)[0]
    if kind == "turned":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x[:, :, :, :1].expand(x.shape)


LYING = ("channels last", "half of the channels", "turned", "one column for all")


@pytest.mark.parametrize("algorithm", ["direct", "smm"])
@pytest.mark.parametrize("kind", LYING)
def test_inputs_and_weights_may_lie_in_any_way(kind: str, algorithm: str):
    conv = nn.Conv2d(4, 6, 3, padding=1)
    conv.weight = nn.Parameter(lying(kind, conv.weight.data))
    model, x = nn.Sequential(conv), lying(kind, torch.randn(2, 4, 9, 7))
    assert not x.is_contiguous()
    Swap(model).apply({"0": algorithm})
    assert relative_error(conv, x, model(x)) < 1e-6


def test_a_swapped_layer_says_what_ran_on_a_cpu():
    model = two_convolutions()
    Swap(model).apply({"0": "smm"})
    with recording():
        model(torch.randn(1, 3, 8, 8))
        assert swap.what_ran(model[0]) == Execution("smm", "ai3", None, copied_input_bytes=0)
    with pytest.raises(AssertionError, match=r"outside of operator.recording\(\)"):
        swap.what_ran(model[0])


def test_copied_bytes_are_those_of_the_tensors_that_lie_otherwise():
    cpu_operator()
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    last_x, last_weight = (lying("channels last", tensor) for tensor in (x, weight))
    options = 1, 1, 1, 1, 1, 1, 0, 1, "direct"
    with recording() as executions:
        for given in ((x, weight), (last_x, weight), (x, last_weight), (last_x, last_weight)):
            torch.ops.ai3.conv2d(*given, None, *options)
    found = [execution.copied_input_bytes for execution in executions]
    assert found == [0, 4 * 2 * 3 * 64, 4 * 4 * 27, 4 * 2 * 3 * 64 + 4 * 4 * 27]


@pytest.mark.parametrize("odd", ["weight", "bias"])
def test_tensors_of_two_data_types_are_refused_on_a_cpu(odd: str):
    cpu_operator()
    tensors = {"input": torch.randn(1, 3, 8, 8), "weight": torch.randn(4, 3, 3, 3), "bias": torch.randn(4)}
    tensors[odd] = tensors[odd].double()
    with pytest.raises(NotImplementedError, match="ai3 convolves tensors of one data type: input, weight and bias are"):
        torch.ops.ai3.conv2d(*tensors.values(), 1, 1, 1, 1, 1, 1, 0, 1, "direct")


def test_an_unswapped_layer_ran_on_pytorch():
    assert swap.what_ran(nn.Conv2d(3, 4, 3)) == Execution("torch", "torch", None)


def test_the_error_of_a_layer_is_its_distance_from_float64_over_the_length():
    conv = nn.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(1, 3, 9, 9)
    assert relative_error(conv, x, 1.25 * conv(x)) == pytest.approx(0.25, rel=1e-4)


def test_the_reference_of_a_swapped_layer_keeps_every_option():
    conv = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    model, x = nn.Sequential(conv), torch.randn(2, 4, 12, 17)
    Swap(model).apply({"0": "direct"})
    assert relative_error(model[0], x, conv(x)) < 1e-6


def test_the_reference_pads_as_the_module_does():
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
    x = torch.randn(1, 3, 9, 9)
    assert relative_error(conv, x, conv(x)) < 1e-6
