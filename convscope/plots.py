"""Pictures of what studies measured.

Training: throughput and memory against batch size, memory over the traced steps. Inference: latency against batch size,
images/s against latency with the front of the best, and p99 against the rate of requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

NAMED = ["model", "processes", "compiled"]
_MARKS = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-", "p-")


def draw(training: pd.DataFrame, memory: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Draw what the tables have into a folder, and return the files; without matplotlib none, which is noted."""
    figure = _figures(note)
    if figure is None:
        return []
    made = []
    measured = training[training["status"] == "ok"]
    if len(measured):
        made.append(folder / "batch_size.png")
        _batch_sizes(figure((9, 4), layout="constrained"), measured, made[-1])
    if len(memory):
        made.append(folder / "memory.png")
        _memory(figure((9, 4), layout="constrained"), memory, made[-1])
    return made


def _figures(note: Callable[[str], None]) -> Any:
    """Return what makes a figure, None without matplotlib, which is noted."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        note("no plots: pip install 'convscope[study]'")
        return None
    return Figure


def _batch_sizes(figure: Any, measured: pd.DataFrame, path: Path) -> None:
    pictures = [("throughput_samples_per_s", 1.0, "throughput, samples/s")]
    if measured["peak_memory_bytes"].notna().any():
        pictures.append(("peak_memory_bytes", 1e-9, "peak memory of a process, GB"))
    panels = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axes, (column, factor, title) in zip(panels, pictures, strict=True):
        for _, rows in measured.groupby(NAMED):
            ordered = rows.sort_values("batch_size")
            axes.plot(ordered["batch_size"], ordered[column] * factor, "o-", label=_label(rows))
        _size_axis(axes, measured["batch_size"])
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


def draw_inference(rows: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Draw an inference study's table into a folder, and return the files; without matplotlib none, which is noted."""
    figure = _figures(note)
    if figure is None:
        return []
    made = []
    measured = rows[rows["status"] == "ok"]
    batches, loaded = measured[measured["scenario"] == "batch"], measured[measured["scenario"] == "server"]
    pictures = (("latency.png", batches, _latency), ("pareto.png", batches, _pareto), ("server.png", loaded, _server))
    for name, part, draw_one in pictures:
        if len(part):
            made.append(folder / name)
            axes = (whole := figure((10, 5), layout="constrained")).subplots()
            draw_one(axes, part)
            axes.grid(alpha=0.3)
            whole.legend(loc="outside right upper", fontsize=9)
            whole.savefig(made[-1], dpi=120)
    return made


def _latency(axes: Any, measured: pd.DataFrame) -> None:
    for (label, rows), mark in zip(_engines(measured), itertools.cycle(_MARKS), strict=False):
        ordered = rows.sort_values("batch_size")
        axes.plot(ordered["batch_size"], ordered["latency_p50_ms"], mark, alpha=0.7, label=label)
    floors = measured.dropna(subset=["floor_ms"]).drop_duplicates("batch_size").sort_values("batch_size")
    if len(floors):
        axes.plot(floors["batch_size"], floors["floor_ms"], "k--", label="the card's floor")
    _size_axis(axes, measured["batch_size"])
    axes.set_yscale("log")
    axes.set(xlabel="batch size", ylabel="median latency of a batch, ms")


def _pareto(axes: Any, measured: pd.DataFrame) -> None:
    for (label, rows), mark in zip(_engines(measured), itertools.cycle(_MARKS), strict=False):
        ordered = rows.sort_values("batch_size")
        axes.plot(ordered["latency_p50_ms"], ordered["images_per_s"], mark, alpha=0.6, label=label)
    best = front(list(zip(measured["latency_p50_ms"], measured["images_per_s"], strict=True)))
    axes.step(*zip(*best, strict=True), "k--", where="post", label="front: none is faster\nand has more images/s")
    axes.set_xscale("log")
    axes.set(xlabel="median latency of a batch, ms", ylabel="images/s")


def _server(axes: Any, loaded: pd.DataFrame) -> None:
    for label, rows in _engines(loaded):
        ordered = rows.sort_values("target_qps")
        (line,) = axes.plot(ordered["target_qps"], ordered["latency_p99_ms"], "o-", label=label)
        ended = ordered[ordered["reason"].notna()]
        if len(ended):
            told = f"{label}: ended early,\nthe queue grew too long"
            axes.plot(ended["target_qps"], ended["latency_p99_ms"], "x", ms=12, color=line.get_color(), label=told)
    for slo_ms in sorted(set(loaded["slo_ms"])):
        axes.axhline(slo_ms, color="k", linestyle="--", label=f"limit, {slo_ms:g} ms")
    axes.set_yscale("log")
    axes.set(xlabel="requests/s", ylabel="p99 from arrival to answer, ms")


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (latency, throughput) that no other beats in both, by rising latency."""
    best: list[tuple[float, float]] = []
    for latency, throughput in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or throughput > best[-1][1]:
            best.append((latency, throughput))
    return best


def _engines(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    several = rows["processes"].nunique() > 1
    groups = rows.groupby(["engine", "processes"], sort=False)
    return [(f"{one} on {many}" if several else str(one), part) for (one, many), part in groups]


def _size_axis(axes: Any, sizes: pd.Series[int]) -> None:
    """Give the horizontal axis the batch sizes that were measured, evenly apart by powers of two."""
    each = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(each, [str(size) for size in each])
    axes.minorticks_off()
