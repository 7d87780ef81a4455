"""Files of samples read for a check: rows that can be read, their places, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convscope.dataset import parquet, samples
from convscope.dataset.samples import SAMPLES, SampleRow
from convscope.errors import InputError
from convscope.storage import table


@dataclass(frozen=True)
class Reading:
    """Samples of a file.

    Attributes:
        places: of each row: "line 3" of a CSV file, "sample 3" of a Parquet file.
        faults: what is wrong with the others, a line each.
        samples: the number of all rows, right and wrong.
    """

    rows: list[SampleRow]
    places: list[str]
    faults: list[str]
    samples: int


def read(path: Path) -> Reading:
    """Read a file of samples, CSV or Parquet.

    Raises:
        InputError: it cannot be read, or has other columns.
    """
    if path.suffix == parquet.SUFFIX:
        if (columns := samples.sound_columns(path)) is not None:
            rows = parquet.objects(columns, SAMPLES)
            return Reading(rows, [f"sample {number}" for number in range(len(rows))], [], len(rows))
        return _sound(path, "sample", dict(enumerate(parquet.rows(path, SAMPLES))), [])
    if not path.is_file():
        raise InputError(f"{path} does not exist: name a file of samples, or the folder of a data set")
    with table.handed_in():
        return _sound(path, "line", *table.sound_rows(path, SAMPLES))


def _sound(path: Path, of: str, cells: Mapping[int, dict[str, str]], faults: list[str]) -> Reading:
    """Return the rows whose values a measurement can have."""
    kept, count = {}, len(cells) + len(faults)
    for number, row in cells.items():
        wrong = [*samples.problems(row)]
        faults += [f"{path}, {of} {number}: {problem}" for problem in wrong]
        if not wrong:
            kept[number] = row
    return Reading(table.objects(SAMPLES, kept.values()), [f"{of} {number}" for number in kept], faults, count)
