"""Plans pinned in a PyTorch model on a GPU: eager, in a graph, compiled; and from an atlas to a pinned model."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import ROOT
from torch import nn

import convscope
import run_profile
import run_verify
from convscope import __main__ as program
from convscope.convolution import backends, models
from convscope.convolution.algorithms import PLAN, WITH_STEPS, plan_name
from convscope.convolution.operator import cuda_operator
from convscope.convolution.reference import relative_distance
from convscope.cudnn import library
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.shape import ALONE, Convolution
from convscope.pinning import document, errata, repro
from convscope.pinning.document import FIGURES, SETTINGS, Pin, Pins, read
from convscope.pinning.pinned import PinnedConv2d
from convscope.timing import cupti, graphs, trace


class Pair(nn.Module):
    """Two convolutions with a ReLU between."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())


def pins_of(model: nn.Module, x: torch.Tensor, dtype: str, layout: str, place: int, steps: bool = False) -> Pins:
    """Return for each convolution the plan at this place of all that cuDNN offers for it.

    Args:
        steps: what is fused is done behind a plan of the convolution alone.
    """
    found = []
    for layer in models.followed("pair", model, tuple(x.shape)):
        shape, behind = layer.convolution(dtype, "tf32", layout), steps and layer.fused.count > 0
        shape = replace(shape, fused=ALONE) if behind else shape
        offers = [each for each in cuda_operator().offers(shape, x.device) if not each.why_not_comparable(shape)]
        sizes = layer.columns() | {"fused": layer.steps}
        name = plan_name(offers[place % len(offers)].plan, WITH_STEPS if behind else PLAN)
        found.append(Pin(layer.name, name, sizes, {}, {}))
    settings = dict.fromkeys(SETTINGS) | {"batch_size": len(x), "dtype": dtype, "layout": layout}
    stack = {"gpu_name": torch.cuda.get_device_name(), "driver": "", "cudnn": library.version()}
    return Pins(settings, stack, None, found)


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize(("dtype", "layout", "most"), [("float32", "nchw", 2e-3), ("float16", "nhwc", 3e-3)])
def test_a_pinned_model_is_right_eager_in_a_graph_and_compiled(dtype: str, layout: str, most: float, place: int):
    torch.manual_seed(0)
    memory = backends.LAYOUTS[layout]
    model = Pair().cuda().to(getattr(torch, dtype), memory_format=memory).eval()
    x = torch.randn(4, 32, 20, 24, device="cuda").to(getattr(torch, dtype)).contiguous(memory_format=memory)
    with torch.inference_mode():
        exact = Pair().cuda().double()
        exact.load_state_dict(model.state_dict())
        truth = exact(x.double())
        convscope.pin(model, pins_of(model, x, dtype, layout, place), strict=True)
        assert sum(isinstance(module, PinnedConv2d) for module in model.modules()) == 2
        assert relative_distance(model(x), truth) < most
        output = torch.empty_like(truth, dtype=x.dtype)
        with graphs.capture(lambda: output.copy_(model(x))) as captured:
            captured.replay()
            torch.cuda.synchronize()
        assert relative_distance(output, truth) < most
        compiled = torch.compile(model, fullgraph=True)
        assert relative_distance(compiled(x), truth) < most
        convscope.unpin(model)
        assert not any(isinstance(module, PinnedConv2d) for module in model.modules())


