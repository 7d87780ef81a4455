"""`convscope pin`: a document checked against a model; applied, compared and timed by a stand-in for the GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny

from convscope import __main__ as program
from convscope.convolution import models, operator
from convscope.convolution.providers.plan import Execution
from convscope.cudnn import library
from convscope.errors import NotSupportedError
from convscope.pinning import pinned, trial
from convscope.pinning.document import FIGURES, Pin, Pins

Capture = pytest.CaptureFixture[str]
STACK = {"gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"}
SETTINGS = {
    "model": tiny.NAME, "input_size": 32, "batch_size": 2, "math": "fp32", "dtype": "float32", "layout": "nchw",
}  # fmt: skip
PLANS = {"conv1": "plan:38:k2=8", "conv2": "torch", "conv3": "gemm"}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.register(monkeypatch)


def pins(plans: dict[str, str] = PLANS, **changes: Any) -> Pins:
    """Return the document of these plans; `changes` are of settings, stack or every shape."""
    settings, stack = ({name: changes.pop(name, value) for name, value in of.items()} for of in (SETTINGS, STACK))
    layers = {each.name: each for each in models.convolutions(tiny.NAME, 32, 2)}
    shapes = {name: layers[name].columns() | {"fused": None} | changes for name in plans if name in layers}
    other = next(iter(shapes.values()))
    found = [Pin(name, plan, shapes.get(name, other), dict.fromkeys(FIGURES), {}) for name, plan in plans.items()]
    return Pins(settings, stack, None, found)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def write(plans: dict[str, str] = PLANS, **changes: Any) -> str:
        path = tmp_path / "plans.json"
        path.write_text(pins(plans, **changes).text())
        return str(path)

    return write


def error_of(capsys: Capture, *arguments: str) -> str:
    """Return the one line on the standard error of a call that is refused."""
    assert program.main(["pin", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convscope pin: ")
    return line.removeprefix("convscope pin: ")


def test_without_a_gpu_names_and_shapes_are_checked_and_the_rest_is_named(file: Callable[..., str], capsys: Capture):
    path = file()
    assert program.main(["pin", tiny.NAME, path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"torchvision:tiny with {path}: float32 fp32, nchw, 32 px, batch 2; NVIDIA H200, cuDNN 9.19.0"
    assert [line.split()[:3] for line in lines[2:5]] == [[name, plan, "-"] for name, plan in PLANS.items()]
    assert lines[5] == "2 layers to pin, 1 left to PyTorch"
    assert lines[6] == (
        "no GPU here: the plans were not run, their results and times not compared, GPU and cuDNN not checked; "
        "names and shapes of 3 layers were checked, and fit the model"
    )
    assert "  torch.backends.cudnn.allow_tf32 = False" in lines
    assert f"  convscope.pin(model, {path!r})" in lines
    assert lines[-1] == "      output = model(images)  # 2 x 3 x 32 x 32, in float32 on the GPU"


@pytest.mark.usefixtures("no_gpu")
def test_a_gpu_that_is_not_here_is_answered_with_what_needs_none(file: Callable[..., str], capsys: Capture):
    assert error_of(capsys, tiny.NAME, file(), "--device", "cuda") == (
        "--device cuda: PyTorch sees 0 CUDA devices here; "
        "plans run on a GPU; without one --check checks names and shapes"
    )


def test_a_check_that_is_asked_for_succeeds(file: Callable[..., str], capsys: Capture):
    assert program.main(["pin", tiny.NAME, file(), "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 0
    assert found["not_checked"].startswith("--check: the plans were not run")
    assert [(each["layer"], each["pinned"], each["ran"]) for each in found["layers"]] == [
        (name, plan, None) for name, plan in PLANS.items()
    ]
    assert found["stack"] == STACK
    assert found["before"] is None


def test_the_lines_of_python_that_are_printed_are_python(file: Callable[..., str], capsys: Capture):
    for changes in ({}, {"dtype": "float16", "layout": "nhwc"}):
        program.main(["pin", tiny.NAME, file(**changes), "--check", "--json"])
        text = "\n".join(json.loads(capsys.readouterr().out)["program"])
        compile(text, "printed", "exec")
        assert ("torch.channels_last" in text) == ("layout" in changes)


def test_a_document_of_a_fused_model_is_for_the_fused_model(file: Callable[..., str], capsys: Capture):
    path = file({"conv1": "plan:1"}, fused="bias relu")
    assert program.main(["pin", tiny.NAME, path, "--check", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["program"]
    assert any(line.startswith("model = convscope.fused(") for line in lines)


def test_a_convolution_that_the_file_has_not_is_listed(file: Callable[..., str], capsys: Capture):
    assert program.main(["pin", tiny.NAME, file({"conv1": "plan:1"}), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split(maxsplit=6) == ["conv2", "torch", "-", "-", "-", "-", "not in the file"]
    assert lines[5] == "1 layer to pin, 2 left to PyTorch"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plans": {"conv9": "gemm", "conv1": "torch"}}, "{m} has no convolution 'conv9' (nearest: conv3, conv2)"),
        ({"stride": "1x1"}, "stride of conv1 is 2x2 in {m} and 1x1 in {path}"),
        ({"fused": "addition bias relu"}, "fused of conv1 is bias relu in {m} and addition bias relu in {path}"),
        ({"input_size": 64}, "in_height_px of conv1 is 64 in {m} and 32 in {path}"),
    ],
)
def test_a_layer_that_is_not_the_models_is_one_line(
    changes: dict[str, Any], said: str, file: Callable[..., str], capsys: Capture
):
    path = file(**changes)
    advice = f"{path} was made for torchvision:tiny: give that model, or export plans anew"
    assert error_of(capsys, tiny.NAME, path) == f"{said.format(path=path, m=tiny.NAME)}; {advice}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "int8"}, "has dtype 'int8', not float32 or float16 or bfloat16: export it again"),
        ({"layout": None}, "has layout None, not nchw or nhwc: export it again"),
        ({"math": "fast"}, "has math 'fast', not tf32 or fp32: export it again"),
        ({"batch_size": "2"}, "has batch_size '2', not a whole number above 0: export it again"),
        ({"batch_size": 10**30}, f"has batch_size {10**30}, not a whole number above 0: export it again"),
        ({"plans": {"conv1": "torch", 5: "torch"}}, "has a layer 5, not a name: export it again"),
        ({"input_size": 0}, "has input_size 0, not a whole number above 0: export it again"),
        ({"gpu_name": "AMD EPYC", "cudnn": None}, "is for a CPU (AMD EPYC), and a model is pinned on a GPU: on it, "),
    ],
)
def test_a_file_that_no_model_can_be_pinned_by_is_one_line(
    changes: dict[str, Any], said: str, file: Callable[..., str], capsys: Capture
):
    path = file(**changes)
    assert error_of(capsys, tiny.NAME, path).startswith(f"{path} {said}")


def test_what_is_no_file_of_plans_is_one_line(tmp_path: Path, capsys: Capture):
    assert error_of(capsys, tiny.NAME, str(tmp_path)).endswith(
        f"convscope plans export {tmp_path} -o plans.json writes the file of an atlas"
    )
    table = tmp_path / "choice.csv"
    table.write_text("model,layer\n")
    assert "name a file of convscope plans export or select" in error_of(capsys, tiny.NAME, str(table))
    assert "unknown model 'no'" in error_of(capsys, "no", str(table))
    assert "it must be at least 2" in error_of(capsys, tiny.NAME, str(table), "--rounds", "1")
    assert error_of(capsys, tiny.NAME, str(table), "--seed", str(10**30)).startswith("--seed 1000")


def test_what_a_check_makes_no_use_of_is_refused(file: Callable[..., str], capsys: Capture):
    with pytest.raises(SystemExit) as ended:
        program.main(["pin", tiny.NAME, file(), "--check", "--rounds", "3"])
    assert ended.value.code == 2
    assert "--check makes no use of --rounds" in capsys.readouterr().err


# ---- on a GPU that the CPU stands in for

Convolve = Callable[..., torch.Tensor]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[Convolve], None]:
    """Let the CPU pass for an H200 with cuDNN 9.19; return what sets the plans' arithmetic."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(library, "version", lambda: "9.19.0")
    monkeypatch.setattr(pinned, "_is_on_gpu", lambda x: True)
    monkeypatch.setattr(pinned, "_device_of", lambda model: torch.device("cuda"))
    checked = pinned.other_stack
    monkeypatch.setattr(pinned, "other_stack", lambda device, pins: checked(torch.device("cuda"), pins))

    def use(changed: Convolve) -> None:
        def convolve(x: Any, weight: Any, bias: Any, padding: Any, stride: Any, dilation: Any, *rest: Any) -> Any:
            y = changed(torch.nn.functional.conv2d(x, weight, bias, stride, padding, dilation, rest[0]))
            operator._record(Execution(rest[1], "cudnn graph", 1_500_000))
            return y

        monkeypatch.setattr(pinned, "planned_conv2d", convolve)

    use(lambda y: y)
    return use


