"""`convscope.pin`: which layers are pinned, what runs instead, and what is refused; the plan is a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import convscope
from convscope.cudnn import library
from convscope.errors import InputError, NotSupportedError
from convscope.pinning import pinned
from convscope.pinning.document import FIGURES, SETTINGS, Pin, Pins
from convscope.pinning.pinned import PinnedConv2d, PinWarning

SHAPE = {
    "in_channels": 3, "out_channels": 4, "kernel_size": "3x3", "stride": "2x2", "padding": "1x1", "dilation": "1x1",
    "groups": 1, "in_height_px": 8, "in_width_px": 6, "fused": None,
}  # fmt: skip
X = torch.ones(2, 3, 8, 6)


class Two(nn.Module):
    """Two convolutions of one kind, one after a pooling, and one that is a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


def pins(*layers: tuple[str, str], **changes: Any) -> Pins:
    settings = dict.fromkeys(SETTINGS, "") | {"batch_size": 2, "dtype": "float32", "layout": "nchw"}
    stack = {"gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"} | changes.pop("stack", {})
    return Pins(
        settings, stack, None, [Pin(name, plan, SHAPE | changes, dict.fromkeys(FIGURES), {}) for name, plan in layers]
    )


@pytest.fixture(autouse=True)
def _an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU pass for an H200 with cuDNN 9.19."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")
    monkeypatch.setattr(pinned, "_device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(pinned, "_is_on_gpu", lambda x: True)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Have plans compute as PyTorch does, and return what they were called with."""
    calls: list[tuple[Any, ...]] = []

    def convolve(x: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, *rest: Any) -> torch.Tensor:
        calls.append((padding, stride, dilation, *rest))
        return torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation, rest[0])

    monkeypatch.setattr(pinned, "planned_conv2d", convolve)
    return calls


def test_a_pinned_layer_runs_its_plan_for_its_shape_and_the_others_are_left(ran: list[tuple[Any, ...]]):
    model = Two()
    with torch.inference_mode():
        expected = model(X)
        assert convscope.pin(model, pins(("first", "plan:38:k2=8"), ("inner.0", "torch"))) is model
        assert torch.equal(model(X), expected)
    assert ran == [([1, 1], [2, 2], [1, 1], 1, "plan:38:k2=8", "nchw")]
    assert isinstance(model.first, PinnedConv2d)
    assert isinstance(model.inner[0], nn.Conv2d)
    assert {name.replace("first.original", "first") for name in model.state_dict()} == {*Two().state_dict()}
    convscope.unpin(model)
    assert isinstance(model.first, nn.Conv2d)
    assert [*model.state_dict()] == [*Two().state_dict()]


def test_a_fused_convolution_is_pinned_to_a_plan_of_the_same_steps(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[Any, ...]] = []

    def convolve(x: Any, weight: Any, bias: Any, added: Any, padding: Any, stride: Any, *rest: Any) -> torch.Tensor:
        calls.append((added is not None, *rest[1:]))
        y = torch.nn.functional.conv2d(x, weight, bias, stride, padding)
        return torch.relu(y if added is None else y + added)

    monkeypatch.setattr(pinned, "planned_fused_conv2d", convolve)

    class Residual(Two):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            return torch.relu(self.inner[0](y) + y)

    model = Residual().eval()
    inner = SHAPE | {"in_channels": 4, "kernel_size": "1x1", "stride": "1x1", "padding": "0x0", "in_height_px": 4,
                     "in_width_px": 3, "fused": "addition bias relu"}  # fmt: skip
    one = pins(("first", "plan:38"), fused="bias relu")
    asked = Pins(one.settings, one.stack, None, [*one.layers, Pin("inner.0", "plan:7", inner, {}, {})])
    with torch.inference_mode():
        expected = model(X)
        with pytest.warns(PinWarning, match="nothing is fused with it, not .*bias relu: see convscope.fused") as told:
            convscope.pin(model, asked)
        assert len(told) == 2
        whole = convscope.fused(model)
        assert torch.allclose(convscope.pin(whole, asked, strict=True)(X), expected)
    assert calls == [(False, 1, True, "plan:38", "nchw"), (True, 1, True, "plan:7", "nchw")]
    convscope.unpin(whole)
    assert not any(isinstance(module, PinnedConv2d) for module in whole.modules())
    with pytest.raises(InputError, match="bias relu is fused with it, not nothing"):
        convscope.pin(whole, pins(("first", "plan:38")), strict=True)


def test_pinning_again_replaces_what_was_pinned(ran: list[tuple[Any, ...]]):
    model = Two()
    convscope.pin(model, pins(("first", "plan:1")))
    convscope.pin(model, pins(("first", "plan:2")))
    with torch.inference_mode():
        model(X)
    assert [call[4] for call in ran] == ["plan:2"]


