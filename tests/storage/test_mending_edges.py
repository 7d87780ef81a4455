"""Repairs at their edges: what one cut leaves is mended and more is refused, nothing else is touched."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from pathlib import Path

import pytest
from fakes.cells import SCHEMA, CellKey, write

from convscope.errors import InputError
from convscope.storage import mending
from convscope.storage.files import StudyFiles

NOW = datetime(2026, 11, 21, 9, 31, tzinfo=timezone.utc)


@pytest.fixture
def study(tmp_path: Path) -> StudyFiles:
    folder = tmp_path / "run"
    folder.mkdir()
    return StudyFiles(folder, SCHEMA)


def sizes(study: StudyFiles, name: str) -> list[str]:
    return [row["size"] for row in study.rows(name)]


def test_whole_tables_are_not_even_written_again(study: StudyFiles):
    write(study, "64,ok,1 96,oom,", "64,0", "a,64")
    before = [path.stat() for path in study.tables]
    assert mending.mend(study) == []
    assert [path.stat().st_ino for path in study.tables] == [file.st_ino for file in before]


@pytest.mark.parametrize(
    ("cells", "parts", "dropped", "left"),
    [
        ("64,ok,2 96,ok,1", "64,0 96,0", [64], ["96"]),  # a row without all its parts
        ("96,ok,1", "64,0 96,0", [64], ["96"]),  # parts without a row
        ("96,ok,1", "32,0 64,0 96,0", [32, 64], ["96"]),
    ],
)
def test_what_one_cut_leaves_is_dropped(study: StudyFiles, cells: str, parts: str, dropped: list[int], left: list[str]):
    write(study, cells, parts)
    assert mending.mend(study) == [f"dropped the size {size} px, which was cut off" for size in dropped]
    assert sizes(study, "cells") == sizes(study, "parts") == left


@pytest.mark.parametrize(
    ("cells", "parts", "named"),
    [("64,ok,2 96,ok,2", "64,0 96,0", "64, 96"), ("64,ok,2", "64,0 96,0", "64, 96"), ("64,ok,2", "128,0", "64, 128")],
)
def test_more_than_one_cut_leaves_is_refused_naming_it_and_stays(study: StudyFiles, cells: str, parts: str, named: str):
    write(study, cells, parts)
    before = [path.read_text() for path in study.tables[:2]]
    with pytest.raises(InputError, match=rf"the sizes {named} have layers without a row or a row without its layers"):
        mending.mend(study)
    assert [path.read_text() for path in study.tables[:2]] == before


def test_a_cell_of_two_names_is_named_with_both(study: StudyFiles):
    assert mending._named(CellKey(64)) == "64 px"
    part = SCHEMA.parts[1]
    assert mending._named(part.key("a", 64)) == "a, 64"


def test_a_last_line_without_an_end_is_cut_off(study: StudyFiles):
    write(study, "64,ok,1", "64,0")
    whole = study.table("cells").read_text()
    study.table("cells").write_text(whole + "96,o")
    assert mending.mend(study) == ["cut an unfinished line off cells.csv"]
    assert study.table("cells").read_text() == whole


def test_a_header_that_was_never_whole_is_taken_away(study: StudyFiles):
    study.table("cells").write_text("size,sta")
    assert mending.mend(study) == ["cut an unfinished line off cells.csv"]
    assert not study.table("cells").exists()


def test_one_line_that_is_no_header_stays(study: StudyFiles):
    study.table("marks").write_text("mine")
    with pytest.raises(InputError, match="the line was cut off"):
        mending.mend(study)
    assert study.table("marks").read_text() == "mine"


def test_files_that_were_being_written_are_taken_away_and_said_once(study: StudyFiles):
    for name in (".cells.csv.new", ".run.json.new", "other.new"):
        (study.path / name).write_text("half")
    assert mending.mend(study) == ["took away a file that was being written when a run was cut off"]
    assert [path.name for path in study.path.iterdir()] == ["other.new"]


def test_older_tables_get_this_versions_columns_and_keep_their_rows(study: StudyFiles):
    write(study, "64,ok,1", "64,0")
    study.table("cells").write_text("status,size,count\nok,64,1\n")
    assert mending.mend(study) == ["gave cells.csv the columns of schema version 1"]
    assert study.table("cells").read_text() == "size,status,count,mean_ms,is_fine,reason\n64,ok,1,,,\n"


def test_tables_that_are_read_by_key_are_sorted_and_others_stay(study: StudyFiles):
    cells, marks = SCHEMA.parts
    schema = dataclasses.replace(SCHEMA, parts=(dataclasses.replace(cells, is_sorted=True), marks))
    write(study, "96,oom,0 64,ok,2", "64,1 64,0", "b,96 a,64")
    in_order = study.table("parts").stat().st_ino
    mending.sort(study)
    assert sizes(study, "cells") == ["96", "64"]
    mending.sort(StudyFiles(study.path, schema))
    assert sizes(study, "cells") == ["64", "96"]
    assert [row["position"] for row in study.rows("parts")] == ["1", "0"]
    assert study.table("parts").stat().st_ino == in_order
    assert sizes(study, "marks") == ["96", "64"]


def test_dropped_cells_leave_tables_without_them_untouched(study: StudyFiles):
    write(study, "64,ok,1 96,oom,", "64,0")
    parts = study.table("parts").stat().st_ino
    mending.drop(study, SCHEMA.parts[0], {CellKey(96)})
    assert sizes(study, "cells") == ["64"]
    assert study.table("parts").stat().st_ino == parts
    study.table("cells").unlink()
    mending.drop(study, SCHEMA.parts[0], {CellKey(64)})
    assert sizes(study, "parts") == []
    assert not study.table("cells").exists()


@pytest.mark.parametrize("move", [True, False])
def test_files_are_kept_and_moved_only_where_asked(study: StudyFiles, move: bool):
    write(study, "64,ok,1", "64,0")
    kept = mending.keep(study, NOW, move)
    assert kept == study.path / "before-20261121T093100Z"
    assert sorted(path.name for path in kept.iterdir()) == ["cells.csv", "parts.csv"]
    assert study.table("cells").exists() is not move
    assert kept.stat().st_mode == study.path.stat().st_mode


def test_names_that_are_taken_are_numbered_from_two(study: StudyFiles):
    write(study, "64,ok,1", "64,0")
    names = [kept.name for kept in (mending.keep(study, NOW, move=False) for _ in range(3)) if kept]
    assert names == [f"before-20261121T093100Z{number}" for number in ("", "-2", "-3")]


def test_a_keeping_that_was_cut_off_is_finished(study: StudyFiles):
    write(study, "64,ok,1", "64,0")
    kept = mending.keep(study, NOW, move=False)
    study.table("parts").unlink()  # the first of those that a kill came before
    said = f"{study.path}: removed the tables that an interrupted --overwrite left; they are in {kept}"
    assert mending.finish_keeping(study) == said
    assert list(study.path.iterdir()) == [kept]
    assert mending.finish_keeping(study) is None


@pytest.mark.parametrize("changed", ["cells", "parts"])
def test_tables_that_are_not_those_that_were_kept_stay(study: StudyFiles, changed: str):
    write(study, "64,ok,1", "64,0")
    kept = mending.keep(study, NOW, move=False)
    assert kept is not None
    content = study.table(changed).read_text()
    study.table(changed).unlink()
    study.table(changed).write_text(content)  # another file, though it says the same
    assert mending.finish_keeping(study) is None
    assert study.table("cells").exists()
    (kept / study.table(changed).name).unlink()
    assert mending.finish_keeping(study) is None
    assert study.table("cells").exists()
