"""The folder of one run: `run.json` and two tables, written size by size, read back, and mended after a cut.

Each file is replaced whole (`tables`), the layers' before the overall table: a size counts when it stands in the
overall table, and all its layers are there by then. So a run may be killed, or run out of disk, at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import tempfile
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.errors import InputError, WriteError
from convscope.profiling.request import SETTINGS, Run
from convscope.profiling.rows import SCHEMA_VERSION, LayerRow, OverallRow
from convscope.storage import table
from convscope.storage.environment import PROCESSOR, SOFTWARE, Environment
from convscope.storage.paths import KEPT
from convscope.storage.table import Replacement, columns, write_atomically


@dataclass(frozen=True)
class Folder:
    """The files of one run: `run.json` and the two tables, all in one directory."""

    path: Path
    stem: str

    @property
    def overall(self) -> Path:
        """The table of the whole model, one row an input size."""
        return self.path / f"{self.stem}_overall.csv"

    @property
    def layers(self) -> Path:
        """The table of the convolutions, one row a layer and input size."""
        return self.path / f"{self.stem}_layers.csv"

    @property
    def run(self) -> Path:
        """What the figures depend on."""
        return self.path / "run.json"

    def prepare(self) -> None:
        """Make the directory and prove that files can be written there.

        Raises:
            InputError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            Replacement(self.run, "proof").drop()
        except (OSError, ValueError) as error:  # a path that no file system can have is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                f"cannot write results to {self.path} ({why}): choose another folder with --output-dir"
            ) from None

    def keep(self, now: datetime) -> Path | None:
        """Move the run's files into a folder beside this one, named by the time; return it, None without files.

        Logs and the lock stay. The files have a name in both folders (`link`) until all are there; then `run.json` goes
        first: tables without it are never taken for anybody's.

        Raises:
            WriteError: they cannot be moved.
        """
        there = [path for path in (self.run, self.overall, self.layers) if path.exists()]
        if not there:
            return None
        whole = self.path.resolve()
        try:
            kept = _not_taken(whole.with_name(f"{whole.name}{KEPT}{now:%Y%m%dT%H%M%SZ}"))
            making = Path(tempfile.mkdtemp(prefix=f".{kept.name}.", dir=kept.parent))
            for path in there:
                os.link(path, making / path.name)
            making.chmod(self.path.stat().st_mode)
            table.sync_directory(making)
            making.rename(kept)
            table.sync_directory(kept.parent)
            for path in there:
                path.unlink()
        except OSError as error:
            raise WriteError(
                f"cannot move the earlier run out of {self.path} ({error.strerror}): choose another --output-dir"
            ) from None
        return kept

    def _finish_keeping(self, note: Callable[[str], None]) -> None:
        """Remove what `keep` did not come to, where it was killed: tables without `run.json` that are kept already."""
        left = [path for path in (self.overall, self.layers) if path.exists()]
        whole = self.path.resolve()
        for kept in whole.parent.glob(f"{glob.escape(whole.name)}{KEPT}*") if left else ():
            twins = [kept / path.name for path in left]
            if all(twin.exists() and twin.samefile(path) for path, twin in zip(left, twins, strict=True)):
                for path in left:
                    path.unlink()
                note(f"{self.path}: removed the tables that an interrupted --overwrite left; they are in {kept}")
                return

    def append(self, overall: OverallRow, layers: Sequence[LayerRow]) -> None:
        """Add one size to both tables, safely on the disk when this returns.

        Raises:
            WriteError: it cannot be written; the tables are as they were.
        """
        rows = ((self.layers, LayerRow, layers), (self.overall, OverallRow, [overall]))
        written: list[Replacement] = []
        try:
            for path, row_type, new in rows:
                text = table.lines_of(row_type, new, with_header=not path.exists())
                written.append(Replacement(path, text, after=True))
            for replacement in written:
                replacement.commit()
            table.sync_directory(self.path)
        except OSError as error:
            for replacement in written:
                replacement.drop()
            raise _cannot_write(self.path, error) from None

    def read(self, again: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the whole sizes: the overall table and the table of layers, also while a run is writing.

        Args:
            again: look twice where layers are missing: an --overwrite may have moved them away in between.

        Raises:
            InputError: a file is not such a table, or a size lacks layers; the message names file and line.
        """
        overall = self.read_overall()
        layers = table.read(self.layers, LayerRow)
        torn = _torn(overall, layers)
        if torn and again:
            return self.read(again=False)
        if torn:
            raise InputError(
                f"{self.layers} lacks layers of the sizes {_some(torn)} that are in {self.overall.name}: "
                "the run's own command mends it"
            )
        return overall, layers[layers["input_size"].isin(overall["input_size"])].reset_index(drop=True)

    def read_overall(self) -> pd.DataFrame:
        """Return the overall table, empty where there is none yet."""
        return table.read(self.overall, OverallRow)

    def read_layers(self) -> pd.DataFrame:
        """Return the layers of the sizes in the overall table, empty where there are none yet."""
        return self.read()[1]

    def mend(self) -> list[str]:
        """Set right what a run that was cut off left, and bring tables of an older version to this one's columns.

        Only for who holds the folder's lock.

        Returns:
            a line for each thing that was mended.

        Raises:
            InputError: there is damage that no cut leaves.
            WriteError: it cannot be written.
        """
        try:
            return [*self._drop_leftovers(), *self._mend_lines(), *self._mend_sizes(), *self._upgrade()]
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def _drop_leftovers(self) -> list[str]:
        left = [table.beside(path) for path in (self.run, self.layers, self.overall)]
        there = [path for path in left if path.exists()]
        for path in there:
            path.unlink()
        return ["took away a file that was being written when a run was cut off"] if there else []

    def _mend_lines(self) -> list[str]:
        """Cut off a last line without an end, and a header that was never whole: version 1 wrote in place."""
        said = []
        for path, row_type in ((self.layers, LayerRow), (self.overall, OverallRow)):
            content = path.read_bytes() if path.exists() else b"\n"
            whole = content[: content.rfind(b"\n") + 1]
            if whole == content:
                continue
            if whole:
                with contextlib.suppress(UnicodeDecodeError):  # reading it will say in which line
                    write_atomically(path, whole.decode())
            elif ",".join(columns(row_type)).encode().startswith(content):
                path.unlink()
            said.append(f"cut an unfinished line off {path.name}")
        return said

    def _mend_sizes(self) -> list[str]:
        overall, layers = self.read_overall(), table.read(self.layers, LayerRow)
        torn = sorted(_torn(overall, layers) | (set(layers["input_size"]) - set(overall["input_size"])))
        if not torn:
            return []
        if len(torn) > 1:
            raise InputError(
                f"{self.path}: the sizes {_some(torn)} have layers without a row or a row without its layers, "
                "which is more than a cut leaves behind: restore the tables, or --overwrite keeps them and begins anew"
            )
        whole = set(overall["input_size"]) - set(torn)
        for path, row_type in ((self.layers, LayerRow), (self.overall, OverallRow)):
            if path.exists():
                write_atomically(path, table.select(path, row_type, whole))
        return [f"dropped the size {torn[0]} px, which was cut off"]

    def _upgrade(self) -> list[str]:
        pairs = ((self.layers, LayerRow), (self.overall, OverallRow))
        older = [pair for pair in pairs if table.header(pair[0]) not in (None, columns(pair[1]))]
        for path, row_type in older:
            write_atomically(path, table.select(path, row_type, None))
        return [f"gave {path.name} the columns of schema version {SCHEMA_VERSION}" for path, _ in older]

    def missing_sizes(self, run: Run, environment: Environment, note: Callable[[str], None]) -> list[int]:
        """Return the sizes of a run that this folder does not have yet, after mending what a cut-off run left.

        Args:
            note: called with one line on what was mended, and on what is there.

        Raises:
            InputError: the folder holds sizes that were measured under other settings, or nobody knows under which.
        """
        earlier = self.read_run()
        if earlier is None:
            self._finish_keeping(note)
        if earlier is None and (self.overall.exists() or self.layers.exists()):
            raise InputError(
                f"{self.path} has tables and no run.json, so nobody knows how they were measured: "
                "choose another --output-dir, or --overwrite"
            )
        odd = differences(earlier, run, environment) if earlier is not None else []
        if odd:
            raise InputError(
                f"{self.path} holds a run with other settings ({'; '.join(odd)}): "
                "choose another --output-dir, or --overwrite"
            )
        for line in self.mend():
            note(f"{self.path}: {line}")
        overall = self.read_overall()
        done = set(overall["input_size"])
        missing = [size for size in run.input_sizes if size not in done]
        if not missing:
            if earlier is not None and earlier.get("ended_utc") is None:  # cut off after the last size
                self.note_in_run(ended_utc=_end_utc(overall))
            note(f"all {len(run.input_sizes)} sizes are in {self.path}: nothing measured (--overwrite)")
        elif done:
            note(f"{len(done)} sizes are in {self.path}: measuring the {len(missing)} that are missing")
        return missing

    def write_run(self, run: Run, environment: Environment, more: Mapping[str, Any]) -> None:
        """Write `run.json`: schema version, request, environment, and `more` (command, start and end, error).

        Raises:
            WriteError: it cannot be written; the file is as it was.
        """
        document = {
            "schema_version": SCHEMA_VERSION,
            "run": dataclasses.asdict(run),
            "environment": dataclasses.asdict(environment),
            **more,
        }
        self._write_document(document)

    def note_in_run(self, **more: object) -> None:
        """Put further entries into `run.json`: its end, an error.

        Raises:
            WriteError: it cannot be written; the file is as it was.
        """
        self._write_document((self.read_run() or {}) | more)

    def _write_document(self, document: Mapping[str, Any]) -> None:
        try:
            write_atomically(self.run, json.dumps(document, indent=2) + "\n")
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def read_run(self) -> dict[str, Any] | None:
        """Return the content of `run.json` in this version's form, None where there is none.

        Raises:
            InputError: it is not this project's, or of a newer schema.
        """
        if not self.run.exists():
            return None
        try:
            document = json.loads(self.run.read_bytes())
        except json.JSONDecodeError as error:
            raise InputError(
                f"{self.run}, line {error.lineno}: {error.msg}: it is not a run.json of this project: {table.ADVICE}"
            ) from None
        except (OSError, ValueError, RecursionError):
            raise InputError(f"{self.run}, line 1: it is not a run.json of this project: {table.ADVICE}") from None
        return _in_this_version(document, self.run)


def _not_taken(wanted: Path) -> Path:
    """Return this name, or one with a number after it where the name is taken: the clock may go back."""
    free, number = wanted, 1
    while free.exists():
        number += 1
        free = wanted.with_name(f"{wanted.name}-{number}")
    return free


def _cannot_write(path: Path, error: OSError) -> WriteError:
    return WriteError(
        f"cannot write to {path} ({error.strerror}): the sizes that are there are whole; "
        "when that is mended, the same command goes on"
    )


def _torn(overall: pd.DataFrame, layers: pd.DataFrame) -> set[int]:
    """Return the sizes whose row says that they were measured, and that have not all their layers."""
    counts = Counter(layers["input_size"])
    told = zip(overall["input_size"], overall["status"], overall["convolutions"], strict=True)
    return {
        int(size) for size, status, count in told if status == "ok" and not pd.isna(count) and counts[size] != count
    }


def _end_utc(overall: pd.DataFrame) -> str | None:
    """Return when the last size was finished, as far as the rows say."""
    started = pd.to_datetime(overall["started_utc"], format="ISO8601", utc=True, errors="coerce")
    ended = (started + pd.to_timedelta(overall["wall_s"], unit="s")).max()
    return None if pd.isna(ended) else str(ended.isoformat(timespec="seconds"))


def _some(sizes: typing.Iterable[int]) -> str:
    every = sorted(int(size) for size in sizes)
    return ", ".join(map(str, every[:5])) + (f" and {len(every) - 5} more" if len(every) > 5 else "")


def _in_this_version(document: Any, path: Path) -> dict[str, Any]:
    """Return a run.json's content, brought from its own schema version to this one step by step."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION} and older: use the version that "
            "wrote it, or another --output-dir"
        )
    if type(version) is not int or version < 1 or not _has_run(document):
        raise InputError(f"{path}, line 1: it is not a run.json of this project: {table.ADVICE}")
    for step in _UPGRADES[version - 1 :]:
        document = step(document)
    return typing.cast("dict[str, Any]", document)


