"""Table of measured totals: whole passes of models, which sums of predicted convolutions are compared with.

They are no samples: a pass is many convolutions, and more than these. `convscope import --format klab` writes them of
overall tables, `convscope predict apply --totals` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convscope.errors import InputError
from convscope.storage import table
from convscope.storage.table import Table


@dataclass(frozen=True)
class TotalRow:
    """One pass of a model by one algorithm at one input size on one card.

    Attributes:
        algorithm: the one that the convolutions were given, named with spaces; `model` is in small letters.
        run: the table that it is of.
        mean_ms: of a pass, in the way that `timing_method` names; with its spread.
        power_w: mean power while passes ran.
        energy_j: of a pass.
    """

    gpu_name: str
    model: str
    algorithm: str
    input_size: int
    batch_size: int
    dtype: str
    math: str
    layout: str
    run: str
    mean_ms: float
    std_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    timing_method: str | None = None


WORK = ("gpu_name", "model", "algorithm", "input_size", "batch_size", "dtype", "math", "layout")
"""Columns of the pass: all but the run that measured it, and the values."""
TOTALS = Table(TotalRow, unique=(*WORK, "run"), first=10)


def write(path: Path, rows: Iterable[TotalRow]) -> int:
    """Write a file of totals atomically; return the number of rows.

    Raises:
        InputError: the file cannot be written, or two rows are of one pass and run.
    """
    kept = list(rows)
    seen: set[tuple[object, ...]] = set()
    for row in kept:
        key = tuple(getattr(row, name) for name in TOTALS.unique)
        if key in seen:
            raise InputError(f"{row.run}: {row.model}, {row.algorithm} at {row.input_size} px stands in it twice")
        seen.add(key)
    try:
        table.write_atomically(path, table.lines_of(TOTALS, kept, with_header=True))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None
    return len(kept)


def read(path: Path) -> list[TotalRow]:
    """Read a file of totals.

    Raises:
        InputError: it is missing, is no such table, or has a value that no measurement has; the line is named.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: name a file of totals (convscope import writes one)")
    with table.handed_in():
        found: list[TotalRow] = table.objects(TOTALS, table.rows(path, TOTALS))
    for number, row in enumerate(found, start=2):
        for problem in problems(row):
            raise InputError(f"{path}, line {number}: {problem}")
    return found


def problems(row: TotalRow) -> Iterator[str]:
    """Yield what is wrong with a total: values that no measurement has."""
    for name in ("mean_ms", "energy_j"):
        value = getattr(row, name)
        if value is not None and not 0 < value < math.inf:
            yield f"{name} is {value}: a measured value is above 0"
