"""Stages whose Python is that of a container image: the call of Apptainer, its signals, and what is missing.

`apptainer` here is a script that notes how it was called and runs the command outside: no machine of CI has Apptainer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import ROOT

FAKE = """#!/usr/bin/env bash
printf '%s\\n' "$@" >>"$NOTED"
while [[ $1 != *.sif ]]; do shift; done
shift
exec "$OUTSIDE" "${@:2}"
"""
ACTIVATE = 'set -eu; root=$1; source "$root/slurm/environment.sh"; activate || exit 2; shift; "$@"'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an `apptainer`, an image, and a site file that names it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").write_text(FAKE)
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    (tmp_path / "image.sif").touch()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "site.sh").write_text(f"CONVSCOPE_CONTAINER={tmp_path}/image.sif\n")
    return os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "NOTED": str(tmp_path / "noted"), "OUTSIDE": sys.executable,
        "CONVSCOPE_CONFIG": str(tmp_path / "config"),
    }  # fmt: skip


def activated(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the stages have put the right Python on the PATH."""
    call = ["bash", "-c", ACTIVATE, "bash", str(ROOT), *command]
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False)


def test_python_is_that_of_the_image(tmp_path: Path, environment: dict[str, str]):
    done = activated(environment, "python", "-c", "print('inside', *__import__('sys').argv[1:])", "a b")
    assert done.stdout == "inside a b\n", done.stderr
    called = (tmp_path / "noted").read_text().splitlines()
    assert called[:5] == ["exec", "--nv", "--bind", str(ROOT), f"{tmp_path}/image.sif"]
    assert called[5:7] == ["python", "-c"]


def test_options_and_the_folder_of_results_are_handed_on(tmp_path: Path, environment: dict[str, str]):
    site = tmp_path / "config" / "site.sh"
    site.write_text(site.read_text() + "CONVSCOPE_CONTAINER_OPTIONS='--bind /data'; CONVSCOPE_RESULTS=/scratch\n")
    assert activated(environment, "python", "-c", "").returncode == 0
    called = (tmp_path / "noted").read_text().splitlines()
    assert called[1:7] == ["--bind", "/data", "--bind", str(ROOT), "--bind", "/scratch"]


def test_a_signal_reaches_python_itself(environment: dict[str, str]):
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(85)); print('on', flush=True); time.sleep(60)"
    )
    call = ["bash", "-c", f"{ACTIVATE.replace(chr(34) + '$@' + chr(34), 'exec ' + chr(34) + '$@' + chr(34))}"]
    with subprocess.Popen(
        [*call, "bash", str(ROOT), "python", "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "on\n"
        began = time.monotonic()
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 85
        assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("CONVSCOPE_CONTAINER=/no/such.sif", "no image /no/such.sif: build it (containers/), or unset"),
        ("PATH=/nowhere", "there is no apptainer here: name its module in CONVSCOPE_MODULES"),
    ],
)
def test_what_is_missing_is_said_in_a_line(tmp_path: Path, environment: dict[str, str], change: str, message: str):
    site = tmp_path / "config" / "site.sh"
    site.write_text(f"{site.read_text()}{change}\n")
    done = activated(environment, "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


@pytest.mark.long
def test_a_stage_runs_in_the_image(tmp_path: Path, environment: dict[str, str]):
    project = tmp_path / "a project"
    shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "results", "tests", "docs", "__pycache__"))
    flags = ("--input-size", "64", "--warmup", "1", "--measure", "2", "--no-energy")
    call = ["./3_full_run.sh", "--local", "torchvision:squeezenet1_1", "torch", "cpu", *flags]
    done = subprocess.run(call, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (project / "results/3_full/squeezenet1_1_torch_cpu/squeezenet1_1_torch_layers.csv").exists()
    assert "run_profile.py" in (tmp_path / "noted").read_text()
