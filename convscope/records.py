"""What goes to disk and comes back: a run, its environment, its two tables.

Every other module speaks in these types. A column is a field: its name carries its unit, and None is an empty cell.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.errors import InputError

if TYPE_CHECKING:  # imported where a table is read: what only needs a name must not wait for it
    import pandas as pd

SCHEMA_VERSION = 1
STAGES = ("1_sanity", "2_quick", "3_full")

# Settings that two runs must share for their sizes to stand in one table.
SETTINGS = (
    "model",
    "algorithm",
    "device_type",
    "batch_size",
    "warmup_iters",
    "measure_iters",
    "math",
    "dtype",
    "unsupported",
    "pretrained",
    "seed",
    "energy",
)
SOFTWARE = ("gpu_name", "driver", "cuda", "cudnn", "torch", "torchvision", "ai3")


@dataclass(frozen=True)
class Layer:
    """One call of a convolution in a forward pass: its place, shape and options. Pairs are (height, width)."""

    name: str
    position: int
    batch: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    bias: bool
    padding_mode: str = "zeros"
    uneven_padding: bool = False

    @property
    def shape(self) -> tuple[object, ...]:
        """All that the cost of the layer depends on: two layers of one shape are the same work."""
        return dataclasses.astuple(self)[2:]


@dataclass(frozen=True)
class Run:
    """What was asked for: one model with one algorithm at many input sizes."""

    model: str
    algorithm: str
    stage: str
    gpu: str
    input_sizes: tuple[int, ...]
    device: str = "cpu"
    batch_size: int = 1
    warmup_iters: int = 10
    measure_iters: int = 20
    math: str = "tf32"
    dtype: str = "float32"
    unsupported: str = "error"
    pretrained: bool = False
    seed: int = 0
    energy: bool = True

    @property
    def device_type(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return self.device.split(":")[0]

    @property
    def folder_name(self) -> str:
        """`<model>_<algorithm>_<gpu>`, the name of the folder under `results/<stage>/`."""
        return f"{self.stem}_{slug(self.gpu)}"

    @property
    def stem(self) -> str:
        """`<model>_<algorithm>`, what the names of both tables begin with."""
        return f"{slug(self.model)}_{slug(self.algorithm)}"


@dataclass(frozen=True)
class Environment:
    """What the figures depend on besides the request: the card, its state, the software, the place and time."""

    host: str
    cpu: str
    python: str
    torch: str
    torchvision: str
    ai3: str
    gpu_name: str | None = None
    gpu_uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    compute_capability: str | None = None
    cpu_threads: int | None = None
    tf32_override: str | None = None
    cuda_visible_devices: str | None = None
    slurm_job_id: str | None = None
    git_commit: str | None = None


@dataclass(frozen=True)
class OverallRow:
    """The whole model at one input size. Times in milliseconds."""

    model: str
    algorithm: str
    input_size: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    power_mean_w: float | None = None
    energy_per_inference_j: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    mean_ci95_ms: float | None = None
    samples: int | None = None
    repeated_samples: int | None = None
    timing_method: str | None = None
    eager_mean_ms: float | None = None
    eager_std_ms: float | None = None
    event_overhead_us: float | None = None
    layers_sum_ms: float | None = None
    convolutions: int | None = None
    fallback_layers: int | None = None
    unsupported_layers: int | None = None
    energy_window_s: float | None = None
    energy_inferences: float | None = None
    energy_source: str | None = None
    peak_memory_bytes: int | None = None
    batch_size: int | None = None
    math: str | None = None
    dtype: str | None = None
    device: str | None = None
    started_utc: str | None = None
    wall_s: float | None = None
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class LayerRow:
    """One convolution of the model at one input size. `percentage` is its share of the forward pass (`mean`)."""

    layer: str
    in_channels: int
    out_channels: int
    kernel_size: str
    mean_ms: float | None
    percentage: float | None
    model: str
    algorithm: str
    input_size: int
    position: int
    stride: str
    padding: str
    dilation: str
    groups: int
    batch_size: int
    in_height_px: int
    in_width_px: int
    out_height_px: int
    out_width_px: int
    ran_algorithm: str | None = None
    ran_provider: str | None = None
    workspace_bytes: int | None = None
    flops: int | None = None
    bytes: int | None = None
    std_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    samples: int | None = None
    kernel_ms: float | None = None
    span_ms: float | None = None
    kernels: str | None = None
    relative_error: float | None = None
    math: str | None = None
    status: str = "ok"
    reason: str | None = None


Row = OverallRow | LayerRow


def slug(name: str) -> str:
    """Return a name as it stands in paths: spaces and colons become underscores, `torchvision:` falls away."""
    return name.removeprefix("torchvision:").replace(" ", "_").replace(":", "_")


def columns(row_type: type[OverallRow] | type[LayerRow]) -> list[str]:
    """Return a table's columns in their order on disk."""
    return [field.name for field in dataclasses.fields(row_type)]


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
        """Remove layer rows whose size has no overall row (a run was cut off between the two); return those sizes."""
        layers = self.read_layers()
        torn = sorted(set(layers["input_size"]) - set(self.read_overall()["input_size"]))
        if torn:
            whole = layers[~layers["input_size"].isin(torn)]
            write_atomically(self.layers, whole.to_csv(index=False))
        return [int(size) for size in torn]

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
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.run} is not a run.json of this project: move it away, or --overwrite") from None
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
    return [f"{key} {then.get(key)}, now {now[key]}" for key in SETTINGS + SOFTWARE if then.get(key) != now[key]]


def read_table(path: Path, row_type: type[OverallRow] | type[LayerRow]) -> pd.DataFrame:
    """Read one table; without a file, an empty one with the right columns.

    Raises:
        InputError: the file's columns are not this table's.
    """
    import pandas as pd

    expected = columns(row_type)
    if not path.exists():
        return pd.DataFrame(columns=expected)
    try:
        table = pd.read_csv(path)
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


def frame(rows: Iterable[Row], row_type: type[OverallRow] | type[LayerRow]) -> pd.DataFrame:
    """Return rows as a data frame with all of the table's columns."""
    import pandas as pd

    return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=columns(row_type))


def _append(path: Path, row_type: type[OverallRow] | type[LayerRow], rows: Sequence[Row]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns(row_type), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)
        file.flush()
        os.fsync(file.fileno())
