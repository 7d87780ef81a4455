"""One stage run here: its logs, and the signals that end it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.killing import wait_for

NAMES = ("torchvision:squeezenet1_1", "torch", "cpu")
QUICK = ("--input-range", "64", "64", "--warmup", "1", "--measure", "2", "--no-energy")
MANY = ("--num-sizes", "64", "--input-range", "64", "127", "--warmup", "0", "--measure", "20", "--no-energy")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project, without results."""
    copy = tmp_path_factory.mktemp("local") / "a project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results", "tests", "docs", "__pycache__"))
    return copy


@pytest.fixture
def folder(project: Path) -> Iterator[Path]:
    """Return the folder of the stage's results, which is not there yet."""
    yield project / "results/3_full/squeezenet1_1_torch_cpu"
    shutil.rmtree(project / "results", ignore_errors=True)


def start(project: Path, *command: str, **more: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=project, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )


def log(folder: Path, kind: str) -> str:
    """Return the only log of a kind: "out", "err"."""
    (path,) = folder.glob(f"3_full_squeezenet1_1_torch_cpu_local*.{kind}")
    return path.read_text()


def events(folder: Path) -> list[str]:
    return [line.split("\t")[2] for line in (folder / "jobs.log").read_text().splitlines()]


@pytest.mark.long
def test_a_run_here_that_fails_keeps_its_reason_in_its_log(project: Path, folder: Path):
    folder.mkdir(parents=True)
    (folder / "squeezenet1_1_torch_overall.csv").write_text("somebody's table\n")
    with start(project, "./3_full_run.sh", "--local", *NAMES, *QUICK, "--num-sizes", "1") as failed:
        out, err = failed.communicate()
    assert failed.returncode == 2
    assert "has tables and no run.json" in err
    assert (log(folder, "out"), log(folder, "err")) == (out, err)
    assert events(folder) == ["started", "ended 2"]


# INT as kill sends it: to the stage alone; a terminal sends it to the run too.
@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGTERM, False), (signal.SIGHUP, True), (signal.SIGINT, False)]
)
def test_a_signal_ends_a_stage_and_its_run_within_the_grace_time(
    project: Path, folder: Path, number: signal.Signals, to_group: bool
):
    with start(project, "./3_full_run.sh", "--local", *NAMES, *MANY, start_new_session=True) as stage:
        wait_for((folder / "squeezenet1_1_torch_overall.csv").exists, seconds=120)
        (os.killpg if to_group else os.kill)(stage.pid, number)
        since_s = time.monotonic()
        out, err = stage.communicate(timeout=60)
    assert time.monotonic() - since_s < 20
    assert stage.returncode == 75
    assert " in the folder: run the same command again to continue" in err
    assert (log(folder, "out"), log(folder, "err")) == (out, err)
    assert events(folder) == ["started", "ended 75"]
    assert not (folder / "run.lock").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(stage.pid, 0)


@pytest.mark.long
def test_a_run_whose_reader_goes_away_measures_every_size(project: Path, folder: Path):
    command = f"./3_full_run.sh --local {' '.join((*NAMES, *QUICK))} --num-sizes 3 --input-range 64 96 | head -n 1"
    done = start(project, "bash", "-c", f'{command}; exit "${{PIPESTATUS[0]}}"')
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert out.count("\n") == 1
    assert len((folder / "squeezenet1_1_torch_overall.csv").read_text().splitlines()) == 4
    assert "3/3  " in log(folder, "out")
