"""One table of a run as a file: read strictly, every error with file and line, and replaced whole.

A file is never added to in place. Its next content is written beside it and brought to the disk, then renamed over it:
whoever reads it, and whatever is cut off when, there is the old content or the new one.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import io
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.errors import InputError
from convscope.profiling.rows import LayerRow, OverallRow


def columns(row_type: type[Any]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]


RowType = type[OverallRow] | type[LayerRow]
ADVICE = "move it away, or --overwrite"

# What no table has ever been without: an older one has these and some of the other columns.
_FIRST = {OverallRow: 9, LayerRow: 6}
_KEYS = {OverallRow: ["input_size"], LayerRow: ["input_size", "position"]}
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|inf|nan)", re.ASCII)
_FORMS = {"int": (re.compile(r"-?\d+(\.0)?", re.ASCII), "a whole number"), "float": (_FLOAT, "a number")}


def read(path: Path, row_type: RowType) -> pd.DataFrame:
    """Read one table; without a file, an empty one. A column that an older version did not have yet is empty.

    Raises:
        InputError: the file cannot be read, or is not such a table; the message names file and line.
    """
    expected = columns(row_type)
    if not path.exists():
        return pd.DataFrame(columns=expected)
    text = _text(path)
    _check(path, text, row_type)
    return pd.read_csv(io.StringIO(text), float_precision="round_trip").reindex(columns=expected)


def header(path: Path) -> list[str] | None:
    """Return the columns that a table on disk has, None without a file."""
    return next(csv.reader(io.StringIO(_text(path))), []) if path.exists() else None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: this is no text: {ADVICE}") from None


def _check(path: Path, text: str, row_type: RowType) -> None:
    """Refuse what is not this table, cell by cell."""
    if not text:
        raise InputError(f"{path}, line 1: the file is empty: {ADVICE}")
    if "\0" in text:
        raise InputError(f"{path}, line {text.count(chr(10), 0, text.index(chr(0))) + 1}: this is no text: {ADVICE}")
    if not text.endswith("\n"):
        cut = text.count("\n") + 1
        raise InputError(f"{path}, line {cut}: the line was cut off: the run's own command mends that, or {ADVICE}")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    seen: dict[tuple[str, ...], int] = {}
    try:
        names = next(lines, [])
        _check_header(path, names, row_type)
        types, keys = _types(row_type), _KEYS[row_type]
        for cells in lines:
            _check_cells(f"{path}, line {lines.line_num}", names, cells, types)
            key = tuple(cells[names.index(name)] for name in keys)
            if key in seen:
                what = " ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True))
                raise InputError(f"{path}, line {lines.line_num}: {what} stands in line {seen[key]} already: {ADVICE}")
            seen[key] = lines.line_num
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}: {ADVICE}") from None


def _check_header(path: Path, names: Sequence[str], row_type: RowType) -> None:
    expected = columns(row_type)
    needed = {*expected[: _FIRST[row_type]], *_KEYS[row_type], "status"}
    odd = sorted(set(names) - set(expected)) + sorted(needed - set(names))
    if odd or len(set(names)) != len(names):
        told = ", ".join(_short(name) for name in odd[:5]) or "one twice"
        raise InputError(f"{path}, line 1: it has other columns than this version writes ({told}): {ADVICE}")


def _check_cells(where: str, names: Sequence[str], cells: Sequence[str], types: Mapping[str, tuple[str, bool]]) -> None:
    if len(cells) != len(names):
        raise InputError(f"{where}: {len(cells)} cells where {len(names)} belong: {ADVICE}")
    for name, cell in zip(names, cells, strict=True):
        kind, optional = types[name]
        if not cell and not optional:
            raise InputError(f"{where}: {name} is empty: {ADVICE}")
        if cell and kind in _FORMS and not _FORMS[kind][0].fullmatch(cell):
            raise InputError(f"{where}: {name} is {_short(cell)}, not {_FORMS[kind][1]}: {ADVICE}")


def _types(row_type: RowType) -> dict[str, tuple[str, bool]]:
    """Return for each column the kind of its cells, and whether they may be empty."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(row_type)}
    return {name: (text.removesuffix(" | None"), text.endswith(" | None")) for name, text in annotations.items()}


def _short(text: str) -> str:
    """Return foreign text so that it stays on the line, and short."""
    return ascii(text if len(text) <= 40 else text[:40] + "…")


def lines_of(row_type: type[Any], rows: Iterable[Any], with_header: bool) -> str:
    """Return rows as the lines of their table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns(row_type), lineterminator="\n")
    if with_header:
        writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    return text.getvalue()


def select(path: Path, row_type: RowType, sizes: set[int] | None) -> str:
    """Return a table's text with the columns of this version and the rows of these sizes (None: all), by the letter."""
    expected = columns(row_type)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=expected, restval="", lineterminator="\n")
    writer.writeheader()
    rows = csv.DictReader(io.StringIO(_text(path), newline=""))
    writer.writerows(row for row in rows if sizes is None or int(float(row["input_size"])) in sizes)
    return text.getvalue()


class Replacement:
    """The next content of a file, beside it and safely on the disk; `commit` puts it in the file's place.

    Args:
        text: what to write; with `after`, what to add to the content that there is.

    Raises:
        OSError: it cannot be written; the file is as it was, and nothing is left beside it.
    """

    def __init__(self, path: Path, text: str, after: bool = False) -> None:
        self.path, self.beside = path, beside(path)
        try:
            if after and path.exists():
                shutil.copyfile(path, self.beside)
            else:
                self.beside.write_bytes(b"")
            with self.beside.open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.drop()
            raise

    def commit(self) -> None:
        """Put it in the file's place, for every reader at once."""
        self.beside.replace(self.path)

    def drop(self) -> None:
        """Take it away again, where that can be; what stays is taken away by the next run."""
        with contextlib.suppress(OSError):
            self.beside.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """Return where the next content of a file is written; one writer at a time, which the lock sees to."""
    return path.with_name(f".{path.name}.new")


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk, where its file system can."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never a part."""
    Replacement(path, text).commit()
    sync_directory(path.parent)
