"""The command line: exit codes, one line on stderr for what cannot be, and the files that a run leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from fakes import ROOT, tiny
from fakes.commands import ALEXNET, FAST, TINY

import run_profile

MOBILENET = ["--model", "torchvision:mobilenet_v2", "--algorithm", "smm", *FAST]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "run_profile.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_run_from_a_shell_ends_with_0_and_leaves_four_files(tmp_path: Path):
    done = command(*ALEXNET, "--output-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alexnet_direct_layers.csv", "alexnet_direct_overall.csv", "alexnet_direct_work.csv", "run.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "run.json").read_text())["command"][-1] == str(tmp_path)


def test_bad_input_from_a_shell_ends_with_2_and_one_line():
    done = command("--model", "lenet", "--algorithm", "direct")
    assert done.returncode == 2
    assert done.stderr == (
        "run_profile.py: unknown model 'lenet': choose one of vgg16, densenet121, resnet152, googlenet, alexnet, "
        "resnet50, or torchvision:NAME, timm:NAME, hf:NAME, FILE.py:callable, package.module:callable, FILE.pt2, "
        "layers.csv (nearest: alexnet, googlenet)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], "--unsupported"),
        (["--model", "vgg61", "--algorithm", "gemm"], "unknown model 'vgg61'"),
        (["--model", "vgg16", "--algorithm", "gem"], "unknown algorithm 'gem'"),
    ],
)
def test_help_and_a_wrong_name_come_without_loading_pytorch(arguments: list[str], said: str):
    code = f"import sys, run_profile\ntry: run_profile.main({arguments})\nfinally: sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert said in done.stdout + done.stderr


def test_a_run_whose_output_is_no_terminal_logs_a_header_and_a_line_a_size_then_prints_a_table(call, tmp_path: Path):
    printed = call(*TINY, "--output-dir", str(tmp_path))
    lines = printed.out.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == ["command", "CPU", "versions", "commit", "sizes"]
    assert lines[4] == "sizes: 1, 64 px, batch 1, fp32"
    assert re.fullmatch(r"1/1  64 px  \d+\.\d\d ms  (-|\d+ W)", lines[5])
    header, line, work, slowest, *bars, where = lines[6:]
    assert header.split()[:4] == ["size", "mean", "±", "std,"]
    assert line.split()[0] == "64"
    assert line.count(" %)") == 3
    assert re.match(r"work: (\w+( \w+)? \d+ %, )*convolution \d+ %", work)
    assert slowest == "slowest layers at 64 px, ms (% of the pass)"
    assert all(re.fullmatch(r"  [\w.]+ +[█▏▎▍▌▋▊▉]+ +\d+\.\d{3} \(\d+ %\)", bar) for bar in bars)
    assert where == f"results: {tmp_path}"
    assert "\x1b" not in printed.out
    assert printed.err == ""


def test_a_second_run_measures_nothing_and_says_so(call, tmp_path: Path):
    first = call(*TINY, "--output-dir", str(tmp_path))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = call(*TINY, "--output-dir", str(tmp_path))
    assert (second.code, second.err) == (0, "")
    assert second.out.splitlines()[5] == f"all 1 sizes are in {tmp_path}: nothing measured (--overwrite)"
    assert second.out.splitlines()[6:] == first.out.splitlines()[6:]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_size_that_its_job_does_not_let_end_is_not_begun(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONVSCOPE_END_S", str(int(time.time()) + 5))  # less than is kept free for ending
    two = (*TINY, "--num-sizes", "2", "--output-dir", str(tmp_path))
    printed = call(*two)
    assert (printed.code, printed.err) == (85, "")
    assert re.search(r"^not begun: \d\d px takes about \d+ s, and the job ends in \d s$", printed.out, re.MULTILINE)
    said = (
        "run_profile.py: stopped before the job ends with 1 size in the folder: run the same command again to continue"
    )
    assert printed.out.splitlines()[-1] == said
    again = call(*two)
    assert again.code == 2
    assert again.err.endswith("s: nothing is measured; submit it with a longer time limit\n")
    assert len((tmp_path / "tiny_direct_overall.csv").read_text().splitlines()) == 2
    monkeypatch.delenv("CONVSCOPE_END_S")
    assert call(*two).code == 0


def test_overwrite_measures_again(call, tmp_path: Path):
    call(*TINY, "--output-dir", str(tmp_path))
    before = (tmp_path / "tiny_direct_overall.csv").read_text()
    printed = call(*TINY, "--output-dir", str(tmp_path), "--overwrite")
    after = (tmp_path / "tiny_direct_overall.csv").read_text()
    assert printed.code == 0
    assert after != before
    assert len(after.splitlines()) == 2
    (kept,) = tmp_path.glob("before-*")
    assert f"\nwhat was in {tmp_path} is kept in {kept}\n" in printed.out
    assert (kept / "tiny_direct_overall.csv").read_text() == before


def test_overwrite_takes_other_settings(call, tmp_path: Path):
    call(*TINY, "--output-dir", str(tmp_path))
    assert call(*TINY, "--output-dir", str(tmp_path), "--seed", "3", "--overwrite").code == 0
    assert json.loads((tmp_path / "run.json").read_text())["run"]["seed"] == 3


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (["--batch-size", "2"], "batch_size 1, now 2"),
        (["--seed", "7"], "seed 0, now 7"),
        (["--measure", "3"], "measure_iters 2, now 3"),
        (["--algorithm", "smm"], "algorithm direct, now smm"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused_naming_the_difference(
    call, measured: Path, changed: list[str], difference: str
):
    printed = call(*TINY, "--output-dir", str(measured), *changed)
    assert printed.code == 2
    assert f"holds a run with other settings ({difference}): choose another --output-dir" in printed.err


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one measured size; no test that uses it may change it."""
    folder = tmp_path_factory.mktemp("measured")
    assert run_profile.main([*TINY, "--output-dir", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model", "lenet", "--algorithm", "direct"], "unknown model 'lenet'"),
        (["--model", "torchvision:lenet", "--algorithm", "direct"], "torchvision has no model 'lenet'"),
        (["--model", "alexnet", "--algorithm", "fastest"], "unknown algorithm 'fastest'"),
        ([*TINY, "--num-sizes", "0"], "--num-sizes 0: it must be at least 1"),
        ([*TINY, "--batch-size", "0"], "--batch-size 0: it must be at least 1"),
        ([*TINY, "--measure", "0"], "--measure 0: it must be at least 1"),
        ([*TINY, "--input-range", "0", "0"], "--input-range 0: it must be at least 1"),
        ([*ALEXNET, "--input-range", "8", "8"], "alexnet cannot take 8×8 images"),
        ([*TINY, "--gpu", "h200"], "--gpu h200: the device is a CPU"),
        ([*TINY, "--device", "cuda:99"], "--device cuda:99: PyTorch sees"),
        ([*TINY, "--device", "tpu"], "--device 'tpu' is none of auto, cpu, cuda, cuda:N"),
        ([*TINY, "--math", "tf32"], "--math tf32 needs a CUDA device"),
        ([*TINY, "--math", "fp64"], "argument --math: invalid choice: 'fp64'"),
        ([*TINY, "--num-sizes", "many"], "argument --num-sizes: invalid int value: 'many'"),
        ([*TINY, "--batch-sizes", "1,1"], "argument --batch-sizes: '1,1': say different numbers with commas"),
        ([*TINY, "--batch-sizes", "8", "--batch-size", "8"], "argument --batch-size: not allowed with argument"),
        ([*TINY, "--batch-sizes", "0,8"], "--batch-size 0: it must be at least 1"),
        ([*TINY, "--input-shape", "480x640"], "--input-shape makes no use of --num-sizes, --input-range: leave them"),
        ([*TINY, "--input-size", "64"], "--input-size makes no use of --num-sizes, --input-range: leave them out"),
        ([*TINY[:4], "--test", "--input-size", "64"], "--input-size makes no use of --test: leave it out"),
        ([*TINY[:4], "--quick", "--input-size", "64"], "--input-size makes no use of --quick: leave it out"),
        (
            [*TINY[:4], "--input-size", "64", "--input-shape", "48x64"],
            "--input-size makes no use of --input-shape: leave it out",
        ),
        ([*TINY[:4], "--device", "cpu", "--input-size", "0"], "--input-size 0: it must be at least 1"),
        ([*TINY[:4], "--input-size", "48x64"], "argument --input-size: '48x64': say different numbers with commas"),
        ([*TINY[:4], "--input-size", "64,64"], "argument --input-size: '64,64': say different numbers with commas"),
        (["--study", "s", "--input-size", "64"], "--study makes no use of --input-size: leave it out"),
        ([*ALEXNET[:6], "--input-shape", "480"], "--input-shape 480: say height and width in pixels, such as 480x640"),
        (["--study", "nowhere.toml"], "--study nowhere.toml cannot be read"),
        (["--study", "s", "--model", "vgg16"], "--study makes no use of --model: leave it out"),
        ([*TINY, "--test"], "argument --test: not allowed with argument --num-sizes"),
        ([*TINY, "--algorithm", "winograd"], "winograd needs a CUDA device: on a CPU choose direct, smm or torch"),
        (["--model", "alexnet"], "say --model NAME and --algorithm NAME"),
        (["--colour"], "unrecognized arguments: --colour"),
        (["--list-algorithms", "--model", "lenet"], "unknown model 'lenet'"),
    ],
    ids=lambda value: None if isinstance(value, list) else value.replace(":", "")[:40],
)
def test_what_cannot_be_ends_with_2_and_exactly_one_line(call, arguments: list[str], line: str):
    printed = call(*arguments)
    assert printed.code == 2
    assert printed.out == ""
    assert printed.err.startswith(f"run_profile.py: {line}")
    assert printed.err.count("\n") == 1


