"""Tables of a study of many cells: cell by cell, whole after any cut, and only under one set of settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import fakes
import pytest

from convscope.errors import InputError
from convscope.storage.store import Store
from convscope.training.request import Training
from convscope.training.rows import SCHEMA, EpochRow, Row, TrainingKey, TrainingRow

ASKED = Training(models=("torchvision:resnet18",), batch_sizes=(4,), gpu="cpu")
ONE, TWO = TrainingKey("resnet18", 4, 1, False, False), TrainingKey("resnet18", 8, 1, True, True)


def rows(key: TrainingKey, throughput: float = 100.0) -> list[Row]:
    name = dataclasses.asdict(key)
    epochs = [EpochRow(**name, epoch=n, steps=5, train_loss=1.0 / n, test_loss=None, accuracy_pct=None) for n in (1, 2)]
    return [TrainingRow(**name, throughput_samples_per_s=throughput), *epochs]


def begun(folder: Path, cells: Sequence[TrainingKey] = (), overwrite: bool = False, **changes) -> Store:
    store = Store(folder, SCHEMA)
    store.prepare()
    request = dataclasses.replace(ASKED, **changes)
    store.missing(request, fakes.ENVIRONMENT, cells, overwrite)
    store.begin(request, fakes.ENVIRONMENT, ["x"])
    return store


def before(folder: Path) -> list[Store]:
    """Return what was kept in a folder, oldest first."""
    return [Store(path, SCHEMA) for path in sorted(folder.glob("before-*"))]


def test_cells_come_back_as_they_were_added(tmp_path: Path):
    made = begun(tmp_path)
    made.append(rows(ONE, 123.456789012345))
    made.append(rows(TWO))
    assert set(made.cells()) == {ONE, TWO}
    assert made.read("training")["throughput_samples_per_s"].tolist() == [123.456789012345, 100.0]
    assert made.read("training")["compiled"].tolist() == [False, True]
    assert made.read("epochs")["train_loss"].tolist() == [1.0, 0.5] * 2
    assert made.read("kernels").empty


def test_a_cell_can_take_the_place_of_another(tmp_path: Path):
    made = begun(tmp_path)
    made.append(rows(ONE))
    made.append(rows(TWO), instead_of=[ONE])
    assert set(made.cells()) == {TWO}
    assert len(made.read("epochs")) == 2


def test_a_cell_counts_when_its_row_is_there_and_leftovers_of_another_are_dropped(tmp_path: Path):
    made = begun(tmp_path)
    made.append(rows(ONE))
    made.append(rows(TWO))
    lines = made.files.table("training").read_text().splitlines(keepends=True)
    made.files.table("training").write_text("".join(lines[:-1]))  # as if killed between the tables
    assert set(made.cells()) == {ONE}
    assert len(made.read("epochs")) == 2
    again = begun(tmp_path)
    again.append(rows(TWO))
    assert len(again.read("epochs")) == 4


def test_other_batch_sizes_models_and_processes_join_a_folder(tmp_path: Path):
    begun(tmp_path).append(rows(ONE))
    again = begun(tmp_path, models=("torchvision:resnet34",), batch_sizes=(8,), processes=2, compiled=True)
    assert set(again.cells()) == {ONE}


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"epochs": 3}, "epochs 5, now 3"), ({"dtype": "bfloat16"}, "dtype float32, now bfloat16"), ({"seed": 1}, "seed")],
)
def test_other_settings_do_not_join_a_folder(tmp_path: Path, changes: dict, told: str):
    begun(tmp_path).append(rows(ONE))
    with pytest.raises(InputError, match=f"other settings .*{told}.*--overwrite"):
        begun(tmp_path, **changes)
    assert set(begun(tmp_path, [ONE], overwrite=True, **changes).cells()) == set()
    assert [set(kept.cells()) for kept in before(tmp_path)] == [{ONE}]


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 1}', "\0"])
def test_tables_beside_a_foreign_run_json_are_not_trusted(tmp_path: Path, content: str):
    made = begun(tmp_path)
    made.append(rows(ONE))
    made.files.run.write_text(content)
    with pytest.raises(InputError, match=r"is not a run\.json of this project"):
        begun(tmp_path)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "\0\0", "model,batch_size\nresnet18\n", '"'])
def test_a_foreign_table_is_one_line(tmp_path: Path, content: str):
    made = begun(tmp_path)
    made.files.table("training").write_text(content)
    with pytest.raises(InputError, match=r"training\.csv, line \d: "):
        set(made.cells())


def test_run_json_says_what_was_asked_and_where(tmp_path: Path):
    document = json.loads(begun(tmp_path).files.run.read_text())
    assert document["training"]["batch_sizes"] == [4]
    assert document["environment"]["host"] == "node1"
    assert document["command"] == ["x"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write results to .*: choose another folder with --output-dir"):
        begun(tmp_path / "file" / "folder")


def test_an_overwrite_replaces_the_cells_that_were_asked_for_and_keeps_the_others(tmp_path: Path):
    made = begun(tmp_path / "run")
    made.append(rows(ONE, 1.0))
    made.append(rows(TWO, 2.0))
    again = begun(tmp_path / "run", [ONE], overwrite=True)
    assert set(again.cells()) == {TWO}
    assert len(again.read("epochs")) == 2
    again.append(rows(ONE, 3.0))
    assert sorted(again.read("training")["throughput_samples_per_s"]) == [2.0, 3.0]
    (kept,) = before(tmp_path / "run")
    assert sorted(kept.read("training")["throughput_samples_per_s"]) == [1.0, 2.0]
    assert kept.files.run.exists()


def test_a_measured_cell_that_is_replaced_without_an_overwrite_is_kept_beside_once(tmp_path: Path):
    made = begun(tmp_path / "run")
    made.append(rows(ONE, 1.0))
    again = begun(tmp_path / "run")
    for throughput in (2.0, 3.0):
        again.append(rows(ONE, throughput))
    assert again.read("training")["throughput_samples_per_s"].tolist() == [3.0]
    (kept,) = before(tmp_path / "run")
    assert kept.read("training")["throughput_samples_per_s"].tolist() == [1.0]


def test_a_cell_that_failed_is_replaced_without_a_copy(tmp_path: Path):
    made = begun(tmp_path / "run")
    made.append([dataclasses.replace(rows(ONE)[0], status="oom")])
    made.append(rows(ONE))
    assert before(tmp_path / "run") == []
    assert list(made.measured()) == [ONE]


def test_a_second_call_measures_the_cells_that_are_missing(tmp_path: Path):
    begun(tmp_path).append(rows(ONE))
    assert Store(tmp_path, SCHEMA).missing(ASKED, fakes.ENVIRONMENT, [ONE, TWO]) == [TWO]


def test_derived_columns_are_updated_in_place_and_details_stay(tmp_path: Path):
    made = begun(tmp_path / "run")
    made.append(rows(ONE))
    made.append(rows(TWO))
    (row,) = [row for row in made.objects("training")["training"] if row.batch_size == 4]
    made.update([dataclasses.replace(row, scaling_efficiency_pct=50.0)])
    assert made.read("training")["scaling_efficiency_pct"].fillna(0).tolist() == [50.0, 0]
    assert len(made.read("epochs")) == 4
    assert before(tmp_path / "run") == []


def test_row_objects_come_back_as_they_were_added(tmp_path: Path):
    made = begun(tmp_path)
    made.append(rows(TWO))
    found = made.objects("training", "epochs")
    row, *epochs = rows(TWO)
    origin = {"host": fakes.ENVIRONMENT.host, "start": 0}
    assert [*found["training"], *found["epochs"]] == [dataclasses.replace(row, **origin), *epochs]
