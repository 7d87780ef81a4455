"""The command line over several runs: stages, batch sizes, studies, estimates."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from fakes import ROOT
from fakes.commands import TINY


@pytest.mark.parametrize("option", ["overwrite", "retry", "any_card", "take_over"])
def test_options_on_what_a_folder_has_are_handed_on(call, monkeypatch: pytest.MonkeyPatch, option: str):
    given: dict[str, bool] = {}

    def measure_nothing(self: object, folder: object, **options: bool) -> tuple:
        given.update(options)
        empty = pd.DataFrame(columns=["input_size", "status"])
        return empty, empty

    monkeypatch.setattr("profiler.UnifiedProfiler.run", measure_nothing)
    call(*TINY, f"--{option.replace('_', '-')}")
    assert given == dict.fromkeys(("overwrite", "retry", "any_card", "take_over"), False) | {option: True}


@pytest.mark.parametrize(
    ("option", "stage", "count"),
    [
        (["--test"], "1_sanity", 1),
        (["--quick"], "2_quick", 10),
        (["--num-sizes", "3"], "3_full", 3),
        ([], "3_full", 100),
    ],
)
def test_each_stage_has_its_folder_and_number_of_sizes(
    call, monkeypatch: pytest.MonkeyPatch, option: list[str], stage: str, count: int
):
    import profiler

    runs: list[profiler.UnifiedProfiler] = []

    def measure_nothing(self: profiler.UnifiedProfiler, *arguments: object, **options: object) -> tuple:
        runs.append(self)
        empty = pd.DataFrame(columns=["input_size", "status"])
        return empty, empty

    monkeypatch.setattr(profiler.UnifiedProfiler, "run", measure_nothing)
    call("--model", "alexnet", "--algorithm", "direct", "--device", "cpu", *option)
    assert runs[0].folder.parts[-2:] == (stage, "alexnet_direct_cpu")
    assert len(runs[0].request.input_sizes) == count


def test_batch_sizes_are_runs_one_after_the_other_each_in_its_folder(call, tmp_path: Path):
    printed = call(*TINY, "--batch-sizes", "1,2", "--output-dir", str(tmp_path))
    assert (printed.code, printed.err) == (0, "")
    assert [line for line in printed.out.splitlines() if " of 2: " in line] == [
        "1 of 2: tiny_direct_cpu",
        "2 of 2: tiny_direct_cpu_b2",
    ]
    tables = [pd.read_csv(path) for path in sorted(tmp_path.glob("*/tiny_direct_overall.csv"))]
    assert [list(table["batch_size"]) for table in tables] == [[1], [2]]
    assert f"results: {tmp_path}/tiny_direct_cpu_b2\n" in printed.out


def test_of_several_batch_sizes_the_worst_exit_code_counts_and_bad_input_of_one_leaves_the_others(call, tmp_path: Path):
    call(*TINY, "--batch-size", "1", "--seed", "7", "--output-dir", str(tmp_path / "tiny_direct_cpu"))
    printed = call(*TINY, "--batch-sizes", "1,2", "--output-dir", str(tmp_path))
    assert printed.code == 2
    assert printed.err.startswith("run_profile.py: tiny_direct_cpu: ")
    assert "seed 7, now 0" in printed.err
    assert printed.err.count("\n") == 1
    overall = tmp_path / "tiny_direct_cpu_b2" / "tiny_direct_overall.csv"
    overall.write_text(overall.read_text().replace(",ok,", ",oom,too large"))
    assert call(*TINY, "--batch-sizes", "2,3", "--output-dir", str(tmp_path)).code == 1


def test_a_signal_ends_several_batch_sizes_where_they_are(call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import profiler

    run = profiler.UnifiedProfiler.run

    def signalled(self: profiler.UnifiedProfiler, *arguments: object, **options: object) -> tuple:
        found = run(self, *arguments, **options)
        signal.raise_signal(signal.SIGUSR2)
        return found

    monkeypatch.setattr(profiler.UnifiedProfiler, "run", signalled)
    printed = call(*TINY, "--batch-sizes", "1,2", "--output-dir", str(tmp_path))
    assert printed.code == 85
    assert printed.err == "run_profile.py: stopped by USR2 after 1 of 2 runs: run the same command again to continue\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny_direct_cpu"]


def test_images_that_are_not_square_are_one_size_by_their_longer_side(call, tmp_path: Path):
    sizeless = [*TINY[:4], "--device", "cpu", *TINY[-5:]]
    printed = call(*sizeless, "--input-shape", "48x64", "--output-dir", str(tmp_path))
    assert printed.code == 0
    assert "\n48x64  " in printed.out
    overall = pd.read_csv(tmp_path / "tiny_direct_overall.csv").iloc[0]
    assert (overall["input_size"], overall["input_shape"]) == (64, "48x64")
    layers = pd.read_csv(tmp_path / "tiny_direct_layers.csv")
    assert layers.iloc[0][["in_height_px", "in_width_px"]].tolist() == [48, 64]
    assert json.loads((tmp_path / "run.json").read_text())["run"]["input_shape"] == "48x64"
    again = call(*sizeless, "--input-shape", "64x48", "--output-dir", str(tmp_path))
    assert "input_shape 48x64, now 64x48" in again.err


@pytest.mark.parametrize(("asked", "sizes"), [("64", [64]), ("96,64", [64, 96])])
def test_square_images_are_asked_for_by_their_sizes(call, tmp_path: Path, asked: str, sizes: list[int]):
    sizeless = [*TINY[:4], "--device", "cpu", *TINY[-5:]]
    printed = call(*sizeless, "--input-size", asked, "--output-dir", str(tmp_path))
    assert (printed.code, printed.err) == (0, "")
    assert sorted(pd.read_csv(tmp_path / "tiny_direct_overall.csv")["input_size"]) == sizes
    assert json.loads((tmp_path / "run.json").read_text())["run"]["input_sizes"] == sizes


def test_one_input_size_is_a_range_of_one_size(call, tmp_path: Path):
    sizeless = [*TINY[:4], "--device", "cpu", *TINY[-5:], "--output-dir", str(tmp_path)]
    assert call(*sizeless, "--num-sizes", "1", "--input-range", "64", "64").code == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert call(*sizeless, "--input-size", "64").code == 0
    again = json.loads((tmp_path / "run.json").read_text())
    assert (again["run"], len(again["starts"])) == (run["run"], 1)


def test_layers_are_listed_at_the_input_size(call):
    printed = call("--list-algorithms", "--model", TINY[1], "--device", "cpu", "--input-size", "80,64")
    assert printed.code == 0
    assert printed.out.startswith("tiny at 64 px, batch 1 ")


STUDY = """
models = ["torchvision:tiny"]
algorithms = ["direct", "gemm"]
gpus = ["cpu", "h200"]
batch_sizes = [1, 2]
warmup = 0
measure = 2
no-energy = true
[sizes]
count = 1
range = [64, 96]
"""


@pytest.fixture
def study_file(tmp_path: Path) -> str:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return str(path)


def test_a_study_runs_what_is_for_the_device_that_is_here(call, tmp_path: Path, study_file: str):
    printed = call("--study", study_file, "--device", "cpu", "--output-dir", str(tmp_path / "o"))
    assert (printed.code, printed.err) == (0, "")
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"tiny_direct_cpu", "tiny_direct_cpu_b2"}
    assert printed.out.startswith("# torchvision:tiny, gemm, cpu: gemm needs a CUDA device\n")
    run = json.loads((tmp_path / "o" / "tiny_direct_cpu_b2" / "run.json").read_text())["run"]
    assert (run["batch_size"], run["measure_iters"], run["energy"], run["input_sizes"]) == (2, 2, False, [64])


CHECKED = "alexnet\tgemm\th200\tinput_shape=480x640\n"
SIZED = "alexnet\tgemm\th200\tinput_size=224\n"


@pytest.mark.parametrize(
    ("flags", "line", "said"),
    [
        (["--num-sizes", "25"], CHECKED, "--input-shape makes no use of --num-sizes: leave it out"),
        (["--input-range", "64", "96"], CHECKED, "--input-shape makes no use of --input-range: leave it out"),
        (["--num-sizes", "25"], SIZED, "--input-size makes no use of --num-sizes: leave it out"),
        (["--input-shape", "48x64"], SIZED, "--input-size makes no use of --input-shape: leave it out"),
        (
            ["--energy-budget", "3"],
            "alexnet\tgemm\th200\tno_energy=true\n",
            "--no-energy makes no use of --energy-budget: leave it out",
        ),
    ],
)
def test_flags_that_contradict_a_line_of_a_matrix_are_refused_at_its_submission(
    call, monkeypatch: pytest.MonkeyPatch, flags: list[str], line: str, said: str
):
    monkeypatch.setattr(sys, "stdin", io.StringIO(line))
    printed = call("--check-stages", "3_full", *flags)
    assert (printed.code, printed.out) == (2, "")
    assert printed.err == f"run_profile.py: {said} (--help lists the options)\n"


def test_a_study_is_listed_as_a_matrix(call, study_file: str):
    printed = call("--study", study_file, "--list-combinations")
    assert printed.code == 0
    lines = printed.out.splitlines()
    assert len(lines) == 8
    fields = "batch_size=1\tnum_sizes=1\tinput_range=64 96\twarmup=0\tmeasure=2\tno_energy=true"
    assert lines[0] == f"torchvision:tiny\tdirect\tcpu\t{fields}"


def test_a_study_for_other_gpus_is_refused(call, tmp_path: Path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY.replace('"cpu", ', ""))
    printed = call("--study", str(path), "--device", "cpu")
    assert printed.code == 2
    assert printed.err == f"run_profile.py: {path} is for h200, and here is cpu: run it there, or add cpu to its gpus\n"


def test_hours_are_estimated_without_measuring(call, study_file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("convscope.storage.paths.RESULTS", tmp_path)
    printed = call("--study", study_file, "--estimate")
    assert printed.code == 1  # nothing is known of the CPU
    last = printed.out.splitlines()[-2:]
    assert last[0].startswith("cpu: no estimate for 2 of 2 runs: nothing was measured on cpu yet")
    assert last[1].startswith("h200: 0.0")
    assert [*tmp_path.iterdir()] == [Path(study_file)]


def test_the_estimate_of_a_study_keeps_to_a_named_gpu(
    call, study_file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("convscope.storage.paths.RESULTS", tmp_path)
    assert "cpu" in call("--study", study_file, "--estimate").out
    printed = call("--study", study_file, "--estimate", "--gpu", "H200")
    assert printed.code == 0
    assert "h200" in printed.out
    assert "cpu" not in printed.out


def test_the_list_of_a_study_has_all_its_gpus_also_beside_a_gpu_for_lines_without_one(call, study_file: str):
    plain, named = (call("--study", study_file, "--list-combinations", *more) for more in ((), ("--gpu", "h200")))
    assert named.out == plain.out
    assert {line.split("\t")[2] for line in plain.out.splitlines() if not line.startswith("#")} == {"cpu", "h200"}


def test_no_estimate_of_a_study_for_a_gpu_that_it_does_not_name(call, study_file: str):
    printed = call("--study", study_file, "--estimate", "--gpu", "h100")
    assert (printed.code, printed.out) == (2, "")
    assert printed.err == f"run_profile.py: {study_file} is for cpu, h200, not for h100: add h100 to its gpus\n"


def test_hours_are_estimated_for_programs_too(call, study_file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("convscope.storage.paths.RESULTS", tmp_path)
    printed = call("--study", study_file, "--estimate", "--json")
    rows = json.loads(printed.out)
    assert printed.code == 1
    assert {(row["gpu"], row["seconds"] is None) for row in rows} == {("cpu", True), ("h200", False)}
    assert {row["sizes"] for row in rows} == {1}


def test_lists_are_printed_for_programs_too(call):
    assert "vgg16" in json.loads(call("--list-models", "--json").out)
    every = json.loads(call("--list-algorithms", "--json").out)
    assert {"algorithm": "torch", "cpu": "torch"}.items() <= next(a for a in every if a["algorithm"] == "torch").items()
    asked = ("--list-algorithms", "--model", TINY[1], "--device", "cpu", "--json")
    rows = json.loads(call(*asked).out)
    direct = next(row for row in rows if (row["algorithm"], row["on"]) == ("direct", "CPU"))
    assert (direct["usable_layers"], direct["layers"], direct["why_not"]) == (3, 3, None)


@pytest.mark.parametrize(
    "asked", [TINY, ["--check-cuda"], ["--list-models", "--list-algorithms"], ["--list-combinations"]]
)
def test_what_is_no_list_is_not_for_programs(call, asked: list[str]):
    printed = call(*asked, "--json")
    assert (printed.code, printed.out) == (2, "")
    assert printed.err.startswith("run_profile.py: --json goes with one of --list-models, --list-algorithms, --est")


@pytest.mark.long
def test_a_reader_that_has_gone_away_is_no_error():
    listing = f"{sys.executable} {ROOT / 'run_profile.py'} --list-models"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {listing} | head -1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "vgg16\n", "")
