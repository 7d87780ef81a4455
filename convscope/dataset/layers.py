"""Layers of the models that a data set is of: every call of a convolution in a pass, so that times add up to it.

Samples have each shape once, under the first model that has it. These rows say which other models have it too, and how
often. They are the same at every batch size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
class LayerRow:
    """One call of a convolution in a pass of a model at one size of its image.

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


NAME = "layers"
PASS = ("model", "input_size")
"""Columns that say which pass a layer is of."""
AT_ANY_BATCH = tuple(name for name in SHAPE if name != "batch_size")
"""Columns of a shape without its number of images."""
LAYERS = Table(LayerRow, unique=(*PASS, "position"), first=14)


def beside(samples: Path) -> Path | None:
    """Return the file of layers in the folder of a file of samples; None where there is none."""
    found = (samples.parent / f"{NAME}{suffix}" for suffix in (parquet.SUFFIX, ".csv"))
    return next((path for path in found if path.is_file()), None)


def read(paths: Iterable[Path]) -> list[LayerRow]:
    """Read files of layers, CSV or Parquet, in the order of `LAYERS.unique`; a row of several files stands once.

    Raises:
        InputError: a file is missing or no such table, or two say different things of one call.
    """
    found: dict[tuple[Any, ...], LayerRow] = {}
    for path in paths:
        for row in table.objects(LAYERS, _cells(path)):
            if found.setdefault(_key(row), row) != row:
                what = f"{row.model} at {row.input_size} px: call {row.position} is another layer in another file"
                raise InputError(f"{path}: {what}: name files of one version of the model")
    return [found[key] for key in sorted(found)]


def _cells(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise InputError(f"{path} does not exist: name a file of layers (convscope dataset layers writes one)")
    if path.suffix == parquet.SUFFIX:
        return parquet.rows(path, LAYERS, numbered=False)
    with table.handed_in():
        return table.rows(path, LAYERS)


def _key(row: LayerRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in LAYERS.unique)


def write(path: Path, rows: Iterable[LayerRow]) -> int:
    """Write a CSV file of layers atomically; return the number of rows.

    Raises:
        InputError: the file cannot be written.
    """
    kept = list(rows)
    try:
        table.write_atomically(path, table.lines_of(LAYERS, kept, with_header=True))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None
    return len(kept)


def frame(rows: Sequence[LayerRow]) -> pd.DataFrame:
    """Return layers as a data frame."""
    import pandas as pd

    return pd.DataFrame([dataclasses.astuple(row) for row in rows], columns=LAYERS.columns)


def named(samples: Iterable[SampleRow]) -> set[tuple[str, int]]:
    """Return the models, each with a size, that samples name."""
    found = {(row.model, row.input_size) for row in samples}
    return {(model, size) for model, size in found if model is not None and size is not None}


def passes(samples: Iterable[SampleRow]) -> list[tuple[str, int]]:
    """Return each model that samples name at each size that they name: its shapes may be named after other models."""
    found = named(samples)
    return [*itertools.product(*(sorted({*each}) for each in zip(*found, strict=True)))] if found else []


def of_samples(rows: Iterable[LayerRow], samples: Iterable[SampleRow]) -> list[LayerRow]:
    """Return the layers of the passes that samples may be of."""
    wanted = {*passes(samples)}
    return [row for row in rows if (row.model, row.input_size) in wanted]


def problems(rows: Sequence[LayerRow], samples: Sequence[SampleRow]) -> Iterator[str]:
    """Yield the samples that say another shape of a layer than its row."""
    known = {(row.model, row.input_size) for row in rows}
    shapes = {(row.model, row.input_size, row.layer, *_shape(row)) for row in rows}
    for number, row in enumerate(samples):
        place = row.model, row.input_size
        if row.layer is not None and place in known and (*place, row.layer, *_shape(row)) not in shapes:
            yield f"sample {number} is of {row.layer} of {row.model} at {row.input_size} px, and has another shape"


def _shape(row: LayerRow | SampleRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in AT_ANY_BATCH)
