"""One call of the 3-D study from end to end: what is measured is written as tables, run.json and pictures, and told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
import torch

from convscope import ceilings, conv3d, conv3d_plots, lock, records, stress
from convscope.ceilings import Ceilings
from convscope.commandline import table
from convscope.conv3d import Conv3d, Conv3dRow, SampleRow
from convscope.cosmoflow import EndToEnd, EndToEndRow, KindRow
from convscope.errors import InputError, WriteError
from convscope.implementations import Workshop
from convscope.kernels import tuning
from convscope.kernels.conv3d_layout import Blocks
from convscope.kernels.tuning import Memory
from convscope.layersets import Layer3d
from convscope.records import Environment
from convscope.stress import StressRow
from convscope.tables import lines_of, write_atomically

TABLES: dict[str, type[Any]] = {
    "conv3d": Conv3dRow,
    "samples": SampleRow,
    "stress": StressRow,
    "end_to_end": EndToEndRow,
    "breakdown": KindRow,
}


@dataclass(frozen=True)
class Wanted:
    """Which parts of the study to do.

    Attributes:
        stress: a number of shapes.
        load_tuned: a file of choices to take as they are, "" for this card's own; None has new ones made.
    """

    layers: bool = True
    plots: bool = False
    stress: int = 0
    end_to_end: bool = False
    load_tuned: str | None = None


def folder_name(asked: Conv3d, layers: Sequence[Layer3d]) -> str:
    """Return the name of the folder of one call: layer set, batch, arithmetic, card."""
    arithmetic = "fp16" if asked.dtype == "float16" else asked.math
    return f"{records.slug(Path(asked.params).stem)}_batch{layers[0].batch}_{arithmetic}_{asked.gpu}"


def study(
    asked: Conv3d, layers: Sequence[Layer3d], device: torch.device, folder: Path, wanted: Wanted,
    here: Environment, stop: Callable[[], bool], note: Callable[[str], None],
) -> int:  # fmt: skip
    """Do all that is wanted, write it into a folder, and print it; return 1 where something is wrong, else 0.

    Args:
        stop: asked between the parts; where it says True the study ends there.

    Raises:
        InputError: the folder cannot be used, or there is no such file.
        WriteError: the folder cannot be written any more.
        DeviceFaultError: the GPU is lost.
    """
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        memory = _memory(wanted.load_tuned, device)
        _make(folder)
        stack.enter_context(lock.Lock(folder / lock.NAME))
        _clear(folder)
        document = _document(asked, here)
        limits = ceilings.measure(device) if wanted.layers and asked.compare else None
        document["ceilings"] = None if limits is None else dataclasses.asdict(limits)
        workshop = stack.enter_context(Workshop(device, memory))
        found = _Found(folder, document, limits, workshop)
        _measure(found, asked, layers, wanted, stop, note)
        found.document["ended_utc"] = records.now_utc()
        found.save()
    if wanted.plots:
        frames = {name: found.frame(name) for name in ("conv3d", "samples", "breakdown")}
        conv3d_plots.draw(frames["conv3d"], frames["samples"], frames["breakdown"], limits, folder, note)
    print(summary(found))
    print(f"results: {folder}")
    rows = found.tables["conv3d"] + found.tables["stress"] + found.tables["end_to_end"]
    return int(conv3d.is_broken(rows))


class _Found:
    """What a call has found so far, and where it goes."""

    def __init__(self, folder: Path, document: dict[str, Any], limits: Ceilings | None, workshop: Workshop) -> None:
        self.folder, self.document, self.limits, self.workshop = folder, document, limits, workshop
        self.tables: dict[str, list[Any]] = {name: [] for name in TABLES}

    def save(self) -> None:
        """Write everything, whole files at a time.

        Raises:
            WriteError: it cannot be written.
        """
        try:
            for name, rows in self.tables.items():
                if rows:
                    write_atomically(self.folder / f"{name}.csv", lines_of(TABLES[name], rows, with_header=True))
            choices = self.workshop.memory.used
            if choices:
                write_atomically(self.folder / "tuned.json", tuning.as_text(choices))
            write_atomically(self.folder / "run.json", json.dumps(self.document, indent=2) + "\n")
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder} ({error.strerror}): choose another --output-dir") from None

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table as pandas has it."""
        rows = [dataclasses.asdict(row) for row in self.tables[name]]
        return pd.DataFrame(rows, columns=records.columns(TABLES[name]))


def _measure(
    found: _Found, asked: Conv3d, layers: Sequence[Layer3d], wanted: Wanted, stop: Callable[[], bool],
    note: Callable[[str], None],
) -> None:  # fmt: skip
    """Do the parts one after another; what is there is written after each step, and when one is cut off."""
    workshop = found.workshop
    layer_study = conv3d.Study(asked, layers, workshop, found.limits, note)
    found.tables |= {"conv3d": layer_study.rows, "samples": layer_study.samples}

    def pause() -> bool:
        found.save()
        return stop()

    try:
        if wanted.layers:
            layer_study.run(pause)
        if wanted.stress and not stop():
            stress.run(asked, wanted.stress, workshop, note, found.tables["stress"], pause)
        if wanted.end_to_end and not stop():
            whole = EndToEnd(asked, workshop, layers[0].batch)
            found.tables |= {"end_to_end": whole.rows, "breakdown": whole.kinds}
            whole.run(note, pause)
    finally:
        found.save()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a path that no file system can have is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot write results to {folder} ({why}): choose another folder with --output-dir") from None


