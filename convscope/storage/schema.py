"""Form of a study on disk: its tables, the key of a cell, settings that cells must share, upgrades of `run.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from convscope.errors import InputError
from convscope.storage.environment import PROCESSOR, SOFTWARE, Environment
from convscope.storage.table import ADVICE, Table, read_as


class Request(Protocol):
    """The request of a study, a frozen dataclass; `processes` measure together where it has that field."""

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""


@dataclass(frozen=True)
class Part:
    """Tables that are filled together, a cell at a time.

    Attributes:
        key: dataclass of what names a cell; the rows of all its tables have these columns.
        tables: forms by the files' names, in the order of writing; a cell counts when it stands in the last one.
        counted: a table, and the column of the last table that says how many rows of it a whole cell has.
    """

    key: type[Any]
    tables: dict[str, Table]
    counted: tuple[str, str] | None = None

    @property
    def main(self) -> str:
        """The table that makes a cell count."""
        return list(self.tables)[-1]

    def key_of(self, row: Mapping[str, str]) -> Any:
        """Return the key of a row as it stands on disk."""
        return read_as(self.key, row)

    def key_of_row(self, row: Any) -> Any:
        """Return the key of a row object."""
        return self.key(*(getattr(row, field.name) for field in dataclasses.fields(self.key)))


@dataclass(frozen=True)
class Schema:
    """Form of one kind of study.

    Attributes:
        request: its name in `run.json`.
        version: of `run.json` and the tables; `upgrades[i]` brings a document of version i + 1 to the next one.
        parts: groups of tables that are filled independently.
        free: settings of the request that may differ between the cells of one folder: those that name a cell, or say
            where and for how long it was measured.
        needed: settings that every `run.json` of this kind has, with their types.
        noun: a cell in messages, in the plural.
        entries: further entries of a new `run.json`.
    """

    request: str
    version: int
    parts: Sequence[Part]
    free: Collection[str]
    upgrades: Sequence[Callable[[dict[str, Any]], dict[str, Any]]] = ()
    needed: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    noun: str = "cells"
    entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name."""
        return {name: form for part in self.parts for name, form in part.tables.items()}

    def part_of(self, table: str) -> Part:
        """Return the part that a table belongs to."""
        return next(part for part in self.parts if table in part.tables)

    def part_with(self, row: Any) -> Part:
        """Return the part that a row object belongs to."""
        return next(part for part in self.parts if type(row) in [form.row_type for form in part.tables.values()])

    def read(self, path: Path) -> dict[str, Any] | None:
        """Return the content of a `run.json` in this version's form, None where there is none.

        Raises:
            InputError: it is not this project's, or of a newer schema.
        """
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}, line {error.lineno}: {error.msg}: it is not a run.json of this project: {ADVICE}"
            ) from None
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{path}, line 1: it is not a run.json of this project: {ADVICE}") from None
        return self._upgraded(document, path)

    def _upgraded(self, document: Any, path: Path) -> dict[str, Any]:
        version = document.get("schema_version") if isinstance(document, dict) else None
        if type(version) is int and version > self.version:
            raise InputError(
                f"{path} has schema version {version}, this program reads {self.version} and older: use the version "
                "that wrote it, or another --output-dir"
            )
        if type(version) is not int or version < 1 or not self._is_own(document):
            raise InputError(f"{path}, line 1: it is not a run.json of this project: {ADVICE}")
        upgraded: dict[str, Any] = document
        for step in self.upgrades[version - 1 :]:
            upgraded = step(upgraded)
        return upgraded

    def _is_own(self, document: dict[str, Any]) -> bool:
        request, environment = document.get(self.request), document.get("environment")
        if not isinstance(request, dict) or not isinstance(environment, dict) or "host" not in environment:
            return False
        return all(_is_a(request.get(name), kind) for name, kind in self.needed.items())

    def differences(self, document: Mapping[str, Any], request: Request, environment: Environment) -> list[str]:
        """List the settings that set an earlier run apart: "batch_size 1, now 4"; empty where cells may join."""
        then = {"device_type": str(document[self.request].get("device", "")).split(":")[0]}
        then |= document[self.request] | document["environment"]
        asked = plain(request)
        now = {"device_type": request.device_type} | asked | dataclasses.asdict(environment)
        keys = ["device_type", *(name for name in asked if name not in self.free), *SOFTWARE]
        if request.device_type == "cpu" and getattr(request, "processes", 1) == 1:
            keys += PROCESSOR
        return [f"{key} {then.get(key)}, now {now[key]}" for key in keys if then.get(key) != now[key]]


def plain(request: Any) -> dict[str, Any]:
    """Return a request as JSON gives it back: tuples are lists there."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(request)))
    return found


def _is_a(value: object, kind: type[Any]) -> bool:
    """Tell whether a setting has a type; a list is one of whole numbers."""
    return isinstance(value, kind) and (kind is not list or all(type(each) is int for each in value))