def test_a_batch_of_nothing_cannot_be_listed_either(call):
    assert call("--list-algorithms", "--model", "alexnet", "--device", "cpu", "--batch-size", "0").code == 2


def test_a_directory_that_cannot_be_written_ends_with_2_and_one_line(call, tmp_path: Path):
    (tmp_path / "file").write_text("")
    printed = call(*TINY, "--output-dir", str(tmp_path / "file" / "results"))
    assert printed.code == 2
    assert printed.err == (
        f"run_profile.py: cannot write results to {tmp_path}/file/results (Not a directory): "
        "choose another folder with --output-dir\n"
    )


def test_layers_that_cannot_use_the_algorithm_stop_the_run_before_it_begins(call, tmp_path: Path):
    printed = call(*MOBILENET, "--output-dir", str(tmp_path / "results"))
    assert printed.code == 2
    assert "ai3 has no grouped convolution on a CPU" in printed.err
    assert "features.1.conv.0.0" in printed.err
    assert "--unsupported fallback" in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module", params=["fallback", "skip"])
def mobilenet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = tmp_path_factory.mktemp(request.param)
    assert run_profile.main([*MOBILENET, "--unsupported", request.param, "--output-dir", str(folder)]) == 0
    overall, layers = (pd.read_csv(folder / f"mobilenet_v2_smm_{table}.csv") for table in ("overall", "layers"))
    return request.param, overall, layers


