"""Words and pictures of an inference study, from its table; nothing here measures.

A line for each cell, the engines side by side, the highest request rate of a server; three pictures.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convscope.cli.display import Figures, grid, interval_or_dash, or_dash, size_axis, table
from convscope.inference.engines.catalogue import BASELINE
from convscope.inference.request import BATCH, METRICS
from convscope.inference.serving.mlperf import OFFLINE, SERVER

Cell = dict[Hashable, Any]
_MARKS = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-", "p-")


def cells(rows: pd.DataFrame, every: pd.DataFrame | None = None) -> str:
    """Return a line for each cell without a server's load: latency, throughput, memory, energy, set-up, agreement.

    Args:
        every: rows to look the baseline up in, where there are more than those to show.
    """
    every = rows if every is None else every
    count = "processes" if _on_cpu(rows) else "GPUs"
    header = ("batch", "engine", count, "ms ± std", "p50", "p90", "p99", "images/s", "× eager", "× floor", "mJ/image",
              "peak MB", "set-up s", "disk MB", "error", "note")  # fmt: skip
    unloaded = rows[rows["scenario"] != SERVER].sort_values(["scenario", "batch_size"], kind="stable")
    return table(header, [_line(cell, every) for cell in unloaded.to_dict("records")])


def _on_cpu(rows: pd.DataFrame) -> bool:
    return bool((rows["device"] == "cpu").any())


def _line(cell: Cell, rows: pd.DataFrame) -> tuple[str, ...]:
    name = str(cell["batch_size"]), cell["engine"], str(cell["processes"])
    if cell["status"] != "ok":
        return *name, *["-"] * 12, f"{cell['status']}: {cell['reason']}"
    spread: str = "" if pd.isna(cell["latency_std_ms"]) else f" ± {cell['latency_std_ms']:.3f}"
    metric = METRICS[cell["scenario"]]
    return (
        *name,
        or_dash(cell["latency_mean_ms"], ".3f") + spread,
        *_percentiles(cell, ".3f"),
        or_dash(cell["images_per_s"], ",.0f"),
        or_dash(times_baseline(cell, rows), ".1f"),
        or_dash(cell["times_floor"], ".1f"),
        _energy(cell),
        or_dash(cell["peak_memory_bytes"] / 1e6, ",.0f"),
        or_dash(cell["setup_s"], ".1f"),
        or_dash(cell["disk_bytes"] / 1e6, ".1f"),
        or_dash(cell["image_error"], ".1e"),
        ""
        if cell["scenario"] == BATCH
        else f"{cell['scenario']}: {metric} {or_dash(cell[metric], ',.3f')}{_doubt(cell)}",
    )


def _doubt(cell: Cell) -> str:
    """Return why a run of LoadGen's shows less than it should, with a comma before it."""
    return "" if pd.isna(cell["reason"]) else f", not valid: {cell['reason']}"


def _energy(cell: Cell) -> str:
    """Return an image's energy with its uncertainty, in mJ."""
    spread = or_dash(cell["energy_uncertainty_j"] * 1e3, ".1f")
    return or_dash(cell["energy_per_image_j"] * 1e3, ".1f") + ("" if spread == "-" else f" ± {spread}")


def _percentiles(cell: Cell, spec: str) -> list[str]:
    return [or_dash(cell[f"latency_{name}_ms"], spec) for name in ("p50", "p90", "p99")]


def scaling(rows: pd.DataFrame) -> str:
    """Return a line for each cell of several processes: its images/s, and what of weak and strong scaling is known."""
    several = rows[(rows["processes"] > 1) & (rows["status"] == "ok")].sort_values(["engine", "batch_size"])
    header = ("engine", "processes", "batch of all", "images/s", "weak scaling", "strong scaling")
    return table(header, [_scaling_line(cell) for cell in several.to_dict("records")]) if len(several) else ""


def _scaling_line(cell: Cell) -> tuple[str, ...]:
    shares = [or_dash(cell[f"{name}_scaling_pct"], ".1f", " %") for name in ("weak", "strong")]
    return (
        cell["engine"],
        str(cell["processes"]),
        str(cell["batch_size"]),
        or_dash(cell["images_per_s"], ",.0f"),
        *shares,
    )


