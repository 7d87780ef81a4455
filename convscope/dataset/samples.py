"""Table of samples: one convolution by one algorithm on one card, measured once, or refused with a reason.

It is what prediction learns from: the project's own runs and other people's data come to the same columns. Two rows of
the same work, card and software that were measured in two runs are repeats; both stand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset import parquet
from convscope.errors import InputError
from convscope.storage import table, wording
from convscope.storage.table import Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SHAPE = (
    *("batch_size", "in_channels", "out_channels", "in_height_px", "in_width_px"),
    *("kernel_size", "stride", "padding", "dilation", "groups"),
)
_TEXTS = 1 << 14  # different texts of cells that are remembered
_COUNTS = ("batch_size", "in_channels", "out_channels", "in_height_px", "in_width_px", "groups")
_PAIRS = ("kernel_size", "stride", "padding", "dilation")
ARITHMETIC = ("dtype", "math", "layout")
WORK = (*SHAPE, *ARITHMETIC, "algorithm")
"""Columns of the work and of the algorithm that does it: the same on every card."""
IN_A_PASS = "CUDA events around the call, in replays of a captured pass"
EVICTED = f"{IN_A_PASS}, its data out of the cache"
SHARE = "CUDA events around the call, its share of replays of a captured pass, its data out of the cache"
OUTDATED = (IN_A_PASS, EVICTED)
"""Ways in which earlier versions of a collection timed, to be measured anew."""
TARGETS: Mapping[str, tuple[str, str]] = {
    "time": ("mean_ms", "ms"), "energy": ("energy_j", "J"), "workspace": ("workspace_bytes", "bytes"),
}  # fmt: skip
"""Quantities that can be predicted, each with its column and its unit."""
SPLITS = ("rows", "layer", "family", "size", "gpu")
"""Kinds of what is held out together: `splits.split` takes one."""


@dataclass(frozen=True)
class SampleRow:
    """One convolution by one algorithm on one card. Sizes of two dimensions are height and width: "3x3".

    Attributes:
        run: the measuring run, whatever tells two of them apart.
        family: the kind of network that the layer is of, "resnet"; absent for a shape that no model has.
        mean_ms: of one call, in the way that `timing_method` names; absent where the status is not "ok", or the energy
            alone was measured.
        mean_ci95_ms: half the 95 % interval of the mean.
        ranked_plans: of the shape, not of the algorithm; asked of cuDNN, not measured (`ranked_plans`).
        ranked_for: "card", where an H200 or an H100 was there when they were asked for; "description", where none was.
    """

    gpu_name: str
    algorithm: str
    batch_size: int
    in_channels: int
    out_channels: int
    in_height_px: int | None
    in_width_px: int | None
    kernel_size: str
    stride: str | None
    padding: str | None
    dilation: str | None
    groups: int | None
    dtype: str
    math: str
    layout: str
    run: str
    mean_ms: float | None = None
    mean_ci95_ms: float | None = None
    placements: int | None = None
    timing_method: str | None = None
    energy_j: float | None = None
    energy_uncertainty_j: float | None = None
    workspace_bytes: int | None = None
    relative_error: float | None = None
    ran_algorithm: str | None = None
    ran_provider: str | None = None
    kernels: str | None = None
    ranked_plans: str | None = None
    ranked_for: str | None = None
    cudnn: str | None = None
    driver: str | None = None
    torch: str | None = None
    model: str | None = None
    family: str | None = None
    input_size: int | None = None
    layer: str | None = None
    status: str = "ok"
    reason: str | None = None


SAMPLES = Table(
    SampleRow,
    unique=("gpu_name", "cudnn", *WORK, "run", "layer", "model", "input_size"),
    first=16,
    dropped=("first_plan",),
)
_NAMES = ("model", "family", "layer")
"""Columns of names that may be absent: a "nan" in them is what text makes of a number that is none."""
_NEEDED = [field.name for field in dataclasses.fields(SampleRow) if not str(field.type).endswith(" | None")]
_QUANTITIES = ("mean_ms", "energy_j")
_JUDGED = tuple(dict.fromkeys((*_NEEDED, "dtype", *_COUNTS, *_PAIRS, *_NAMES, *_QUANTITIES)))
TEXT = frozenset(field.name for field in dataclasses.fields(SampleRow) if str(field.type).startswith("str"))


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Read files of samples one after another into one data frame.

    Raises:
        InputError: a file is missing, or is no such table (the message names file, line and column), or a sample
            stands in two of them.
    """
    import pandas as pd  # only those who want data frames need it

    found = [_frame(path) for path in paths]
    if not any(len(each) for each in found):
        raise InputError(f"{', '.join(map(str, paths))}: no samples in it: measure some, or import them")
    every = pd.concat([each for each in found if len(each)], ignore_index=True)
    if twice := int(every.duplicated([*SAMPLES.unique]).sum()):
        raise InputError(f"{', '.join(map(str, paths))}: {twice} samples stand in two files: name each run once")
    return every


def rows(path: Path) -> list[SampleRow]:
    """Read a file of samples as objects; errors as for `read`."""
    found = sound_columns(path)
    return table.objects(SAMPLES, cells(path)) if found is None else parquet.objects(found, SAMPLES)


