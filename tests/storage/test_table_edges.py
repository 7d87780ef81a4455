"""A table's text at its edges: the line that an error names, forms of cells, what is written beside a file."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from fakes.cells import CELLS, MARKS, CellRow

from convscope.errors import InputError
from convscope.storage import table
from convscope.storage.table import Replacement, Table

HEADER = ",".join(CELLS.columns)


def refusal(path: Path, content: str | bytes, form: Table = CELLS) -> str:
    """Return the message about a file with this content, without the path in front."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as refused:
        table.rows(path, form)
    return str(refused.value).removeprefix(f"{path}").removesuffix(f": {table.ADVICE}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cells.csv"


@pytest.mark.parametrize("odd", [b"\0", b"\xff"])
@pytest.mark.parametrize(("before", "line"), [(b"", 1), (b"\n", 2), (b"a\tb\x0bc", 1), (b"a\nb\n\nc", 4)])
def test_what_is_no_text_is_named_with_its_line(path: Path, before: bytes, odd: bytes, line: int):
    assert refusal(path, before + odd + b"\n") == f", line {line}: this is no text"


@pytest.mark.parametrize(("content", "line"), [("a", 1), (f"{HEADER}\n64,ok", 2), (f"{HEADER}\n64,ok,,,,\n9", 3)])
def test_a_line_that_was_cut_off_is_named(path: Path, content: str, line: int):
    path.write_text(content)
    with pytest.raises(InputError, match=rf", line {line}: the line was cut off: the run's own command mends that, or"):
        table.rows(path, CELLS)


def test_an_empty_file_is_refused_and_a_directory_cannot_be_read(path: Path, tmp_path: Path):
    assert refusal(path, "") == ", line 1: the file is empty"
    with pytest.raises(InputError, match=r"cannot be read \(it is no file\)"):
        table.rows(tmp_path, CELLS)


def test_without_a_file_there_are_no_rows_and_no_header(path: Path):
    assert table.rows(path, CELLS) == []
    assert table.header(path) is None
    path.write_text("")
    assert table.header(path) == []
    path.write_text("a,b\n")
    assert table.header(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("64,ok,2,1.5,True", "5 cells where 6 belong"),
        ("64,ok,2,1.5,True,,", "7 cells where 6 belong"),
        (",ok,2,1.5,True,", "size is empty"),
        ("64,,2,1.5,True,", "status is empty"),
        ("64.5,ok,2,1.5,True,", "size is '64.5', not a whole number"),
        ("64,ok,2.01,1.5,True,", "count is '2.01', not a whole number"),
        ("64,ok,2,fast,True,", "mean_ms is 'fast', not a number"),
        ("64,ok,2,.5,True,", "mean_ms is '.5', not a number"),
        ("64,ok,2,1.5,true,", "is_fine is 'true', not True or False"),
    ],
)
def test_a_cell_that_cannot_be_is_named_with_its_column(path: Path, line: str, said: str):
    assert refusal(path, f"{HEADER}\n32,ok,,,,\n{line}\n") == f", line 3: {said}"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("64,ok,2,1.5,True,a", CellRow(64, "ok", 2, 1.5, True, "a")),
        ("-64,ok,2.0,-1e-3,False,", CellRow(-64, "ok", 2, -1e-3, False, None)),
        ("64,ok,,inf,,", CellRow(64, "ok", None, math.inf, None, None)),
        ("64,oom,0,0,,0", CellRow(64, "oom", 0, 0.0, None, "0")),
    ],
)
def test_cells_become_values_and_empty_ones_none(path: Path, line: str, row: CellRow):
    path.write_text(f"{HEADER}\n{line}\n")
    assert table.objects(CELLS, table.rows(path, CELLS)) == [row]


def test_a_row_is_there_once_and_rows_without_a_name_may_repeat(path: Path):
    twice = f"{HEADER}\n64,ok,,,,\n96,ok,,,,\n64,ok,,,,\n"
    assert refusal(path, twice) == ", line 4: size 64 stands in line 2 already"
    assert len(table.rows(path, Table(CellRow, unique=(), first=2))) == 3
    marks = "name,size,mark\na,64,\na,96,\na,64,\n"
    assert refusal(path, marks, MARKS) == ", line 4: name a size 64 stands in line 2 already"


def test_columns_that_an_older_version_did_not_have_are_empty_and_the_first_must_be_there(path: Path):
    path.write_text("count,status,size\n2,ok,64\n")
    (row,) = table.rows(path, CELLS)
    assert row == dict.fromkeys(CELLS.columns, "") | {"size": "64", "status": "ok", "count": "2"}
    start = ", line 1: it has other columns than this version writes "
    assert refusal(path, "size,count\n64,2\n") == f"{start}('status')"
    assert refusal(path, "size,status,size\n64,ok,64\n") == f"{start}(one twice)"
    assert refusal(path, "status,b,a\nok,1,2\n") == f"{start}('a', 'b', 'size')"
    assert refusal(path, "g,f,e,d,c,b,a\n") == f"{start}('a', 'b', 'c', 'd', 'e')"