def _clear(folder: Path) -> None:
    """Take away an earlier call's tables and pictures: one call is one set of figures."""
    names = [*(f"{name}.csv" for name in TABLES), *(f"{name}.png" for name in conv3d_plots.NAMES), "tuned.json"]
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write results to {folder} ({error.strerror}): choose another --output-dir") from None


def _memory(load_tuned: str | None, device: torch.device) -> Memory[Blocks]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    if load_tuned:
        return Memory.of_file(Path(load_tuned), Blocks)
    return Memory(tuning.cache_file(name, "conv3d"), Blocks, fixed=load_tuned is not None)


def _document(asked: Conv3d, here: Environment) -> dict[str, Any]:
    return {
        "schema_version": conv3d.SCHEMA_VERSION,
        "command": sys.argv,
        "conv3d": dataclasses.asdict(asked),
        "environment": dataclasses.asdict(here),
        "started_utc": records.now_utc(),
    }


def summary(found: _Found) -> str:
    """Return what was found as text: a table of the layers, means over them, stress test, the network."""
    parts = []
    rows: list[Conv3dRow] = found.tables["conv3d"]
    if found.limits is not None:
        rates = ", ".join(f"{name} {rate:.4g} TFLOP/s" for name, rate in found.limits.tflops.items())
        parts.append(f"ceilings measured here: copy {found.limits.copy_gbps:.4g} GB/s, {rates}")
    if rows:
        header = ("layer", "implementation", "median, ms", "95 %", "TFLOP/s", "of cuDNN's best", "of torch benchmark",
                  "of roofline", "error / tolerance", "blocks, or why not")  # fmt: skip
        parts += [table(header, [_line(row) for row in rows]), *means(rows)]
    if found.tables["stress"]:
        parts.append(stress_line(found.tables["stress"]))
    if found.tables["end_to_end"]:
        columns = ("end to end", "inference, ms", "training step, ms", "convolutions", "reason")
        shares = {row.implementation: row.share_pct for row in found.tables["breakdown"] if row.kind == "convolution"}
        parts.append(table(columns, [_whole(row, shares) for row in found.tables["end_to_end"]]))
    return "\n".join(parts)


def _line(row: Conv3dRow) -> tuple[str, ...]:
    interval = "-" if row.median_low_ms is None else f"{row.median_low_ms:.4f} … {row.median_high_ms:.4f}"
    ratios = row.ratio_to_cudnn_best, row.ratio_to_torch_benchmark, row.ratio_to_roofline
    error = "-" if row.elementwise_error is None else f"{row.elementwise_error:.1e} / {row.tolerance:.1e}"
    why = row.blocks or "" if row.status == "ok" else f"{row.status}: {row.reason}"
    return (
        row.layer, row.implementation, _or_dash(row.median_ms, ".4f"), interval, _or_dash(row.tflops, ".1f"),
        *(_or_dash(ratio, ".2f") for ratio in ratios), error, why,
    )  # fmt: skip


def means(rows: Sequence[Conv3dRow]) -> list[str]:
    """Return for each implementation the geometric means of its ratios over the layers that it could do."""
    lines = []
    for name in dict.fromkeys(row.implementation for row in rows):
        of_name = [row for row in rows if row.implementation == name]
        said = []
        for what, field in (
            ("cuDNN's best", "ratio_to_cudnn_best"),
            ("torch benchmark", "ratio_to_torch_benchmark"),
            ("the roofline", "ratio_to_roofline"),
        ):
            ratios = [getattr(row, field) for row in of_name if getattr(row, field) is not None]
            if ratios:
                mean, layers = geometric_mean(ratios), f"{len(ratios)} layer{'s' if len(ratios) > 1 else ''}"
                said.append(f"{mean:.3f} of {what} ({layers}, {min(ratios):.2f} to {max(ratios):.2f})")
        if said:
            lines.append(f"{name}, geometric means: {', '.join(said)}")
    return lines


def stress_line(rows: Sequence[StressRow]) -> str:
    """Return the outcome of a stress test in one line."""
    counts = {status: sum(row.status == status for row in rows) for status in ("ok", "failed", "oom", "unsupported")}
    shapes = len({row.round for row in rows})
    worst = max((row.elementwise_error / row.tolerance for row in rows if row.elementwise_error and row.tolerance),
                default=0.0)  # fmt: skip
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"stress test: {shapes} shapes: {told}; largest error {worst:.2f} of its tolerance"


def _whole(row: EndToEndRow, shares: dict[str, float]) -> tuple[str, ...]:
    share = shares.get(row.implementation)
    return (
        row.implementation, _or_dash(row.inference_ms, ".3f"), _or_dash(row.training_step_ms, ".3f"),
        "-" if share is None else f"{share:.0f} %", row.reason or "",
    )  # fmt: skip


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