def test_a_document_can_be_a_file(tmp_path: Path, ran: list[tuple[Any, ...]]):
    path = tmp_path / "plans.json"
    path.write_text(pins(("first", "plan:1")).text())
    assert isinstance(convscope.pin(Two(), path).get_submodule("first"), PinnedConv2d)
    assert isinstance(convscope.pin(Two(), str(path)).get_submodule("first"), PinnedConv2d)


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (torch.ones(1, 3, 8, 6), r"it was pinned for 2x3x8x6 in torch.float32, and the input is 1x3x8x6"),
        (torch.ones(2, 3, 6, 8), "and the input is 2x3x6x8"),
    ],
)
def test_another_shape_is_pytorchs_with_one_warning(x: torch.Tensor, why: str, ran: list[tuple[Any, ...]]):
    model = convscope.pin(Two(), pins(("first", "plan:1")))
    with torch.inference_mode():
        with pytest.warns(PinWarning, match=why):
            model(x)
        model(x)  # a second warning would be an error
    assert ran == []


def test_where_a_gradient_is_wanted_pytorch_computes(ran: list[tuple[Any, ...]]):
    model = convscope.pin(Two(), pins(("first", "plan:1")))
    with pytest.warns(PinWarning, match="a plan has no gradient"):
        model(X).sum().backward()
    assert ran == []
    with torch.no_grad():
        model(X)
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("algorithm", "refusal"),
    [
        ("plan:1", NotSupportedError("uses TF32, which is forbidden")),
        ("direct", NotImplementedError("direct is a Triton kernel, and Triton is not installed")),
    ],
)
def test_what_its_library_refuses_is_pytorchs(algorithm: str, refusal: Exception, monkeypatch: pytest.MonkeyPatch):
    def refuse(*given: object) -> None:
        raise refusal

    monkeypatch.setattr(pinned, "planned_conv2d", refuse)
    model = convscope.pin(Two(), pins(("first", algorithm)))
    with torch.inference_mode(), pytest.warns(PinWarning, match=f"{algorithm} is left to PyTorch: {refusal}"):
        model(X)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pins(("first", "plan:1"), stack={"cudnn": "9.24.0"}), "no layer is pinned: cudnn is 9.19.0, and was 9.24.0"),
        (
            pins(("first", "plan:1"), stack={"gpu_name": "L40S"}),
            "no layer is pinned: gpu_name is NVIDIA H200, and was L40S",
        ),
        (pins(("second", "plan:1")), "second is left to PyTorch: there is no nn.Conv2d of this name"),
        (pins(("inner", "plan:1")), "inner is left to PyTorch: it is a Sequential"),
        (pins(("inner.0", "plan:1")), "inner.0 is left to PyTorch: its in_channels is 4, not 3"),
        (pins(("first", "plan:1"), stride="1x1"), "first is left to PyTorch: its stride is 2x2, not 1x1"),
    ],
)
def test_what_is_not_as_it_was_measured_is_a_warning_or_when_strict_an_error(made: Pins, why: str):
    with pytest.warns(PinWarning, match=f"^{why}"):
        model = convscope.pin(Two(), made)
    assert not [module for module in model.modules() if isinstance(module, PinnedConv2d)]
    with pytest.raises(InputError, match=f"^{why}"):
        convscope.pin(Two(), made, strict=True)


def test_a_strict_pin_refuses_another_shape_at_every_call():
    model = convscope.pin(Two(), pins(("first", "plan:1")), strict=True)
    for _ in range(3):
        with torch.inference_mode(), pytest.raises(InputError, match="it was pinned for 2x3x8x6"):
            model(torch.ones(1, 3, 8, 6))


def test_a_strict_pin_that_is_refused_leaves_the_model_as_it_was():
    model = Two()
    with pytest.raises(InputError, match="second is left to PyTorch"):
        convscope.pin(model, pins(("first", "plan:1"), ("second", "plan:1")), strict=True)
    assert isinstance(model.first, nn.Conv2d)


def test_the_traced_output_has_the_size_and_layout_of_the_plan():
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(2, 3, 8, 6, device="cuda"), torch.empty(4, 3, 3, 3, device="cuda")
        for layout, memory in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
            y = torch.ops.convscope.planned_conv2d(x, weight, None, [1, 1], [2, 2], [1, 1], 1, "plan:1", layout)
            assert (y.shape, y.dtype, y.device.type) == ((2, 4, 4, 3), torch.float32, "cuda")
            assert y.is_contiguous(memory_format=memory)


def test_a_name_that_the_package_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'pins'"):
        convscope.pins  # noqa: B018
