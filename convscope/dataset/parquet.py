"""Tables as Parquet: typed columns, the same bytes for the same rows, read back as text, objects or a data frame.

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
    import pandas as pd
    import pyarrow as pa

SUFFIX = ".parquet"
NUMBER = "sample"
"""First column of a table: the number of the row, by which the files of splits name it."""
INDEX = "__index_level_0__"
"""Column that pandas writes for the index of a data frame whose rows were chosen."""
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
    numbers = {NUMBER: list(range(len(rows)))} if numbered else {}
    return packed({**numbers, **_columns(form, rows)}, schema(form, numbered))


def packed(columns: Mapping[str, Sequence[Any]], form: pa.Schema) -> bytes:
    """Return columns as a Parquet file, compressed."""
    import pyarrow.parquet as pq

    file, made = io.BytesIO(), _typed(columns, form)
    pq.write_table(made, file, compression="zstd", compression_level=_LEVEL, row_group_size=_GROUP_ROWS)
    return file.getvalue()


def _columns(form: Table, rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in form.columns}


def _typed(columns: Mapping[str, Sequence[Any]], form: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in form}, schema=form)


def read(path: Path) -> pa.Table:
    """Read a Parquet file whole.

    Raises:
        InputError: it cannot be read, or is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # `read_table`, or a Python file, starts threads: a process that ends soon after may abort (Arrow 25.0).
        return pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False)
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
    found, names = columns(path, form, numbered), form.columns
    texts = [map(text, found.column(name).to_pylist()) for name in names]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*texts, strict=True)]


def columns(path: Path, form: Table, numbered: bool = True, by_pandas: bool = False) -> pa.Table:
    """Read a table by columns; those that an earlier version lacks are empty, those that this one dropped left out.

    Args:
        by_pandas: a data frame may have been written to the file: it has types of its own (whole numbers as decimal
            ones where some are absent, large texts), and an index.

    Raises:
        InputError: the file cannot be read, or has other columns.
    """
    found = read(path)
    found = found.drop_columns([name for name in form.dropped if name in found.column_names])
    if by_pandas:
        found = _as_typed(found.drop_columns([INDEX] if INDEX in found.column_names else []), schema(form, numbered))
    found = _with_later_columns(found, form, schema(form, numbered))
    for difference in differences(found.schema, schema(form, numbered)):
        raise InputError(f"{path}: {difference}: write it anew (python -m convscope dataset package)")
    return found


def _as_typed(found: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return a table with its columns as the types that are wanted, where no value changes."""
    import pyarrow as pa

    for at, field in enumerate(found.schema):
        if field.name in wanted.names and field.type != (kind := wanted.field(field.name).type):
            try:
                found = found.set_column(at, wanted.field(field.name), found.column(at).cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # `differences` says so
    return found


def _with_later_columns(found: pa.Table, form: Table, wanted: pa.Schema) -> pa.Table:
    """Return a table with the columns, empty, that its version need not have (`Table.first`) and that may be empty."""
    import pyarrow as pa

    later = {*form.columns[form.first :]} - {*form.unique, *found.column_names}
    for field in (field for field in wanted if field.name in later and field.nullable):
        found = found.append_column(field, pa.nulls(len(found), field.type))
    return found


def objects(found: pa.Table, form: Table) -> list[Any]:
    """Return the rows of a table as objects of its row type, an empty text as None."""
    import pyarrow as pa

    each_column = (found.column(name) for name in form.columns)
    cells = [_shared(each) if pa.types.is_string(each.type) else each.to_pylist() for each in each_column]
    return [form.row_type(*row) for row in zip(*cells, strict=True)]


def frame(found: pa.Table, form: Table) -> pd.DataFrame:
    """Return a table as a data frame, as `storage.table.frame` makes it of rows; what is absent in text is None."""
    import pandas as pd
    import pyarrow as pa

    made = {}
    for name in form.columns:
        column = found.column(name)
        if pa.types.is_string(column.type):
            made[name] = pd.Series(_shared(column), dtype=object)
        else:
            made[name] = pd.Series(column.to_numpy())
    return pd.DataFrame(made)


def frame_of(rows: Sequence[Any], form: Table) -> pd.DataFrame:
    """Return row objects as a data frame, as `frame` does."""
    return frame(_typed(_columns(form, rows), schema(form, numbered=False)), form)


def _shared(column: pa.ChunkedArray) -> list[str | None]:
    """Return texts, None for what is absent or empty; equal ones are one object, of which long ones take the memory."""
    encoded = column.combine_chunks().dictionary_encode()
    known = [value or None for value in encoded.dictionary.to_pylist()]
    return [None if place is None else known[place] for place in encoded.indices.to_pylist()]


def text(value: object) -> str:
    """Return a value as a cell of a CSV file has it."""
    return "" if value is None else value if isinstance(value, str) else repr(value)
