"""The Triton kernels, by Triton's interpreter in a process of its own, and how they are chosen."""

from __future__ import annotations

import os
import subprocess
import sys

from fakes import ROOT


def test_the_kernels_agree_with_float64_under_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels/interpreted"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
