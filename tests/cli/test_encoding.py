"""Signs that a locale lacks: written in ASCII, without an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from fakes import ROOT

SAY = """
import sys
from convscope.cli.display import interval_or_dash, table
from convscope.cli.parser import as_program
def main():
    print(table(("size", "ms"), [("2×2", "2.91 ± 0.02 café 好"), ("3×3", interval_or_dash(-1, 2, "+d"))]))
    print("…", file=sys.stderr)
    return 0
sys.exit(as_program(main))
"""


@pytest.mark.parametrize(
    ("encoding", "lines", "error"),
    [
        ("ascii", ["size  ms", "2x2   2.91 +- 0.02 caf\\xe9 \\u597d", "3x3   -1 ... +2"], "..."),
        ("latin-1", ["size  ms", "2×2   2.91 ± 0.02 café \\u597d", "3×3   -1 ... +2"], "..."),
        ("utf-8", ["size  ms", "2×2   2.91 ± 0.02 café 好", "3×3   -1 … +2"], "…"),
    ],
)
def test_a_locale_without_a_sign_shows_it_in_ascii(encoding: str, lines: list[str], error: str):
    settings = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", SAY]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).splitlines() == lines
    assert done.stderr.decode(encoding) == f"{error}\n"