@dataclass(frozen=True)
class Plain:
    """A row of a table in which neither the first columns nor the status say what must be there."""

    a: int | None = None
    status: str = "ok"
    b: int | None = None


@pytest.mark.parametrize(("names", "lacking"), [("a,b", "'status'"), ("a,status", "'b'"), ("b,status", "'a'")])
def test_status_names_and_first_columns_are_needed(path: Path, names: str, lacking: str):
    said = refusal(path, f"{names}\n1,1\n", Table(Plain, unique=("b",), first=1))
    assert said.endswith(f"({lacking})")


@pytest.mark.parametrize(("length", "shown"), [(40, "x" * 40), (41, "x" * 40 + r"\u2026"), (99, "x" * 40 + r"\u2026")])
def test_foreign_text_is_shown_to_forty_characters(path: Path, length: int, shown: str):
    assert refusal(path, f"{HEADER}\n{'x' * length},ok,,,,\n") == f", line 2: size is '{shown}', not a whole number"


def test_a_row_takes_each_column_from_its_cells_then_from_the_first_source_that_has_it():
    first, second = Plain(a=1, status="first"), CellRow(7, "second", reason="why")
    row = table.fill(CellRow, first, second, size=9, mean_ms=None)
    assert row == CellRow(9, "first", None, None, None, "why")


def test_rows_are_read_as_a_frame_with_every_column_and_digit(path: Path):
    path.write_text("size,status,mean_ms\n64,ok,0.1234567890123456789\n")
    frame = table.frame(CELLS, table.rows(path, CELLS))
    assert list(frame.columns) == CELLS.columns
    assert frame["mean_ms"].tolist() == [float("0.1234567890123456789")]
    assert frame["count"].isna().all()
    assert list(table.frame(CELLS, []).columns) == CELLS.columns


@pytest.mark.parametrize(
    ("version", "asks"), [("2.3.3", True), ("3.0.6", True), ("3.1.0", False), ("10.0.0rc1", False)]
)
def test_only_a_pandas_that_needs_it_is_asked_for_exact_numbers(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str, asks: bool
):
    given: list[dict[str, object]] = []
    path.write_text(f"{HEADER}\n64,ok,,,,\n")

    def read(text: object, **options: object) -> pd.DataFrame:
        given.append(options)
        return pd.DataFrame()

    monkeypatch.setattr(pd, "__version__", version)
    monkeypatch.setattr(pd, "read_csv", read)
    table.frame(CELLS, table.rows(path, CELLS))
    assert ["float_precision" in options for options in given] == [asks]


def test_selected_rows_keep_their_text_below_a_header(path: Path):
    path.write_text("status,size,count\nok,64,2.0\noom,96,\n")
    assert table.select(path, CELLS, lambda row: row["size"] == "64") == f"{HEADER}\n64,ok,2.0,,,\n"
    assert table.lines_of(CELLS, [CellRow(64, "ok")], with_header=True) == f"{HEADER}\n64,ok,,,,\n"
    assert table.lines_of(CELLS, [CellRow(64, "ok")], with_header=False) == "64,ok,,,,\n"


@pytest.mark.parametrize(("after", "content"), [({}, "new"), ({"after": True}, "oldnew")])
def test_a_replacement_is_the_whole_next_content_or_what_follows(path: Path, after: dict[str, bool], content: str):
    path.write_text("old")
    made = Replacement(path, "new", **after)
    assert path.read_text() == "old"
    made.commit()
    assert path.read_text() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_without_a_file_a_replacement_begins_one(path: Path):
    Replacement(path, "new", after=True).commit()
    assert path.read_text() == "new"


def test_a_replacement_that_is_dropped_leaves_the_file_and_may_be_dropped_again(path: Path):
    path.write_text("old")
    made = Replacement(path, "new")
    made.drop()
    made.drop()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "old"


@pytest.mark.parametrize(("number", "matters"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_directory_that_cannot_be_synced_is_no_matter_and_a_broken_disk_is(
    tmp_path: Path, monkeypatch, number, matters
):
    def fsync(opened: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if matters:
        with pytest.raises(OSError, match="Input/output error"):
            table.sync_directory(tmp_path)
    else:
        table.sync_directory(tmp_path)


def test_only_a_directory_is_synced_as_one(path: Path):
    path.write_text("")
    with pytest.raises(NotADirectoryError):
        table.sync_directory(path)
