"""Script of one layer's plan: it runs with PyTorch and a stand-in for NVIDIA's frontend, on a CPU in place of a GPU."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from convscope.errors import InputError
from convscope.pinning import repro
from convscope.pinning.command import main
from convscope.pinning.document import Pin, Pins

SHAPE = {
    "in_channels": 6, "out_channels": 4, "kernel_size": "3x5", "stride": "2x1", "padding": "1x2", "dilation": "1x1",
    "groups": 2, "in_height_px": 9, "in_width_px": 7, "fused": None,
}  # fmt: skip
FIGURES = {
    "outcome": "ok",
    "mean_ms": 0.0118,
    "std_ms": 1e-4,
    "rounds": 5,
    "workspace_bytes": 16,
    "relative_error": 3e-4,
}
SETTINGS = {"model": "net", "input_size": 9, "batch_size": 3, "math": "tf32", "dtype": "float32", "layout": "nhwc"}
STACK = {"gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"}
PINS = Pins(
    SETTINGS,
    STACK,
    "",
    [Pin("body", "plan:67:k2=5,k13=0", SHAPE, FIGURES, {}), Pin("head", "torch", SHAPE, FIGURES, {})],
)


class Graph:
    """The frontend's graph of one convolution, which PyTorch computes; its second plan is the one that is asked for."""

    names = ("eng0", "eng67_k13=0_k2=5", "eng67")

    def __init__(self, **types: Any) -> None:
        self.types, self.built = types, []

    def tensor(self, dim: list[int], stride: list[int], data_type: str) -> SimpleNamespace:
        return SimpleNamespace(dim=dim, stride=stride, data_type=data_type, __hash__=None)

    def conv_fprop(self, image: Any, weight: Any, **sizes: list[int]) -> Any:
        self.given = image, weight, sizes
        self.output = Output()
        return self.output

    def validate(self) -> None:
        assert self.output.is_output

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "B", "FALLBACK"]

    def get_execution_plan_count(self) -> int:
        return len(self.names)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.names[index]

    def build_plan_at_index(self, index: int) -> None:
        self.built.append(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 16

    def execute_plan_at_index(self, pack: dict[Any, torch.Tensor], workspace: Any, index: int, handle: object) -> None:
        x, w, y = pack.values()
        assert self.built == [index]
        assert [list(each.size()) for each in (x, w, y)] == [self.given[0].dim, self.given[1].dim, self.output.dim]
        assert [*x.stride()] == self.given[0].stride
        sizes = self.given[2]
        assert sizes["pre_padding"] == sizes["post_padding"] == [1, 2]
        y.copy_(torch.nn.functional.conv2d(x, w, None, sizes["stride"], [1, 2], sizes["dilation"], 2))


class Tensor:
    """A tensor of the frontend: known by itself."""

    def __init__(self, **described: Any) -> None:
        vars(self).update(described)


class Output(Tensor):
    """The output, described call after call."""

    is_output = False

    def set_output(self, is_output: bool) -> Output:
        self.is_output = is_output
        return self

    def set_dim(self, dim: list[int]) -> Output:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Output:
        self.stride = stride
        return self


@pytest.fixture
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have tensors of the script lie on the CPU, and its graph and its events do nothing."""
    monkeypatch.setattr(Graph, "tensor", lambda self, **described: Tensor(**described))
    frontend = ModuleType("cudnn")
    modes = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
    types = SimpleNamespace(FLOAT="single", HALF="half")
    given = {"pygraph": Graph, "heur_mode": modes, "data_type": types, "create_handle": object}
    vars(frontend).update(given, set_stream=lambda handle, stream: None)
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 0.2)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda captured: torch.inference_mode())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    before = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.usefixtures("_on_a_cpu")
def test_a_script_shows_the_plan_and_pytorch_with_time_and_error(capsys: pytest.CaptureFixture[str]):
    text = repro.script(PINS, "body")
    assert len(text.splitlines()) < 40
    exec(compile(text.replace('"cuda"', '"cpu"'), "repro.py", "exec"), {})
    plan, pytorch = capsys.readouterr().out.splitlines()
    assert plan.startswith("plan: 10.0 us, error ")
    assert pytorch.startswith("pytorch: 10.0 us, error ")
    assert 0 < float(plan.split("error ")[1].split(",")[0]) < 1e-6


@pytest.mark.usefixtures("_on_a_cpu")
def test_a_script_of_a_plan_for_packed_filters_lays_them_out_once(capsys: pytest.CaptureFixture[str]):
    pin = next(pin for pin in PINS.layers if pin.layer == "body")
    packed = dataclasses.replace(pin, algorithm=pin.algorithm.replace("plan:", "plan+packed:"))
    text = repro.script(dataclasses.replace(PINS, layers=(packed,)), "body")
    assert text.count(".contiguous(memory_format=torch.channels_last)  # as the plan reads them") == 1
    exec(compile(text.replace('"cuda"', '"cpu"'), "repro.py", "exec"), {})
    plan, _ = capsys.readouterr().out.splitlines()
    assert 0 < float(plan.split("error ")[1].split(",")[0]) < 1e-6


def test_a_script_says_what_was_measured_where():
    lines = repro.script(PINS, "body").splitlines()
    assert lines[0] == '"""plan:67:k2=5,k13=0 of body of net: 3x6x9x7, 4 filters 3x5, stride 2x1'
    assert lines[1] == "NVIDIA H200, driver 580, cuDNN 9.19.0: 11.8 us in the model, error 3.0e-04."
    assert max(map(len, lines)) <= 120


def test_a_layer_that_has_no_plan_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="head is left to PyTorch: a script shows a plan of cuDNN's graph API"):
        repro.script(PINS, "head")
    named = [dataclasses.replace(pin, algorithm="direct") for pin in PINS.layers]
    with pytest.raises(InputError, match="head has direct, an algorithm by name: a script shows a plan"):
        repro.script(dataclasses.replace(PINS, layers=tuple(named)), "head")
    with pytest.raises(InputError, match="no layer 'tail' has plans here: choose one of body, head"):
        repro.script(PINS, "tail")


def test_the_command_prints_or_writes_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    document = tmp_path / "plans.json"
    document.write_text(PINS.text())
    assert main(["repro", str(document), "body"]) == 0
    printed = capsys.readouterr().out
    assert printed == repro.script(PINS, "body")
    assert main(["repro", str(document), "body", "-o", str(tmp_path / "repro.py")]) == 0
    assert (tmp_path / "repro.py").read_text() == printed
