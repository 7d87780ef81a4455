"""Cells of captured steps beside those of eager ones, also in a folder of before there were any."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import torch
from fakes.trainings import Meter, study

from convscope.storage.store import Store
from convscope.training import study as training_study
from convscope.training.rows import SCHEMA, TrainingKey


def test_a_captured_cell_is_another_than_the_eager_one_and_its_row_says_so(tmp_path: Path):
    made = study(tmp_path)
    made.device = torch.device("cuda")
    eager = made._row(next(iter(training_study.cells_of(made.training))), throughput_samples_per_s=100.0)
    made.training = dataclasses.replace(made.training, captured=True)
    (key,) = training_study.cells_of(made.training)
    replayed = made._row(key, throughput_samples_per_s=300.0)
    made.store.append([eager])
    made.store.append([replayed])
    table = made.store.read("training")
    assert table["captured"].tolist() == [False, True]
    assert table["timing_method"].tolist() == [
        "CUDA events between the phases", "CUDA events between the phases, in replays of a CUDA graph"
    ]  # fmt: skip
    assert training_study.cell_name(key) == "squeezenet1_1_batch4_captured"
    both = dataclasses.replace(key, processes=2, compiled=True)
    assert training_study.cell_name(both) == "squeezenet1_1_batch4_x2_compiled_captured"
    assert made._with_efficiency(made._row(both, throughput_samples_per_s=1.0)).scaling_efficiency_pct is None


def test_a_folder_without_captured_cells_of_an_older_version_goes_on(tmp_path: Path):
    made = study(tmp_path)
    made.run()
    before = made.store.read_all()
    document = json.loads(made.store.files.run.read_text())
    assert document["training"].pop("captured") is False
    made.store.files.run.write_text(json.dumps(document | {"schema_version": 2}))
    for path in filter(Path.exists, made.store.files.tables):
        pd.read_csv(path, dtype=str).drop(columns="captured").to_csv(path, index=False)
    assert Store(tmp_path, SCHEMA).read("training").equals(before["training"])
    again = study(tmp_path, Meter())
    assert set(again.store.cells()) == {TrainingKey("squeezenet1_1", 4, 1, False, False)}
    again.store.append([again._row(TrainingKey("squeezenet1_1", 4, 1, False, True))])
    after = again.store.read("training")
    assert after["captured"].tolist() == [False, True]
    pd.testing.assert_frame_equal(after[:1], before["training"], check_dtype=False)  # columns have gaps now
    assert again.store.read("epochs").equals(before["epochs"])
    assert json.loads(again.store.files.run.read_text())["schema_version"] == 3
