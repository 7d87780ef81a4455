"""What a study of many cells writes, and the tables that they fill; first of all a training study's.

A cell counts when it stands in the last table of its schema (`training.csv`); its rows of the other tables are there by
then. Each table is replaced whole, so a run may be killed at any moment: rows of a cell that was not finished are
dropped when the next one begins.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.errors import InputError, WriteError
from convscope.storage.environment import PROCESSOR, SOFTWARE, Environment
from convscope.storage.paths import now_utc
from convscope.storage.schema import Request, Schema, columns
from convscope.storage.table import write_atomically


@dataclass(frozen=True)
class Ledger:
    """The files of a study, all in one directory."""

    path: Path
    schema: Schema

    @property
    def run(self) -> Path:
        """What the figures depend on."""
        return self.path / "run.json"

    def table(self, name: str) -> Path:
        """Return the file of one of the schema's tables."""
        return self.path / f"{name}.csv"

    def prepare(self) -> None:
        """Make the directory.

        Raises:
            InputError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_begin(error) from None

    def _cannot_begin(self, error: OSError) -> InputError:
        return InputError(
            f"cannot write results to {self.path} ({error.strerror}): choose another folder with --output-dir"
        )

    def begin(self, request: Request, environment: Environment, command: Sequence[str], overwrite: bool) -> None:
        """See that the cells that are there may stand beside the new ones, and write `run.json`.

        Raises:
            InputError: it cannot be written, or holds cells that were measured under other settings.
        """
        try:
            if overwrite:
                for name in reversed(list(self.schema.tables)):
                    self.table(name).unlink(missing_ok=True)
            else:
                self._check(request, environment)
            document = {
                "schema_version": self.schema.version,
                self.schema.request: _asdict(request),
                "environment": dataclasses.asdict(environment),
                "command": list(command),
                "started_utc": now_utc(),
            }
            write_atomically(self.run, json.dumps(document, indent=2) + "\n")
        except OSError as error:
            raise self._cannot_begin(error) from None

    def _check(self, request: Request, environment: Environment) -> None:
        if not self.done():
            return
        try:
            document = json.loads(self.run.read_bytes())
            then = document[self.schema.request] | document["environment"]
            known = document["schema_version"] == self.schema.version
        except (OSError, ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise InputError(f"{self.run} does not say how the tables beside it were measured: --overwrite them")
        asked = _asdict(request)
        now = asked | dataclasses.asdict(environment)
        names = [name for name in asked if name not in self.schema.free]
        names += SOFTWARE + (PROCESSOR if request.device_type == "cpu" and request.processes == 1 else ())
        odd = [f"{name} {then.get(name)}, now {now[name]}" for name in names if then.get(name) != now[name]]
        if odd:
            raise InputError(
                f"{self.path} holds cells with other settings ({'; '.join(odd)}): "
                "choose another --output-dir, or --overwrite"
            )

    def done(self) -> set[Any]:
        """Return the keys of the cells that are there, whatever became of them."""
        return {self.schema.key_of(row) for row in self._rows(self.schema.main)}

    def measured(self) -> dict[Any, Mapping[str, str]]:
        """Return the cells that could be measured: their rows as they stand on disk, by key."""
        return {self.schema.key_of(row): row for row in self._rows(self.schema.main) if row["status"] == "ok"}

    def add(self, rows: Sequence[Any], instead_of: Collection[Any] = ()) -> None:
        """Add one cell, its rows of all tables at once; rows that an earlier attempt at it left are replaced.

        Args:
            instead_of: keys of other cells whose rows go.

        Raises:
            WriteError: it cannot be written; the cells that are there stay.
        """
        try:
            self._add(rows, instead_of)
        except OSError as error:
            raise WriteError(
                f"cannot write to {self.path} ({error.strerror}): the cells that are there are whole; "
                "when that is mended, the same command goes on"
            ) from None

    def _add(self, rows: Sequence[Any], instead_of: Collection[Any]) -> None:
        key_of = self.schema.key_of
        stay = self.done() - {key_of(_cells(row)) for row in rows} - set(instead_of)
        for name, row_type in self.schema.tables.items():
            new = [_cells(row) for row in rows if type(row) is row_type]
            kept = [row for row in self._rows(name) if key_of(row) in stay]
            if new or kept:
                write_atomically(self.table(name), _text(row_type, [*kept, *new]))

    def save_text(self, name: str, text: str) -> None:
        """Write a file of text beside the tables."""
        write_atomically(self.path / name, text + "\n")

    def read(self, name: str) -> pd.DataFrame:
        """Return one of the tables, empty where there is none yet; cells that were not finished are left out.

        Raises:
            InputError: the file is not such a table.
        """
        done = self.done()
        kept = [row for row in self._rows(name) if self.schema.key_of(row) in done]
        text = _text(self.schema.tables[name], kept)
        return pd.read_csv(io.StringIO(text), float_precision="round_trip")

    def _rows(self, name: str) -> list[dict[str, str]]:
        path, expected = self.table(name), columns(self.schema.tables[name])
        if not path.exists():
            return []
        try:
            with path.open(newline="") as file:
                reader = csv.DictReader(file, strict=True)
                rows = list(reader)
                whole = reader.fieldnames == expected and all(None not in row.values() for row in rows)
                for row in rows:
                    self.schema.key_of(row)
        except (OSError, ValueError, KeyError, TypeError, csv.Error):
            whole = False
        if not whole:
            raise InputError(f"{path} is not a table of this version: move it away, or --overwrite")
        return rows


def _asdict(request: Request) -> dict[str, Any]:
    """Return a request as JSON would give it back: tuples are lists there."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(request)))  # type: ignore[call-overload]
    return found


def _cells(row: Any) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in dataclasses.asdict(row).items()}


def _text(row_type: type[Any], rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns(row_type), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
