"""A study's folder at its edges: what is noted, what an overwrite leaves, the end of a run that was cut off."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest
from fakes import ENVIRONMENT
from fakes.cells import SCHEMA, CellKey, CellRow, MarkKey, MarkRow, PartRow, write

from convscope.errors import InputError, WriteError
from convscope.storage import lock, mending
from convscope.storage import store as stores
from convscope.storage.store import Store


@dataclass(frozen=True)
class Asked:
    device: str = "cpu"
    seed: int = 0

    @property
    def device_type(self) -> str:
        return self.device


KEYS = [CellKey(64), CellKey(96)]


def cell(size: int, count: int = 1, status: str = "ok") -> list[CellRow | PartRow]:
    return [CellRow(size, status, count), *(PartRow(size, position) for position in range(count))]


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, noted: list[str]) -> Store:
    """Return a store with a measured cell of 64."""
    made = Store(tmp_path / "run", SCHEMA, note=noted.append)
    made.prepare()
    made.begin(Asked(), ENVIRONMENT, ["first"])
    made.append(cell(64))
    return made


def again(store: Store, *, seed: int = 0, overwrite: bool = False, keys: list[CellKey] = KEYS) -> list[CellKey]:
    return store.missing(Asked(seed=seed), ENVIRONMENT, keys, overwrite)


def test_what_is_there_and_what_is_missing_is_noted(store: Store, noted: list[str]):
    assert again(store) == [CellKey(96)]
    assert noted == [f"1 sizes are in {store.path}: measuring the 1 that are missing"]
    store.append(cell(96))
    noted.clear()
    assert again(store) == []
    assert noted == [f"all 2 sizes are in {store.path}: nothing measured (--overwrite)"]
    noted.clear()
    assert again(store, keys=[]) == []
    assert noted == []


def test_nothing_is_noted_of_an_empty_folder(tmp_path: Path, noted: list[str]):
    made = Store(tmp_path, SCHEMA, note=noted.append)
    assert again(made) == KEYS
    assert noted == []


def test_a_run_that_ended_keeps_its_end_where_nothing_is_measured(store: Store):
    store.note_in_run(ended_utc="2026-01-01T00:00:00+00:00")
    assert again(store, keys=KEYS[:1]) == []
    assert (store.read_run() or {})["ended_utc"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("rows", "ended_utc"),
    [
        ([("2026-01-01T00:00:00+00:00", "10.4"), ("2026-01-01T00:00:05+00:00", "1")], "2026-01-01T00:00:10+00:00"),
        ([("2026-01-01T00:00:00+00:00", ""), ("2026-01-01T00:00:05+00:00", "1.5")], "2026-01-01T00:00:06+00:00"),
        ([("", "1"), ("yesterday", "1")], None),
    ],
)
def test_the_end_of_a_run_is_that_of_its_last_cell(rows: list[tuple[str, str]], ended_utc: str | None):
    cells = [{"started_utc": started_utc, "wall_s": wall_s} for started_utc, wall_s in rows]
    assert stores._last_end_utc(cells) == ended_utc
    assert stores._last_end_utc([{"started_utc": started_utc} for started_utc, _ in rows]) is None
    assert stores._last_end_utc([{"wall_s": wall_s} for _, wall_s in rows]) is None


def test_an_overwrite_of_some_cells_keeps_the_others(store: Store, noted: list[str]):
    store.append(cell(96))
    store.append([MarkRow("a", 64)])
    assert again(store, overwrite=True, keys=[CellKey(64)]) == [CellKey(64)]
    store.begin(Asked(), ENVIRONMENT, ["again"])
    assert set(store.cells()) == {CellKey(96), MarkKey("a", 64)}
    (line,) = noted
    assert line.startswith(f"what was in {store.path} is kept in {store.path}/before-")


@pytest.mark.parametrize(("seed", "covered"), [(1, False), (0, True)])
def test_an_overwrite_moves_all_where_nothing_can_stay(store: Store, seed: int, covered: bool):
    store.append(cell(96))
    asked = Asked(seed=seed)
    keys = KEYS if covered else KEYS[:1]
    assert store.missing(asked, ENVIRONMENT, keys, overwrite=True) == keys
    store.begin(asked, ENVIRONMENT, ["again"])
    assert store.cells() == {}
    assert not store.files.table("cells").exists()


def test_an_overwrite_replaces_what_the_request_covers(store: Store):
    store.append(cell(96))
    assert store.missing(Asked(), ENVIRONMENT, KEYS[:1], overwrite=True, covers=lambda key: key.size == 96) == KEYS[:1]
    store.begin(Asked(), ENVIRONMENT, ["again"])
    assert store.cells() == {}


@pytest.mark.parametrize("damage", ["no json", "torn cells"])
def test_an_overwrite_of_some_cells_moves_all_of_a_damaged_folder(store: Store, damage: str):
    if damage == "torn cells":
        write(store.files, "64,ok,2 96,ok,2 128,ok,1", "128,0", None)
    else:
        store.files.run.write_text(damage)
    assert again(store, overwrite=True, keys=KEYS[:1]) == KEYS[:1]
    store.begin(Asked(), ENVIRONMENT, ["again"])
    assert store.cells() == {}


def test_rows_that_lack_what_is_asked_for_do_not_count(store: Store):
    assert store.missing(Asked(), ENVIRONMENT, KEYS, counts=lambda row: row["mean_ms"] != "") == KEYS


def test_tables_that_nobody_knows_the_settings_of_are_refused(store: Store):
    store.files.run.unlink()
    with pytest.raises(InputError, match=r"has tables and no run\.json, so nobody knows how they were measured"):
        again(store)


def test_a_first_start_and_a_resumption_are_written_down(store: Store):
    first = json.loads(store.files.run.read_text())
    assert (first["command"], first["schema_version"], first["ended_utc"], first["error"]) == (["first"], 1, None, None)
    store.note_in_run(ended_utc="now", error="it broke")
    store.begin(Asked(seed=1), ENVIRONMENT, ["second"], more=3)
    second = json.loads(store.files.run.read_text())
    assert (second["command"], second["ended_utc"], second["error"], second["more"]) == (["second"], None, None, 3)
    assert second["started_utc"] == first["started_utc"]
    assert second["request"]["seed"] == 1


def test_only_cells_that_were_measured_are_kept_before_they_are_replaced(store: Store, noted: list[str]):
    store.append(cell(96, 0, "failed"))
    store.append(cell(96))
    assert noted == []
    assert set(store.measured()) == set(KEYS)
    store.append(cell(64, 3))
    assert len(noted) == 1
    store.append(cell(64, 2))
    assert len(noted) == 1
    assert len(store.read("parts")) == 3


def test_a_table_of_parts_has_a_header_where_a_cell_has_none_and_other_parts_no_table(tmp_path: Path):
    made = Store(tmp_path, SCHEMA)
    made.append(cell(64, 0))
    assert made.files.table("parts").read_text() == "size,position\n"
    assert not made.files.table("marks").exists()


def test_rows_of_a_cell_that_counts_are_added_to_its_other_tables(store: Store):
    store.extend([PartRow(64, 1)])
    assert store.files.table("parts").read_text() == "size,position\n64,0\n64,1\n"


def test_lines_that_were_written_before_stay_as_they_are(store: Store):
    table = store.files.table("cells")
    before = table.read_text().replace("ok", '"ok"')
    table.write_text(before)
    store.append(cell(96))
    assert table.read_text() == before + "96,ok,1,,,\n"


def test_derived_columns_replace_those_of_the_same_cells(store: Store):
    store.append(cell(96))
    store.update([CellRow(96, "ok", 1, mean_ms=2.5)])
    assert store.files.table("cells").read_text().splitlines()[1:] == ["64,ok,1,,,", "96,ok,1,2.5,,"]
    assert store.files.table("cells").read_text().endswith("\n")


def test_tables_of_several_parts_are_read_together(store: Store):
    store.append([MarkRow("a", 64, 0.5)])
    assert {name: len(table) for name, table in store.read_all().items()} == {"parts": 1, "cells": 1, "marks": 1}
    assert list(store.read_all("marks")) == ["marks"]
    assert store.objects("marks", "parts") == {"marks": [MarkRow("a", 64, 0.5)], "parts": [PartRow(64, 0)]}


def test_a_torn_cell_is_mended_on_start_and_said(store: Store, noted: list[str]):
    write(store.files, "64,ok,2", "64,0", None)
    assert again(store) == KEYS
    assert noted == [f"{store.path}: dropped the size 64 px, which was cut off"]


def test_writing_into_a_folder_that_was_taken_away_says_so(store: Store, tmp_path: Path):
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(WriteError, match=r"cannot write to .* \(No such file or directory\): the sizes already"):
        store.save_text("note.txt", "x")


def test_a_path_that_no_file_system_can_have_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot write results to .*choose another folder with --output-dir"):
        Store(tmp_path / "a\0b", SCHEMA).prepare()


def test_the_lock_is_held_inside_the_block_only(store: Store):
    with store:
        assert (store.path / "run.lock").exists()
        store.append(cell(96))
    assert not (store.path / "run.lock").exists()


def test_an_overwrite_that_was_cut_off_is_finished_on_start(store: Store, noted: list[str]):
    kept = mending.keep(store.files, datetime(2026, 11, 21, tzinfo=timezone.utc), move=False)
    store.files.run.unlink()  # killed after this step of the keeping
    assert again(store) == KEYS
    assert noted == [
        f"{store.path}: removed the tables that an interrupted --overwrite left; they are in {kept}",
    ]


def test_tables_of_a_folder_with_its_run_json_stay_though_they_are_kept(store: Store):
    mending.keep(store.files, datetime(2026, 11, 21, tzinfo=timezone.utc), move=False)
    assert again(store) == [CellKey(96)]


def test_a_run_json_is_indented_by_two(store: Store):
    assert store.files.run.read_text().startswith('{\n  "')
    assert store.files.run.read_text().endswith("}\n")


def test_a_folder_is_taken_over_only_where_that_is_asked_and_whom_it_is_taken_from_is_noted(tmp_path: Path):
    unknown = dataclasses.replace(lock.myself(), boot="another")
    (tmp_path / lock.NAME).write_text(json.dumps(dataclasses.asdict(unknown)))
    notes: list[str] = []
    with pytest.raises(InputError, match="nobody can tell from here"), Store(tmp_path, SCHEMA, note=notes.append):
        pass
    assert notes == []
    with Store(tmp_path, SCHEMA, note=notes.append, take_over=True):
        pass
    (line,) = notes
    assert line.startswith(f"took {tmp_path} over from process {unknown.pid} on {unknown.host}")
    with Store(tmp_path, SCHEMA, note=notes.append):
        pass
    assert notes == [line]  # from nobody is nothing to say


def test_a_folder_that_is_taken_away_between_a_look_at_its_lock_and_a_write_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def taken_away(self: Store, *given: object) -> None:
        self.path.rename(tmp_path / "elsewhere")
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Store, "_write", taken_away)
    told = pytest.raises(WriteError, match=r"run\.lock is gone: somebody took this run's folder away")
    with Store(tmp_path / "run", SCHEMA) as held, told:
        held.extend([MarkRow("a", 64, 0.5)])
