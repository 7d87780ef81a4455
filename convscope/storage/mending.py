"""Repair of a study's files after a cut, and copies of what is about to be replaced.

Only for the holder of the folder's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from convscope.errors import InputError, WriteError
from convscope.storage import table
from convscope.storage.files import StudyFiles, listed, torn
from convscope.storage.lock import NAME as LOCK
from convscope.storage.paths import KEEPING, KEPT
from convscope.storage.schema import Part
from convscope.storage.table import write_atomically


def mend(files: StudyFiles) -> list[str]:
    """Set right what a cut-off run left, bring older tables to this version's columns; return a line for each thing.

    Raises:
        InputError: there is damage that no cut leaves.
        OSError: it cannot be written.
    """
    said = [*_drop_leftovers(files), *_mend_lines(files)]
    for part in files.schema.parts:
        said += _mend_cells(files, part)
    said += _upgrade(files)
    sort(files)
    return said


def _drop_leftovers(files: StudyFiles) -> list[str]:
    unfinished = [path for path in files.path.glob(".*.new") if not path.name.startswith(f".{LOCK}.")]
    for path in unfinished:
        path.unlink()
    for copy in files.path.glob(f".{KEEPING}*"):  # names of files that have theirs still
        shutil.rmtree(copy)
    return ["took away a file that was being written when a run was cut off"] if unfinished else []


def _mend_lines(files: StudyFiles) -> list[str]:
    """Cut off a last line without an end, and a header that was never whole: version 1 wrote in place."""
    said = []
    for name, form in files.schema.tables.items():
        path = files.table(name)
        content = path.read_bytes() if path.exists() else b"\n"
        whole = content[: content.rfind(b"\n") + 1]
        if whole == content:
            continue
        if whole:
            with contextlib.suppress(UnicodeDecodeError):  # reading it will say in which line
                write_atomically(path, whole.decode())
        elif ",".join(form.columns).encode().startswith(content):
            path.unlink()
        said.append(f"cut an unfinished line off {path.name}")
    return said


def _mend_cells(files: StudyFiles, part: Part) -> list[str]:
    """Drop the rows of cells that were not finished; a cut leaves at most one cell with a row and not all its rows."""
    rows = {name: files.rows(name) for name in part.tables}
    lacking, noun = torn(part, rows), files.schema.noun
    done = {part.key_of(row) for row in rows[part.main]}
    orphans = {part.key_of(row) for name in rows for row in rows[name]} - done
    if len(lacking) > 1 or (lacking and orphans):
        raise InputError(
            f"{files.path}: the {noun} {listed(lacking | orphans)} have layers without a row or a row without its "
            "layers, which is more than a cut leaves behind: restore the tables, or --overwrite keeps them and begins "
            "anew"
        )
    dropped = lacking | orphans
    if dropped:
        drop(files, part, dropped)
    return [
        f"dropped the {noun.removesuffix('s')} {_named(key)}, which was cut off" for key in sorted(dropped, key=str)
    ]


def _named(key: Any) -> str:
    """Return a key in words: "96 px", "resnet18, 4, 1, False"."""
    values = dataclasses.astuple(key)
    named = ", ".join(map(str, values))
    return f"{named} px" if len(values) == 1 else named


def drop(files: StudyFiles, part: Part, keys: set[Any]) -> None:
    """Take cells out of the tables, first where they count: what a kill leaves is dropped when it is mended."""

    def stays(row: Mapping[str, str]) -> bool:
        return part.key_of(row) not in keys

    for name, form in reversed(part.tables.items()):
        path = files.table(name)
        if path.exists() and not all(map(stays, files.rows(name))):
            write_atomically(path, table.select(path, form, stays))


def _upgrade(files: StudyFiles) -> list[str]:
    every = [(files.table(name), form) for name, form in files.schema.tables.items()]
    older = [(path, form) for path, form in every if table.header(path) not in (None, form.columns)]
    for path, form in older:
        write_atomically(path, table.select(path, form, lambda row: True))
    return [f"gave {path.name} the columns of schema version {files.schema.version}" for path, _ in older]


def sort(files: StudyFiles) -> None:
    """Bring the rows of sorted tables into their order on disk; a run adds them in the order of its measuring."""
    for part in files.schema.parts:
        for name, form in part.tables.items() if part.is_sorted else ():
            path, rows = files.table(name), files.rows(name)
            ordered = part.ordered(rows)
            if ordered != rows:
                write_atomically(path, table.text_of(form, ordered))


def keep(files: StudyFiles, now: datetime, move: bool) -> Path | None:
    """Keep the study's files in a folder inside theirs, named by the time; return it, None without files.

    It is inside, since the folder may be a mount point. With `move` they leave their folder; logs and the lock stay.
    The files have a name in both folders (`link`) until all are there; then `run.json` goes first: tables without it
    are never taken for anybody's.

    Raises:
        WriteError: they cannot be kept.
    """
    there = [path for path in (files.run, *files.tables) if path.exists()]
    if not there:
        return None
    kept = _not_taken(files.path / f"{KEEPING}{now:%Y%m%dT%H%M%SZ}")
    try:
        making = Path(tempfile.mkdtemp(prefix=f".{kept.name}.", dir=files.path))
        for path in there:
            os.link(path, making / path.name)
        making.chmod(files.path.stat().st_mode)
        table.sync_directory(making)
        making.rename(kept)
        table.sync_directory(kept.parent)
        for path in there if move else ():
            path.unlink()
    except OSError as error:
        raise WriteError(
            f"cannot keep the earlier run in {kept} ({error.strerror}): choose another --output-dir"
        ) from None
    return kept


def kept_folders(path: Path) -> list[Path]:
    """Return the folders that hold what --overwrite found in a folder, also those of older versions beside it."""
    whole = path.resolve()
    return [*path.glob(f"{KEEPING}*"), *whole.parent.glob(f"{glob.escape(whole.name)}{KEPT}*")]


def finish_keeping(files: StudyFiles) -> str | None:
    """Remove the tables that a killed `keep` had copied and not yet removed; return a line on it, None for nothing."""
    left = [path for path in files.tables if path.exists()]
    for kept in kept_folders(files.path) if left else ():
        twins = [kept / path.name for path in left]
        if all(twin.exists() and twin.samefile(path) for path, twin in zip(left, twins, strict=True)):
            for path in left:
                path.unlink()
            return f"{files.path}: removed the tables that an interrupted --overwrite left; they are in {kept}"
    return None


def _not_taken(wanted: Path) -> Path:
    """Return this name, or one with a number after it where the name is taken: the clock may go back."""
    free, number = wanted, 1
    while free.exists():
        number += 1
        free = wanted.with_name(f"{wanted.name}-{number}")
    return free
