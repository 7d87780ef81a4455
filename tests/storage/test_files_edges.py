"""Files of a study at their edges: cells that just have all their rows, lists that are just full."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes.cells import SCHEMA, CellKey, MarkKey, write

from convscope.errors import InputError
from convscope.storage import files
from convscope.storage.files import Rows, StudyFiles

CELL_PART, MARK_PART = SCHEMA.parts


@pytest.fixture
def study(tmp_path: Path) -> StudyFiles:
    return StudyFiles(tmp_path, SCHEMA)


def test_tables_have_the_stem_in_front_where_there_is_one(tmp_path: Path):
    assert StudyFiles(tmp_path, SCHEMA).table("cells") == tmp_path / "cells.csv"
    named = StudyFiles(tmp_path, SCHEMA, "vgg16_fft")
    assert named.run == tmp_path / "run.json"
    assert [path.name for path in named.tables] == ["vgg16_fft_cells.csv", "vgg16_fft_parts.csv", "vgg16_fft_marks.csv"]


@pytest.mark.parametrize(
    ("cells", "parts", "lacking"),
    [
        ("64,ok,2", "64,0 64,1", set()),
        ("64,ok,2", "64,0", {64}),
        ("64,ok,1", "64,0 64,1", {64}),
        ("64,ok,2.0", "64,0 64,1", set()),
        ("64,ok,0", "", set()),
        ("64,ok,1", "", {64}),
        ("64,oom,2", "", set()),
        ("64,ok,", "64,0", set()),
        ("64,ok,1 96,ok,1", "96,0", {64}),
    ],
)
def test_a_measured_cell_is_torn_where_it_has_not_as_many_rows_as_it_says(study, cells, parts, lacking):
    write(study, cells, parts)
    rows = {name: study.rows(name) for name in ("cells", "parts")}
    assert files.torn(CELL_PART, rows) == {CellKey(size) for size in lacking}
    del rows["parts"]
    assert files.torn(CELL_PART, rows) == set()


def test_cells_that_count_no_rows_are_never_torn(study: StudyFiles):
    write(study, marks="a,64")
    assert files.torn(MARK_PART, {"marks": study.rows("marks")}) == set()
    assert len(study.whole(MARK_PART, ["marks"])["marks"]) == 1


def test_rows_of_cells_that_do_not_count_yet_are_left_out(study: StudyFiles):
    write(study, "64,ok,1", "64,0 96,0")
    found = study.whole(CELL_PART, ["parts", "cells"])
    assert [row["size"] for row in found["parts"]] == ["64"]
    assert list(study.whole(CELL_PART, ["cells"])) == ["cells"]


def test_a_cell_that_lacks_rows_is_refused_naming_both_tables(study: StudyFiles):
    write(study, "64,ok,2 96,ok,1", "64,0 96,0")
    with pytest.raises(InputError) as refused:
        study.whole(CELL_PART, ["parts"])
    assert str(refused.value) == (
        f"{study.table('parts')} lacks parts of the sizes 64 that are in cells.csv: the run's own command mends "
        "a cut, else restore the table"
    )


def test_a_table_that_was_replaced_between_two_looks_is_read_once_more(study, monkeypatch: pytest.MonkeyPatch):
    write(study, "64,ok,2", "64,0")
    read, looks = StudyFiles.rows, []

    def rows(self: StudyFiles, name: str) -> Rows:
        looks.append(name)
        found = read(self, name)
        write(self, "64,ok,2", "64,0 64,1")
        return found

    write(study, "64,ok,2", "64,0")
    monkeypatch.setattr(
        StudyFiles, "rows", lambda self, name: rows(self, name) if name == "parts" else read(self, name)
    )
    assert len(study.whole(CELL_PART, ["parts"])["parts"]) == 2
    assert looks == ["parts", "parts"]


@pytest.mark.parametrize(("count", "more"), [(1, ""), (5, ""), (6, " and 1 more"), (12, " and 7 more")])
def test_five_keys_are_listed_in_order_and_the_others_counted(count: int, more: str):
    keys = [CellKey(size) for size in range(count)]
    assert files.listed(reversed(keys)) == ", ".join(map(str, range(min(count, 5)))) + more


def test_a_key_of_two_columns_is_listed_with_both():
    assert files.listed([MarkKey("b", 1), MarkKey("a", 2)]) == "a, 2, b, 1"
    assert dataclasses.astuple(MarkKey("a", 2)) == ("a", 2)
