"""One table of a study as a file: read strictly, every error with file and line, and replaced whole.

A file is never added to in place. Its next content is written beside it and brought to the disk, then renamed over it:
a reader sees the old content or the new one, whatever is cut off when.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import functools
import io
import itertools
import operator
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from convscope.errors import InputError
from convscope.storage.paths import new_beside

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")
ADVICE = "move it away, or --overwrite"  # of a run's own table
OF_INPUT = "mend the file, or name another"  # of a table that somebody hands in
_BLOCK = 256  # rows that are looked at together

_FLOAT = re.compile(r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|inf|nan)", re.ASCII)
_FORMS = {
    "int": (re.compile(r"-?\d+(\.0)?", re.ASCII), "a whole number"),
    "float": (_FLOAT, "a number"),
    "bool": (re.compile("True|False"), "True or False"),
}


def _text_of(cell: str) -> str | None:
    return cell or None


_VALUES: dict[str, Callable[[str], Any]] = {
    "int": lambda cell: int(float(cell)) if cell else None,
    "float": lambda cell: float(cell) if cell else None,
    "bool": lambda cell: cell == "True" if cell else None,
}


@dataclass(frozen=True)
class Table:
    """Form of one table: a column is a field of `row_type`, and None is an empty cell.

    Attributes:
        unique: columns that no two rows share all of; empty where rows may repeat.
        first: this many leading columns stand in the tables of every version; of the others an older one may lack some.
        dropped: columns of older versions that no longer mean anything; they are not read.
        added: columns that name a cell and that older versions do not have, with what stands there for them.
    """

    row_type: type[Any]
    unique: tuple[str, ...]
    first: int
    dropped: tuple[str, ...] = ()
    added: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Names of the columns in their order on disk."""
        return columns(self.row_type)


def columns(row_type: type[Any]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]


def fill(row_type: type[Row], *sources: object, **cells: Any) -> Row:
    """Return a row: each column from `cells`, else from the first source with an attribute of its name, else empty."""
    for field in dataclasses.fields(row_type):  # type: ignore[arg-type]
        source = next((source for source in sources if hasattr(source, field.name)), None)
        if source is not None:
            cells.setdefault(field.name, getattr(source, field.name))
    return row_type(**cells)


@contextlib.contextmanager
def handed_in() -> Iterator[None]:
    """Advise in the block to mend a table that cannot be read: no command that reads it has written it."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(ADVICE, OF_INPUT)) from None


def rows(path: Path, form: Table) -> list[dict[str, str]]:
    """Read the rows of a table as they stand on disk; without a file, none.

    Raises:
        InputError: the file cannot be read, or is not such a table; the message names file and line.
    """
    if not path.exists():
        return []
    text = _text(path)
    found = _plain_rows(text, form)
    if found is None:
        _check(path, text, form)  # which says what is wrong, and where
        lines = csv.DictReader(io.StringIO(text, newline=""))
        found = [{name: row.get(name, form.added.get(name, "")) for name in form.columns} for row in lines]
    return found


def sound_rows(path: Path, form: Table) -> tuple[dict[int, dict[str, str]], list[str]]:
    """Read the rows of a table that are right, by line, and say of each other one what is wrong: for a check of it.

    Raises:
        InputError: the file cannot be read, or has other columns than such a table.
    """
    text = _text(path)
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    found: dict[int, dict[str, str]] = {}
    faults, seen, types = [], dict[tuple[str, ...], int](), _types(form.row_type)  # type: ignore[arg-type]
    try:
        names = next(lines, [])
        _check_header(path, names, form)
        for cells in lines:
            try:
                _check_cells(f"{path}, line {lines.line_num}", names, cells, types)
            except InputError as error:
                faults.append(str(error).removesuffix(f": {ADVICE}"))
                continue
            row = dict(zip(names, cells, strict=True))
            key = tuple(row[name] for name in form.unique if name in row)
            if seen.setdefault(key, lines.line_num) != lines.line_num:
                faults.append(f"{path}, line {lines.line_num}: its key stands in line {seen[key]} already")
                continue
            found[lines.line_num] = {name: row.get(name, form.added.get(name, "")) for name in form.columns}
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}") from None
    return found, faults


def frame(form: Table, kept: Sequence[Mapping[str, object]], texts: Collection[str] = ()) -> pd.DataFrame:
    """Return rows, as `rows` reads them or as values, as a data frame; what an older version did not have is empty.

    Args:
        texts: columns that are text also where all of their cells could be numbers.
    """
    import pandas as pd  # only those who want data frames need it

    if not kept:
        return pd.DataFrame(columns=form.columns)
    text, names = io.StringIO(), form.columns
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(operator.itemgetter(*names), kept))
    text.seek(0)
    kinds = _types(form.row_type)  # type: ignore[arg-type]
    absent = {name: [""] if kind == "str" else ["", "nan"] for name, (kind, _) in kinds.items()}  # a layer may be "NA"
    # From 3.1 on pandas reads each number as it is written, and warns of the argument that it needed before.
    exactly: dict[str, Any] = {"float_precision": "round_trip"} if _release(pd.__version__) < (3, 1) else {}
    found: pd.DataFrame = pd.read_csv(
        text, dtype=dict.fromkeys(texts, str), na_values=absent, keep_default_na=False, **exactly
    )
    return found


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(map(int, version.split(".")[:2]))


def objects(form: Table, kept: Iterable[Mapping[str, str]]) -> list[Any]:
    """Return rows as `rows` reads them as objects of the table's row type."""
    row_type, readers = form.row_type, _readers(form.row_type)  # type: ignore[arg-type]
    return [row_type(*[read(row[name]) for name, read in readers]) for row in kept]


