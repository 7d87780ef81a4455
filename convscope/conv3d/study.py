"""Order of work of the 3-D study: what is measured, written, drawn and printed in one call."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from convscope.conv3d import comparison, report, stress
from convscope.conv3d.cosmoflow import EndToEnd
from convscope.conv3d.implementations import Implementations
from convscope.conv3d.report import summary
from convscope.conv3d.request import Conv3d, Parts
from convscope.conv3d.rows import SCHEMA_VERSION, TABLES
from convscope.convolution import roofline
from convscope.convolution.layer import Layer
from convscope.convolution.roofline import Ceilings
from convscope.errors import InputError, WriteError
from convscope.kernels import autotune
from convscope.kernels.autotune import BlockCache
from convscope.kernels.conv3d.layout import Blocks3d
from convscope.storage import lock, table
from convscope.storage.environment import Environment
from convscope.storage.paths import now_utc
from convscope.storage.table import lines_of, write_atomically


def study(
    asked: Conv3d, layers: Sequence[Layer], device: torch.device, folder: Path, wanted: Parts,
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
        limits = roofline.measure_ceilings(device) if wanted.layers and asked.compare else None
        document["ceilings"] = None if limits is None else dataclasses.asdict(limits)
        workshop = stack.enter_context(Implementations(device, memory))
        found = Findings(folder, document, limits, workshop)
        _measure(found, asked, layers, wanted, stop, note)
        found.document["ended_utc"] = now_utc()
        found.save()
    if wanted.plots:
        frames = {name: found.frame(name) for name in ("conv3d", "samples", "breakdown")}
        report.draw(frames["conv3d"], frames["samples"], frames["breakdown"], limits, folder, note)
    print(summary(found))
    print(f"results: {folder}")
    rows = found.tables["conv3d"] + found.tables["stress"] + found.tables["end_to_end"]
    return int(comparison.is_broken(rows))


class Findings:
    """What a call has found so far, and where it goes."""

    def __init__(
        self, folder: Path, document: dict[str, Any], limits: Ceilings | None, workshop: Implementations
    ) -> None:
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
            choices = self.workshop.cache.used
            if choices:
                write_atomically(self.folder / "tuned.json", autotune.as_text(choices))
            write_atomically(self.folder / "run.json", json.dumps(self.document, indent=2) + "\n")
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder} ({error.strerror}): choose another --output-dir") from None

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table as pandas has it."""
        rows = [dataclasses.asdict(row) for row in self.tables[name]]
        return pd.DataFrame(rows, columns=table.columns(TABLES[name]))


def _measure(
    found: Findings, asked: Conv3d, layers: Sequence[Layer], wanted: Parts, stop: Callable[[], bool],
    note: Callable[[str], None],
) -> None:  # fmt: skip
    """Do the parts one after another; what is there is written after each step, and when one is cut off."""
    workshop = found.workshop
    layer_study = comparison.LayerComparison(asked, layers, workshop, found.limits, note)
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
    names = [*(f"{name}.csv" for name in TABLES), *(f"{name}.png" for name in report.PICTURES), "tuned.json"]
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write results to {folder} ({error.strerror}): choose another --output-dir") from None


def _memory(load_tuned: str | None, device: torch.device) -> BlockCache[Blocks3d]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    if load_tuned:
        return BlockCache.of_file(Path(load_tuned), Blocks3d)
    return BlockCache(autotune.cache_file(name, "conv3d"), Blocks3d, fixed=load_tuned is not None)


def _document(asked: Conv3d, here: Environment) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "command": sys.argv,
        "conv3d": dataclasses.asdict(asked),
        "environment": dataclasses.asdict(here),
        "started_utc": now_utc(),
    }
