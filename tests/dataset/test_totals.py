"""Files of totals: what is written is read again, and what no measurement says is refused with its line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from convscope.dataset import totals
from convscope.dataset.totals import TotalRow
from convscope.errors import InputError

ROW = TotalRow("Tesla T4", "vgg16", "gemm", 224, 1, "float32", "tf32", "nchw", "klab a.csv", 5.5, energy_j=1.4)


def test_what_is_written_is_read_again(tmp_path: Path):
    rows = [ROW, dataclasses.replace(ROW, run="klab b.csv", energy_j=None, timing_method="events")]
    assert totals.write(tmp_path / "totals.csv", rows) == 2
    assert totals.read(tmp_path / "totals.csv") == rows


@pytest.mark.parametrize("cells", [{"mean_ms": 0.0}, {"mean_ms": float("inf")}, {"energy_j": -1.0}])
def test_what_no_measurement_says_is_refused(tmp_path: Path, cells: dict[str, float]):
    path = tmp_path / "totals.csv"
    totals.write(path, [ROW, dataclasses.replace(ROW, input_size=64, **cells)])  # type: ignore[arg-type]
    name, value = next(iter(cells.items()))
    with pytest.raises(InputError, match=f"totals.csv, line 3: {name} is {value}: a measured value is above 0"):
        totals.read(path)


def test_a_file_that_is_missing_or_of_samples_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=r"no\.csv does not exist: name a file of totals"):
        totals.read(tmp_path / "no.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="it has other columns than this version writes"):
        totals.read(tmp_path / "other.csv")