def read_as(row_type: type[Any], row: Mapping[str, str]) -> Any:
    """Return those cells of a row on disk that this dataclass has fields for, as its object."""
    return row_type(*[read(row[name]) for name, read in _readers(row_type)])  # type: ignore[arg-type]


@functools.cache
def _readers(row_type: type[Any]) -> tuple[tuple[str, Callable[[str], Any]], ...]:
    """Return for each column of a dataclass the function that makes a value of a cell, in order."""
    return tuple((name, _VALUES.get(kind, _text_of)) for name, (kind, _) in _types(row_type).items())  # type: ignore[arg-type]


def header(path: Path) -> list[str] | None:
    """Return the columns that a table on disk has, None without a file."""
    return next(csv.reader(io.StringIO(_text(path))), []) if path.exists() else None


def select(path: Path, form: Table, keep: Callable[[Mapping[str, str]], bool]) -> str:
    """Return a table's text with the columns of this version and the rows to keep, each cell as it stands."""
    return text_of(form, [row for row in rows(path, form) if keep(row)])


def lines_of(form: Table, new: Iterable[Any], with_header: bool) -> str:
    """Return row objects as the lines of their table."""
    return text_of(form, ({name: getattr(row, name) for name in form.columns} for row in new), with_header)


def text_of(form: Table, kept: Iterable[Mapping[str, Any]], with_header: bool = True) -> str:
    """Return rows as `rows` reads them as the text of their table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=form.columns, restval="", lineterminator="\n")
    if with_header:
        writer.writeheader()
    writer.writerows(kept)
    return text.getvalue()


def _text(path: Path) -> str:
    if not path.is_file():  # a pipe would keep its reader for ever
        raise InputError(f"{path} cannot be read (it is no file): {ADVICE}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")  # as spreadsheets write it
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: this is no text: {ADVICE}") from None


def _plain_rows(text: str, form: Table) -> list[dict[str, str]] | None:
    """Return the rows of a table's text, None where anything is wrong with it.

    A block of rows is looked at column by column, which is fast. Blocks are small: large pieces of memory of ever other
    sizes would leave holes, and the process would grow.
    """
    if not text.endswith("\n") or "\0" in text:
        return None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    types, found, keys = _types(form.row_type), list[dict[str, str]](), set[tuple[str, ...]]()  # type: ignore[arg-type]
    try:
        names = next(lines, [])
        unique, wanted = [name for name in form.unique if name in names], form.columns
        if _odd_columns(names, form):
            return None
        while block := list(itertools.islice(lines, _BLOCK)):
            if any(len(cells) != len(names) for cells in block):
                return None
            columns = dict(zip(names, zip(*block, strict=True), strict=True))
            if not all(_fit(set(cells), *types.get(name, ("str", True))) for name, cells in columns.items()):
                return None
            keys.update(zip(*(columns[name] for name in unique), strict=True))
            absent = {name: (form.added.get(name, ""),) * len(block) for name in wanted if name not in columns}
            cells = [columns[name] if name in columns else absent[name] for name in wanted]
            found += [dict(zip(wanted, row, strict=True)) for row in zip(*cells, strict=True)]
    except csv.Error:
        return None
    return None if unique and len(keys) < len(found) else found


def _fit(cells: Collection[str], kind: str, optional: bool) -> bool:
    """Tell whether the different cells of a column are of its kind."""
    form = _FORMS.get(kind)
    return (optional or "" not in cells) and (form is None or all(form[0].fullmatch(cell) for cell in cells if cell))


def _check(path: Path, text: str, form: Table) -> None:
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
        _check_header(path, names, form)
        types = _types(form.row_type)  # type: ignore[arg-type]
        for cells in lines:
            _check_cells(f"{path}, line {lines.line_num}", names, cells, types)
            key = tuple(cells[names.index(name)] for name in form.unique if name in names)
            if key and key in seen:
                there = [name for name in form.unique if name in names]
                what = " ".join(f"{name} {value}" for name, value in zip(there, key, strict=True))
                raise InputError(f"{path}, line {lines.line_num}: {what} stands in line {seen[key]} already: {ADVICE}")
            seen[key] = lines.line_num
    except csv.Error as error:
        raise InputError(f"{path}, line {lines.line_num}: {error}: {ADVICE}") from None


def _check_header(path: Path, names: Sequence[str], form: Table) -> None:
    if listed := _odd_columns(names, form):
        raise InputError(f"{path}, line 1: it has other columns than this version writes ({listed}): {ADVICE}")


def _odd_columns(names: Sequence[str], form: Table) -> str:
    """Return the columns that a table must not have, or lacks; "" for none."""
    needed = {*form.columns[: form.first], *form.unique, *({"status"} & set(form.columns))} - {*form.added}
    odd = sorted(set(names) - {*form.columns, *form.dropped}) + sorted(needed - set(names))
    twice = "" if len(set(names)) == len(names) else "one twice"
    return ", ".join(_short(name) for name in odd[:5]) or twice


def _check_cells(where: str, names: Sequence[str], cells: Sequence[str], types: Mapping[str, tuple[str, bool]]) -> None:
    if len(cells) != len(names):
        raise InputError(f"{where}: {len(cells)} cells where {len(names)} belong: {ADVICE}")
    for name, cell in zip(names, cells, strict=True):
        kind, optional = types.get(name, ("str", True))  # a dropped column has no type
        if not cell and not optional:
            raise InputError(f"{where}: {name} is empty: {ADVICE}")
        if cell and kind in _FORMS and not _FORMS[kind][0].fullmatch(cell):
            raise InputError(f"{where}: {name} is {_short(cell)}, not {_FORMS[kind][1]}: {ADVICE}")


@functools.cache
def _types(row_type: type[Any]) -> dict[str, tuple[str, bool]]:
    """Return for each column the kind of its cells, and whether they may be empty."""
    annotations = {field.name: str(field.type) for field in dataclasses.fields(row_type)}
    return {name: (text.removesuffix(" | None"), text.endswith(" | None")) for name, text in annotations.items()}


def _short(text: str) -> str:
    """Return foreign text so that it stays on the line, and short."""
    return ascii(text if len(text) <= 40 else text[:40] + "…")


class Replacement:
    """The next content of a file, beside it and safely on the disk; `commit` puts it in the file's place.

    Args:
        content: what to write; with `after`, what to add to the content that there is.

    Raises:
        OSError: it cannot be written; the file is as it was, and nothing is left beside it.
    """

    def __init__(self, path: Path, content: str | bytes, after: bool = False) -> None:
        self.path, self._beside = path, new_beside(path)
        try:
            with self._beside.open("xb") as file:
                if after and path.exists():
                    with path.open("rb") as earlier:
                        shutil.copyfileobj(earlier, file)
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.drop()
            raise

    def commit(self) -> None:
        """Put it in the file's place, for every reader at once."""
        self._beside.replace(self.path)

    def drop(self) -> None:
        """Take it away again, where that can be; what stays is taken away by the next run."""
        with contextlib.suppress(OSError):
            self._beside.unlink()


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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never a part.

    Raises:
        OSError: it cannot be written; the file is as it was, and nothing is left beside it.
    """
    new = Replacement(path, content)
    try:
        new.commit()
    except OSError:
        new.drop()
        raise
    sync_directory(path.parent)
