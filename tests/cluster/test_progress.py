"""How far a run is, read from what it wrote."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from fakes import ENVIRONMENT, run

from convscope.cluster import progress
from convscope.profiling.rows import SCHEMA_VERSION, OverallRow
from convscope.storage.paths import PROFILE_VERSION
from convscope.storage.store import Folder
from convscope.storage.table import columns


def written(path: Path, **cells: object) -> Path:
    """Write a run of one size whose row has these cells."""
    made = run()
    folder = Folder(path / made.folder_name, made.stem)
    folder.prepare()
    folder.write_run(made, ENVIRONMENT, {})
    row = {"model": made.model, "algorithm": made.algorithm, "input_size": 64, "status": "ok", **cells}
    with folder.overall.open("w", newline="") as file:
        table = csv.DictWriter(file, columns(OverallRow), restval="")
        table.writeheader()
        table.writerow(row)
    return folder.path


def test_the_version_that_progress_reads_is_the_one_that_profiles_are_written_in():
    assert PROFILE_VERSION == SCHEMA_VERSION


@pytest.mark.parametrize(("said", "count"), [("", 0), ("none", 0), ("power cap", 1)])
def test_a_size_counts_as_throttled_only_where_something_throttled_it(tmp_path: Path, said: str, count: int):
    found = progress.read(written(tmp_path, throttle_reasons=said), "1_sanity")
    assert found is not None
    assert (found.done, found.throttled) == (1, count)
