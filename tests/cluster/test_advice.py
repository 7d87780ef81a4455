"""Commands offered for what failed: they run again what was asked for, and do no harm when pasted into a shell."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path

import pytest
from fakes.folders import WHO, measured, note, only, slurm

from convscope.cluster import advice
from convscope.cluster.history import HISTORY
from convscope.cluster.standing import survey
from convscope.storage.paths import Combination


def offered(results: Path) -> list[str]:
    return advice.again([only(results, slurm(""))])


def log(results: Path, flags: str, model: str = "alexnet", gpu: str = "h200", algorithm: str = "gemm") -> None:
    """Write a line of a stranger's into a history."""
    folder = results / "2_quick" / f"alexnet_{algorithm.replace(' ', '_')}_h200"
    folder.mkdir(parents=True)
    (folder / HISTORY).write_text(f"2026\t7\tended 1\t{model}\t{algorithm}\t{gpu}\t{flags}\n")


@pytest.mark.parametrize(
    "flags",
    ["; touch owned #", "$(touch owned)", "`touch owned`", "--seed $(touch owned)", "--seed 1; touch owned"],
)
def test_flags_become_arguments_and_never_commands(tmp_path: Path, flags: str):
    log(tmp_path, flags)
    for command in offered(tmp_path):
        assert shlex.split(command)[:4] == ["./2_quick_sweep.sh", "alexnet", "gemm", "h200"]
        assert command == shlex.join(shlex.split(command))


@pytest.mark.parametrize("flags", ["'open", "--seed $'\\x3b'", "word", "--Seed 1", "--seed 1 --;", "--a\x1b[31m"])
def test_flags_of_another_form_are_not_offered(tmp_path: Path, flags: str):
    log(tmp_path, flags)
    assert offered(tmp_path) == []


MODELS = (
    "/a b/net.py:make,width=2",
    "nets/net.py:make",
    "hf:microsoft/resnet-50",
    "timm:convnext_tiny,drop_path_rate=0.1",
    "torchvision:resnet18,num_classes=4",
    "/a/net.pt2",
    "/a/'$(touch owned)';`x`.csv",
    "pkg.mod:make",
)


@pytest.mark.parametrize("model", MODELS)
def test_models_of_every_kind_are_shown_and_offered_in_quotes(tmp_path: Path, model: str):
    who = dataclasses.replace(WHO, model=model)
    note(tmp_path, "ended 1", who=who)
    assert str(only(tmp_path, slurm("")).progress.combination) == str(who)
    (command,) = offered(tmp_path)
    assert shlex.split(command) == ["./2_quick_sweep.sh", model, "implicit gemm", "h200", "--seed", "2"]


def test_models_of_every_kind_are_offered_in_one_matrix(tmp_path: Path):
    for model in MODELS:
        note(tmp_path, "ended 1", who=dataclasses.replace(WHO, model=model))
    (command,) = advice.again(survey(tmp_path, run_command=slurm("")).standings)
    printed = command.split("<(")[1].split(") --seed")[0]
    lines = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(lines) == sorted(f"{model}\timplicit gemm\th200" for model in MODELS)


@pytest.mark.parametrize("names", [{"algorithm": "magic"}, {"gpu": "h 200"}, {"model": "a+b"}])
def test_names_that_no_stage_takes_are_not_offered(tmp_path: Path, names: dict[str, str]):
    log(tmp_path, "", **names)
    assert offered(tmp_path) == []


@pytest.mark.parametrize("flag", ["--overwrite", "--overw", "--ov"])
def test_overwrite_is_never_offered_not_even_by_its_first_letters(tmp_path: Path, flag: str):
    note(tmp_path, "started", "ended 1", flags=(flag, "--seed", "3"))
    assert offered(tmp_path) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --seed 3"]


def test_sizes_that_are_unsupported_are_not_measured_again(tmp_path: Path):
    rows = (224, "ok", ""), (256, "ok", "x"), (288, "unsupported", "too small")
    measured(note(tmp_path, "ended 1"), *rows)
    assert offered(tmp_path) == []


def test_of_failed_and_unsupported_sizes_the_failed_are_retried(tmp_path: Path):
    rows = (224, "ok", ""), (256, "failed", "x"), (288, "unsupported", "too small")
    measured(note(tmp_path, "ended 1", flags=("--retry", "--overwrite")), *rows, batch_size=1)
    assert offered(tmp_path) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --retry"]


def test_damaged_files_are_not_offered(tmp_path: Path):
    (note(tmp_path, "ended 1") / "run.json").write_text("{")
    assert offered(tmp_path) == []


def test_a_local_job_is_run_again_locally(tmp_path: Path):
    note(tmp_path, "started", "ended 1", job="local-12", flags=("--seed", "3"))
    assert offered(tmp_path) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --local --seed 3"]


def test_a_run_by_hand_is_offered_by_its_own_command_without_overwrite(tmp_path: Path):
    folder = tmp_path / "2_quick" / WHO.folder_name
    measured(folder, (224, "ok", ""))
    document = json.loads((folder / "run.json").read_text())
    command = ["./run_profile.py", "--overwrite", "--model", "alexnet", "--output-dir", "a b; c"]
    for words, shown in (
        (command, ["python run_profile.py --model alexnet --output-dir 'a b; c'"]),
        (["/venv/bin/convscope", "profile", *command[1:4]], ["convscope profile --model alexnet"]),
        (["/p/convscope/__main__.py", "profile", "--seed", "1"], ["python -m convscope profile --seed 1"]),
        (["convscope", "rm", "--model", "alexnet"], []),
        (["convscope"], []),
        (["rm", "-rf", "/"], []),
        (["run_profile.py", "--seed", "1\n"], []),
        ([], []),
    ):
        (folder / "run.json").write_text(json.dumps(document | {"command": words}))
        assert offered(tmp_path) == shown


def test_another_data_type_is_offered_with_its_flags(tmp_path: Path):
    half = dataclasses.replace(WHO, dtype="float16", layout="nhwc")
    note(tmp_path, "ended 1", who=half, flags=("--dtype", "float16", "--layout", "nhwc"))
    assert offered(tmp_path) == ["./2_quick_sweep.sh alexnet 'implicit gemm' h200 --dtype float16 --layout nhwc"]


def test_a_copy_of_a_folder_is_not_offered_in_the_name_of_the_original(tmp_path: Path):
    note(tmp_path, "ended 1").rename(tmp_path / "2_quick" / "copy")
    assert offered(tmp_path) == []


def test_batch_sizes_of_one_combination_are_offered_each(tmp_path: Path):
    note(tmp_path, "ended 1", stage="1_sanity", flags=())
    note(tmp_path, "ended 1", who=dataclasses.replace(WHO, batch_size=8), flags=("--batch-size", "8"))
    note(tmp_path, "ended 1", who=Combination("vgg16", "fft", "h200", 8), flags=("--batch-size", "8"))
    assert advice.again(survey(tmp_path, run_command=slurm("")).standings) == [
        "./1_sanity_check.sh alexnet 'implicit gemm' h200",
        "./2_quick_sweep.sh --matrix <(printf '%s\\t%s\\t%s\\n' alexnet 'implicit gemm' h200 vgg16 fft h200)"
        " --batch-size 8",
    ]
