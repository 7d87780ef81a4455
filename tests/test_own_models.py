"""Models of people's own, from each command to its tables."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import ROOT
from torch import nn

import run_profile
import run_verify
from profiler import UnifiedProfiler, profile

OWN = str(ROOT / "tests" / "fakes" / "own_models.py")
TINY_HF = f"hf:{ROOT / 'tests' / 'data' / 'hf_tiny_resnet'}"
MODELS = {
    f"{OWN}:Branch": 2,  # control flow
    f"{OWN}:pair": 1,  # two inputs
    "timm:test_resnet": 15,
    TINY_HF: 6,
    "layers.csv": 2,
}
OF_ONE_SIZE = (f"{OWN}:pair", "layers.csv")
QUICK = ("--device", "cpu", "--no-energy", "--warmup", "1", "--measure", "2", "--num-sizes", "1")


def sizes_of(model: str, *named: str) -> tuple[str, ...]:
    """Return flags that name the sizes, none for a model that takes one size alone."""
    return () if model in OF_ONE_SIZE else named


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    columns = "layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups"
    Path("layers.csv").write_text(f"{columns}\nc1,1,3,8,32,32,3,1,1,1,1\nc2,1,8,8,16,20,1x3,1,0,1,1\n")


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model).name)
def test_a_model_goes_from_its_name_to_its_tables(model: str, tmp_path: Path):
    arguments = ["--model", model, "--algorithm", "direct", *sizes_of(model, "--input-range", "64", "64")]
    assert run_profile.main([*arguments, *QUICK, "--output-dir", "run"]) == 0
    (layers_path,) = tmp_path.glob("run/*_direct_layers.csv")
    layers = pd.read_csv(layers_path)
    assert len(layers) == MODELS[model]
    assert set(layers["ran_algorithm"]) == {"direct"}
    assert (layers["status"] == "ok").all()
    assert (layers["relative_error"] < 1e-5).all()
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["run"]["model_digest"]) == 64


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: Path(model).name)
def test_a_model_goes_from_its_name_to_a_choice(model: str, tmp_path: Path):
    arguments = ["--model", model, "--choice", *sizes_of(model, "--input-size", "64"), "--rounds", "2"]
    arguments += ["--device", "cpu"]
    assert run_verify.main([*arguments, "--output-dir", "study"]) == 0
    (path,) = tmp_path.glob("study/*/choice.csv")
    assert len(set(pd.read_csv(path)["layer"])) == MODELS[model]


def test_a_size_that_a_model_does_not_take_is_refused_by_each_command(capsys: pytest.CaptureFixture[str]):
    model, cpu = f"{OWN}:pair", ("--device", "cpu")
    for main, arguments in {
        run_profile.main: ("--algorithm", "direct"),
        run_verify.main: ("--choice",),
    }.items():
        assert main(["--model", model, *arguments, "--input-size", "320", *cpu]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("takes inputs of one size alone, 48 px: leave out --input-size, or say --input-size 48")
    assert run_profile.main(["--list-algorithms", "--model", model, "--input-shape", "48x64", *cpu]) == 2
    assert "48 px: leave out --input-shape, or say --input-size 48" in capsys.readouterr().err
    assert run_profile.main(["--list-algorithms", "--model", model, *cpu]) == 0
    assert "Pair at 48 px" in capsys.readouterr().out.replace("pair", "Pair")
    assert run_profile.main(["--list-combinations", "--models", model, "--input-size", "320", *cpu]) == 0
    assert all("takes inputs of one size" in line for line in capsys.readouterr().out.splitlines())
    assert run_profile.main(["--estimate", "--model", model, "--algorithm", "direct", "--input-size", "320", *cpu]) == 2


def test_other_code_under_the_same_name_does_not_join_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "net.py"
    code = "from torch import nn\ndef net(): return nn.Sequential(nn.Conv2d(3, {}, 3))\n"
    arguments = ["--model", f"{path}:net", "--algorithm", "direct", "--input-range", "64", "64"]
    arguments += [*QUICK, "--output-dir", str(tmp_path / "run")]
    path.write_text(code.format(4))
    assert run_profile.main(arguments) == 0
    path.write_text(code.format(5))
    assert run_profile.main(arguments) == 2
    assert "the code or the weights of the model are others" in capsys.readouterr().err


def test_arguments_of_a_model_name_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", f"{OWN}:Branch", "--model-args", "width=3", "--algorithm", "direct", "--gpu", "cpu"]
    assert run_profile.main([*arguments, "--input-range", "64", "64", *QUICK, "--output-dir", "run"]) == 0
    assert Path("run/own_models.py_Branch_width_3_direct_overall.csv").exists()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())


def test_a_module_is_profiled_at_the_size_of_its_inputs_and_stays_as_it_is(tmp_path: Path):
    module, given = Small().train(), torch.randn(5, 3, 20, 28)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    made = UnifiedProfiler(
        module, "direct", inputs=given, device="cpu", measure_iters=2, measure_energy=False, unsupported="skip"
    )
    assert (made.request.model, made.request.input_sizes, made.request.batch_size) == ("small", (28,), 5)
    overall, layers = made.run(tmp_path)
    assert list(overall["status"]) == ["ok"]
    assert list(layers["ran_algorithm"]) == ["direct", "torch"]
    assert (layers["batch_size"] == 5).all()
    assert module.training
    assert type(module.one) is nn.Conv2d
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_several_algorithms_in_one_call_give_two_tables(tmp_path: Path):
    settings = {"device": "cpu", "measure_iters": 2, "measure_energy": False, "note": lambda line: None}
    tables = profile(Small(), torch.randn(2, 3, 16, 16), ["torch", "direct", "smm"], output_dir=tmp_path, **settings)
    assert list(tables.overall["algorithm"]) == ["torch", "direct", "smm"]
    assert len(tables.layers) == 6
    assert len(list(tmp_path.iterdir())) == 3


def test_the_example_of_the_library_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    drawn, shapes = torch.randn, {(8, 3, 64, 64): (1, 3, 16, 16)}  # of its images a hundred passes take 13 s
    monkeypatch.setattr(torch, "randn", lambda *size, **options: drawn(*shapes.get(size, size), **options))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    importlib.import_module("library")
    printed = capsys.readouterr().out
    assert "direct" in printed
    assert "energy_per_inference_j" in printed


@pytest.mark.long
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]):
    cells = json.loads((ROOT / "examples" / "library.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert "layers" in names


@pytest.mark.parametrize("algorithm", ["torch", "direct"])
def test_a_size_at_which_a_model_raises_is_a_row_and_the_others_are_measured(algorithm: str, tmp_path: Path):
    arguments = ["--model", f"{OWN}:Narrow", "--algorithm", algorithm, "--input-size", "64,96,72", *QUICK[:-2]]
    assert run_profile.main([*arguments, "--output-dir", str(tmp_path / "run")]) == 1
    overall = pd.read_csv(next((tmp_path / "run").glob("*_overall.csv"))).set_index("input_size")
    assert overall["status"].to_dict() == {64: "ok", 72: "ok", 96: "failed"}
    assert overall["reason"][96] == "the model raised RuntimeError: my model wants at most 80 px"
