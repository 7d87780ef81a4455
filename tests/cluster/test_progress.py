"""Progress of a run, read from its files."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from fakes import ENVIRONMENT, OVERALL, run

from convscope.cluster import progress
from convscope.profiling.rows import OverallRow, profile_store
from convscope.storage.table import columns


def written(path: Path, **cells: object) -> Path:
    """Write a run of one size whose row has these cells."""
    made = run()
    folder = profile_store(path / made.folder_name, made.stem)
    folder.prepare()
    folder.begin(made, ENVIRONMENT, [])
    row = {"model": made.model, "algorithm": made.algorithm, "input_size": 64, "status": "ok", **cells}
    with folder.files.table("overall").open("w", newline="") as file:
        table = csv.DictWriter(file, columns(OverallRow), restval="")
        table.writeheader()
        table.writerow(row)
    return folder.path


def test_the_sizes_of_a_run_are_those_of_its_last_start(tmp_path: Path):
    made = run(input_sizes=(64, 96))
    folder = profile_store(tmp_path / made.folder_name, made.stem)
    folder.prepare()
    folder.begin(made, ENVIRONMENT, [])
    folder.append([dataclasses.replace(OVERALL, input_size=64)])
    folder.begin(run(input_sizes=(128,)), ENVIRONMENT, [])
    found = progress.read(folder.path, "1_sanity")
    assert found is not None
    assert (found.sizes, found.done, found.measured) == ((128,), 0, {64: "ok"})


def test_a_document_of_an_older_version_has_its_sizes_in_the_request(tmp_path: Path):
    path = written(tmp_path)
    document = json.loads((path / "run.json").read_text())
    del document["starts"]
    (path / "run.json").write_text(json.dumps(document | {"schema_version": 2}))
    found = progress.read(path, "1_sanity")
    assert found is not None
    assert found.sizes == (64,)


@pytest.mark.parametrize(
    ("said", "count"), [("", 0), ("none", 0), ("power cap", 0), ("power cap, hardware thermal slowdown", 1)]
)
def test_a_size_counts_as_throttled_only_where_something_throttled_it(tmp_path: Path, said: str, count: int):
    found = progress.read(written(tmp_path, throttle_reasons=said), "1_sanity")
    assert found is not None
    assert (found.done, found.throttled) == (1, count)
