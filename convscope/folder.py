"""The folder of one run: `run.json` and two tables, written size by size, read back, and mended after a cut.

A size stands in the overall table only after all its layers stand in theirs, so that a run that is killed between the
two leaves nothing that could be taken for a whole size.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.errors import InputError
from convscope.records import (
    PROCESSOR,
    SCHEMA_VERSION,
    SETTINGS,
    SOFTWARE,
    Environment,
    LayerRow,
    OverallRow,
    Row,
    Run,
    columns,
)


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
        probe = self.path / f".write-test-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"cannot write results to {self.path} ({error.strerror}): choose another folder with --output-dir"
            ) from None

    def clear(self) -> None:
        """Remove the three files; anything else in the directory (logs) stays."""
        for path in (self.overall, self.layers, self.run):
            path.unlink(missing_ok=True)

    def append(self, overall: OverallRow, layers: Sequence[LayerRow]) -> None:
        """Add one size: the layers first, so that a size in `overall` always has all its layers."""
        _append(self.layers, LayerRow, layers)
        _append(self.overall, OverallRow, [overall])

    def read_overall(self) -> pd.DataFrame:
        """Return the overall table, empty where there is none yet."""
        return read_table(self.overall, OverallRow)

    def read_layers(self) -> pd.DataFrame:
        """Return the table of layers, empty where there is none yet."""
        return read_table(self.layers, LayerRow)

    def drop_torn_sizes(self) -> list[int]:
        """Mend what a cut-off run left: unfinished last lines, and sizes that are in one table only.

        Returns:
            the sizes that were dropped; a size that could not be measured has no layers and stays.
        """
        for path in (self.overall, self.layers):
            _cut_unfinished_line(path)
        overall, layers = self.read_overall(), self.read_layers()
        with_layers = set(layers["input_size"])
        whole = {
            size
            for size, status in zip(overall["input_size"], overall["status"], strict=True)
            if status != "ok" or size in with_layers
        }
        torn = sorted((set(overall["input_size"]) | with_layers) - whole)
        if torn:
            for path in (self.overall, self.layers):
                _keep_sizes(path, {str(size) for size in whole})
        return [int(size) for size in torn]

    def missing_sizes(self, run: Run, environment: Environment, note: Callable[[str], None]) -> list[int]:
        """Return the sizes of a run that this folder does not have yet, after mending what a cut-off run left.

        Args:
            note: called with one line on what was mended, and on what is there.

        Raises:
            InputError: the folder holds sizes that were measured under other settings, or nobody knows under which.
        """
        earlier = self.read_run()
        if earlier is None and self.overall.exists():
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
        torn = self.drop_torn_sizes()
        if torn:
            note(f"dropped sizes that were cut off: {torn}")
        done = set(self.read_overall()["input_size"])
        missing = [size for size in run.input_sizes if size not in done]
        if not missing:
            note(f"all {len(run.input_sizes)} sizes are in {self.path}: nothing measured (--overwrite)")
        elif done:
            note(f"{len(done)} sizes are in {self.path}: measuring the {len(missing)} that are missing")
        return missing

    def write_run(self, run: Run, environment: Environment, more: Mapping[str, Any]) -> None:
        """Write `run.json`: schema version, request, environment, and `more` (command, start and end, overhead)."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "run": dataclasses.asdict(run),
            "environment": dataclasses.asdict(environment),
            **more,
        }
        write_atomically(self.run, json.dumps(document, indent=2) + "\n")

    def read_run(self) -> dict[str, Any] | None:
        """Return the content of `run.json`, None where there is none.

        Raises:
            InputError: it is not this project's, or of a newer schema.
        """
        if not self.run.exists():
            return None
        try:
            document = json.loads(self.run.read_text())
            version = document["schema_version"]
            known = version != SCHEMA_VERSION or ("model" in document["run"] and "host" in document["environment"])
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise InputError(f"{self.run} is not a run.json of this project: move it away, or --overwrite")
        if version != SCHEMA_VERSION:
            raise InputError(
                f"{self.run} has schema version {version}, this program reads {SCHEMA_VERSION}: use the version that "
                "wrote it, or another --output-dir"
            )
        return typing.cast("dict[str, Any]", document)


def differences(document: Mapping[str, Any], run: Run, environment: Environment) -> list[str]:
    """List what sets an earlier run apart from this one: "batch_size 1, now 4". Empty where sizes may join."""
    then = {"device_type": str(document["run"].get("device", "")).split(":")[0]}
    then |= document["run"] | document["environment"]
    now = {"device_type": run.device_type} | dataclasses.asdict(run) | dataclasses.asdict(environment)
    keys = SETTINGS + SOFTWARE + (PROCESSOR if run.device_type == "cpu" else ())
    return [f"{key} {then.get(key)}, now {now[key]}" for key in keys if then.get(key) != now[key]]


def read_table(path: Path, row_type: type[OverallRow] | type[LayerRow]) -> pd.DataFrame:
    """Read one table; without a file, an empty one with the right columns.

    Raises:
        InputError: the file's columns are not this table's.
    """
    expected = columns(row_type)
    if not path.exists():
        return pd.DataFrame(columns=expected)
    try:
        table = pd.read_csv(path, float_precision="round_trip")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a table ({str(error).strip()}): move it, or --overwrite") from None
    if list(table.columns) != expected:
        odd = sorted(set(table.columns) ^ set(expected))
        raise InputError(f"{path} has other columns than this version writes ({', '.join(odd)}): --overwrite it")
    return table


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def _cut_unfinished_line(path: Path) -> None:
    """Cut off what follows the last line end: a row whose writing was interrupted."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_atomically(path, whole.decode(errors="replace"))


def _keep_sizes(path: Path, sizes: set[str]) -> None:
    """Keep the rows of these input sizes, letter by letter."""
    if not path.exists():
        return
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    column = header.index("input_size")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *(row for row in rows if row[column] in sizes)])
    write_atomically(path, text.getvalue())


def _append(path: Path, row_type: type[OverallRow] | type[LayerRow], rows: Sequence[Row]) -> None:
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns(row_type), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)
        file.flush()
        os.fsync(file.fileno())
