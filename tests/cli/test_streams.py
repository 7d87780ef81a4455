"""Standard streams that are closed, or that nobody reads: the work is done, and the exit code is its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ROOT

PROGRAM = """
import os, sys
from pathlib import Path
from convscope.cli.parser import as_program

def main():
    for number in range(1000):
        print("line", number, flush=True)
        print("note", number, file=sys.stderr)
    os.system("echo child; echo child >&2")
    Path(sys.argv[1], "done").write_text("whole")
    print("the last")
    return int(sys.argv[2])

sys.exit(as_program(main))
"""


def shell(line: str, folder: Path, code: int) -> subprocess.CompletedProcess[str]:
    """Run the program where `line` has PROGRAM; the answer's return code is the program's."""
    command = line.replace("PROGRAM", '"$@"')
    program = [sys.executable, "-c", PROGRAM, str(folder), str(code)]
    script = ["bash", "-c", f'{command}; exit "${{PIPESTATUS[0]}}"', "shell", *program]
    return subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "line",
    [
        "PROGRAM | head -n 1",
        "PROGRAM 2>&1 | head -n 1",
        "PROGRAM >&-",
        "PROGRAM 2>&-",
        "PROGRAM <&- >&- 2>&-",
    ],
)
def test_the_work_is_done_and_the_exit_code_is_its_own(tmp_path: Path, line: str):
    done = shell(line, tmp_path, 1)
    assert done.returncode == 1
    assert (tmp_path / "done").read_text() == "whole"
    assert "Traceback" not in done.stderr
    assert "BrokenPipeError" not in done.stderr


@pytest.mark.parametrize(("code", "expected"), [(0, 74), (1, 1)])
def test_an_output_that_cannot_be_written_is_no_success(tmp_path: Path, code: int, expected: int):
    done = shell("PROGRAM >/dev/full", tmp_path, code)
    assert done.returncode == expected
    assert (tmp_path / "done").read_text() == "whole"
    assert ("the standard output could not be written (No space left on device)" in done.stderr) == (expected == 74)


def test_all_lines_come_out_in_order(tmp_path: Path):
    lines = shell("PROGRAM", tmp_path, 0).stdout.splitlines()
    assert lines == [*(f"line {number}" for number in range(1000)), "child", "the last"]
