"""Form of a study on disk: its tables, what names a cell, which settings cells must share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Request(Protocol):
    """What a study was asked for, a frozen dataclass: `Training`, or another study's own."""

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""

    @property
    def processes(self) -> int:
        """How many processes measure together."""


@dataclass(frozen=True)
class Schema:
    """The form of one kind of study.

    Attributes:
        request: its name in `run.json`; `version` is that of the file.
        key: the dataclass of what names a cell; all rows of all tables begin with its fields.
        tables: the rows of each table by its file's name; the last one makes a cell count.
        free: settings of the request that may differ between the cells of one folder: columns that name the cell,
            or say where and how long it ran.
    """

    request: str
    version: int
    key: type[Any]
    tables: Mapping[str, type[Any]]
    free: Collection[str]

    @property
    def main(self) -> str:
        """The table that makes a cell count."""
        return list(self.tables)[-1]

    def key_of(self, cells: Mapping[str, str]) -> Any:
        """Return the key of a row as it stands on disk.

        Raises:
            ValueError, KeyError: it has none.
        """
        fields = dataclasses.fields(self.key)
        return self.key(*(_READERS[str(field.type)](cells[field.name]) for field in fields))


_READERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "bool": {"True": True, "False": False}.__getitem__,
    "float | None": lambda cell: float(cell) if cell else None,
    "str | None": lambda cell: cell or None,
}


def columns(row_type: type[Any]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]
