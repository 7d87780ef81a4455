"""Form of a study on disk: its tables, the key of a cell, settings that cells must share, upgrades of `run.json`.

`run.json` describes each start of a run in its list `starts`: `utc`, `command`, `environment`, `asked` (the settings of
the request that differ from start to start), `ended_utc` and `error`. Beside the list it has the request, and the
environment and command of the last start.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from convscope.errors import InputError
from convscope.storage.environment import CARD, PROCESSOR, SOFTWARE, Environment
from convscope.storage.paths import MODEL_DIGEST
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
        is_sorted: the tables are read by key; on disk too when a run has ended, whatever order it measured in.
    """

    key: type[Any]
    tables: dict[str, Table]
    counted: tuple[str, str] | None = None
    is_sorted: bool = False

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

    def ordered(self, rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """Return rows as they stand on disk in the order of a reader; rows of one cell keep theirs."""
        names = [field.name for field in dataclasses.fields(self.key)]
        in_order = operator.attrgetter(*names)
        return sorted(rows, key=lambda row: in_order(self.key_of(row))) if self.is_sorted else list(rows)


@dataclass(frozen=True)
class Schema:
    """Form of one kind of study.

    Attributes:
        request: its name in `run.json`.
        version: of `run.json` and the tables; `upgrades[i]` brings a document of version i + 1 to the next one.
        parts: groups of tables that are filled independently.
        free: settings and facts that may differ between the cells of one folder: those that name a cell, or say where
            and for how long it was measured.
        needed: settings that every `run.json` of this kind has, with their types.
        noun: a cell in messages, in the plural.
        entries: further entries of a new `run.json`.
        more_differences: lists what sets the requests of an earlier start and of this one apart beside the settings.
    """

    request: str
    version: int
    parts: Sequence[Part]
    free: Collection[str]
    upgrades: Sequence[Callable[[dict[str, Any]], dict[str, Any]]] = ()
    needed: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    noun: str = "cells"
    entries: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    more_differences: Callable[[Mapping[str, Any], Mapping[str, Any]], list[str]] = lambda then, now: []

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
            document = json.loads(path.read_bytes() if path.is_file() else b"\xff")  # a pipe would keep its reader
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
        if not _are_starts(upgraded.get("starts")):
            raise InputError(f"{path}, line 1: it is not a run.json of this project: {ADVICE}")
        return upgraded

    def _is_own(self, document: dict[str, Any]) -> bool:
        request, environment = document.get(self.request), document.get("environment")
        if not isinstance(request, dict) or not isinstance(environment, dict) or "host" not in environment:
            return False
        return all(_is_a(request.get(name), kind) for name, kind in self.needed.items())

    def differences(
        self, document: Mapping[str, Any], request: Request, environment: Environment, any_card: bool = False
    ) -> list[str]:
        """List the settings that set an earlier start apart: "batch_size 1, now 4"; empty where cells may join.

        Args:
            any_card: another card of the same name is no difference.
        """
        free = {*self.free, *(["gpu_uuid"] if any_card else [])}
        # A setting that an older version did not have is as it was then, which is its default.
        asked, then = plain(request), _defaults(request) | document[self.request]
        then = {"device_type": str(then.get("device", "")).split(":")[0]} | then
        now = {"device_type": request.device_type} | asked
        found = [difference(name, then.get(name), now[name]) for name in now if name not in free]
        found += self.more_differences(then, now)
        names = [*SOFTWARE, *CARD]
        if request.device_type == "cpu" and getattr(request, "processes", 1) == 1:
            names += PROCESSOR
        facts = dataclasses.asdict(environment)
        for then in (start["environment"] for start in document["starts"] if start["environment"]):
            # What an older version did not record, and what a card did not tell, is no difference.
            known = [name for name in names if name in then and name not in free]
            known = [name for name in known if name not in CARD or None not in (then[name], facts[name])]
            found += [difference(name, then[name], facts[name]) for name in known]
        return list(dict.fromkeys(filter(None, found)))

    def start(self, request: Request, environment: Environment, command: Sequence[str], now_utc: str) -> dict[str, Any]:
        """Return the description of a start that begins now."""
        asked = {name: value for name, value in plain(request).items() if name in self.free}
        return {
            "utc": now_utc,
            "command": list(command),
            "environment": dataclasses.asdict(environment),
            "asked": asked,
            "ended_utc": None,
            "error": None,
        }

    def joined(self, earlier: Mapping[str, Any] | None, request: Request) -> dict[str, Any]:
        """Return a request for `run.json`: its lists of what to measure hold what all starts asked for."""
        joined = plain(request)
        for name in self.free:
            before, now = (earlier or {}).get(self.request, {}).get(name), joined.get(name)
            if isinstance(before, list) and isinstance(now, list):
                every = list(dict.fromkeys([*before, *now]))
                joined[name] = sorted(every) if all(isinstance(each, (int, float)) for each in every) else every
        return joined


def with_starts(request: str, free: Collection[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the upgrade of documents that had, of all starts but the last, the times only.

    Args:
        request: as `Schema.request`.
        free: as `Schema.free`.
    """

    def upgrade(document: dict[str, Any]) -> dict[str, Any]:
        resumed = document.get("resumed_utc")
        times = [document.get("started_utc"), *(resumed if isinstance(resumed, list) else [])]
        unknown = {"command": None, "environment": None, "asked": None, "ended_utc": None, "error": None}
        starts = [{"utc": utc} | unknown for utc in times]
        starts[-1] |= {name: document.get(name) for name in ("command", "environment", "ended_utc", "error")}
        starts[-1]["asked"] = {name: value for name, value in document[request].items() if name in free}
        kept = {name: value for name, value in document.items() if name != "resumed_utc"}
        return kept | {"schema_version": document["schema_version"] + 1, "starts": starts}

    return upgrade


def same_document(document: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a document to a version in which nothing but tables has changed."""
    return document | {"schema_version": document["schema_version"] + 1}


def _are_starts(found: object) -> bool:
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        return False
    return all(isinstance(each.get("environment", 0), (dict, type(None))) for each in found)


def difference(name: str, then: object, now: object) -> str:
    """Return a difference in words, "" where there is none, or where one side does not know."""
    if name == MODEL_DIGEST:
        return "the code or the weights of the model are others" if then and now and then != now else ""
    return f"{name} {then}, now {now}" if then != now else ""


def plain(request: Any) -> dict[str, Any]:
    """Return a request as JSON gives it back: tuples are lists there."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(request)))
    return found


def _defaults(request: Any) -> dict[str, Any]:
    """Return the settings of a request that have a default, as JSON gives it back."""
    fields = dataclasses.fields(request)
    found = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    plain_found: dict[str, Any] = json.loads(json.dumps(found))
    return plain_found


def _is_a(value: object, kind: type[Any]) -> bool:
    """Tell whether a setting has a type; a list is one of whole numbers."""
    return isinstance(value, kind) and (kind is not list or all(type(each) is int for each in value))