def times_baseline(cell: Cell, rows: pd.DataFrame) -> float:
    """Return how many times faster than eager a cell is by its mean latency; NaN without an eager row like it.

    Of the scenario offline, whose images are all there at once, images/s are compared.
    """
    same = np.logical_and.reduce(
        [rows[name] == cell[name] for name in ("model", "batch_size", "processes", "scenario")]
    )
    copied: pd.Series[bool] = rows["inputs"].fillna("") == ("" if pd.isna(cell["inputs"]) else cell["inputs"])
    baseline = rows[same & copied & (rows["engine"] == BASELINE)]
    if baseline.empty:
        return float("nan")
    if cell["scenario"] == OFFLINE:
        return float(cell["images_per_s"] / baseline["images_per_s"].iloc[0])
    return float(baseline["latency_mean_ms"].iloc[0] / cell["latency_mean_ms"])


def side_by_side(rows: pd.DataFrame, every: pd.DataFrame | None = None) -> str:
    """Return the engines side by side as Markdown, a line for each batch size.

    There is a table for each number of GPUs, without and with copies from host memory.

    Args:
        every: as in `cells`.
    """
    every = rows if every is None else every
    measured = rows[(rows["scenario"] == BATCH) & (rows["status"] == "ok")]
    groups = measured.assign(inputs=measured["inputs"].fillna("")).groupby(["processes", "inputs"])
    return "\n\n".join(_side_by_side(part, int(str(count)), bool(inputs), every) for (count, inputs), part in groups)


def _side_by_side(rows: pd.DataFrame, processes: int, copies: bool, every: pd.DataFrame) -> str:
    names = list(dict.fromkeys(rows["engine"]))
    header = ["batch size", "floor, ms"]
    for name in names:
        header += [f"{name}, ms", f"{name}, images/s"] + ([] if name == BASELINE else ["× eager"])
    lines = []
    for size, part in rows.groupby("batch_size"):
        by_engine = {cell["engine"]: cell for cell in part.to_dict("records")}
        line = [str(size), or_dash(part["floor_ms"].max(), ".3f")]
        for name in names:
            cells_of_one = ["", "", ""]
            if (cell := by_engine.get(name)) is not None:
                ratio = or_dash(times_baseline(cell, every), ".1f")
                cells_of_one = [or_dash(cell["latency_mean_ms"], ".3f"), or_dash(cell["images_per_s"], ",.0f"), ratio]
            line += cells_of_one[:2] if name == BASELINE else cells_of_one
        lines.append(line)
    ruler = ["---:"] * len(header)
    title = f"{processes} GPU{'s' if processes > 1 else ''}"
    if _on_cpu(rows):
        title = "CPU" if processes == 1 else f"CPU, {processes} processes"
    title += ", each its share of the batch" if processes > 1 else ""
    title += ", images copied from host memory" if copies else ""
    return "\n".join([title, "", *("| " + " | ".join(line) + " |" for line in (header, ruler, *lines))])


def under_load(rows: pd.DataFrame) -> str:
    """Return a line for each rate of requests, and for each engine the highest rate whose p99 kept the limit."""
    loaded = rows[(rows["scenario"] == SERVER) & (rows["status"] == "ok")].sort_values(["engine", "target_qps"])
    header = ("engine", "requests/s", "answered/s", "p50 ms", "p90 ms", "p99 ms", "of the runs", "mean batch",
              "seconds", "kept", "note")  # fmt: skip
    lines = [table(header, [_load_line(cell) for cell in loaded.to_dict("records")])] if len(loaded) else []
    broken = rows[(rows["scenario"] == SERVER) & (rows["status"] != "ok")].to_dict("records")
    lines += [f"{cell['engine']}: {cell['status']}: {cell['reason']}" for cell in broken]
    for (engine, limit, slo_ms), part in loaded.groupby(["engine", "batch_size", "slo_ms"]):
        kept = part[part["within_slo"].astype(str) == "True"]["target_qps"]
        best = f"{kept.max():,.0f} requests/s" if len(kept) else "none of these rates"
        lines.append(f"{engine}, batches of at most {limit}: p99 within {slo_ms:g} ms up to {best}")
    return "\n".join(lines)


