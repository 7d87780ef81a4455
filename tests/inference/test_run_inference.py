"""The command line that compares engines, on a CPU: a model through all that run there, two processes, bad input."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import tiny

import run_inference
from convscope.convolution import models

TINY = ["--device", "cpu", "--input-size", "32", "--measure", "5", "--warmup", "1", "--min-seconds", "0.1"]
ENGINES = ["eager", "compile", "aot", "onnxruntime"]


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    """Compute on two threads: on one PyTorch leaves small convolutions to no library, and there is more to compile."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["tiny", pytest.param("resnet18", marks=pytest.mark.long)])
def model(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        tiny.register(patched)
        yield f"torchvision:{request.param}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: str) -> Path:
    """A model at two batch sizes through the engines of a CPU, and one that a CPU has not."""
    made = tmp_path_factory.mktemp("inference")
    once = [name for name in engines_of(model) if sizes_of(name) == [1]]
    for engines, sizes in (([*(name for name in engines_of(model) if name not in once), "graph"], "1,4"), (once, "1")):
        if engines:
            asked = ["--engines", ",".join(engines), "--batch-sizes", sizes, "--output-dir", str(made)]
            code = run_inference.main([*TINY, "--model", model, *asked])
            assert code == ("graph" in engines)  # which a CPU has not
    return made


def engines_of(model: str) -> list[str]:
    """Return the engines that a model runs through: what is compiled ahead of time takes longest of all."""
    return [name for name in ENGINES if name != "aot" or model != tiny.NAME]


def sizes_of(engine: str) -> list[int]:
    """Return the batch sizes of an engine: what is compiled takes long, however small the model."""
    return [1] if engine in ("compile", "aot") else [1, 4]


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        *(("tiny", engine) for engine in engines_of(tiny.NAME)),
        *(pytest.param("resnet18", engine, marks=pytest.mark.long) for engine in ENGINES),
    ],
    indirect=["model"],
    scope="module",
)
def test_an_engine_agrees_with_eager(folder: Path, model: str, engine: str):
    table = pd.read_csv(folder / "inference.csv")
    rows = table[table["engine"] == engine]
    assert rows["batch_size"].tolist() == sizes_of(engine)
    for row in rows.to_dict("records"):
        if row["status"] == "unsupported":
            assert "C++ compiler" in row["reason"]
            pytest.skip(row["reason"])
        assert row["status"] == "ok"
        assert 0 <= row["image_error"] <= row["image_tolerance"] < 5e-3
        assert row["latency_mean_ms"] > 0
        assert row["images_per_s"] > 0
        assert row["samples"] == 5


def test_what_is_missing_is_a_row_with_a_reason_and_no_figures(folder: Path):
    table = pd.read_csv(folder / "inference.csv")
    rows = table[table["engine"] == "graph"]
    assert rows["status"].tolist() == ["unsupported"] * 2
    assert rows["reason"].str.startswith("graph needs an NVIDIA GPU").all()
    assert rows["latency_mean_ms"].isna().all()


def test_set_up_and_files_have_their_cost(folder: Path, model: str):
    table = pd.read_csv(folder / "inference.csv").set_index(["engine", "batch_size"])
    modules = list(models.build(model).modules())
    weights = sum(conv.weight.numel() for conv in modules if isinstance(conv, torch.nn.Conv2d | torch.nn.Linear))
    count = sum(isinstance(module, torch.nn.BatchNorm2d) for module in modules)
    assert table.loc[("onnxruntime", 1), "disk_bytes"] > 4 * weights
    assert table.loc[("onnxruntime", 1), "remark"].startswith(f"{count} of {count} batch normalisations folded")
    compiled = table.dropna(subset=["compile_s"])
    assert (compiled["setup_s"] >= compiled["compile_s"]).all()
    assert table["peak_memory_bytes"].isna().all()
    assert table["floor_ms"].isna().all()


def test_the_folder_has_run_json_plots_and_the_engines_beside_each_other(folder: Path, model: str):
    document = json.loads((folder / "run.json").read_text())
    assert document["inference"]["batch_sizes"] == [1, 4]
    assert document["starts"][-1]["asked"]["batch_sizes"] == sizes_of("compile")
    assert {path.name for path in folder.glob("*.png")} == {"latency.png", "pareto.png"}
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[0] == "CPU"
    assert lines[2].startswith("| batch size | floor, ms | eager, ms | eager, images/s |")
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| 1", "| 4"]


