"""Algorithms put into a model through ai3 and taken out again, and what they compute on a CPU."""

from __future__ import annotations

import ai3
import pytest
import torch
from fakes import Branching
from fakes.strategies import Case, cases
from hypothesis import given, settings
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from convscope.convolution import backends, models, swap
from convscope.convolution.operator import CudaOperator, Execution, _empty, cuda_operator, refusal
from convscope.convolution.reference import relative_error
from convscope.convolution.swap import Swap, SwappedConv2d
from convscope.cudnn import legacy, library
from convscope.cudnn.shape import Convolution
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
    model = models._on_meta(name)
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


def test_a_swapped_layer_says_what_ran_on_a_cpu():
    model = two_convolutions()
    Swap(model).apply({"0": "smm"})
    assert swap.what_ran(model[0], torch.zeros(1)) == Execution("smm", "ai3", None)


def test_an_unswapped_layer_ran_on_pytorch():
    assert swap.what_ran(nn.Conv2d(3, 4, 3), torch.zeros(1)) == Execution("torch", "torch", None)


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


def test_the_refusal_of_winograd_names_library_and_card():
    short = ".".join(library.version().split(".")[:2])
    assert refusal("winograd", "NVIDIA H200") == f"cuDNN {short} has no fused Winograd on NVIDIA H200"


def test_any_other_refusal_names_algorithm_and_card():
    assert refusal("fft", "NVIDIA H200").endswith(" refuses fft for this shape on NVIDIA H200")


def test_the_engine_refuses_padding_modes_other_than_zeros():
    x, weight = torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    with pytest.raises(NotImplementedError, match="cuDNN pads with zeros only"):
        CudaOperator().forward(x, weight, None, 1, 1, 1, 1, 1, 1, 1, 1, "gemm")


@pytest.mark.parametrize("algorithm", ["smm", "torch", "nonsense"])
def test_the_engine_refuses_what_is_not_an_algorithm_of_cudnn(algorithm: str):
    convolution = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1))
    with pytest.raises(NotImplementedError, match=f"{algorithm} is neither an algorithm of cuDNN nor"):
        CudaOperator()._plan(0, convolution, algorithm)


def test_the_engine_refuses_types_that_cudnn_does_not_convolve():
    convolution = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1), dtype="int64")
    with pytest.raises(NotImplementedError, match="cuDNN has no convolution of int64"):
        CudaOperator()._plan(0, convolution, "gemm")


def test_a_plan_is_of_the_layout_in_force_and_so_is_what_it_is_given(monkeypatch: pytest.MonkeyPatch):
    """With tensors of the CPU and plans that do nothing: on a GPU the results are compared."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    planned: list[str] = []
    ran: list[tuple[bool, bool, bool]] = []

    class Recording(CudaOperator):
        def _plan(self, device: int, convolution: Convolution, algorithm: str) -> legacy.LegacyPlan:
            planned.append(convolution.layout)
            plan = object.__new__(legacy.LegacyPlan)
            plan.output_shape = convolution.output
            return plan

        def _run(self, plan: legacy.LegacyPlan, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = _empty(plan.output_shape, x)
            memory = torch.channels_last if backends.layout_in_force() == "nhwc" else torch.contiguous_format
            ran.append(tuple(one.is_contiguous(memory_format=memory) for one in (x, w, y)))
            return y

    engine = Recording()
    x, weight = torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3)
    for layout in ("nchw", "nhwc", "nchw", "nhwc"):
        with backends.layout(layout):
            engine.forward(x, weight, None, 1, 1, 1, 1, 1, 1, 0, 1, "gemm")
    assert planned == ["nchw", "nhwc"]
    assert ran == [(True, True, True)] * 4


@pytest.mark.parametrize(("layout", "memory"), backends.LAYOUTS.items())
def test_a_traced_convolution_lies_as_the_real_one(layout: str, memory: torch.memory_format):
    cuda_operator()
    with FakeTensorMode(), backends.layout(layout):
        given, weight = torch.empty(2, 3, 17, 12, device="cuda"), torch.empty(5, 3, 3, 4, device="cuda")
        output = torch.ops.ai3.conv2d(given, weight, None, 1, 2, 2, 1, 2, 1, 0, 1, "gemm")
    assert output.is_contiguous(memory_format=memory)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_traced_convolution_of_cuda_tensors_ends_on_the_gpu(batch: tuple[int, ...]):
    cuda_operator()
    with FakeTensorMode():
        given, weight = torch.empty(*batch, 3, 17, 12, device="cuda"), torch.empty(5, 3, 3, 4, device="cuda")
        output = torch.ops.ai3.conv2d(given, weight, None, 1, 2, 2, 1, 2, 1, 0, 1, "gemm")
    assert output.device == given.device
    assert output.shape == (*batch, 5, 8, 13)


def test_no_name_at_all_is_implicit_precomp_gemm_as_in_ai3(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(legacy, "Handle", object)
    monkeypatch.setattr(legacy, "LegacyPlan", lambda handle, convolution, number: number)
    convolution = Convolution((1, 3, 8, 8), (4, 3, 3, 3), (0, 0), (1, 1), (1, 1))
    assert CudaOperator()._plan(0, convolution, "default") == 1
