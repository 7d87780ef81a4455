"""The tables of a training study: cell by cell, whole after any cut, and only under one set of settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import fakes
import pytest

from convscope.errors import InputError
from convscope.storage.ledger import Ledger
from convscope.training.request import Training
from convscope.training.rows import EpochRow, Row, TrainingKey, TrainingRow

ASKED = Training(models=("torchvision:resnet18",), batch_sizes=(4,), gpu="cpu")
ONE, TWO = TrainingKey("resnet18", 4, 1, False), TrainingKey("resnet18", 8, 1, True)


def rows(key: TrainingKey, throughput: float = 100.0) -> list[Row]:
    name = dataclasses.asdict(key)
    epochs = [EpochRow(**name, epoch=n, steps=5, train_loss=1.0 / n, test_loss=None, accuracy_pct=None) for n in (1, 2)]
    return [TrainingRow(**name, throughput_samples_per_s=throughput), *epochs]


def begun(folder: Path, overwrite: bool = False, **changes) -> Ledger:
    made = Ledger(folder)
    made.prepare()
    made.begin(dataclasses.replace(ASKED, **changes), fakes.ENVIRONMENT, ["x"], overwrite)
    return made


def test_cells_come_back_as_they_were_added(tmp_path: Path):
    made = begun(tmp_path)
    made.add(rows(ONE, 123.456789012345))
    made.add(rows(TWO))
    assert made.done() == {ONE, TWO}
    assert made.read("training")["throughput_samples_per_s"].tolist() == [123.456789012345, 100.0]
    assert made.read("training")["compiled"].tolist() == [False, True]
    assert made.read("epochs")["train_loss"].tolist() == [1.0, 0.5] * 2
    assert made.read("kernels").empty


def test_a_cell_can_take_the_place_of_another(tmp_path: Path):
    made = begun(tmp_path)
    made.add(rows(ONE))
    made.add(rows(TWO), instead_of=[ONE])
    assert made.done() == {TWO}
    assert len(made.read("epochs")) == 2


def test_a_cell_counts_when_its_row_is_there_and_leftovers_of_another_are_dropped(tmp_path: Path):
    made = begun(tmp_path)
    made.add(rows(ONE))
    made.add(rows(TWO))
    lines = made.table("training").read_text().splitlines(keepends=True)
    made.table("training").write_text("".join(lines[:-1]))  # as if killed between the tables
    assert made.done() == {ONE}
    assert len(made.read("epochs")) == 2
    made.add(rows(TWO))
    assert len(made.read("epochs")) == 4


def test_other_batch_sizes_models_and_processes_join_a_folder(tmp_path: Path):
    begun(tmp_path).add(rows(ONE))
    again = begun(tmp_path, models=("torchvision:resnet34",), batch_sizes=(8,), processes=2, compiled=True)
    assert again.done() == {ONE}


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"epochs": 3}, "epochs 5, now 3"), ({"dtype": "bfloat16"}, "dtype float32, now bfloat16"), ({"seed": 1}, "seed")],
)
def test_other_settings_do_not_join_a_folder(tmp_path: Path, changes: dict, told: str):
    begun(tmp_path).add(rows(ONE))
    with pytest.raises(InputError, match=f"other settings .*{told}.*--overwrite"):
        begun(tmp_path, **changes)
    assert begun(tmp_path, overwrite=True, **changes).done() == set()


@pytest.mark.parametrize("content", ["", "[]", '{"schema_version": 1}', "\0"])
def test_tables_beside_a_foreign_run_json_are_not_trusted(tmp_path: Path, content: str):
    made = begun(tmp_path)
    made.add(rows(ONE))
    made.run.write_text(content)
    with pytest.raises(InputError, match=r"run\.json does not say how the tables beside it were measured"):
        begun(tmp_path)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "\0\0", "model,batch_size\nresnet18\n", '"'])
def test_a_foreign_table_is_one_line(tmp_path: Path, content: str):
    made = begun(tmp_path)
    made.table("training").write_text(content)
    with pytest.raises(InputError, match=r"training\.csv is not a table of this version"):
        made.done()


def test_run_json_says_what_was_asked_and_where(tmp_path: Path):
    document = json.loads(begun(tmp_path).run.read_text())
    assert document["training"]["batch_sizes"] == [4]
    assert document["environment"]["host"] == "node1"
    assert document["command"] == ["x"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write results to .*: choose another folder with --output-dir"):
        begun(tmp_path / "file" / "folder")