def test_the_same_command_measures_only_what_is_missing(folder: Path, model: str, capsys: pytest.CaptureFixture[str]):
    before = pd.read_csv(folder / "inference.csv")
    asked = ["--engines", "eager", "--batch-sizes", "1,2", "--output-dir", str(folder)]
    assert run_inference.main([*TINY, "--model", model, *asked]) == 0
    after = pd.read_csv(folder / "inference.csv")
    pd.testing.assert_frame_equal(after[: len(before)], before)
    assert after["batch_size"].tolist()[len(before) :] == [2]
    assert "results: " in capsys.readouterr().out


def test_a_rerun_that_measures_nothing_says_so_and_shows_what_was_asked_for(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
):
    asked = ["--engines", "graph", "--batch-sizes", "1", "--output-dir", str(folder)]
    assert run_inference.main([*TINY, "--model", model, *asked]) == 1
    printed = capsys.readouterr()
    assert "nothing was measured this time" in printed.err
    header, line, results = printed.out.splitlines()
    assert results.startswith("results: ")
    assert header.split()[:3] == ["batch", "engine", "processes"]
    assert line.split()[:2] == ["1", "graph"]


def test_an_overwrite_replaces_its_own_cells_and_keeps_what_was_there(folder: Path, model: str, tmp_path: Path):
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    asked = ["--engines", "eager", "--batch-sizes", "4", "--overwrite", "--output-dir", str(copy)]
    assert run_inference.main([*TINY, "--model", model, *asked]) == 0
    key, started = ["engine", "batch_size"], "started_utc"
    before, after = (pd.read_csv(path / "inference.csv").set_index(key).sort_index() for path in (folder, copy))
    assert before.index.equals(after.index)
    pd.testing.assert_frame_equal(after.drop(("eager", 4)), before.drop(("eager", 4)))
    assert after.loc[("eager", 4), started] > before.loc[("eager", 4), started]
    (kept,) = tmp_path.glob("run/before-*")
    assert (kept / "inference.csv").read_text() == (folder / "inference.csv").read_text()


def test_other_settings_have_a_folder_of_their_own(folder: Path, model: str, capsys: pytest.CaptureFixture[str]):
    asked = ["--engines", "eager", "--seed", "7", "--output-dir", str(folder)]
    assert run_inference.main([*TINY, "--model", model, *asked]) == 2
    assert "other settings (seed 0, now 7)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engines", "eager,none"], "--engines none: choose from eager"),
        (["--batch-sizes", "1,x"], "'1,x': say different numbers with commas between"),
        (["--batch-sizes", "8,8"], "'8,8': say different numbers with commas between"),
        (["--engines", "eager,graph,eager"], "'eager,graph,eager' has eager twice: say each once"),
        (["--scenario", "server", "--qps", "5,x"], "'5,x': say numbers with commas between"),
        (["--batch-sizes", "0"], "--batch-sizes 0: it must be at least 1"),
        (["--model", "resnet18"], "unknown model 'resnet18'"),
        (["--math", "tf32"], "--math tf32 needs a CUDA device"),
        (["--device", "cuda:7"], "--device cuda:7"),
        (["--qps", "10", "--scenario", "batch"], "--qps is the rate of a server's requests"),
        (["--output-dir", "/proc/none"], "cannot write results to /proc/none"),
        (["--model", "timm:resnet50"], "pip install timm"),
        (["--weights", "/none"], "--weights /none: it cannot be read (No such file"),
        (["--weights", "/none", "--pretrained"], "--weights and --pretrained are two sets of weights"),
        (["--scenario", "offline"], "--scenario offline makes no use of --measure"),
        (["--pretrained", "--images", "/none"], "--images /none: there is no .jpg, .jpeg, .png file in this folder"),
        (["--images", "/none"], "--images are photographs for trained weights: say --pretrained or --weights"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "timm", None)
    try:
        code = run_inference.main([*TINY, "--model", "torchvision:resnet18", *arguments])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("run_inference.py: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_more_processes_than_gpus_is_bad_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert run_inference.main(["--gpus", "2"]) == 2
    assert "--gpus 2: it must be at most 1" in capsys.readouterr().err
