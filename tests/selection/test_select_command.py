"""`convscope select`: a document from samples and predictions, applied on the CPU; bad input is one line."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes import ROOT
from fakes.drawn_samples import CARDS, drawn, milliseconds
from fakes.workspaces import with_workspaces

import run_profile
from convscope import __main__ as program
from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.dataset import calls, samples
from convscope.dataset.collect import traced
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.pinning import document
from convscope.pinning.document import Pins
from convscope.prediction import document as predictors
from convscope.prediction import predictor, workspace
from convscope.selection import evaluation
from convscope.selection.evaluation import Question, Regret
from convscope.storage.environment import processor_name

Capture = pytest.CaptureFixture[str]
LAYERS = models.convolutions("alexnet", 64)
OF_ONE_SIZE = str(ROOT / "tests" / "fakes" / "own_models.py:pair")
MODEL = ["select", "alexnet", "--input-size", "64", "--math", "fp32"]


def row(layer: Layer, algorithm: str, mean_ms: float, gpu: str = "Tesla T4", cudnn: str | None = "9.19.0") -> SampleRow:
    shape = {name: layer.columns()[name] for name in SHAPE}
    return SampleRow(
        gpu, algorithm, dtype="float32", math="fp32", layout="nchw", run="one", mean_ms=mean_ms,
        mean_ci95_ms=0.01 * mean_ms, placements=5, cudnn=cudnn, workspace_bytes=2_000_000, relative_error=1e-6,
        layer=layer.name, **shape,
    )  # fmt: skip


def measured(gpu: str = "Tesla T4", cudnn: str | None = "9.19.0", fast: str = "gemm") -> Iterator[SampleRow]:
    """Yield samples of the first four layers: `fast` halves the time of two and gains 1 % in one."""
    for layer, factor in zip(LAYERS, (0.5, 0.99, 2.0, 0.5), strict=False):
        yield row(layer, "torch", 1.0, gpu, cudnn)
        yield row(layer, fast, factor, gpu, cudnn)


def three_by_three() -> Iterator[SampleRow]:
    """Yield drawn samples that a predictor learns, with sizes around those of the model's last layers.

    Winograd's algorithm takes 0.4 of PyTorch's time: more than the intervals are wide.
    """
    for each in drawn(200, algorithms=("torch", "winograd"), noise=0.002):
        deep = dataclasses.replace(each, in_channels=8 * each.in_channels, out_channels=8 * each.out_channels)
        small = dataclasses.replace(deep, in_height_px=1 + (each.in_height_px or 0) // 8)
        small = dataclasses.replace(small, in_width_px=small.in_height_px, layer=f"{each}")
        took_ms = milliseconds(small, *CARDS["Tesla T4"]) / (2 if each.algorithm == "winograd" else 1)
        yield dataclasses.replace(small, mean_ms=took_ms, cudnn="9.19.0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("select")
    samples.write(made / "samples.csv", measured())
    samples.write(made / "learned.csv", three_by_three())
    frame = predictor.usable(samples.read([made / "learned.csv"]), "time")
    predictors.write(made / "time.json", predictor.fit(frame, "time", {}, "rows"), frame)
    other = predictor.usable(samples.read([made / "learned.csv"]).assign(cudnn="9.24.0"), "time")
    predictors.write(made / "other.json", predictor.fit(other, "time", {}, "rows"), other)
    searched = frame.assign(algorithm="torch benchmark")
    predictors.write(made / "searched.json", predictor.fit(searched, "time", {}), searched)
    samples.write(made / "memory.csv", with_workspaces(100, ("gemm",)))
    memory = predictor.usable(samples.read([made / "memory.csv"]), "workspace")
    predictors.write(made / "workspace.json", workspace.fit(memory, {}), memory)
    samples.write(made / "drawn.csv", drawn(120, algorithms=("torch", "gemm"), noise=0.01))
    return made


@pytest.fixture
def select(folder: Path, tmp_path: Path, capsys: Capture) -> Callable[..., tuple[Pins, list[str]]]:
    def run(*arguments: str) -> tuple[Pins, list[str]]:
        out = tmp_path / "plans.json"
        names = {each.stem: each for each in folder.iterdir()}
        assert program.main([*MODEL, *(each.format(**names) for each in arguments), "-o", str(out)]) == 0
        return document.read(out), capsys.readouterr().out.splitlines()

    return run


Select = Callable[..., tuple[Pins, list[str]]]


def algorithms(pins: Pins) -> list[str]:
    return [pin.algorithm for pin in pins.layers]


def test_measured_layers_take_what_is_faster_beyond_the_intervals_and_the_rest_is_pytorchs(select: Select):
    pins, lines = select("--samples", "{samples}")
    assert algorithms(pins) == ["gemm", "torch", "torch", "gemm", "torch"]
    assert [pin.layer for pin in pins.layers] == [layer.name for layer in LAYERS]
    assert pins.stack == {"gpu_name": "Tesla T4", "driver": None, "cudnn": "9.19.0"}
    assert pins.settings["model"] == "alexnet"
    assert pins.digest == models.find_source("alexnet").digest
    assert pins.layers[0].figures["mean_ms"] == 0.5
    assert pins.layers[0].figures["rounds"] == 5
    assert " ".join(lines[1].split()) == "features.0 gemm measured 0.5 (0.495 to 0.505) 0.5 (0.485 to 0.515) 2.0"
    assert lines[2].endswith("tie with gemm")
    assert lines[5].endswith("never measured")
    assert lines[6].startswith(
        "time of 4 of 5 convolutions: 3 (2.97 to 3.03) ms, PyTorch's 4 (3.96 to 4.04): 1 (0.97 to"
    )
    assert lines[6].endswith("less, 25.0 %")
    assert lines[7].startswith("2 layers changed, 3 left to PyTorch; by 4 measured, 0 predicted, 1 unknown")


def test_the_document_is_the_one_that_plans_commands_read(select: Select, tmp_path: Path, capsys: Capture):
    select("--samples", "{samples}")
    path = str(tmp_path / "plans.json")
    assert program.main(["plans", "diff", path, path]) == 0
    assert "5 layers: 4 same, 1 not compared" in capsys.readouterr().out


def test_a_limit_leaves_candidates_out(select: Select):
    assert "gemm" in algorithms(select("--samples", "{samples}", "--max-workspace", "2MB")[0])
    assert {*algorithms(select("--samples", "{samples}", "--max-workspace", "1MB")[0])} == {"torch"}
    assert {*algorithms(select("--samples", "{samples}", "--max-error", "1e-7")[0])} == {"torch"}


def test_what_was_not_measured_is_predicted_and_never_what_was(select: Select):
    pins, lines = select("--samples", "{samples}", "--predictor", "{time}", "--outside")
    # Where torch and gemm were measured, winograd is predicted, far below 1 ms; 11×11 and 5×5 cannot use it.
    assert [line.split()[2] for line in lines[1:6]] == ["measured"] * 2 + ["predicted"] * 3
    assert algorithms(pins) == ["gemm", "torch", "winograd", "winograd", "winograd"]
    assert lines[2].endswith("tie with gemm")
    outcomes = [pin.figures["outcome"] for pin in pins.layers]
    assert outcomes == ["ok", "ok", "predicted", "predicted", "predicted"]
    saved = [1.0 - pin.figures["mean_ms"] for pin in pins.layers[2:4]]  # against PyTorch's measured 1 ms
    assert [float(re.split(r"\s{2,}", line)[4].split()[0]) for line in lines[3:5]] == pytest.approx(saved, rel=0.01)


def test_predictions_alone_select_where_they_were_learned(select: Select):
    pins, lines = select("--predictor", "{time}", "--gpu", "Tesla T4", "--level", "90")
    assert pins.stack == {"gpu_name": "Tesla T4", "driver": None, "cudnn": "9.19.0"}
    assert algorithms(pins)[:2] == ["torch", "torch"]
    assert "no other candidate; outside what was learned: " in lines[1]
    assert lines[1].endswith("more")
    sure, lines = select("--predictor", "{time}", "--gpu", "Tesla T4", "--level", "80")
    assert algorithms(sure) == ["torch", "torch", "winograd", "winograd", "winograd"]
    assert [line.split()[2] for line in lines[3:6]] == ["predicted"] * 3
    other, _ = select("--predictor", "{time}", "--gpu", "Tesla P4", "--cudnn", "9.19.0", "--level", "90")
    assert {*algorithms(other)} == {"torch"}  # a card that was not learned


def test_samples_of_other_cards_do_not_count(select: Select, tmp_path: Path):
    samples.write(tmp_path / "p4.csv", measured("Tesla P4", fast="fft"))
    both = ["--samples", "{samples}", str(tmp_path / "p4.csv"), "--gpu"]
    assert {*algorithms(select(*both, "Tesla T4")[0])} == {"torch", "gemm"}
    assert {*algorithms(select(*both, "p4")[0])} == {"torch", "fft"}


def test_repeats_that_contradict_each_other_are_said_and_change_nothing(select: Select, tmp_path: Path):
    again = [dataclasses.replace(each, run="two", mean_ms=1.2) for each in measured() if each.algorithm == "gemm"]
    samples.write(tmp_path / "again.csv", again)
    pins, lines = select("--samples", "{samples}", str(tmp_path / "again.csv"))
    assert {*algorithms(pins)} == {"torch"}
    assert any(line.startswith("repeats of 4 candidates contradict each other") for line in lines)


def test_a_document_for_a_cpu_is_applied_by_run_profile(tmp_path: Path, capsys: Capture):
    here = processor_name()
    samples.write(tmp_path / "cpu.csv", measured(here, None, fast="smm"))
    plans, out = str(tmp_path / "plans.json"), tmp_path / "profile"
    assert program.main([*MODEL, "--samples", str(tmp_path / "cpu.csv"), "-o", plans]) == 0
    sizes = ["--num-sizes", "1", "--input-range", "64", "64", "--warmup", "1", "--measure", "2"]
    arguments = ["--model", "alexnet", "--device", "cpu", "--no-energy", *sizes, "--output-dir", str(out)]
    assert run_profile.main([*arguments, "--algorithm-file", plans]) == 0
    ran = pd.read_csv(out / "alexnet_planned_layers.csv")
    assert [*ran["ran_algorithm"].fillna("torch")] == ["smm", "torch", "torch", "smm", "torch"]
    assert {*ran["status"]} == {"ok"}
    elsewhere = json.loads(Path(plans).read_text()) | {"gpu_name": "Another CPU"}
    Path(plans).write_text(json.dumps(elsewhere))
    capsys.readouterr()
    assert run_profile.main([*arguments, "--overwrite", "--algorithm-file", plans]) == 2
    assert f"gpu_name Another CPU, here {here}" in capsys.readouterr().err


def test_evaluate_reads_the_calls_beside_the_samples_or_those_that_are_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given: list[tuple[int, int]] = []

    def regrets(frame: pd.DataFrame, asked: Question, processes: int) -> list[Regret]:
        given.append((len(asked.calls), processes))
        return []

    monkeypatch.setattr(evaluation, "regrets", regrets)
    shutil.copy(folder / "drawn.csv", tmp_path / "samples.csv")
    command = ["select", "evaluate", str(tmp_path / "samples.csv"), "--json"]
    assert program.main(command) == 0
    calls.write(tmp_path / "calls.csv", traced.calls([("alexnet", 64)]))
    assert program.main([*command, "--processes", "2"]) == 0
    calls.write(tmp_path / "other.csv", traced.calls([("alexnet", 64), ("alexnet", 96)]))
    assert program.main([*command, "--calls", str(tmp_path / "other.csv")]) == 0
    assert given == [(0, 1), (5, 2), (10, 1)]
    assert program.main([*command, "--processes", "0"]) == 2


def test_evaluate_prints_the_regret_of_each_way(folder: Path, capsys: Capture):
    assert program.main(["select", "evaluate", str(folder / "drawn.csv"), "--json"]) == 0
    found = {each["by"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["always PyTorch"]["mean_pct"] < 0.5  # it is the fastest, but for noise
    assert found["predicted, the least"]["layers"] == 120
    assert program.main(["select", "evaluate", str(folder / "drawn.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "time, Tesla T4, no cuDNN, held back by layer:"
    assert len(lines) == 2 + len(found)


def test_evaluate_notes_times_that_were_taken_in_several_ways(folder: Path, tmp_path: Path, capsys: Capture):
    every = pd.read_csv(folder / "drawn.csv")
    halves = every.index < len(every) // 2
    every["timing_method"] = np.where(halves, samples.SHARE, samples.EVICTED)
    every.to_csv(tmp_path / "both.csv", index=False)
    assert program.main(["select", "evaluate", str(tmp_path / "both.csv"), "--json"]) == 0
    assert capsys.readouterr().err.startswith("times of Tesla T4 were taken in 2 ways")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*MODEL], "say --samples FILE, --predictor FILE, or both"),
        ([*MODEL, "--samples", "no.csv"], "no.csv does not exist"),
        ([*MODEL, "--samples", "{samples}", "--gpu", "h100"], "--gpu h100: name one of the samples' cards by --gpu"),
        ([*MODEL[:-1], "tf32", "--samples", "{samples}"], "is in float32, tf32, nchw: there are float32, fp32, nchw"),
        ([*MODEL, "--samples", "{samples}", "--cudnn", "8.9"], "--cudnn 8.9: Tesla T4 has samples of 9.19.0"),
        ([*MODEL, "--predictor", "{time}"], "say the card by --gpu"),
        ([*MODEL, "--predictor", "{samples}", "--gpu", "Tesla T4"], "is no predictor, or a damaged one"),
        ([*MODEL, "--predictor", "{time}", "{time}", "--gpu", "Tesla T4"], "another predictor of time"),
        (
            [*MODEL, "--predictor", "{workspace}", "--gpu", "Tesla T4"],
            "predicts workspaces, which nothing is chosen by",
        ),
        ([*MODEL, "--predictor", "{time}", "--gpu", "X1"], "no peaks are known of the GPU 'X1'"),
        ([*MODEL, "--predictor", "{searched}", "--gpu", "Tesla T4"], "searched.json knows torch benchmark alone"),
        (
            [*MODEL, "--samples", "{samples}", "--predictor", "{other}"],
            "learned from cuDNN 9.24.0, and this is cuDNN 9.19.0: fit one to samples of it alone",
        ),
        ([*MODEL, "--samples", "{samples}", "--max-workspace", "much"], "--max-workspace much: say a number of bytes"),
        ([*MODEL, "--samples", "{samples}", "--max-error", "0"], "--max-error 0.0: say a relative error above 0"),
        ([*MODEL, "--samples", "{samples}", "--batch", "0"], "--batch-size 0: it must be at least 1"),
        ([*MODEL, "--samples", "{samples}", "-o", "/no/plans.json"], "/no/plans.json cannot be written"),
        (["select", "nonet", "--size", "64", "--math", "fp32", "--samples", "{samples}"], "nonet"),
        (
            ["select", OF_ONE_SIZE, "--size", "64", "--math", "fp32", "--samples", "{samples}"],
            "one size alone, 48 px: leave out this --input-size, or say --input-size 48",
        ),
        (["select", "alexnet", "--size", "8", "--math", "fp32", "--samples", "{samples}"], "cannot take 8×8 images"),
        (["select", "evaluate", "{samples}"], "samples with sizes and a measured time: at least 100 are needed"),
        (["select", "evaluate", "{learned}", "--gpu", "h100"], "--gpu h100: name one of the samples' cards"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, arguments: list[str], expected: str, capsys: Capture):
    names = {each.stem: each for each in folder.iterdir()}
    assert program.main([each.format(**names) for each in arguments]) == 2
    text = capsys.readouterr().err
    assert expected in text
    assert text.count("\n") == 1
