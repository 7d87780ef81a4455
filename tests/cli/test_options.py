"""Devices that cannot be had: a driver too old for PyTorch's CUDA is said, with the versions and the way out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import ROOT

from convscope.cli import driver

LIBCUDA = """
int cuInit(unsigned flags) { return %d; }
int cuDeviceGetCount(int *count) { *count = %d; return 0; }
int cuDriverGetVersion(int *version) { *version = %d; return 0; }
"""


@pytest.fixture
def libcuda(tmp_path: Path) -> Callable[..., Path]:
    """Return what builds a driver's library: its newest CUDA, the number of GPUs it shows, what cuInit returns."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")

    def build(version: int, count: int = 1, refused: int = 0) -> Path:
        path, source = tmp_path / "libcuda.so.1", tmp_path / "driver.c"
        source.write_text(LIBCUDA % (refused, count, version))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
        return path

    return build


def test_an_old_driver_is_said_with_versions_and_the_way_out(libcuda: Callable[..., Path]):
    said = driver.why_too_old("13.0", str(libcuda(12020)))
    assert said is not None
    assert "runs CUDA 12.2 and older, PyTorch was built for CUDA 13.0: update the driver, or install a PyTorch" in said
    assert "built for CUDA 12" in said


@pytest.mark.parametrize(
    ("cuda", "newest", "count", "refused"),
    [
        ("13.0", 13000, 1, 0),
        ("12.8", 12020, 1, 0),  # within a major version older drivers do
        ("12.8", 13000, 1, 0),
        (None, 12020, 1, 0),  # a PyTorch without CUDA
        ("13.0", 12020, 0, 0),  # a machine without a GPU that has the driver's library
        ("13.0", 12020, 1, 100),
    ],
)
def test_there_is_nothing_to_say_of_a_driver_that_does_or_of_none(
    libcuda: Callable[..., Path], cuda: str | None, newest: int, count: int, refused: int
):
    assert driver.why_too_old(cuda, str(libcuda(newest, count, refused))) is None


def test_the_version_of_the_driver_is_that_of_its_kernel_module(tmp_path: Path):
    path = tmp_path / "version"
    assert driver.version(path) is None
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n")
    assert driver.version(path) == "535.129.03"


def test_without_a_driver_there_is_nothing_to_say(tmp_path: Path):
    assert driver.why_too_old("13.0", str(tmp_path / "libcuda.so.1")) is None


@pytest.mark.long
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a PyTorch with CUDA")
def test_a_command_on_a_machine_with_an_old_driver_ends_with_that_line(libcuda: Callable[..., Path]):
    folder = libcuda(9000).parent
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_training.py"), "--output-dir", str(folder / "run")],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("run_training.py: --device auto: the NVIDIA driver here")
    assert f"runs CUDA 9.0 and older, PyTorch was built for CUDA {torch.version.cuda}" in line
    assert line.endswith("--device cpu measures on the CPU")
