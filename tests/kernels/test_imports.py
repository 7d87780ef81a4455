"""The Triton kernels, by Triton's interpreter in a process of its own, and how they are chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fakes import ROOT

FOLDER = "tests/kernels/interpreted"


@pytest.mark.parametrize("selected", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_the_kernels_agree_with_float64_under_the_interpreter(selected: str):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", selected, FOLDER]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
