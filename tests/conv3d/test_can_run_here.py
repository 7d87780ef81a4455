"""3-D study where little can run: on a CPU, and without Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from fakes import ROOT

import run_conv3d
from convscope.conv3d import study as conv3d_study
from convscope.convolution.sources.table import columns
from convscope.kernels import conv3d as kernels
from convscope.kernels.conv3d import catalogue

QUICK = ["--measure", "6", "--warmup", "1", "--device", "cpu"]

WITHOUT_TRITON = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, Blocked())
import run_conv3d
sys.exit(run_conv3d.main(sys.argv[1:]))
"""


@pytest.fixture
def layers(tmp_path: Path) -> str:
    """Return the path of a set of one small layer."""
    path = tmp_path / "tiny.csv"
    path.write_text(",".join(columns(3)) + "\nfirst,2,4,8,6,6,6,3,1,1,1,1\n")
    return str(path)


@pytest.mark.parametrize("part", [["--verify"], ["--stress", "1"], ["--end-to-end"]])
def test_a_study_that_could_do_nothing_does_not_succeed_and_is_quick_to_say_so(
    tmp_path: Path, layers: str, part: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    slow = pytest.fail
    monkeypatch.setattr(conv3d_study.roofline, "measure_ceilings", lambda device: slow("ceilings of nothing"))
    monkeypatch.setattr(conv3d_study.EndToEnd, "_prepare", lambda self: slow("a reference of nothing"))
    asked = ["--params", layers, "--implementation", "gemm,cudnn fft", *part, *QUICK]
    assert run_conv3d.main([*asked, "--output-dir", str(tmp_path / "out")]) == 1
    assert "no implementation that was asked for can do this here" in capsys.readouterr().err


def test_on_a_cpu_all_means_what_runs_there(tmp_path: Path, layers: str, capsys: pytest.CaptureFixture[str]):
    assert run_conv3d.main(["--params", layers, *QUICK, "--verify", "--output-dir", str(tmp_path / "out")]) == 0
    assert pd.read_csv(tmp_path / "out" / "conv3d.csv")["implementation"].tolist() == ["torch"] * 2
    assert "on a CPU only torch can run: 19 others need a CUDA device" in capsys.readouterr().err


@pytest.mark.long
def test_without_triton_the_other_implementations_still_run(tmp_path: Path, layers: str):
    asked = ["--params", layers, "--implementation", "gemm,torch", "--verify", "--stress", "1", *QUICK]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON, *asked, "--output-dir", str(tmp_path / "out")],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "out" / "conv3d.csv").set_index("implementation")
    assert (rows.loc["torch", "status"] == "ok").all()
    assert rows.loc["gemm", "reason"].str.startswith("gemm needs Triton (No module named 'triton')").all()


def test_the_kernels_names_are_those_of_their_files():
    assert tuple(catalogue.KERNELS) == kernels.NAMES