class Residual(nn.Module):
    """Convolutions with normalisation, an addition and ReLU behind them, one in groups, one with a bias alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(8, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32)
        self.inner, self.grouped, self.last = nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, groups=4), nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu()
        x = (self.inner(x) + x).relu()
        return self.last(self.grouped(x))


@pytest.mark.parametrize(("place", "steps"), [(0, False), (1, False), (5, False), (0, True)])
@pytest.mark.parametrize(("dtype", "layout", "most"), [("float32", "nchw", 2e-3), ("float16", "nhwc", 3e-3)])
def test_a_fused_model_is_right_by_pytorch_and_pinned(dtype: str, layout: str, most: float, place: int, steps: bool):
    torch.manual_seed(0)
    memory = backends.LAYOUTS[layout]
    plain = Residual().eval()
    model = convscope.fused(plain).cuda().to(getattr(torch, dtype), memory_format=memory)
    x = torch.randn(4, 8, 20, 24, device="cuda").to(getattr(torch, dtype)).contiguous(memory_format=memory)
    with torch.inference_mode():
        truth = plain.cuda().double()(x.double())
        assert relative_distance(model(x), truth) < most
        asked = pins_of(model, x, dtype, layout, place, steps)
        assert [pin.shape["fused"] for pin in asked.layers] == ["bias relu", "addition bias relu", None, "bias"]
        convscope.pin(model, asked, strict=True)
        assert sum(isinstance(module, PinnedConv2d) for module in model.modules()) == 4
        assert relative_distance(model(x), truth) < most
        output = torch.empty_like(truth, dtype=x.dtype)
        with graphs.capture(lambda: output.copy_(model(x))) as captured:
            captured.replay()
            torch.cuda.synchronize()
        assert relative_distance(output, truth) < most
        assert relative_distance(torch.compile(model, fullgraph=True)(x), truth) < most


def test_a_fused_atlas_is_measured_and_pinned(tmp_path: Path):
    arguments = [
        "--model",
        "torchvision:resnet18",
        "--plans",
        "--fused",
        "--rounds",
        "2",
        "--output-dir",
        str(tmp_path),
    ]
    arguments += ["--dtype", "float16", "--layout", "nhwc"]
    assert run_verify.main(arguments) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("_fused")
    plans = pd.read_csv(folder / "plans.csv")
    assert set(plans["fused"].dropna()) == {"bias relu", "addition bias relu"}
    offered = plans[plans["engine"].notna()]
    assert set(offered["outcome"]) <= {"ok", "refused", "far too slow"}
    assert (offered[offered["outcome"] == "ok"]["relative_error"] < 1e-3).all()
    assert sorted(plans[plans["is_fastest"]]["layer"]) == sorted(set(plans["layer"]))
    passes = pd.read_csv(folder / "passes.csv").set_index("convolutions_by")
    assert {"fastest of each layer", "torch"} <= {*passes.index}
    plain = models.build("torchvision:resnet18").eval()
    models.settle_statistics(plain, 224, 0)
    with torch.inference_mode():
        x = torch.randn(1, 3, 224, 224, device="cuda").half().contiguous(memory_format=torch.channels_last)
        whole = convscope.fused(plain).cuda().to(torch.float16, memory_format=torch.channels_last)
        asked = document.from_atlas(folder)
        convscope.pin(whole, asked, strict=True)
        pinned = sum(isinstance(module, PinnedConv2d) for module in whole.modules())
        assert 0 < pinned == sum(pin.algorithm != "torch" for pin in asked.layers)
        assert relative_distance(whole(x), plain.cuda().double()(x.double())) < 2e-2


ONE = """import sys, torch
sys.path.insert(0, sys.argv[1])
from convscope.timing import cupti, trace
conv, x = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda(), torch.randn(1, 64, 56, 56, device="cuda")
with torch.inference_mode():
    conv(x)
    cupti.start()
    print(*trace.record_each([lambda: conv(x)])[0].kernels, sep="\\n")
"""


def test_stock_pytorch_obeys_an_errata_file(tmp_path: Path):
    shape = Convolution((1, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1), (1, 1))
    device = torch.device("cuda", torch.cuda.current_device())
    every = [each for each in cuda_operator().offers(shape, device) if not each.why_not_comparable(shape)]
    first = min((each for each in every if "a" in each.ranks), key=lambda each: each.ranks["a"])

    def kernels(**environment: str) -> str:
        command = [sys.executable, "-c", ONE, str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        return done.stdout

    errata_file = tmp_path / "errata.json"
    errata_file.write_text(errata.text(Plan(first.plan.engine), library.version()))
    stock, denied = kernels(), kernels(CUDNN_ERRATA_JSON_FILE=str(errata_file))
    assert stock
    assert denied
    assert denied != stock
    errata_file.write_text(errata.text(Plan(999), library.version()))
    assert kernels(CUDNN_ERRATA_JSON_FILE=str(errata_file)) == stock


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an atlas of AlexNet with energies."""
    parent = tmp_path_factory.mktemp("atlas")
    arguments = ["--model", "alexnet", "--plans", "--rounds", "3", "--energy", "--output-dir", str(parent)]
    assert run_verify.main(arguments) == 0
    (folder,) = parent.iterdir()
    return folder


