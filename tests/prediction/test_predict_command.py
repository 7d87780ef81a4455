"""`convscope predict`: fit, evaluate, apply to samples and a model, calibrate; bad input is one line, exit code 2."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from fakes import ROOT
from fakes.drawn_samples import drawn
from fakes.workspaces import with_workspaces

from convscope import __main__ as program
from convscope.dataset import samples, totals
from convscope.dataset.totals import TotalRow

Capture = pytest.CaptureFixture[str]
OF_ONE_SIZE = str(ROOT / "tests" / "fakes" / "own_models.py:pair")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with samples of two cards, some of a third, and a predictor."""
    made = tmp_path_factory.mktemp("predict")
    samples.write(made / "samples.csv", drawn(150, ("Tesla P4", "Tesla P100-PCIE-16GB"), ("gemm", "winograd")))
    samples.write(made / "t4.csv", drawn(40, ("Tesla T4",), ("gemm", "winograd"), seed=4))
    samples.write(made / "memory.csv", with_workspaces(120, ("gemm", "winograd", "direct")))
    assert program.main(["predict", "fit", str(made / "samples.csv"), "-o", str(made / "predictor.json")]) == 0
    of_workspaces = ["--target", "workspace", "-o", str(made / "workspace.json")]
    assert program.main(["predict", "fit", str(made / "memory.csv"), *of_workspaces]) == 0
    return made


