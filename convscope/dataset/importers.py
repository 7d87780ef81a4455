"""Other people's measurements as samples: `python -m convscope import --format neusight|klab FILE…`.

`neusight`: forward convolutions of the public data of NeuSight (ASPLOS 2025): float32 without TF32 by cuDNN's own
search, one time a row. `klab`: tables of this project's predecessor. Its layer tables have no sizes of images, strides
or padding: their times are kept, and nothing can be learned from them or predicted for them. Its overall tables are of
whole models: no samples, but measured totals (`totals`) that sums of predictions are compared with.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from convscope.dataset import totals
from convscope.dataset.samples import SampleRow
from convscope.dataset.totals import TotalRow
from convscope.errors import InputError

Row = TypeVar("Row")
Cells = Mapping[str, str]
Reader = Callable[[str, str, Cells], SampleRow]
SEARCHED = "torch benchmark"
KLAB = "klab"
_OF_MODELS = ("model", "algorithm", "input_size")
_MEANS = ("mean", "mean_ms")  # the predecessor's name of the mean of a pass changed
_OF_LAYERS = ("layer", "in_channels", "out_channels", "kernel_size", "mean_ms")


def samples(path: Path, form: str, **given: str) -> Iterator[SampleRow]:
    """Yield the rows of a file in another form, as samples.

    Args:
        form: one of `FORMATS`.
        given: what the file itself does not say, by column: the GPU of a `klab` table.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a cell that is none; file and line are named.
    """
    needed, read = FORMATS[form]
    if given and form != KLAB:
        raise InputError(f"a {form} file says its {', '.join(name.removesuffix('_name') for name in given)} itself")
    yield from _rows(path, form, needed, lambda where, cells: read(path.name, where, {**cells, **given}))


def is_overall(path: Path, form: str) -> bool:
    """Tell whether a file is a table of whole models: one that `measured_totals` reads."""
    names = next(csv.reader(io.StringIO(_text(path), newline="")), []) if form == KLAB else []
    return {*_OF_MODELS} <= {*names} and "layer" not in names


def measured_totals(path: Path, **given: str) -> Iterator[TotalRow]:
    """Yield the rows of an overall table of the predecessor as totals; those with another status than ok are left out.

    Args:
        given: what the file itself does not say, or says otherwise, by column: at least the GPU.

    Raises:
        InputError: as for `samples`.
    """
    found = _rows(path, KLAB, _OF_MODELS, lambda where, cells: _total(path.name, where, {**cells, **given}))
    yield from filter(None, found)


def _rows(path: Path, form: str, needed: Sequence[str], read: Callable[[str, Cells], Row]) -> Iterator[Row]:
    """Yield what `read` makes of the place and the cells of each row of a file."""
    lines = csv.DictReader(io.StringIO(_text(path), newline=""))
    if missing := [name for name in needed if name not in (lines.fieldnames or ())]:
        raise InputError(f"{path}: no {form} file: it has no column {', '.join(missing)}")
    for cells in lines:
        where = f"{path}, line {lines.line_num}"
        if None in cells or None in cells.values():
            raise InputError(f"{where}: it has another number of cells than the header: mend the file")
        try:
            yield read(where, cells)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None


def _neusight(name: str, where: str, cells: Cells) -> SampleRow:
    if cells["OPName"] != "conv":
        raise InputError(f"{where}: OPName is {cells['OPName']!r}: only conv, a forward convolution, is known")
    kernel, step, pad = (_square(cells, column) for column in ("Kernel_Szie", "Stride", "Padding"))
    return SampleRow(
        gpu_name=cells["Device"], algorithm=SEARCHED, batch_size=int(cells["B"]),
        in_channels=int(cells["Input_Channel"]), out_channels=int(cells["Output_Channel"]),
        in_height_px=int(cells["Input_Size"]), in_width_px=int(cells["Input_Size"]), kernel_size=kernel, stride=step,
        padding=pad, dilation="1x1", groups=1, dtype="float32", math="fp32", layout="nchw", run=f"neusight {name}",
        mean_ms=float(cells["Latency"]), timing_method="one time, as published", kernels=cells["Kernels"].strip(";"),
        cudnn=_cudnn(cells["CUDNN Version"]), torch=cells["Torch Version"].removeprefix("p"),
    )  # fmt: skip


def _klab(name: str, where: str, cells: Cells) -> SampleRow:
    _check_said(where, cells)
    return SampleRow(
        gpu_name=cells["gpu_name"], algorithm=cells["algorithm"], batch_size=int(cells.get("batch_size") or 1),
        in_channels=int(cells["in_channels"]), out_channels=int(cells["out_channels"]), in_height_px=None,
        in_width_px=None, kernel_size=_sizes(cells["kernel_size"]), stride=None, padding=None, dilation=None,
        groups=None, dtype="float32", math=cells.get("math") or "tf32", layout="nchw", run=f"klab {name}",
        mean_ms=float(cells["mean_ms"]), timing_method="events around the layer, launched from Python",
        model=cells["model"], input_size=int(cells["input_size"]) if cells.get("input_size") else None,
        layer=cells["layer"],
    )  # fmt: skip


def _total(name: str, where: str, cells: Cells) -> TotalRow | None:
    """Return a row of an overall table, None where it has another status than ok."""
    if cells.get("status", "ok") != "ok":
        return None
    _check_said(where, cells)
    mean = next((cells[each] for each in _MEANS if cells.get(each)), None)
    if mean is None:
        raise InputError(f"{where}: it has no mean time of a pass (column {' or '.join(_MEANS)})")
    row = TotalRow(
        gpu_name=cells["gpu_name"], model=cells["model"].lower(), algorithm=cells["algorithm"].replace("_", " "),
        input_size=int(cells["input_size"]), batch_size=int(cells.get("batch_size") or 1),
        dtype=cells.get("dtype") or "float32", math=cells.get("math") or "tf32", layout=cells.get("layout") or "nchw",
        run=f"{KLAB} {name}", mean_ms=float(mean), std_ms=_number(cells, "std"), min_ms=_number(cells, "min"),
        max_ms=_number(cells, "max"), power_w=_number(cells, "power_mean_w"),
        energy_j=_number(cells, "energy_per_inference_j"),
        timing_method=cells.get("timing_method") or "events around the pass, launched from Python",
    )  # fmt: skip
    for problem in totals.problems(row):
        raise InputError(f"{where}: {problem}")
    return row


def _check_said(where: str, cells: Cells) -> None:
    for column in ("gpu_name", "algorithm", "model"):
        if not cells.get(column):
            flag = column.removesuffix("_name")
            raise InputError(f"{where}: the table does not say the {flag}: give it by --{flag}")


def _number(cells: Cells, column: str) -> float | None:
    """Return a number, None where the table writes that there is none."""
    text = cells.get(column) or "N/A"
    return None if text.lower() in ("n/a", "nan", "none") else float(text)


def _square(cells: Cells, column: str) -> str:
    return f"{int(cells[column])}x{int(cells[column])}"


def _sizes(text: str) -> str:
    """Return "3x3" for "3", "3x3", "(3, 3)"."""
    numbers = [int(each) for each in text.strip("()[] ").replace("x", ",").split(",") if each.strip()]
    if len(numbers) not in (1, 2):
        raise ValueError(f"kernel_size is {text!r}, no height and width")
    return f"{numbers[0]}x{numbers[-1]}"


def _cudnn(number: str) -> str:
    """Return "8.9.2" for cuDNN's number 8902, "9.1.0" for 90100."""
    value = int(number)
    major = 10_000 if value >= 90_000 else 1000
    return f"{value // major}.{value % major // 100}.{value % 100}"


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): name a CSV file, or one compressed by gzip") from None


_OF_NEUSIGHT = (
    *("OPName", "Latency", "Device", "Torch Version", "CUDNN Version", "Kernels", "B"),
    *("Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding"),
)
FORMATS: Mapping[str, tuple[Sequence[str], Reader]] = {
    "neusight": (_OF_NEUSIGHT, _neusight),
    KLAB: (_OF_LAYERS, _klab),
}
