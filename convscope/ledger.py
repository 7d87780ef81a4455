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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from convscope.errors import InputError, WriteError
from convscope.records import PROCESSOR, SOFTWARE, Environment, now_utc
from convscope.tables import write_atomically

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Training:
    """What was asked for: models and batch sizes (of one process) to train, and how."""

    models: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    gpu: str
    device: str = "cpu"
    processes: int = 1
    compiled: bool = False
    dataset: str = "digits"
    image_size_px: int = 32
    classes: int = 10
    stem: str = "cifar"
    algorithm: str = "torch"
    epochs: int = 5
    max_steps: int | None = None
    skipped_steps: int = 10
    learning_rate: float = 0.1
    momentum: float = 0.0
    workers: int = 0
    dtype: str = "float32"
    math: str = "tf32"
    seed: int = 42
    deterministic: bool = False
    profiler: bool = False
    profile_memory: bool = False
    energy: bool = True

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]


@dataclass(frozen=True)
class Key:
    """Names a cell: all rows of all tables begin with these."""

    model: str
    batch_size: int
    processes: int
    compiled: bool


@dataclass(frozen=True)
class TrainingRow(Key):
    """One cell: times in ms a step, over the measured steps of all epochs; `batch_size` and times of one process."""

    throughput_samples_per_s: float | None = None
    throughput_per_process_samples_per_s: float | None = None
    scaling_efficiency_pct: float | None = None
    step_ms: float | None = None
    step_std_ms: float | None = None
    step_p95_ms: float | None = None
    data_ms: float | None = None
    data_std_ms: float | None = None
    data_p95_ms: float | None = None
    forward_ms: float | None = None
    forward_std_ms: float | None = None
    forward_p95_ms: float | None = None
    backward_ms: float | None = None
    backward_std_ms: float | None = None
    backward_p95_ms: float | None = None
    optimizer_ms: float | None = None
    optimizer_std_ms: float | None = None
    optimizer_p95_ms: float | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    window_s: float | None = None
    launch_ms: float | None = None
    gpu_busy_ms: float | None = None
    peak_memory_bytes: int | None = None
    mean_memory_bytes: int | None = None
    energy_per_sample_j: float | None = None
    energy_uncertainty_j: float | None = None
    power_mean_w: float | None = None
    energy_window_s: float | None = None
    energy_source: str | None = None
    parameters: int | None = None
    loss: float | None = None
    accuracy_pct: float | None = None
    timing_method: str | None = None
    dataset: str | None = None
    stem: str | None = None
    algorithm: str | None = None
    dtype: str | None = None
    math: str | None = None
    device: str | None = None
    started_utc: str | None = None
    wall_s: float | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class EpochRow(Key):
    """One epoch: the mean loss of its training steps; loss and accuracy over the held-out images after it."""

    epoch: int
    steps: int
    train_loss: float
    test_loss: float | None
    accuracy_pct: float | None


@dataclass(frozen=True)
class OperatorRow(Key):
    """One operator in one phase, by torch.profiler, each figure for one step."""

    operator: str
    phase: str
    category: str
    share_pct: float
    calls: float
    cpu_ms: float
    device_ms: float


@dataclass(frozen=True)
class KernelRow(Key):
    """One GPU kernel by its name, each figure for one step."""

    kernel: str
    launches: float
    kernel_ms: float


@dataclass(frozen=True)
class MemoryRow(Key):
    """The allocator after one allocation or release in the traced steps."""

    time_ms: float
    device: str
    allocated_bytes: int


Row = TrainingRow | EpochRow | OperatorRow | KernelRow | MemoryRow
RowType = type[TrainingRow] | type[EpochRow] | type[OperatorRow] | type[KernelRow] | type[MemoryRow]
TABLES: dict[str, RowType] = {
    "epochs": EpochRow,
    "operators": OperatorRow,
    "kernels": KernelRow,
    "memory": MemoryRow,
    "training": TrainingRow,  # the last to be written: it makes the cell count
}


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
TRAINING = Schema(
    "training", SCHEMA_VERSION, Key, TABLES, free=("models", "batch_sizes", "device", "processes", "compiled")
)


def columns(row_type: type[Any]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]


@dataclass(frozen=True)
class Ledger:
    """The files of a study, all in one directory."""

    path: Path
    schema: Schema = TRAINING

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