def test_each_row_says_what_really_ran(mobilenet: tuple):
    _, _, layers = mobilenet
    grouped = layers["groups"] > 1
    assert 0 < grouped.sum() < len(layers)
    assert set(layers[grouped]["ran_algorithm"] + "/" + layers[grouped]["ran_provider"]) == {"torch/torch"}
    assert set(layers[~grouped]["ran_algorithm"] + "/" + layers[~grouped]["ran_provider"]) == {"smm/ai3"}


def test_layers_that_ran_something_else_have_a_status_and_a_reason(mobilenet: tuple):
    unsupported, _, layers = mobilenet
    grouped = layers["groups"] > 1
    assert set(layers[grouped]["status"]) == {{"fallback": "fallback", "skip": "unsupported"}[unsupported]}
    assert layers[grouped]["reason"].str.startswith("ai3 has no grouped convolution on a CPU").all()
    assert set(layers[~grouped]["status"]) == {"ok"}


def test_only_skipped_layers_have_no_time(mobilenet: tuple):
    unsupported, _, layers = mobilenet
    assert (layers["mean_ms"].isna() == ((layers["groups"] > 1) & (unsupported == "skip"))).all()


def test_the_overall_row_counts_the_layers_that_ran_something_else(mobilenet: tuple):
    unsupported, overall, layers = mobilenet
    counts = overall.iloc[0][["fallback_layers", "unsupported_layers"]].tolist()
    grouped = (layers["groups"] > 1).sum()
    assert counts == ([grouped, 0] if unsupported == "fallback" else [0, grouped])


