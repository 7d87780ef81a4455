"""Files of a study in one directory: their names, their rows, and tables of one moment."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.errors import InputError
from convscope.storage import table
from convscope.storage.schema import Part, Schema

Rows = list[dict[str, str]]


@dataclass(frozen=True)
class StudyFiles:
    """The files of a study; `stem` is the first part of the tables' names, "" for none."""

    path: Path
    schema: Schema
    stem: str = ""

    @property
    def run(self) -> Path:
        """The file that says what the figures depend on."""
        return self.path / "run.json"

    def table(self, name: str) -> Path:
        """Return the file of one of the schema's tables."""
        return self.path / (f"{self.stem}_{name}.csv" if self.stem else f"{name}.csv")

    @property
    def tables(self) -> list[Path]:
        """The files of all tables, those that make a cell count before the others."""
        return [self.table(name) for part in self.schema.parts for name in reversed(part.tables)]

    def rows(self, name: str) -> Rows:
        """Return a table's rows as they stand on disk; raises as `table.rows`."""
        return table.rows(self.table(name), self.schema.tables[name])

    def whole(self, part: Part, names: Sequence[str], again: bool = True) -> dict[str, Rows]:
        """Return tables of a part, the rows of whole cells; also while a run is writing.

        Args:
            again: look twice where rows are missing: an --overwrite may have taken them away in between.

        Raises:
            InputError: a file is not such a table, or a cell lacks rows.
        """
        rows = {part.main: self.rows(part.main)}  # first: the cells that it names are in the others by then
        rows |= {name: self.rows(name) for name in names if name != part.main}
        lacking = torn(part, rows)
        if lacking and again:
            return self.whole(part, names, again=False)
        if lacking and part.counted:
            raise InputError(
                f"{self.table(part.counted[0])} lacks {part.counted[0]} of the {self.schema.noun} {listed(lacking)} "
                f"that are in {self.table(part.main).name}: the run's own command mends a cut, else restore the table"
            )
        done = {part.key_of(row) for row in rows[part.main]}
        return {name: part.ordered([row for row in rows[name] if part.key_of(row) in done]) for name in rows}


def torn(part: Part, rows: Mapping[str, Sequence[Mapping[str, str]]]) -> set[Any]:
    """Return the cells whose row says that they were measured, and that have not all their rows."""
    if part.counted is None or part.counted[0] not in rows:
        return set()
    name, column = part.counted
    counts = Counter(part.key_of(row) for row in rows[name])
    expected = {part.key_of(row): row[column] for row in rows[part.main] if row["status"] == "ok" and row[column]}
    return {key for key, count in expected.items() if counts[key] != int(float(count))}


def listed(keys: Iterable[Any]) -> str:
    """Return keys on one line, the first five and how many more there are."""
    every = [", ".join(map(str, dataclasses.astuple(key))) for key in sorted(keys, key=dataclasses.astuple)]
    return ", ".join(every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")
