"""Commands that measure nothing: they answer without PyTorch, whose import takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fakes import ROOT

PROGRAMS = ("run_profile", "run_verify", "run_inference", "run_training", "run_conv3d", "convscope.__main__")
WITHOUT = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "pandas", "triton", "ai3"):
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, Refused())
import importlib
sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
"""


def answered(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that can import nothing heavy."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_a_typo_are_answered_at_once(program: str):
    helped = answered(program, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: ")
    wrong = answered(program, "--nothing-of-the-kind")
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1
    assert "is imported" not in wrong.stderr


@pytest.mark.parametrize("command", ["profile", "verify", "choice", "train", "infer", "conv3d"])
def test_a_program_is_found_at_once(command: str):
    helped = answered("convscope.__main__", command, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert answered("convscope.__main__", "--version").stdout.startswith("convscope ")


def test_models_are_listed_at_once():
    listed = answered("run_profile", "--list-models")
    assert listed.returncode == 0, listed.stderr
    assert "torchvision:mobilenet_v2" in listed.stdout.splitlines()
