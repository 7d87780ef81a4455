"""Tables, numbers or a dash, and figures: the text and the files that every command shares."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from convscope.cli.display import Figures, interval_or_dash, or_dash, several, table

HEADER, ROWS = ("name", "ms", "note"), (("a", "1.0", "x"), ("bcdef", "20.0", ""))


def test_numbers_end_at_the_right_and_the_first_and_last_column_begin_at_the_left():
    assert table(HEADER, ROWS).splitlines() == ["name     ms  note", "a       1.0  x", "bcdef  20.0"]


def test_a_table_of_words_has_every_column_at_the_left():
    assert table(HEADER, ROWS, all_left=True).splitlines() == ["name   ms    note", "a      1.0   x", "bcdef  20.0"]


@pytest.mark.parametrize(("value", "text"), [(1.25, "1.2 %"), (0.0, "0.0 %"), (None, "-"), (math.nan, "-")])
def test_an_absent_number_is_a_dash_without_its_unit(value: float | None, text: str):
    assert or_dash(value, ".1f", " %") == text


@pytest.mark.parametrize(
    ("low", "high", "text"), [(-1.0, 2.0, "-1.0 … +2.0"), (None, None, "-"), (math.nan, math.nan, "-")]
)
def test_an_absent_interval_is_one_dash(low: float | None, high: float | None, text: str):
    assert interval_or_dash(low, high, "+.1f") == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "run", "1 run"), (0, "run", "0 runs"), (3, "run", "3 runs"), (1, "pass", "1 pass"), (2, "pass", "2 passes")],
)
def test_one_thing_is_singular_and_any_other_number_plural(count: int, noun: str, text: str):
    assert several(count, noun) == text


def test_a_figure_is_a_file_of_its_name(tmp_path: Path):
    notes: list[str] = []
    figures = Figures(tmp_path, notes.append)
    figures.save("latency", (2, 1), lambda figure: figure.subplots())
    assert figures.paths == [tmp_path / "latency.png"]
    assert figures.paths[0].read_bytes().startswith(b"\x89PNG")
    assert notes == []


def test_without_matplotlib_nothing_is_drawn_and_that_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    notes: list[str] = []
    figures = Figures(tmp_path, notes.append)

    def never(figure: Any) -> None:
        pytest.fail("drawn")

    figures.save("latency", (2, 1), never)
    figures.save("pareto", (2, 1), never)
    assert (figures.paths, list(tmp_path.iterdir())) == ([], [])
    assert notes == ["no plots: pip install 'convscope[study]'"]
