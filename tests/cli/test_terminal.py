"""Sparklines, bars, and lines that have colours on a terminal and none elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from fakes import ROOT

from convscope.cli.terminal import bar, spark

SAY = """
from convscope.cli.terminal import Piece, write
write([[Piece("plain [red]"), Piece(" a\\x1b[31m\\nb ", "red")], [Piece("x" * 300)]])
"""


def on_terminal(program: str, **settings: str) -> str:
    """Return what a program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"} | settings
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=theirs, stdin=theirs
    ) as run:
        os.close(theirs)
        said = bytearray()
        try:
            while block := os.read(ours, 65536):
                said += block
        except OSError:  # the program has ended
            pass
        assert run.wait() == 0
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize(
    ("values", "signs"),
    [
        ([1.0, 2.0, 8.0], "▁▂█"), ([3.0, 3.0], "▁▁"), ([], ""), ([1.0, None, float("nan"), 2.0], "▁  █"),
        ([float("inf"), 1.0, 2.0], " ▁█"),
    ],
)  # fmt: skip
def test_a_sparkline_has_a_sign_a_value(values: list[float | None], signs: str):
    assert spark(values) == signs


def test_a_long_sparkline_puts_values_together():
    assert len(spark([float(value) for value in range(120)])) == 40


@pytest.mark.parametrize(
    ("share", "signs"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.03125, "▏"), (2.0, "████"), (-1.0, "")]
)
def test_a_bar_fills_its_share(share: float, signs: str):
    assert bar(share, 4) == signs


def test_lines_have_no_colours_where_no_terminal_reads_them():
    done = subprocess.run([sys.executable, "-c", SAY], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "plain [red] a\\x1b[31m\\nb\n" + "x" * 300 + "\n"


def test_lines_have_colours_on_a_terminal_and_names_do_nothing_to_it():
    said = on_terminal(SAY)
    assert "plain [red]\x1b[31m a\\x1b[31m\\nb \x1b[0m" in said
    assert "x" * 300 in said  # the terminal breaks it, not the program


def test_a_reader_who_wants_no_colours_has_none():
    assert "\x1b" not in on_terminal(SAY, NO_COLOR="1")


def test_a_live_table_says_how_many_rows_the_screen_has_no_room_for():
    program = """
from convscope.cli.terminal import LiveTable, Piece
with LiveTable() as screen:
    rows = [[Piece(f"row {number} [b]"), Piece("done", "green")] for number in range(40)]
    screen.show(("name", "state"), rows, [[Piece("40 done")]])
"""
    said = on_terminal(program)
    assert "row 0 [b]" in said
    assert "row 39" not in said
    assert "and 22 more" in said
    assert said.index("\x1b[?1049h") < said.index("row 0") < said.index("\x1b[?1049l")
