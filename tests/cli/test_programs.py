"""One command for all: the programs of `run_*.py` under the names of `convscope`, and their one profiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ROOT

import convscope
import profiler
import run_dataset
import run_profile
import run_training
import run_verify
from convscope import __main__ as program
from convscope.cli import programs
from convscope.storage import paths


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line with which a command refuses its arguments; exit code 2."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", ["profile", "verify", "choice", "train", "infer", "conv3d", "plans"])
def test_a_program_goes_by_the_commands_name(name: str, capsys: pytest.CaptureFixture[str]):
    said = refusal(capsys, name, "--no-such-option")
    assert said.startswith(f"convscope {name}: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["profile", "verify", "choice", "train", "infer", "conv3d", "dataset collect"])
def test_help_shows_the_commands_name(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        program.main([*name.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: convscope {name} ")


def test_help_says_what_a_command_stands_for(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        program.main(["choice", "--help"])
    assert "convscope choice is convscope verify --choice: that option is set" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        program.main(["verify", "--help"])
    assert "Prove which convolution algorithm ran in a CNN" in capsys.readouterr().out


def test_a_program_has_its_own_name_again_afterwards(capsys: pytest.CaptureFixture[str]):
    asked = ["--model", "lenet", "--algorithm", "gemm"]
    assert program.main(["profile", *asked]) == 2
    assert capsys.readouterr().err.startswith("convscope profile: unknown model 'lenet'")
    assert run_profile.main(asked) == 2
    assert capsys.readouterr().err.startswith("run_profile.py: unknown model 'lenet'")


def given(monkeypatch: pytest.MonkeyPatch, module: object) -> list[list[str]]:
    """Return a list that takes the arguments that a program is run with; its exit code is 1."""
    calls: list[list[str]] = []
    monkeypatch.setattr(module, "main", lambda arguments: calls.append(arguments) or 1)
    return calls


def test_a_choice_is_a_question_of_verify(monkeypatch: pytest.MonkeyPatch):
    calls = given(monkeypatch, run_verify)
    assert program.main(["choice", "--model", "alexnet"]) == 1
    assert calls == [["--choice", "--model", "alexnet"]]


def test_plans_are_measured_where_an_option_comes_first(monkeypatch: pytest.MonkeyPatch):
    calls = given(monkeypatch, run_verify)
    assert program.main(["plans", "--model", "alexnet"]) == 1
    assert calls == [["--plans", "--model", "alexnet"]]


def test_plans_that_were_measured_keep_their_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert program.main(["plans", "export", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("convscope plans: ")
    with pytest.raises(SystemExit):
        program.main(["plans", "--help"])
    assert "export|diff|errata|repro" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--list"], ["collect", "--list"]])
def test_a_data_set_is_collected_where_an_option_comes_first(words: list[str], monkeypatch: pytest.MonkeyPatch):
    calls = given(monkeypatch, run_dataset)
    assert program.main(["dataset", *words]) == 1
    assert calls == [["--list"]]


def test_a_data_set_is_packaged_as_before(capsys: pytest.CaptureFixture[str]):
    assert "arguments are required: collect|package" in refusal(capsys, "dataset")
    assert "arguments are required: SAMPLES" in refusal(capsys, "dataset", "package")


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"convscope {convscope.__version__}\n"


def test_a_command_for_scripts_is_not_listed(capsys: pytest.CaptureFixture[str]):
    assert program.main([]) == 0
    assert "  stages " not in capsys.readouterr().out


@pytest.mark.parametrize(("command", "other"), [("choice", "--plans"), ("plans", "--choice")])
def test_a_question_is_not_asked_with_another(command: str, other: str, capsys: pytest.CaptureFixture[str]):
    said = refusal(capsys, command, "--model", "alexnet", other)
    assert said.startswith(f"convscope {command}: argument {other}: not allowed with argument ")


@pytest.mark.parametrize("command", ["choice", "plans"])
def test_a_question_may_be_asked_twice(command: str, capsys: pytest.CaptureFixture[str]):
    assert program.main([command, f"--{command}", "--model", "lenet", "--device", "cpu"]) in (1, 2)
    assert "unknown model 'lenet'" in capsys.readouterr().err


# ---- children


def test_a_child_runs_the_program_by_the_name_of_its_parent():
    file = str(ROOT / "run_verify.py")
    assert programs.again("run_verify.py", file) == [sys.executable, file]
    assert programs.again("convscope choice", file) == [sys.executable, "-m", "convscope", "choice"]


def test_a_child_finds_the_package_and_what_its_parent_finds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert programs.environment()["PYTHONPATH"] == f"{ROOT}:/somewhere"
    monkeypatch.setattr(programs, "__file__", "/venv/lib/site-packages/convscope/cli/programs.py")
    assert programs.environment()["PYTHONPATH"] == "/somewhere"


# ---- the profiler


def test_the_library_has_the_profilers_own_classes():
    assert convscope.profile is profiler.profile
    assert convscope.UnifiedProfiler is profiler.UnifiedProfiler
    assert convscope.PowerMonitor is profiler.PowerMonitor
    assert convscope.CUDALayerTimer is profiler.CUDALayerTimer
    with pytest.raises(AttributeError, match="has no attribute 'profiler'"):
        _ = convscope.profiler


def test_a_profiler_that_cannot_be_imported_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "profiler.py").write_text("raise OSError('no library')")
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path)
    before = set(sys.modules)
    with pytest.raises(OSError, match="no library"):
        programs.profiler()
    assert set(sys.modules) == before


# ---- a checkout and a wheel


def test_a_checkout_has_programs_and_results_beside_the_package(tmp_path: Path):
    (tmp_path / "convscope").mkdir()
    assert paths.programs(tmp_path / "convscope") == paths.root(tmp_path / "convscope") == tmp_path
    assert paths.IS_CHECKOUT


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a package as a wheel installs it."""
    inside = tmp_path / "site-packages" / "convscope" / "programs"
    inside.mkdir(parents=True)
    (inside / "profiler.py").touch()
    return inside.parent


def test_a_wheel_has_its_results_in_the_working_directory(wheel: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.programs(wheel) == wheel / "programs"
    assert paths.root(wheel) == tmp_path
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert paths.root(wheel) == Path()


def test_a_program_is_run_in_a_child_by_its_file():
    assert Path(programs.command("run_training")[1]) == Path(run_training.__file__)


@pytest.mark.parametrize("words", ["run_profile.py --list-algorithms", "run_conv3d.py --list"])
def test_a_package_that_is_missing_is_one_line(words: str, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{words.split()[0]}: needs torch, which {sys.executable} does not have: activate")
    assert done.stderr.count("\n") == 1
