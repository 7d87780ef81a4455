"""Convolutions that are no `nn.Conv2d` modules, and models that decide by numbers: from each command to its tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from fakes import ROOT, unusual

import run_profile
import run_verify
from convscope.profiling import report

UNUSUAL = str(ROOT / "tests" / "fakes" / "unusual.py")
QUICK = ("--device", "cpu", "--no-energy", "--warmup", "1", "--measure", "2", "--num-sizes", "1")
COMPUTED = "only plain convolutions can be replaced, and the weight of a call of conv2d is computed in the pass"
GROUPED = "ai3 has no grouped convolution on a CPU"


@dataclass(frozen=True)
class Tables:
    """The tables that one run has left."""

    overall: pd.DataFrame
    layers: pd.DataFrame
    work: pd.DataFrame


def profiled(folder: Path, model: str, algorithm: str, *options: str) -> Tables:
    named = ["--model", f"{UNUSUAL}:{model}", "--algorithm", algorithm, "--output-dir", str(folder)]
    assert run_profile.main([*named, *QUICK, *(options or ("--input-range", "32", "32"))]) == 0
    found = {name: next(folder.glob(f"*_{algorithm}_{name}.csv")) for name in ("overall", "layers", "work")}
    return Tables(**{name: pd.read_csv(path) for name, path in found.items()})


def test_functional_convolutions_are_layers_with_the_place_of_their_call(tmp_path: Path):
    tables = profiled(tmp_path, "Functional", "torch")
    layers = tables.layers
    assert tuple(layers["layer"]) == unusual.FUNCTIONAL
    assert list(layers["kind"]) == ["conv2d"] * 4 + ["module"]
    assert list(layers["groups"]) == [1, 1, 1, 2, 1]
    assert list(layers["out_size"]) == ["32x32", "15x15", "15x15", "15x15", "15x15"]
    assert (layers["mean_ms"] > 0).all()
    assert set(layers["ran_algorithm"]) == {"torch"}
    assert (layers["relative_error"] < 1e-6).all()
    assert list(tables.overall["convolutions"]) == [5]
    assert list(tables.overall["timing_method"]) == ["time.perf_counter"]


def test_functional_convolutions_are_swapped_where_they_can_be_and_say_why_where_not(tmp_path: Path):
    options = ("--input-range", "32", "32", "--unsupported", "fallback")
    tables = profiled(tmp_path, "Functional", "direct", *options)
    layers = tables.layers
    assert list(layers["ran_algorithm"]) == ["direct", "direct", "torch", "torch", "direct"]
    assert list(layers["ran_provider"]) == ["ai3", "ai3", "torch", "torch", "ai3"]
    assert list(layers["status"]) == ["ok", "ok", "fallback", "fallback", "ok"]
    assert list(layers["reason"].fillna("")) == ["", "", COMPUTED, GROUPED, ""]
    assert (layers["relative_error"] < 1e-6).all()
    assert list(tables.overall["timing_method"]) == ["time.perf_counter, calls replaced in the pass"]
    assert "ai3::conv2d" in set(tables.work["kernel"])


def test_calls_that_cannot_be_swapped_end_a_run_before_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--model", f"{UNUSUAL}:Functional", "--algorithm", "direct", "--output-dir", str(tmp_path / "run")]
    assert run_profile.main([*arguments, *QUICK, "--input-range", "32", "32"]) == 2
    said = capsys.readouterr().err
    assert f"{COMPUTED}: 1 of 5 convolutions" in said
    assert "(block.conv2d#2, block.conv2d#3); --unsupported fallback runs these with PyTorch" in said
    assert not (tmp_path / "run").exists()


def test_one_three_and_transposed_dimensions_are_layers(tmp_path: Path):
    layers = profiled(tmp_path, "Dimensions", "torch", "--input-range", "12", "12").layers
    assert tuple(layers["layer"]) == unusual.DIMENSIONS
    assert list(layers["kind"]) == ["conv_transpose2d", "conv1d", "conv_transpose1d", "conv3d"]
    assert list(layers["kernel_size"]) == ["3x3", "5", "3", "3x3x3"]
    assert list(layers["in_size"]) == ["12x12", "676", "676", "1x2x2028"]
    assert list(layers["out_size"]) == ["26x26", "676", "2028", "1x2x2028"]
    assert list(layers["in_height_px"].isna()) == [False, True, True, True]
    assert list(layers["flops"]) == [
        2 * 3 * 12**2 * 4 * 9 + 4 * 26**2,
        2 * 6 * 676 * 4 * 5 + 6 * 676,
        2 * 6 * 676 * 2 * 3,
        2 * 2 * 2 * 2028 * 27,
    ]
    assert (layers["relative_error"] < 1e-6).all()


def test_a_model_with_two_inputs_whose_numbers_decide_is_profiled(tmp_path: Path):
    tables = profiled(tmp_path, "guided", "direct", "--unsupported", "skip")
    layers = tables.layers
    assert tuple(layers["layer"]) == unusual.GUIDED
    assert list(layers["kind"]) == ["conv2d"] * 4 + ["module"]
    assert list(layers["ran_algorithm"]) == ["direct", "torch", "direct", "direct", "direct"]
    assert list(layers["mean_ms"].isna()) == [False, True, False, False, False]
    assert list(tables.overall["unsupported_layers"]) == [1]
    assert {"convolution", "matrix product"} <= set(tables.work["category"])


@pytest.mark.parametrize(
    ("model", "modules"), [("Functional", {"", "block", "last"}), ("Dimensions", {"up", "line", "", "volume"})]
)
def test_the_shares_of_a_pass_add_up_and_are_of_the_modules_that_convolve(
    model: str, modules: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tables = profiled(tmp_path, model, "torch")
    assert tables.work["share_pct"].sum() == pytest.approx(100)
    assert set(tables.work["timing_method"]) == {"self time of operators (torch.profiler)"}
    convolving = tables.work[tables.work["category"] == "convolution"]
    assert set(convolving["module"].fillna("")) == modules
    assert (convolving["share_pct"] > 0).all()  # how large they are, and which kind is first, a busy machine decides
    assert f"\n{report.work_line(tables.work)}\n" in capsys.readouterr().out


def test_a_model_without_convolutions_has_a_time_and_its_work(tmp_path: Path):
    tables = profiled(tmp_path, "Perceptron", "torch")
    assert list(tables.overall["status"]) == ["ok"]
    assert list(tables.overall["convolutions"]) == [0]
    assert tables.layers.empty
    assert "convolution" not in set(tables.work["category"])
    assert {"first", "second"} <= set(tables.work[tables.work["category"] == "matrix product"]["module"])


def test_the_same_command_again_measures_nothing(tmp_path: Path):
    first = profiled(tmp_path, "Functional", "torch")
    second = profiled(tmp_path, "Functional", "torch")
    assert first.work.equals(second.work)
    assert len(json.loads((tmp_path / "run.json").read_text())["starts"]) == 1


@pytest.mark.parametrize(
    ("model", "names", "swappable"),
    [
        ("Functional", unusual.FUNCTIONAL, {"conv2d", "block.conv2d", "last"}),
        ("Dimensions", unusual.DIMENSIONS, set()),
        ("guided", unusual.GUIDED, {*unusual.GUIDED} - {"conv2d#2"}),
    ],
)
def test_a_choice_tries_each_call_with_what_it_can_run(
    model: str, names: tuple[str, ...], swappable: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    size = () if model == "guided" else ("--input-size", "12")
    arguments = ["--model", f"{UNUSUAL}:{model}", "--choice", "--rounds", "2", "--device", "cpu"]
    assert run_verify.main([*arguments, *size, "--output-dir", str(tmp_path)]) == 0
    rows = pd.read_csv(next(tmp_path.glob("*/choice.csv")))
    assert set(rows["layer"]) == {*names}
    assert set(rows[rows["candidate"] == "torch"]["layer"]) == {*names}
    assert set(rows[rows["candidate"] == "direct"]["layer"]) == swappable
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in names)
    assert f"its {len(names)} convolutions" in printed


@pytest.mark.parametrize(
    ("model", "ran", "last"),
    [
        ("Functional", "3 layers ran ai3's direct, 2 layers ran PyTorch's own", "2 of 5 layers as torch instead"),
        ("guided", "4 layers ran ai3's direct, 1 layer ran PyTorch's own", "1 of 5 layers as torch instead"),
        ("Dimensions", "4 layers ran PyTorch's own", "4 of 4 layers as torch instead"),
    ],
)
def test_a_verdict_says_which_calls_ran_the_algorithm(
    model: str, ran: str, last: str, capsys: pytest.CaptureFixture[str]
):
    size = () if model == "guided" else ("--input-size", "12")
    arguments = ["--model", f"{UNUSUAL}:{model}", "--algorithm", "direct", "--device", "cpu"]
    assert run_verify.main([*arguments, *size, "--unsupported", "fallback"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"✓ identifier: {ran}" in printed
    assert printed[-1] == f"CONFIRMED (by names, identifiers and outputs; kernels were not checked; {last})"


@pytest.mark.parametrize("question", [("--choice",), ("--algorithm", "direct")])
def test_a_model_without_convolutions_is_not_judged(
    question: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--model", f"{UNUSUAL}:Perceptron", *question, "--device", "cpu", "--input-size", "32"]
    folder = ("--output-dir", str(tmp_path / "study")) if "--choice" in question else ()
    assert run_verify.main([*arguments, *folder]) == 2
    said = capsys.readouterr().err
    assert "unusual.py:Perceptron has no convolution: there is nothing to verify or to choose" in said
    assert not list(tmp_path.rglob("*.csv"))
