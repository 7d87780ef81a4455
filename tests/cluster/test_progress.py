"""Progress of a run, read from its files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from fakes import ENVIRONMENT, run

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


@pytest.mark.parametrize(("said", "count"), [("", 0), ("none", 0), ("power cap", 1)])
def test_a_size_counts_as_throttled_only_where_something_throttled_it(tmp_path: Path, said: str, count: int):
    found = progress.read(written(tmp_path, throttle_reasons=said), "1_sanity")
    assert found is not None
    assert (found.done, found.throttled) == (1, count)