def test_an_atlas_is_measured_exported_compared_and_pinned(
    atlas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder, plans = atlas, pd.read_csv(atlas / "plans.csv")
    offered = plans[plans["engine"].notna()]
    assert plans["layer"].nunique() == 5
    assert (offered.groupby("layer")["candidate"].count() > 3).all()
    assert set(offered["outcome"]) <= {"ok", "less precise", "refused", "far too slow"}
    timed = offered[offered["rounds"] >= 2]
    assert set(timed["layer"]) == set(plans["layer"])
    assert sorted(plans[plans["is_fastest"]]["layer"]) == sorted(set(plans["layer"]))
    torchs = plans[plans["candidate"] == "torch"]
    assert torchs["same_kernels_as"].notna().all()  # PyTorch's pick is one of the plans
    assert program.main(["plans", "export", str(folder)]) == 0
    assert program.main(["plans", "diff", str(folder), str(folder / "plans.json")]) == 0
    model = models.build("alexnet").cuda().eval()
    x = torch.randn(1, 3, 224, 224, device="cuda")
    with torch.inference_mode():
        expected = model(x)
        convscope.pin(model, folder / "plans.json", strict=True)
        assert relative_distance(model(x).double(), expected.double()) < 1e-2
        cupti.start()
        kernels = trace.record_each([lambda: model(x)])[0].kernels
    assert kernels
    left = sum(pin.algorithm == "torch" for pin in read(folder / "plans.json").layers)
    assert left < 5
    assert sum(isinstance(module, PinnedConv2d) for module in model.modules()) == 5 - left
    check_algorithm_file(folder / "plans.json", tmp_path / "profile", capsys)


@pytest.mark.quiet
def test_the_best_plans_of_an_atlas_and_its_passes_have_energies(atlas: Path):
    plans = pd.read_csv(atlas / "plans.csv")
    energies = plans[plans["energy_j"].notna()]
    assert set(energies["layer"]) == set(plans["layer"])
    assert set(energies["candidate"]) > {"torch"}
    assert energies["energy_j"].between(1e-5, 1e-1).all()
    passes = pd.read_csv(atlas / "passes.csv").set_index("convolutions_by")
    spent_j = passes["energy_per_inference_j"]
    assert spent_j[["fastest of each layer", "most frugal of each layer", "torch"]].between(1e-3, 1.0).all()


def check_algorithm_file(written: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Profile and verify by a document: what ran is what it has, and what it has not is refused."""
    wanted = {pin.layer: pin.algorithm for pin in read(written).layers}
    arguments = ["--model", "alexnet", "--algorithm-file", str(written)]
    assert run_profile.main([*arguments, "--test", "--output-dir", str(folder)]) == 0
    layers = pd.read_csv(folder / "alexnet_planned_layers.csv")
    ran = {layer: name for layer, name in zip(layers["layer"], layers["ran_algorithm"], strict=True) if name == name}
    assert ran == {layer: name for layer, name in wanted.items() if name != "torch"}
    assert set(layers["status"]) == {"ok"}
    capsys.readouterr()
    assert run_verify.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "CONFIRMED"
    assert run_profile.main([*arguments, "--num-sizes", "1", "--input-range", "256", "300"]) == 2
    assert "has no plan of its name and shape: 5 of 5 convolutions" in capsys.readouterr().err
    assert run_profile.main([*arguments, "--test", "--math", "fp32"]) == 2
    assert "math tf32, here fp32" in capsys.readouterr().err


NET = """from torch import nn
def make():
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(64, 64, 1))
"""


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc")])
def test_the_command_pins_a_file_and_compares(
    dtype: str, layout: str, is_fused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "net.py").write_text(NET)
    name, file = f"{tmp_path / 'net.py'}:make", tmp_path / "plans.json"
    plain = models.build(name)
    model = (convscope.fused(plain) if is_fused else plain).cuda()
    made = pins_of(model, torch.randn(2, 3, 48, 48, device="cuda"), dtype, layout, 0)
    assert len(made.layers) == 3
    settings = {**made.settings, "model": name, "input_size": 48, "math": "tf32"}
    layers = [replace(pin, figures=dict.fromkeys(FIGURES)) for pin in made.layers]
    layers[0] = replace(layers[0], algorithm="torch")
    file.write_text(Pins(settings, made.stack, None, layers).text())
    capsys.readouterr()

    assert program.main(["pin", name, str(file), "--rounds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 0
    assert [each["ran"] for each in found["layers"]] == [pin.algorithm for pin in layers]
    assert [each["provider"] for each in found["layers"]] == ["torch", "cudnn graph", "cudnn graph"]
    assert all(each["relative_error"] <= each["allowed"] < 0.1 for each in found["layers"][1:])
    assert found["output_error"] <= found["output_allowed"] < 0.1
    assert (found["before"]["count"], found["after"]["count"]) == (3, 3)
    assert 0 < found["after"]["mean_ms"] < 10

    assert program.main(["pin", name, str(file), "--rounds", "2"]) == 0
    assert "2 layers pinned, 1 left to PyTorch" in capsys.readouterr().out
    unknown = [layers[0], replace(layers[1], algorithm="plan:9999"), layers[2]]  # cuDNN has no engine of this number
    file.write_text(Pins(settings, made.stack, None, unknown).text())
    assert program.main(["pin", name, str(file), "--rounds", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["ran"] for each in found["layers"]] == ["torch", "torch", layers[2].algorithm]
    assert found["layers"][1]["why_left"]
    file.write_text(Pins(settings, {**made.stack, "cudnn": "1.2.3"}, None, layers).text())
    assert program.main(["pin", name, str(file)]) == 2
    assert "cudnn is" in (line := capsys.readouterr().err)
    assert line.count("\n") == 1


def test_a_script_shows_a_plan_with_nvidias_frontend_alone(tmp_path: Path):
    try:
        importlib.metadata.version("nvidia-cudnn-frontend")  # a module `cudnn` is found in any case: tests/cudnn
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cudnn-frontend is not installed")
    model = Pair().cuda().eval()
    pins = pins_of(model, torch.randn(4, 32, 20, 24, device="cuda"), "float32", "nchw", 0)
    settings = {**pins.settings, "model": "pair", "math": "tf32"}
    shown = Pins(settings, pins.stack, None, [replace(pin, figures=dict.fromkeys(FIGURES)) for pin in pins.layers])
    script = tmp_path / "repro.py"
    script.write_text(repro.script(shown, "one"))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["plan", "pytorch"]
    for line in lines:
        assert 0 < float(line.split()[1]) < 100
        assert 0 < float(line.split()[-1]) < 2e-3