def test_fit_says_what_it_learned_and_how_wide_its_intervals_are(folder: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "p.json"
    assert program.main(["predict", "fit", str(folder / "samples.csv"), "-o", str(out), "--unit", "gpu"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("time of 600 samples of Tesla P100-PCIE-16GB, Tesla P4, 90 % within a factor of ")
    assert text.endswith(f"for another gpu: {out}\n")


def test_times_taken_in_several_ways_are_noted_where_times_are_learned(folder: Path, tmp_path: Path, capsys: Capture):
    every = pd.read_csv(folder / "samples.csv")
    every["energy_j"], every["energy_uncertainty_j"] = every["mean_ms"] * 0.3, every["mean_ms"] * 0.003
    every["timing_method"] = [samples.SHARE if run < len(every) / 2 else samples.EVICTED for run in range(len(every))]
    every.to_csv(tmp_path / "both.csv", index=False)
    fit = ["predict", "fit", str(tmp_path / "both.csv"), "-o", str(tmp_path / "p.json")]
    assert program.main(fit) == 0
    noted = capsys.readouterr().err.splitlines()
    assert [line.split(" were ")[0] for line in noted] == ["times of Tesla P100-PCIE-16GB", "times of Tesla P4"]
    assert program.main([*fit, "--target", "energy"]) == 0
    assert not capsys.readouterr().err
    assert program.main(["predict", "evaluate", str(tmp_path / "both.csv"), "--split", "layer"]) == 0
    assert capsys.readouterr().err.splitlines() == noted


def test_evaluate_prints_a_table_or_json(folder: Path, capsys: Capture):
    arguments = ["predict", "evaluate", str(folder / "samples.csv"), "--split", "layer"]
    assert program.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["held", "back", "by"]
    assert lines[1].split()[:3] == ["layer", "predictor", "all"]
    assert program.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["by"] == "predictor"
    assert found[0]["covered_pct"] > 70


def test_repeats_are_listed_once_before_all_splits(folder: Path, tmp_path: Path, capsys: Capture):
    again = tmp_path / "again.csv"
    rows = drawn(150, ("Tesla P4", "Tesla P100-PCIE-16GB"), ("gemm", "winograd"))
    samples.write(again, (dataclasses.replace(row, run="again") for row in rows))
    files = [str(folder / "samples.csv"), str(again)]
    assert program.main(["predict", "evaluate", *files, "--split", "rows", "layer"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" a repeat " in line for line in lines] == [False, True, *[False] * (len(lines) - 2)]


def test_samples_can_be_predicted_for_another_card(folder: Path, tmp_path: Path):
    out = tmp_path / "predicted.csv"
    arguments = ["predict", "apply", str(folder / "predictor.json"), "--samples", str(folder / "t4.csv")]
    assert program.main([*arguments, "--gpu", "Tesla P4", "-o", str(out)]) == 0
    assert {*pd.read_csv(out)["gpu_name"]} == {"Tesla P4"}


def test_apply_predicts_samples_and_writes_them(folder: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "predicted.csv"
    arguments = [
        "predict",
        "apply",
        str(folder / "predictor.json"),
        "--samples",
        str(folder / "t4.csv"),
        "-o",
        str(out),
    ]
    assert program.main(arguments) == 0
    assert "card" in capsys.readouterr().out.splitlines()[1]
    found = pd.read_csv(out)
    assert len(found) == 80
    assert (found["low90_ms"] < found["predicted_ms"]).all()
    assert (found["predicted_ms"] < found["high90_ms"]).all()


def test_apply_predicts_the_layers_of_a_model(folder: Path, capsys: Capture):
    arguments = ["predict", "apply", str(folder / "predictor.json"), "--model", "alexnet", "--gpu", "Tesla P4"]
    assert program.main([*arguments, "--math", "fp32", "--algorithm", "gemm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [[f"features.{n}", "gemm"] for n in (0, 3, 6, 8, 10)]
    assert "log_taps" in lines[1]  # 11×11: only 3×3 was learned
    assert lines[6].startswith("gemm: ")
    said = " (ends added up, as if all layers erred alike); outside what was learned: 4 layers; what is no convolution"
    assert said in lines[6]


PERMUTED = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(16, 32, 3), nn.LayerNorm(32), nn.Conv2d(32, 16, 3)

    def forward(self, x):
        x = self.first(x.mean(1, keepdim=True).repeat(1, 16, 1, 1))
        return self.last(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
"""


def test_apply_takes_a_layer_in_the_order_in_which_pytorch_computes_it(folder: Path, tmp_path: Path, capsys: Capture):
    path = tmp_path / "net.py"
    path.write_text(PERMUTED)
    what = ["--model", f"{path}:Net", "--input-size", "64", "--algorithm", "gemm"]
    where = ["--gpu", "Tesla P4", "--math", "fp32"]
    assert program.main(["predict", "apply", str(folder / "predictor.json"), *what, *where]) == 0
    first, last = capsys.readouterr().out.splitlines()[1:3]
    assert "layout" not in first
    assert "layout" in last  # no sample of it is channels last


def test_fit_says_which_workspaces_it_can_know(folder: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "p.json"
    assert program.main(["predict", "fit", str(folder / "memory.csv"), "--target", "workspace", "-o", str(out)]) == 0
    kinds = "of 3 algorithms 1 never need any, 2 follow a formula"
    assert capsys.readouterr().out == f"workspace of 360 samples of Tesla T4, {kinds}: {out}\n"


def test_workspaces_are_judged_by_figures_of_their_own(folder: Path, capsys: Capture):
    arguments = ["predict", "evaluate", str(folder / "memory.csv"), "--target", "workspace", "--split", "layer"]
    assert program.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "none or some right, %" in lines[0]
    assert [line.split()[1] for line in lines[1:]] == ["predictor", "nearest"]
    assert program.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["right_pct"] > 95
    assert found[0]["exact_pct"] > 95


def test_workspaces_are_predicted_in_bytes_and_shown_in_megabytes(folder: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "predicted.csv"
    arguments = ["predict", "apply", str(folder / "workspace.json"), "--samples", str(folder / "memory.csv")]
    assert program.main([*arguments, "-o", str(out)]) == 0
    assert "workspace, MB" in capsys.readouterr().out.splitlines()[0]
    found, truth = pd.read_csv(out), samples.read([folder / "memory.csv"])["workspace_bytes"]
    assert (found["predicted_bytes"] == truth).mean() > 0.95
    assert (found["low90_bytes"] <= found["high90_bytes"]).all()


def test_of_a_model_the_largest_workspace_is_said(folder: Path, capsys: Capture):
    arguments = ["predict", "apply", str(folder / "workspace.json"), "--model", "alexnet", "--gpu", "Tesla T4"]
    assert program.main([*arguments, "--math", "fp32", "--algorithm", "gemm", "direct", "fft"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[16] == "direct: at most 0 MB at a time, with the largest upper end 0 MB"
    assert lines[17] == "fft: the largest workspace is not known"
    of_layers = [float(line.split()[2]) for line in lines[1:6]]
    assert lines[18].startswith(f"gemm: at most {max(of_layers):g} MB at a time, with the largest upper end ")


def test_a_sum_is_compared_with_measured_totals(folder: Path, tmp_path: Path, capsys: Capture):
    path = tmp_path / "totals.csv"
    right = TotalRow("Tesla P4", "alexnet", "gemm", 224, 1, "float32", "fp32", "nchw", "klab a.csv", 5.0)
    others = [
        dataclasses.replace(right, **cells) for cells in ({"math": "tf32"}, {"input_size": 256}, {"model": "vgg16"})
    ]
    totals.write(path, [right, *others])
    arguments = ["predict", "apply", str(folder / "predictor.json"), "--model", "alexnet", "--gpu", "Tesla P4"]
    assert program.main([*arguments, "--math", "fp32", "--totals", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[11:]
    sum_ms = float(lines[0].split()[1])
    share = round(100 * sum_ms / 5.0)
    assert lines[1].startswith(f"  measured whole pass: 5 ms (klab a.csv); the sum is {share} % of it, ")
    assert lines[2].startswith("winograd: ")
    assert lines[3].startswith("  no measured time of such a pass: ")
    assert len(lines) == 4
    for wrong, expected in ((["--totals", str(tmp_path / "no.csv")], "no.csv does not exist: name a file of totals"),):
        assert program.main([*arguments, *wrong]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert expected in error


def test_calibrate_chooses_layers_and_learns_them(folder: Path, tmp_path: Path, capsys: Capture):
    arguments = ["predict", "calibrate", str(folder / "predictor.json"), str(folder / "t4.csv")]
    assert program.main([*arguments, "--choose", "12"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 13
    out = tmp_path / "corrected.json"
    assert program.main([*arguments, "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Tesla T4: corrected by 80 samples, ")
    assert text.endswith(f" % off where each is left out: {out}\n")
    assert program.main(["predict", "apply", str(out), "--samples", str(folder / "t4.csv")]) == 0
    assert "card" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fit", "no.csv"], "no.csv does not exist"),
        (["fit", "{samples}", "--unit", "gpu", "-o", "/no/p.json"], "/no/p.json cannot be written"),
        (
            ["fit", "{samples}", "--target", "energy"],
            "0 samples with sizes and a measured energy: at least 100 are needed",
        ),
        (["fit", "{samples}", "--target", "workspace"], "no sample has a workspace (column workspace_bytes)"),
        (["evaluate", "{samples}", "--target", "workspace"], "no sample has a workspace (column workspace_bytes)"),
        (
            ["evaluate", "{memory}", "--target", "workspace", "--split", "gpu", "--calibrate", "20"],
            "evaluate: --calibrate: a workspace is not corrected for a card",
        ),
        (["calibrate", "{workspace}", "{t4}"], "calibrate: a workspace is not corrected for a card: fit it to samples"),
        (["fit", "{samples}", "--card", "X"], "--card 'X': write 'NAME:"),
        (["apply", "no.json", "--samples", "{samples}"], "no.json cannot be read"),
        (["apply", "{samples}", "--samples", "{samples}"], "is no predictor, or a damaged one"),
        (["apply", "{predictor}"], "apply: say --samples FILE, or --model M with --gpu NAME"),
        (["apply", "{predictor}", "--model", "alexnet", "--gpu", "X1"], "no peaks are known of the GPU 'X1'"),
        (["apply", "{predictor}", "--model", "nonet", "--gpu", "Tesla T4"], "nonet"),
        (
            ["apply", "{predictor}", "--model", OF_ONE_SIZE, "--gpu", "Tesla T4", "--input-size", "64"],
            "48 px: leave out",
        ),
        (["apply", "{predictor}", "--model", "alexnet", "--gpu", "Tesla T4", "--batch-size", "0"], "at least 1"),
        (["calibrate", "{predictor}", "{samples}"], "at least 10 samples of one card are needed"),
        (["calibrate", "{predictor}", "{t4}", "--choose", "0"], "at least 1"),
        (["apply", "{predictor}", "--samples", "{t4}", "-o", "/no/p.csv"], "/no/p.csv cannot be written"),
        (["evaluate", "{samples}", "--calibrate", "50"], "evaluate: --calibrate needs --split gpu"),
        (["evaluate", "{samples}", "--processes", "0"], "--processes 0: it must be at least 1"),
        (
            ["evaluate", "{memory}", "--target", "workspace", "--processes", "2"],
            "evaluate: --processes: workspaces take",
        ),
        (["evaluate", "{samples}", "--split", "gpu", "--calibrate", "300"], "300 of 300 samples leave none to judge"),
        (["evaluate", "{t4}", "--split", "gpu"], "split by gpu: all samples are of Tesla T4"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, arguments: list[str], expected: str, capsys: Capture):
    names = {each.stem: each for each in folder.iterdir()}
    assert program.main(["predict", *(each.format(**names) for each in arguments)]) == 2
    text = capsys.readouterr().err
    assert expected in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--algorithm", "gemm", "gemm"], "--algorithm gemm: it is named twice: name it once"),
        (["--algorithm", "gemn"], "--algorithm gemn: there is none of that name: choose another, such as gemm"),
    ],
)
def test_algorithms_are_those_that_there_are_each_once(folder: Path, capsys: Capture, words: list[str], expected: str):
    arguments = ["predict", "apply", str(folder / "predictor.json"), "--model", "alexnet", "--gpu", "Tesla P4"]
    assert program.main([*arguments, "--math", "fp32", *words]) == 2
    assert capsys.readouterr() == ("", f"convscope predict: {expected}\n")


def test_spaces_and_underscores_of_an_algorithm_are_the_same():
    from convscope.prediction import network

    learned = ["implicit gemm", "plan:58"]
    assert network.named(["implicit_gemm", "plan:58", "plan:7:k2=8", "fft_tiling"], learned) == [
        *("implicit gemm", "plan:58", "plan:7:k2=8", "fft tiling")
    ]


def test_what_describes_a_model_is_refused_beside_a_file_of_samples(folder: Path, capsys: Capture):
    arguments = ["predict", "apply", str(folder / "predictor.json"), "--samples", str(folder / "t4.csv")]
    with pytest.raises(SystemExit, match="2"):
        program.main([*arguments, "--model", "vgg16", "--batch-size", "1"])
    assert "--samples makes no use of --model, --batch-size: leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "samples.csv", "-o", "samples.csv"],
        ["calibrate", "predictor.json", "t4.csv", "-o", "t4.csv"],
        ["apply", "predictor.json", "--samples", "t4.csv", "-o", "t4.csv"],
        ["apply", "predictor.json", "--samples", "t4.csv", "-o", "predictor.json"],
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_written_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str]
):
    monkeypatch.chdir(folder)
    before = Path(words[-1]).read_bytes()
    assert program.main(["predict", *words]) == 2
    expected = f"convscope predict: -o {words[-1]}: this command reads it: name another file\n"
    assert capsys.readouterr() == ("", expected)
    assert Path(words[-1]).read_bytes() == before