def _frame(path: Path) -> pd.DataFrame:
    found = sound_columns(path)
    return _with_none(table.frame(SAMPLES, cells(path), TEXT)) if found is None else parquet.frame(found, SAMPLES)


def sound_columns(path: Path) -> pa.Table | None:
    """Return the columns of a Parquet file of samples if nothing is wrong with it; None of any other file.

    Columns are looked at by their different values, which is fast. Which sample has a wrong one is for `problems`.

    Raises:
        InputError: it is a Parquet file that cannot be read, or has other columns.
    """
    if path.suffix != parquet.SUFFIX or not path.exists():
        return None
    found = parquet.columns(path, SAMPLES, by_pandas=True)
    for name in _JUDGED:
        if any(_problem(name, parquet.text(value)) for value in found.column(name).unique().to_pylist()):
            return None
    outcomes = (map(parquet.text, found.column(name).to_pylist()) for name in ("status", *_QUANTITIES))
    return None if any(map(_is_of_nothing, *outcomes)) else found


def _with_none(frame: pd.DataFrame) -> pd.DataFrame:
    """Return samples with None in place of NaN in the columns of text."""
    import pandas as pd

    for name in TEXT:
        texts = [None if cell != cell else cell for cell in frame[name].astype(object)]  # NaN is not itself
        frame[name] = pd.Series(texts, index=frame.index, dtype=object)
    return frame


def cells(path: Path) -> list[dict[str, str]]:
    """Read a file of samples, CSV or Parquet, as text.

    Raises:
        InputError: as for `read`.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: name a file of samples (convscope import writes one)")
    if path.suffix == parquet.SUFFIX:
        rows, of, first = parquet.rows(path, SAMPLES), "sample", 0
    else:
        with table.handed_in():
            rows, of, first = table.rows(path, SAMPLES), "line", 2
    for number, row in enumerate(rows, start=first):
        for problem in problems(row):
            raise InputError(f"{path}, {of} {number}: {problem}")
    return rows


def several_ways(frame: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each card whose times were taken in several ways."""
    timed = frame[(frame["status"] == "ok") & frame["mean_ms"].notna() & frame["timing_method"].notna()]
    for card, names in timed.groupby("gpu_name")["timing_method"].unique().items():
        methods = sorted({str(wording.present(name)) for name in names})
        if len(methods) > 1:
            listed = "; ".join(methods)
            yield f"times of {card} were taken in {len(methods)} ways, which can be a microsecond apart: {listed}"


@functools.lru_cache(_TEXTS)
def kernel_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a cell of kernels, none where they are not known; None where it cannot be read."""
    if not text:
        return ()
    if not text.startswith("{"):
        return tuple(name for name in text.split(";") if name)
    counts = _launches(text)
    return None if counts is None else tuple(counts)


def launches(text: str | None) -> int | None:
    """Return how many kernels a cell of kernels says that a call launched; None where it does not say it."""
    counts = _launches(text) if text and text.startswith("{") else None
    return sum(counts.values()) if counts else None


def _launches(text: str) -> dict[str, int] | None:
    try:
        counts = json.loads(text)
    except ValueError:
        return None
    is_right = isinstance(counts, dict) and all(isinstance(each, int) and each > 0 for each in counts.values())
    return counts if is_right else None


@functools.lru_cache(_TEXTS)
def _problem(name: str, cell: str) -> str | None:
    """Return what is wrong with the cell of a column, None for nothing."""
    if not cell:
        return f"{name} is empty" if name in _NEEDED else None
    if name == "dtype" and cell not in ELEMENT_BYTES:
        return f"dtype is {cell!r}: choose one of {', '.join(ELEMENT_BYTES)}"
    if name in _NAMES and cell == "nan":
        return f"{name} is nan: it names none, and an absent one is empty"
    if name in _QUANTITIES and not 0 < float(cell) < float("inf"):
        return f"{name} is {cell}: a measured value is above 0, and an absent one empty"
    if name in (*_COUNTS, *_PAIRS):
        least = 0 if name == "padding" else 1
        parts = cell.split("x") if name in _PAIRS else [cell.removesuffix(".0")]
        if len(parts) != 1 + (name in _PAIRS) or not all(each.isdecimal() and int(each) >= least for each in parts):
            form = "height and width, 3x3" if name in _PAIRS else "a whole number"
            return f"{name} is {cell!r}: write {form}, from {least}"
    return None


def _is_of_nothing(status: str, *quantities: str) -> bool:
    return status == "ok" and not any(quantities)


def problems(row: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with a sample: values that no measurement has."""
    yield from (problem for name in _JUDGED if (problem := _problem(name, row[name])))
    if _is_of_nothing(row["status"], *(row[name] for name in _QUANTITIES)):
        yield "the status is ok, mean_ms and energy_j are empty: give one of them, or another status"


def write(path: Path, rows: Iterable[SampleRow]) -> int:
    """Write a file of samples atomically; return the number of rows.

    Raises:
        InputError: the file cannot be written.
    """
    kept = list(rows)
    try:
        table.write_atomically(path, table.lines_of(SAMPLES, kept, with_header=True))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file") from None
    return len(kept)
