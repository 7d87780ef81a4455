"""Calls of convolutions in whole models that a data set is of, so that times of shapes add up to those of a model.

Samples have each shape once, under one of the models that have it. These rows say which others have it too, and how
often they call it. They are the same at every batch size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.dataset import parquet
from convscope.dataset.samples import SHAPE, SampleRow
from convscope.errors import InputError
from convscope.storage import table
from convscope.storage.table import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class CallRow:
    """One call of a 2-D convolution in a pass of a model at one size of its image.

    Attributes:
        position: of the call among those of the pass; a layer that is called twice has two rows.
    """

    model: str
    family: str
    input_size: int
    position: int
    layer: str
    in_channels: int
    out_channels: int
    in_height_px: int
    in_width_px: int
    kernel_size: str
    stride: str
    padding: str
    dilation: str
    groups: int


NAME = "calls"
MODEL_AT_SIZE = ("model", "input_size")
"""Columns that say which pass a call is of."""
AT_ANY_BATCH = tuple(name for name in SHAPE if name != "batch_size")
"""Columns of a shape without its number of images."""
_SHAPE = attrgetter(*AT_ANY_BATCH)
CALLS = Table(CallRow, unique=(*MODEL_AT_SIZE, "position"), first=14)


def beside(samples: Path) -> list[Path]:
    """Return the files of calls in the folder of a file of samples."""
    found = (samples.parent / f"{NAME}{suffix}" for suffix in (parquet.SUFFIX, ".csv"))
    return [path for path in found if path.is_file()]


def read(paths: Iterable[Path]) -> list[CallRow]:
    """Read files of calls, CSV or Parquet, in the order of `CALLS.unique`; a row of several files stands once.

    Raises:
        InputError: a file is missing or no such table, or two rows say different things of one call.
    """
    found: dict[tuple[Any, ...], CallRow] = {}
    for path in paths:
        for row in table.objects(CALLS, _cells(path)):
            if found.setdefault(_key(row), row) != row:
                what = f"call {row.position} of {row.model} at {row.input_size} px is another in another row"
                raise InputError(f"{path}: {what}: name files of one version of the model")
    return [found[key] for key in sorted(found)]


def named_or_beside(named: Sequence[Path], files: Iterable[Path]) -> list[CallRow]:
    """Read the named files of calls, or where none is named those beside files of samples; errors as of `read`."""
    return read(named or [path for each in files for path in beside(each)])


def _cells(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise InputError(f"{path} does not exist: name a file of calls (convscope dataset calls writes one)")
    if path.suffix == parquet.SUFFIX:
        rows = parquet.rows(path, CALLS, numbered=False)
    else:
        with table.handed_in():
            rows = table.rows(path, CALLS)
    for number, row in enumerate(rows):
        for name in (name for name, cell in row.items() if not cell):
            raise InputError(f"{path}, call {number}: {name} is empty: write the file anew (convscope dataset calls)")
    return rows


def _key(row: CallRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in CALLS.unique)


def write(path: Path, rows: Iterable[CallRow]) -> int:
    """Write a file of calls atomically, Parquet or CSV by its name; return the number of rows.

    Raises:
        InputError: the file cannot be written.
    """
    kept = list(rows)
    is_parquet = path.suffix == parquet.SUFFIX
    content = parquet.content(CALLS, kept, numbered=False) if is_parquet else table.lines_of(CALLS, kept, True)
    try:
        table.write_atomically(path, content)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None
    return len(kept)


def frame(rows: Sequence[CallRow]) -> pd.DataFrame:
    """Return calls as a data frame."""
    import pandas as pd

    return pd.DataFrame([*map(vars, rows)], columns=CALLS.columns)


def named(samples: Iterable[SampleRow]) -> set[tuple[str, int]]:
    """Return the models, each with a size, that samples name."""
    found = {(row.model, row.input_size) for row in samples}
    return {(model, size) for model, size in found if model is not None and size is not None}


def passes(samples: Iterable[SampleRow]) -> list[tuple[str, int]]:
    """Return each model that samples name at each size that they name: its shapes may be named after other models."""
    found = named(samples)
    return [*itertools.product(*(sorted({*each}) for each in zip(*found, strict=True)))] if found else []


def of_samples(rows: Iterable[CallRow], samples: Iterable[SampleRow]) -> list[CallRow]:
    """Return the calls of the passes that samples may be of."""
    wanted = {*passes(samples)}
    return [row for row in rows if (row.model, row.input_size) in wanted]


def problems(rows: Sequence[CallRow], samples: Sequence[SampleRow]) -> Iterator[str]:
    """Yield the samples of a pass in `rows` that name no layer of it, or say another shape or kind of network.

    Samples that do not say their shape whole are not compared.
    """
    passes = {(row.model, row.input_size) for row in rows}
    known: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for row in rows:
        known.setdefault((row.model, row.input_size, row.layer), set()).add((*_shape(row), row.family))
    for number, sample in enumerate(samples):
        if (sample.model, sample.input_size) not in passes or sample.layer is None or None in _shape(sample):
            continue
        there = known.get((sample.model, sample.input_size, sample.layer), set())
        what = f"sample {number} is of {sample.layer} of {sample.model} at {sample.input_size} px"
        if not there:
            yield f"{what}, which has no such layer there"
        elif _shape(sample) not in {each[:-1] for each in there}:
            yield f"{what}, which has another shape there"
        elif sample.family is not None and (*_shape(sample), sample.family) not in there:
            yield f"{what}, which is another kind of network there than {sample.family}"


def _shape(row: CallRow | SampleRow) -> tuple[Any, ...]:
    shape: tuple[Any, ...] = _SHAPE(row)
    return shape
