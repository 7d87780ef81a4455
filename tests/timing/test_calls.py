"""Convolutions outside `nn.Conv2d` modules, as a dispatch mode sees them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from fakes import unusual
from torch import nn

from convscope.timing import calls
from convscope.timing.calls import Call, watched


def given(device: str = "cpu") -> torch.Tensor:
    return torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(0)).to(device)


def seen(model: nn.Module, x: torch.Tensor) -> list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]]:
    found: list[tuple[str, nn.Module, torch.Tensor, torch.Tensor]] = []
    with watched(model, after=lambda *noted: found.append(noted)):
        model(x)
    return found


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("kind", "names"), [(unusual.Functional, unusual.FUNCTIONAL), (unusual.Dimensions, unusual.DIMENSIONS)]
)
def test_calls_and_modules_come_in_the_order_of_the_pass_named_by_module_and_function(kind, names, device, mode):
    with mode():
        assert tuple(name for name, *_ in seen(kind().to(device).eval(), given(device))) == names


@pytest.mark.parametrize("kind", [unusual.Functional, unusual.Dimensions])
def test_a_call_convolves_its_input_anew_to_the_output_that_the_pass_had(kind):
    with torch.inference_mode():
        for _, module, x, output in seen(kind().eval(), given()):
            assert torch.equal(module(x), output)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_call_without_a_batch_and_with_uneven_padding_is_convolved_as_pytorch_does():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, self.weight, padding="same")

    with torch.inference_mode():
        ((_, call, x, output),) = seen(Model(), given()[0])
        assert isinstance(call, Call)
        assert (call.padding, call.uneven_padding) == ((0, 1), True)
        assert torch.allclose(call(x), output, atol=1e-6)


def test_what_a_call_says_of_why_nothing_can_take_its_place():
    with torch.inference_mode():
        functional = {name: call for name, call, *_ in seen(unusual.Functional().eval(), given())}
        others = {name: call for name, call, *_ in seen(unusual.Dimensions().eval(), given())}
    reasons = {name: call.peculiarity for name, call in (functional | others).items() if isinstance(call, Call)}
    assert reasons == {
        "conv2d": "",
        "block.conv2d": "",
        "block.conv2d#2": "the weight of a call of conv2d is computed in the pass",
        "block.conv2d#3": "",
        "up.conv_transpose2d": "conv_transpose2d is transposed",
        "line.conv1d": "conv1d is not 2-D",
        "conv_transpose1d": "conv_transpose1d is transposed",
        "volume.conv3d": "conv3d is not 2-D",
    }


def test_a_module_that_runs_twice_calls_by_the_same_names_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = unusual.Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x), self.block(x)

    with torch.inference_mode():
        names = [name for name, *_ in seen(Twice(), torch.zeros(1, 4, 8, 8))]
    assert names == [*unusual.FUNCTIONAL[1:4]] * 2


def test_a_name_that_a_module_has_is_left_to_the_module():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv2d = nn.Conv2d(3, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(self.conv2d(x), self.conv2d.weight)

    with torch.inference_mode():
        assert [name for name, *_ in seen(Model(), given())] == ["conv2d", "conv2d#2"]


def test_what_a_callback_convolves_is_not_seen():
    model, names = unusual.Functional().eval(), []

    def after(name: str, module: nn.Module, x: torch.Tensor, output: torch.Tensor) -> None:
        names.append(name)
        module(x)
        F.conv2d(x, torch.zeros(1, x.shape[1], 1, 1))

    with torch.inference_mode(), watched(model, after=after):
        model(given())
    assert tuple(names) == unusual.FUNCTIONAL


def test_without_calls_only_modules_are_seen_and_no_mode_is_entered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "CallMode", lambda *_: pytest.fail("a dispatch mode for a model without calls"))
    names: list[str] = []
    model = unusual.Functional().eval()
    with torch.inference_mode(), watched(model, after=lambda name, *_: names.append(name), calls=False):
        model(given())
    assert names == ["last"]


def test_nothing_is_left_at_the_model_or_in_pytorch_after_the_block_or_an_error_in_it():
    from torch.nn.modules import module as every_module

    model = unusual.Functional().eval()
    with torch.inference_mode():
        seen(model, given())
        with pytest.raises(RuntimeError):
            seen(model, given()[:, :2])
        assert not every_module._global_forward_hooks
        assert not every_module._global_forward_pre_hooks
        assert [name for name, *_ in seen(model, given())] == list(unusual.FUNCTIONAL)


def test_before_comes_ahead_of_its_convolution_and_after_behind_it():
    order: list[str] = []
    model = unusual.Functional().eval()
    with (
        torch.inference_mode(),
        watched(model, lambda name, *_: order.append(f"< {name}"), lambda name, *_: order.append(f"> {name}")),
    ):
        model(given())
    assert order == [f"{mark} {name}" for name in unusual.FUNCTIONAL for mark in "<>"]


def test_an_output_can_be_given_in_the_place_of_a_call():
    model = unusual.Functional().eval()
    mode = calls.substituting(model, lambda name, call, x: torch.zeros(1, 4, 12, 12) if name == "conv2d" else None)
    with torch.inference_mode():
        expected = model.last(model.block(torch.zeros(1, 4, 12, 12)))
        with mode:
            assert torch.equal(model(given()), expected)
        with mode:
            assert torch.equal(model(given()), expected)
        assert not torch.equal(model(given()), expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning", "ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("padding", [1, "valid", "same"])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_calls_in_a_traced_model_are_seen(padding: int | str, mode):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, self.weight, padding=padding)

    with mode():
        ((name, call, x, output),) = seen(torch.jit.trace(Model().eval(), given()), given())
        assert name == "conv2d"
        assert torch.allclose(call(x), output, atol=1e-6)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_comes_from_a_normalisation_on_the_meta_device_is_as_pytorch_has_it(
    dtype: torch.dtype, memory: torch.memory_format
):
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to("meta", dtype).eval()
    x = torch.empty(2, 3, 12, 10, device="meta", dtype=dtype).contiguous(memory_format=memory)
    with torch.inference_mode():
        expected = model(x)
        with watched(model, after=lambda *noted: None):
            found = model(x)
    assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)


def test_a_normalisation_of_other_channels_is_refused_on_the_meta_device_too():
    model, x = nn.BatchNorm2d(5).to("meta").eval(), torch.empty(1, 3, 4, 4, device="meta")
    with torch.inference_mode(), watched(model, after=lambda *noted: None), pytest.raises(RuntimeError, match="5"):
        model(x)