def _load_line(cell: Cell) -> tuple[str, ...]:
    return (
        cell["engine"],
        f"{cell['target_qps']:,.0f}",
        f"{cell['images_per_s']:,.0f}",
        *_percentiles(cell, ".2f"),
        interval_or_dash(cell["latency_low_ms"], cell["latency_high_ms"], ".2f"),
        or_dash(cell["mean_batch"], ".1f"),
        f"{cell['window_s']:.0f}",
        "yes" if str(cell["within_slo"]) == "True" else "no",
        "" if pd.isna(cell["reason"]) else cell["reason"],
    )


def draw(rows: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Draw the table into a folder, and return the files; without matplotlib none, which is noted."""
    figures = Figures(folder, note)
    measured = rows[rows["status"] == "ok"]
    batches, loaded = measured[measured["scenario"] == BATCH], measured[measured["scenario"] == SERVER]
    panels = {"latency": (_latency, batches), "pareto": (_pareto, batches), "server": (_server, loaded)}
    for name, (draw_panel, part) in panels.items():
        if len(part):
            figures.save(name, (10, 5), functools.partial(_picture, draw_panel=draw_panel, part=part))
    return figures.paths


def _picture(figure: Any, draw_panel: Callable[[Any, pd.DataFrame], None], part: pd.DataFrame) -> None:
    axes = figure.subplots()
    draw_panel(axes, part)
    grid(axes)
    figure.legend(loc="outside right upper", fontsize=9)


def _latency(axes: Any, measured: pd.DataFrame) -> None:
    for (label, rows), mark in zip(_engines(measured, "batch_size"), itertools.cycle(_MARKS), strict=False):
        axes.plot(rows["batch_size"], rows["latency_p50_ms"], mark, alpha=0.7, label=label)
    floors = measured.dropna(subset=["floor_ms"]).drop_duplicates("batch_size").sort_values("batch_size")
    if len(floors):
        axes.plot(floors["batch_size"], floors["floor_ms"], "k--", label="the card's floor")
    size_axis(axes, measured["batch_size"])
    axes.set_yscale("log")
    axes.set(xlabel="batch size", ylabel="median latency of a batch, ms")


def _pareto(axes: Any, measured: pd.DataFrame) -> None:
    for (label, rows), mark in zip(_engines(measured, "batch_size"), itertools.cycle(_MARKS), strict=False):
        axes.plot(rows["latency_p50_ms"], rows["images_per_s"], mark, alpha=0.6, label=label)
    best = front(list(zip(measured["latency_p50_ms"], measured["images_per_s"], strict=True)))
    axes.step(*zip(*best, strict=True), "k--", where="post", label="front: none is faster\nand has more images/s")
    axes.set_xscale("log")
    axes.set(xlabel="median latency of a batch, ms", ylabel="images/s")


def _server(axes: Any, loaded: pd.DataFrame) -> None:
    for label, rows in _engines(loaded, "target_qps"):
        (line,) = axes.plot(rows["target_qps"], rows["latency_p99_ms"], "o-", label=label)
        lost = rows[(rows["within_slo"].astype(str) != "True") & rows["latency_p99_ms"].notna()]
        if len(lost):
            label = f"{label}: not kept"
            axes.plot(lost["target_qps"], lost["latency_p99_ms"], "x", ms=12, color=line.get_color(), label=label)
    for slo_ms in sorted(set(loaded["slo_ms"])):
        axes.axhline(slo_ms, color="k", linestyle="--", label=f"limit, {slo_ms:g} ms")
    axes.set_yscale("log")
    axes.set(xlabel="requests/s", ylabel="p99 from arrival to answer, ms")


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of points (latency, throughput), by rising latency."""
    best: list[tuple[float, float]] = []
    for latency, throughput in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or throughput > best[-1][1]:
            best.append((latency, throughput))
    return best


def _engines(rows: pd.DataFrame, by: str) -> list[tuple[str, pd.DataFrame]]:
    several, given = rows["processes"].nunique() > 1, rows["inputs"].fillna("")
    groups = rows.groupby(["engine", "processes", given], sort=False)
    return [
        (
            f"{name}{f' on {count}' if several else ''}{', copied' if given.nunique() > 1 and inputs else ''}",
            part.sort_values(by),
        )
        for (name, count, inputs), part in groups
    ]