def tried(made: Pins, rounds: int = 2) -> trial.Trial:
    return trial.tried(trial.open_subject(tiny.NAME, made, "plans.json"), torch.device("cpu"), rounds)


def test_each_pinned_layer_says_what_ran_and_what_its_error_is(card: Callable[[Convolve], None]):
    card(lambda y: y * (1 + 1e-6))
    found = tried(pins())
    assert [(each.layer, each.pinned, each.ran, each.provider) for each in found.layers] == [
        ("conv1", "plan:38:k2=8", "plan:38:k2=8", "cudnn graph"),
        ("conv2", "torch", "torch", "torch"),
        ("conv3", "gemm", "gemm", "cudnn graph"),
    ]
    first, second, _ = found.layers
    assert first.relative_error == pytest.approx(1e-6, rel=0.2)
    assert first.allowed is not None
    assert 1e-6 < first.allowed < 1e-4
    assert first.workspace_bytes == 1_500_000
    assert second.relative_error is None
    assert found.output_error is not None
    assert found.output_allowed is not None
    assert 0 < found.output_error < found.output_allowed
    assert found.exit_code == 0
    assert found.before is not None
    assert found.after is not None
    assert (found.before.count, found.after.count) == (2, 2)


def test_a_plan_that_computes_something_else_is_wrong(card: Callable[[Convolve], None]):
    card(lambda y: y * 1.01)
    found = tried(pins())
    assert found.exit_code == 1
    assert [each.why_wrong is not None for each in found.layers] == [True, False, True]
    assert found.layers[0].why_wrong.startswith("relative error 0.01, tolerance ")
    assert found.why_wrong is not None


