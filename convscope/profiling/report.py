"""Text of `run_profile.py`: log, table of results, report of a sensor's self-test. Printing is the caller's."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.cli.display import interval_or_dash, or_dash, table
from convscope.cli.parser import one_line
from convscope.cli.terminal import Line, Piece, bar, spark
from convscope.power.sensor_test import SensorReport
from convscope.profiling.comparison.earlier import Earlier
from convscope.profiling.request import Run
from convscope.profiling.rows import OverallRow
from convscope.storage.environment import Environment
from convscope.storage.paths import precision
from convscope.storage.table import write_atomically
from convscope.timing.shares import shares_pct

SHARE_LEAST_PCT = 0.5
SLOWEST, BAR_SIGNS = 5, 24
STYLES = {"slower": "red", "faster": "green", "ambiguous": "yellow"}


def log_header(run: Run, environment: Environment, command: Sequence[str]) -> str:
    """Return the first lines of a log: command, device, versions, sizes."""
    here = environment
    card = f"GPU: {here.gpu_name} ({here.gpu_uuid}), driver {here.driver or '-'}, power limit "
    card += or_dash(here.power_limit_w, ".0f", " W")
    versions = {"torch": here.torch, "CUDA": here.cuda, "cuDNN": here.cudnn, "Triton": here.triton, "ai3": here.ai3}
    settings = f"batch {run.batch_size}, {run.math}{precision(run.dtype, run.layout)}"
    ends = dict.fromkeys((run.input_sizes[0], run.input_sizes[-1]))
    pixels = run.input_shape or " to ".join(map(str, ends))
    lines = [
        f"command: {shlex.join(command)}",
        (card if here.gpu_name else f"CPU: {here.cpu}, {here.cpu_threads} threads") + f", on {here.host}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        f"commit: {here.git_commit or '-'}",
        f"sizes: {len(run.input_sizes)}, {pixels} px, {settings}",
    ]
    return "\n".join(lines)


def log_line(row: OverallRow, done: int, total: int) -> str:
    """Return a line of a log: sizes that have a row so far, size, mean time, mean power; or status and reason."""
    begin = f"{done:{len(str(total))}}/{total}  {row.input_shape or row.input_size} px  "
    if row.mean is None or row.status != "ok":
        return f"{begin}{row.status}: {row.reason}"
    return f"{begin}{row.mean:.2f} ms  {or_dash(row.power_mean_w, '.0f', ' W')}"


def results_table(overall: pd.DataFrame, layers: pd.DataFrame) -> str:
    """Return one line an input size: mean ± std, power, energy, and the slowest three layers with their shares."""
    header = ("size", "mean ± std, ms", "W", "mJ", "slowest three layers, ms (% of the pass)")
    ordered: list[dict[Any, Any]] = overall.sort_values("input_size").to_dict("records")
    return table(header, [_size_line(row, layers[layers["input_size"] == row["input_size"]]) for row in ordered])


def _size_line(row: dict[Any, Any], layers: pd.DataFrame) -> tuple[str, ...]:
    shape = row.get("input_shape")
    size = shape if isinstance(shape, str) else str(row["input_size"])
    if pd.isna(row["mean"]):
        return size, row["status"], "-", "-", row["reason"]
    times = f"{row['mean']:.3f} ± {or_dash(row['std'], '.3f')}"
    energy = or_dash(row["energy_per_inference_j"] * 1e3, ".1f")
    return size, times, or_dash(row["power_mean_w"], ".0f"), energy, _slowest(layers)


def _slowest(layers: pd.DataFrame) -> str:
    if layers.empty:
        return ""
    timed: list[dict[Any, Any]] = layers.dropna(subset=["mean_ms"]).nlargest(3, "mean_ms").to_dict("records")
    return ", ".join(f"{row['layer']} {row['mean_ms']:.3f} ({row['percentage']:.0f} %)" for row in timed)


def work_line(work: pd.DataFrame) -> str:
    """Return the shares of all sizes' passes by kind of work on one line, "" where nothing is known of it."""
    times_ms: list[tuple[str, float]] = list(zip(work["category"], work["kernel_ms"], strict=True))
    shares = [f"{kind} {share:.0f} %" for kind, share in shares_pct(times_ms).items() if share >= SHARE_LEAST_PCT]
    return f"work: {', '.join(shares)}" if shares else ""