def test_models_are_listed_one_a_line(call):
    printed = call("--list-models")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.splitlines()[0] == "vgg16"


def test_algorithms_are_listed_without_a_model(call):
    printed = call("--list-algorithms")
    assert printed.code == 0
    assert printed.out.splitlines()[3].split()[:3] == ["gemm", "-", "cudnn"]


def test_algorithms_are_listed_for_a_model_at_a_size(call):
    printed = call("--list-algorithms", "--model", "alexnet", "--input-range", "64", "64", "--device", "cpu")
    assert printed.code == 0
    assert printed.out.splitlines()[0].startswith("alexnet at 64 px, batch 1")


@pytest.mark.usefixtures("no_gpu")
def test_the_algorithms_of_a_gpu_are_listed_by_their_rules_where_there_is_none(call):
    asked = "--list-algorithms", "--model", "torchvision:tiny", "--input-size", "64"
    printed = call(*asked, "--device", "cuda")
    assert (printed.code, printed.err, printed.out) == (0, "", call(*asked, "--device", "cpu").out)
    assert "(by rule, no GPU here to ask)" in printed.out


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        (["--check-power"], "--check-power tests a GPU's sensors"),
        (
            ["--estimate", "--model", "alexnet", "--algorithm", "gemm"],
            "--gpu NAME estimates for a card that is elsewhere",
        ),
    ],
)
def test_a_gpu_that_is_not_here_is_answered_with_what_is_right_for_the_command(call, asked: list[str], advice: str):
    printed = call(*asked, "--device", "cuda")
    said = "run_profile.py: --device cuda: PyTorch sees 0 CUDA devices here; "
    assert (printed.code, printed.err) == (2, f"{said}{advice}\n")


def test_algorithms_are_listed_for_a_model_with_its_arguments(call):
    own = f"{ROOT}/tests/fakes/own_models.py:Branch"
    asked = ["--list-algorithms", "--model", own, "--input-range", "64", "64", "--device", "cpu"]
    printed = call(*asked, "--model-args", "width=3")
    assert printed.out.splitlines()[0].startswith("own_models.py_Branch_width_3 at 64 px")


def test_a_batch_stands_in_every_line_of_the_combinations(call):
    asked = ["--list-combinations", "--models", "alexnet", "--algorithms", "gemm", "smm", "--gpu", "h200"]
    printed = call(*asked, "--batch-size", "8")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out == "alexnet\tgemm\th200\tbatch_size=8\n# alexnet smm: smm runs on a CPU only\n"
    assert call(*asked).out.startswith("alexnet\tgemm\th200\n")
    planned = call("--list-combinations", "--models", "alexnet", "--algorithms", "planned", "--gpu", "h200").out
    assert planned == "# alexnet planned: a document of plans is for run_profile.py --algorithm-file\n"
    assert call(*asked, "--batch-size", "0").err == "run_profile.py: --batch-size 0: it must be at least 1\n"


@pytest.mark.usefixtures("no_gpu")
def test_checking_for_cuda_without_a_gpu_says_so_and_ends_with_1(call):
    printed = call("--check-cuda")
    assert printed.code == 1
    assert "no CUDA device" in printed.out


def test_a_run_with_a_size_that_failed_ends_with_1(call, tmp_path: Path):
    call(*TINY, "--output-dir", str(tmp_path))
    overall = tmp_path / "tiny_direct_overall.csv"
    overall.write_text(overall.read_text().replace(",ok,", ",oom,too large"))
    assert call(*TINY, "--output-dir", str(tmp_path)).code == 1


def test_a_size_that_failed_is_measured_again_with_retry(call, tmp_path: Path):
    call(*TINY, "--output-dir", str(tmp_path))
    overall = tmp_path / "tiny_direct_overall.csv"
    overall.write_text(overall.read_text().replace(",ok,", ",failed,the driver"))
    printed = call(*TINY, "--output-dir", str(tmp_path), "--retry")
    assert printed.code == 0
    assert pd.read_csv(overall)["status"].tolist() == ["ok"]
    assert len(pd.read_csv(tmp_path / "tiny_direct_layers.csv")) == tiny.CONVOLUTIONS