def test_a_plan_that_cudnn_refuses_is_left_to_pytorch_with_the_reason(card: Callable[[Convolve], None]):
    def refuse(y: torch.Tensor) -> torch.Tensor:
        raise NotSupportedError("cuDNN 9.19 refuses it")

    card(refuse)
    found = tried(pins())
    assert [(each.ran, each.why_left) for each in found.layers] == [
        ("torch", "cuDNN 9.19 refuses it"),
        ("torch", None),
        ("torch", "cuDNN 9.19 refuses it"),
    ]
    assert found.exit_code == 1
    assert found.output_error in (0.0, None)
    assert found.before is None


def test_a_refused_plan_is_not_tried_again_while_times_are_taken(
    card: Callable[[Convolve], None], monkeypatch: pytest.MonkeyPatch
):
    calls = []

    def refuse_one(y: torch.Tensor) -> torch.Tensor:
        calls.append(y.shape[1])
        if y.shape[1] == 16:
            raise NotSupportedError("cuDNN 9.19 refuses it")
        return y

    card(refuse_one)
    found = tried(pins())
    assert found.after is not None
    assert calls.count(16) == 1
    assert calls.count(32) > 2


def test_a_layer_that_cannot_be_pinned_is_left_with_the_reason(
    card: Callable[[Convolve], None], monkeypatch: pytest.MonkeyPatch
):
    class Hooked(tiny.Tiny):
        def __init__(self, num_classes: int = 10) -> None:
            super().__init__(num_classes)
            self.conv1.register_forward_hook(lambda module, given, output: output)

    tiny.register(monkeypatch, "hooked", Hooked)
    made = dataclasses.replace(pins(), settings=SETTINGS | {"model": "torchvision:hooked"})
    subject = trial.open_subject("torchvision:hooked", made, "plans.json")
    found = trial.tried(subject, torch.device("cpu"), 2)
    assert (found.layers[0].ran, found.layers[0].why_left) == ("torch", "Conv2d has hooks")
    assert found.layers[2].ran == "gemm"
    assert found.exit_code == 1


