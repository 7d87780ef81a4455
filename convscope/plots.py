"""Pictures of a training study's tables: throughput and memory against batch size, and memory over the traced steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

NAMED = ["model", "processes", "compiled"]


def draw(training: pd.DataFrame, memory: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Draw what the tables have into a folder, and return the files; without matplotlib none, which is noted."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        note("no plots: pip install 'convscope[study]'")
        return []
    made = []
    measured = training[training["status"] == "ok"]
    if len(measured):
        made.append(folder / "batch_size.png")
        _batch_sizes(Figure((9, 4), layout="constrained"), measured, made[-1])
    if len(memory):
        made.append(folder / "memory.png")
        _memory(Figure((9, 4), layout="constrained"), memory, made[-1])
    return made


def _batch_sizes(figure: Any, measured: pd.DataFrame, path: Path) -> None:
    pictures = [("throughput_samples_per_s", 1.0, "throughput, samples/s")]
    if measured["peak_memory_bytes"].notna().any():
        pictures.append(("peak_memory_bytes", 1e-9, "peak memory of a process, GB"))
    panels = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axes, (column, factor, title) in zip(panels, pictures, strict=True):
        for _, rows in measured.groupby(NAMED):
            ordered = rows.sort_values("batch_size")
            axes.plot(ordered["batch_size"], ordered[column] * factor, "o-", label=_label(rows))
        axes.set_xscale("log", base=2)
        sizes = sorted(set(measured["batch_size"]))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel="batch size of a process", ylabel=title)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def _memory(figure: Any, memory: pd.DataFrame, path: Path) -> None:
    axes = figure.subplots()
    for _, rows in memory.groupby([*NAMED, "batch_size", "device"]):
        label = f"{_label(rows)}, batch {rows['batch_size'].iloc[0]}, {rows['device'].iloc[0]}"
        axes.step(rows["time_ms"], rows["allocated_bytes"] * 1e-6, where="post", label=label)
    axes.set(xlabel="time in the traced steps, ms", ylabel="held by PyTorch's allocator, MB")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def _label(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    several = f", {first['processes']} processes" if first["processes"] > 1 else ""
    return f"{first['model']}{several}{', compiled' if first['compiled'] else ''}"
