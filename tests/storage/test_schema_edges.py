"""Form of a study at its edges: what is a `run.json` of this project, which settings set two starts apart."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import ENVIRONMENT
from fakes.cells import CELLS, MARKS, SCHEMA, CellKey, CellRow, MarkKey, MarkRow, PartRow

from convscope.errors import InputError
from convscope.storage.schema import Schema
from convscope.storage.store import Store

CELL_PART, MARK_PART = SCHEMA.parts


@dataclass(frozen=True)
class Asked:
    device: str = "cpu"
    sizes: tuple[int, ...] = (64,)
    seed: int = 0

    @property
    def device_type(self) -> str:
        return self.device.split(":")[0]


@dataclass(frozen=True)
class AskedOfMany(Asked):
    processes: int = 1


STUDY = dataclasses.replace(SCHEMA, free=("device", "sizes", "processes"))


def differences(folder: Path, then: Asked, now: Asked, **environment: Any) -> list[str]:
    """Return what sets a start apart from an earlier one, in another environment but for the usual."""
    store = Store(folder, STUDY)
    store.begin(then, ENVIRONMENT, [])
    return STUDY.differences(store.read_run() or {}, now, dataclasses.replace(ENVIRONMENT, **environment))


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ("cuda:1", "cuda:0", []),
        ("cuda", "cuda:1", []),
        ("cpu", "cuda:1", ["device_type cpu, now cuda"]),
        ("cuda:1", "cpu", ["device_type cuda, now cpu"]),
    ],
)
def test_devices_of_one_kind_are_alike(tmp_path: Path, then: str, now: str, found: list[str]):
    assert differences(tmp_path, Asked(then), Asked(now)) == found


@pytest.mark.parametrize(
    ("asked", "matters"),
    [
        (Asked(), True),
        (AskedOfMany(), True),
        (AskedOfMany(processes=2), False),
        (Asked("cuda"), False),
        (AskedOfMany("cuda"), False),
    ],
)
def test_the_processor_sets_starts_of_one_process_on_it_apart(tmp_path: Path, asked: Asked, matters: bool):
    found = differences(tmp_path, asked, asked, cpu="another", cpu_threads=9)
    assert found == (["cpu a processor, now another", "cpu_threads None, now 9"] if matters else [])


def test_settings_that_are_not_free_set_starts_apart(tmp_path: Path):
    assert differences(tmp_path, Asked(), Asked(seed=1, sizes=(64, 96))) == ["seed 0, now 1"]
    assert differences(tmp_path, Asked(), Asked()) == []


RUN = {"request": {"seed": 0, "sizes": [64]}, "environment": {"host": "node1"}, "starts": [{"environment": None}]}


def read(folder: Path, schema: Schema = SCHEMA, **document: Any) -> dict[str, Any] | None:
    (folder / "run.json").write_text(json.dumps(RUN | {"schema_version": schema.version} | document))
    return schema.read(folder / "run.json")


@pytest.mark.parametrize(
    "odd",
    [
        *({"schema_version": version} for version in (0, -1, 1.0, "1", True, None)),
        *({"request": value} for value in (None, [], "x")),
        *({"environment": value} for value in (None, ["host"], "host", {}, {"cpu": "x"})),
    ],
    ids=str,
)
def test_a_document_of_another_form_is_not_of_this_project(tmp_path: Path, odd: dict[str, Any]):
    assert read(tmp_path) is not None
    with pytest.raises(InputError, match=r"run\.json, line 1: it is not a run\.json of this project: move it away"):
        read(tmp_path, **odd)


def test_a_newer_version_is_named_and_the_own_one_is_read(tmp_path: Path):
    second = dataclasses.replace(SCHEMA, version=2)
    assert read(tmp_path, second) is not None
    with pytest.raises(InputError, match="has schema version 3, this program reads 2 and older"):
        read(tmp_path, second, schema_version=3)


@pytest.mark.parametrize(("version", "steps"), [(1, "ab"), (2, "b"), (3, "")])
def test_an_older_document_takes_the_steps_from_its_version_on(tmp_path: Path, version: int, steps: str):
    upgrades = tuple(lambda one, step=step: one | {"steps": one["steps"] + step} for step in "ab")
    found = read(tmp_path, dataclasses.replace(SCHEMA, version=3, upgrades=upgrades), schema_version=version, steps="")
    assert (found or {})["steps"] == steps


@pytest.mark.parametrize(
    ("setting", "kind", "own"),
    [
        ("seed", int, True),
        ("seed", str, False),
        ("sizes", list, True),
        ("sizes", str, False),
        ("absent", int, False),
    ],
)
def test_needed_settings_have_their_types(tmp_path: Path, setting: str, kind: type, own: bool):
    schema = dataclasses.replace(SCHEMA, needed={setting: kind})
    if own:
        assert read(tmp_path, schema) is not None
    else:
        with pytest.raises(InputError, match=r"is not a run\.json of this project"):
            read(tmp_path, schema)


@pytest.mark.parametrize("sizes", [[64, 1.5], [True], ["64"], [None]])
def test_a_list_that_is_needed_is_of_whole_numbers(tmp_path: Path, sizes: list[Any]):
    with pytest.raises(InputError, match=r"is not a run\.json of this project"):
        read(tmp_path, dataclasses.replace(SCHEMA, needed={"sizes": list}), request={"sizes": sizes})


def test_without_a_file_there_is_no_document_and_broken_json_is_named_with_its_line(tmp_path: Path):
    assert SCHEMA.read(tmp_path / "run.json") is None
    (tmp_path / "run.json").write_text("{\n\n1")
    with pytest.raises(InputError, match=r"run\.json, line 3: .*: it is not a run\.json of this project"):
        SCHEMA.read(tmp_path / "run.json")


def test_parts_are_found_by_table_and_by_row():
    assert (SCHEMA.part_of("parts"), SCHEMA.part_of("marks")) == (CELL_PART, MARK_PART)
    assert SCHEMA.part_with(PartRow(64, 0)) is SCHEMA.part_with(CellRow(64, "ok")) is CELL_PART
    assert SCHEMA.part_with(MarkRow("a", 64)) is MARK_PART
    assert (CELL_PART.main, MARK_PART.main) == ("cells", "marks")
    assert list(SCHEMA.tables) == ["parts", "cells", "marks"]
    assert (SCHEMA.tables["cells"], SCHEMA.tables["marks"]) == (CELLS, MARKS)


def test_a_key_is_read_from_a_line_and_from_a_row():
    assert CELL_PART.key_of({"size": "64", "status": "ok"}) == CELL_PART.key_of_row(CellRow(64, "ok")) == CellKey(64)
    assert MARK_PART.key_of_row(MarkRow("a", 64, 1.0)) == MarkKey("a", 64)
