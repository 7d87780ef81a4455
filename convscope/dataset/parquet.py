"""Tables as Parquet: typed columns, the same bytes for the same rows, read back as the text of a CSV file.

pyarrow is imported when it is needed: reading CSV files does without it.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.errors import InputError
from convscope.storage.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
NUMBER = "sample"
"""First column of a table: the number of the row, by which the files of splits name it."""
_LEVEL = 19
_GROUP_ROWS = 1 << 20


def schema(form: Table, numbered: bool = True) -> pa.Schema:
    """Return the columns of a table with their types, and `NUMBER` before them if its rows are numbered."""
    import pyarrow as pa

    types = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    fields = [pa.field(NUMBER, pa.int32(), nullable=False)] if numbered else []
    for each in dataclasses.fields(form.row_type):
        kind = str(each.type)
        fields.append(pa.field(each.name, types[kind.removesuffix(" | None")], nullable=kind.endswith(" | None")))
    return pa.schema(fields)


def content(form: Table, rows: Sequence[Any], numbered: bool = True) -> bytes:
    """Return rows of a table, in their order, as a Parquet file."""
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in form.columns}
    return packed({NUMBER: list(range(len(rows))), **columns}, schema(form, numbered))


def packed(columns: Mapping[str, Sequence[Any]], form: pa.Schema) -> bytes:
    """Return columns as a Parquet file, compressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    made = pa.table({field.name: pa.array(columns[field.name], field.type) for field in form}, schema=form)
    pq.write_table(made, file, compression="zstd", compression_level=_LEVEL, row_group_size=_GROUP_ROWS)
    return file.getvalue()


def read(path: Path) -> pa.Table:
    """Read a Parquet file whole.

    Raises:
        InputError: it cannot be read, or is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # By one thread: where the process ends soon after, it aborts while Arrow's threads still run (25.0).
        return pq.read_table(io.BytesIO(path.read_bytes()), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read ({str(error).splitlines()[0]}): name a Parquet file") from None


def differences(found: pa.Schema, wanted: pa.Schema) -> Iterable[str]:
    """Yield what sets the columns of a file apart from those that it should have."""
    for field in wanted:
        if field.name not in found.names:
            yield f"there is no column {field.name}"
        elif found.field(field.name).type != field.type:
            yield f"column {field.name} is of type {found.field(field.name).type}, not {field.type}"
    for name in found.names:
        if name not in wanted.names:
            yield f"there is a column {name}, which is none of this table"


def rows(path: Path, form: Table, numbered: bool = True) -> list[dict[str, str]]:
    """Read the rows of a table as text, as `storage.table.rows` reads them from a CSV file.

    Raises:
        InputError: the file cannot be read, or has other columns.
    """
    found = read(path)
    for difference in differences(found.schema, schema(form, numbered)):
        raise InputError(f"{path}: {difference}: write it anew (python -m convscope dataset package)")
    names = form.columns
    columns = [map(_text, found.column(name).to_pylist()) for name in names]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)