def pictures(overall: pd.DataFrame, layers: pd.DataFrame) -> list[Line]:
    """Return a line of the times over the sizes, one of the energy, and the slowest layers of the largest with bars."""
    ok = overall[overall["status"] == "ok"].sort_values("input_size")
    if ok.empty:
        return []
    lines = _trend(ok, "time, ms", "mean", 1.0) + _trend(ok, "energy, mJ", "energy_per_inference_j", 1e3)
    size = ok["input_size"].iloc[-1]
    slowest = layers[(layers["input_size"] == size) & (layers["status"] == "ok")].dropna(subset=["mean_ms"])
    slowest = slowest.sort_values("mean_ms", ascending=False).head(SLOWEST)
    if slowest.empty:
        return lines
    width = max(len(name) for name in slowest["layer"].map(one_line))
    lines.append([Piece(f"slowest layers at {size} px, ms (% of the pass)", "bold")])
    for row in slowest.to_dict("records"):
        filled = bar(row["mean_ms"] / slowest["mean_ms"].iloc[0], BAR_SIGNS).ljust(BAR_SIGNS)
        figures = f"  {row['mean_ms']:.3f} ({or_dash(row['percentage'], '.0f', ' %')})"
        lines.append([Piece(f"  {one_line(row['layer']).ljust(width)}  "), Piece(filled, "cyan"), Piece(figures)])
    return lines


def _trend(ok: pd.DataFrame, name: str, column: str, factor: float) -> list[Line]:
    """Return a column over the sizes as a sparkline between its first and last figure; nothing for fewer than three."""
    known = ok[["input_size", column]].dropna()
    if len(known) < 3:
        return []
    first, last = (f"{known[column].iloc[at] * factor:.4g} at {known['input_size'].iloc[at]} px" for at in (0, -1))
    signs = spark([float(value) for value in ok[column]])
    return [[Piece(f"{name}: {first} "), Piece(signs, "cyan"), Piece(f" {last}")]]


def beside_earlier(found: Earlier) -> list[Line]:
    """Return a line for each earlier run of the model beside this one, with the verdict; those not compared last."""
    lines: list[Line] = []
    if found.runs:
        header = ("earlier run", "algorithm", "all sizes", "at", "then, ms", "now, ms", "change, %", "95 % interval")
        cells = [
            (str(each.path), each.algorithm, each.verdicts, f"{each.last.input_size} px",
             or_dash(each.last.a_ms, ".4f"), or_dash(each.last.b_ms, ".4f"), or_dash(each.last.change_pct, "+.1f"),
             interval_or_dash(each.last.low_pct, each.last.high_pct, "+.1f"))
            for each in found.runs
        ]  # fmt: skip
        titled = table(header, cells, all_left=True).splitlines()
        title, *rows = (row.ljust(max(map(len, titled))) for row in titled)
        lines = [[Piece(f"{title}  verdict", "bold")]]
        for each, row in zip(found.runs, rows, strict=True):
            said = ": ".join(filter(None, (each.last.verdict, each.last.reason)))
            lines.append([Piece(f"{row}  "), Piece(said, STYLES.get(each.last.verdict, ""))])
    if found.elsewhere:
        runs = f"{found.elsewhere} earlier run{'s' if found.elsewhere > 1 else ''}"
        lines.append([Piece(f"not compared: {runs} of this model in another environment", "dim")])
    return lines


def sensor_report(report: SensorReport) -> str:
    """Return a sensor self-test as a table: update period, averaging window, rise time, swing under a square wave."""
    sensors = {"counter": "energy counter", "instant": "instant power", "average": "average power"}
    figures = ("period_ms", "window_ms", "rise_ms", "swing_pct")
    rows = [
        (title, *(or_dash(getattr(report, f"{sensor}_{figure}", None), ".0f") for figure in figures))
        for sensor, title in sensors.items()
    ]
    header = ("sensor", "period ms", "window ms", "rise ms", "swing %")
    loads = {"idle": report.idle_disagreement_pct, "full load": report.load_disagreement_pct}
    loads["square wave"] = report.wave_disagreement_pct
    differ = ", ".join(f"{name} {or_dash(value, '+.1f')} %" for name, value in loads.items())
    field_191 = {True: "equals the counter", False: "differs from the counter", None: "does not answer"}
    lines = [
        f"{report.gpu_name}, driver {report.driver}, {report.looked_s:.0f} s, one look in {report.read_time_ms:.1f} ms",
        f"idle {or_dash(report.idle_power_w, '.1f')} W, full load {or_dash(report.load_power_w, '.1f')} W",
        table(header, rows),
        f"integral of instant power against the counter: {differ}",
        f"memory power {or_dash(report.memory_power_w, '.1f')} W; energy field 191 "
        + field_191[report.energy_field_equals_counter],
    ]
    return "\n".join(lines)


def save(report: SensorReport, path: Path) -> None:
    """Write a sensor's report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(dataclasses.asdict(report), indent=2) + "\n")