def test_a_call_outside_modules_is_left_with_the_reason(
    card: Callable[[Convolve], None], monkeypatch: pytest.MonkeyPatch
):
    class Calling(tiny.Tiny):
        def __init__(self, num_classes: int = 10) -> None:
            super().__init__(num_classes)
            self.kernel = torch.nn.Parameter(torch.randn(3, 3, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.nn.functional.conv2d(x, self.kernel, padding=1))

    tiny.register(monkeypatch, "calling", Calling)
    call = models.convolutions("torchvision:calling", 32, 2)[0]
    pin = Pin(call.name, "plan:1", call.columns() | {"fused": None}, dict.fromkeys(FIGURES), {})
    made = dataclasses.replace(pins(), layers=[pin, *pins().layers])
    found = trial.tried(trial.open_subject("torchvision:calling", made, "plans.json"), torch.device("cpu"), 2)
    assert found.layers[0].why_left == "there is no nn.Conv2d of this name"
    assert [each.ran for each in found.layers] == ["torch", "plan:38:k2=8", "torch", "gemm"]


def test_half_precision_allows_what_its_roundings_do(card: Callable[[Convolve], None]):
    card(lambda y: y * (1 + 2**-8))
    found = tried(pins(dtype="bfloat16", layout="nhwc"))
    assert found.exit_code == 0
    assert found.output_allowed is not None
    assert 1e-3 < found.output_allowed < 0.5


def test_another_version_of_cudnn_is_refused(card: Callable[[Convolve], None]):
    with pytest.raises(
        trial.InputError, match=r"not for this machine \(cudnn is 9.19.0, and was 9.24.0\): export plans"
    ):
        tried(pins(cudnn="9.24.0"))


def test_the_command_prints_results_and_times(
    card: Callable[[Convolve], None], file: Callable[..., str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    card(lambda y: y)
    real = trial.tried
    monkeypatch.setattr("convscope.cli.options.find_device", lambda *_: torch.device("cuda:0"))
    monkeypatch.setattr(trial, "tried", lambda subject, device, rounds: real(subject, torch.device("cpu"), rounds))
    assert program.main(["pin", tiny.NAME, file(), "--rounds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:3] == ["conv1", "plan:38:k2=8", "plan:38:k2=8"]
    assert lines[2].split()[-1] == "1.5"
    assert lines[5] == "2 layers pinned, 1 left to PyTorch"
    assert lines[6].startswith("output: relative distance 0.0e+00 from the unpinned model's, allowed ")
    assert lines[7].startswith("time of a pass: ")
    assert lines[7].endswith(" at 99 %, 3 placements in memory)")
    card(lambda y: y * float("nan"))
    assert program.main(["pin", tiny.NAME, file(), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 1
    assert found["layers"][0]["relative_error"] is None
    assert "not finite" in found["layers"][0]["why_wrong"]
    assert found["less"].keys() == {"mean_ms", "half_width_ms"}