def _has_run(document: dict[str, Any]) -> bool:
    run, environment = document.get("run"), document.get("environment")
    if not isinstance(run, dict) or not isinstance(environment, dict) or "host" not in environment:
        return False
    sizes = run.get("input_sizes")
    named = all(isinstance(run.get(name), str) for name in ("model", "algorithm", "gpu", "device"))
    return named and isinstance(sizes, list) and all(type(size) is int for size in sizes)


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knows a limit on workspaces, when a run went on, and what ended it."""
    run = {"max_workspace_bytes": None} | document["run"]
    return document | {"schema_version": 2, "run": run, "resumed_utc": [], "error": None}


_UPGRADES = (_from_1,)


def differences(document: Mapping[str, Any], run: Run, environment: Environment) -> list[str]:
    """List what sets an earlier run apart from this one: "batch_size 1, now 4". Empty where sizes may join."""
    then = {"device_type": str(document["run"].get("device", "")).split(":")[0]}
    then |= document["run"] | document["environment"]
    now = {"device_type": run.device_type} | dataclasses.asdict(run) | dataclasses.asdict(environment)
    keys = SETTINGS + SOFTWARE + (PROCESSOR if run.device_type == "cpu" else ())
    return [f"{key} {then.get(key)}, now {now[key]}" for key in keys if then.get(key) != now[key]]
