"""Words, curves and pictures of a training study, from its tables; nothing here measures.

A matrix has a line for each cell. A cell's summary has its metrics, its top operations and its opportunities, each with
the figures it follows from. Curves are for TensorBoard, pictures show all cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.cli.display import Figures, grid, or_dash, several, size_axis, table
from convscope.storage.table import columns
from convscope.training.operators import ACTIVATION, CONVOLUTION, COPIES, NORMALISATION
from convscope.training.rows import TrainingKey, TrainingRow
from convscope.training.step import PHASES
from convscope.training.trainer import Trained, phase_times

NAMES = columns(TrainingKey)
SERIES = ["model", "processes", "compiled", "captured"]
TOTALS = ("throughput_samples_per_s", "peak_memory_bytes", "energy_per_sample_j")
TOP = 10
_DATA_BOUND, _MEMORY_BOUND, _LARGER_GAIN, _NEARLY_FULL, _UNSTEADY = 0.1, 0.25, 1.2, 0.8, 2.0
# Shares of a step's operators (%) that guides of this exercise give, by category.
_QUOTED_PCT = {CONVOLUTION: (65, 75), NORMALISATION: (10, 15), COPIES: (5, 10)}

Cell = dict[str, Any]


def matrix(training: pd.DataFrame) -> str:
    """Return the comparison of all cells, a line each: throughput, step and its phases, memory, energy, accuracy."""
    first = ("model", "batch", "procs", "compiled", "captured", "samples/s", "efficiency", "step ms")
    header = (*first, *PHASES, "peak MB", "mJ/sample", "accuracy", "note")
    return table(header, [_matrix_line(cell) for cell in _cells(training)])


def _matrix_line(cell: Cell) -> tuple[str, ...]:
    execution = ("yes" if cell[name] else "no" for name in ("compiled", "captured"))
    name = cell["model"], str(cell["batch_size"]), str(cell["processes"]), *execution
    if cell["status"] != "ok":
        return *name, *["-"] * 10, f"{cell['status']}: {cell['reason']}"
    return (
        *name,
        or_dash(cell["throughput_samples_per_s"], ",.1f"),
        or_dash(cell["scaling_efficiency_pct"], ".1f", " %"),
        or_dash(cell["step_ms"], ".2f"),
        *(or_dash(cell[f"{phase}_ms"], ".2f") for phase in PHASES),
        or_dash(cell["peak_memory_bytes"] * 1e-6, ",.0f"),
        or_dash(cell["energy_per_sample_j"] * 1e3, ".2f"),
        or_dash(cell["accuracy_pct"], ".1f", " %"),
        "",
    )


def _cells(training: pd.DataFrame) -> list[Cell]:
    records: list[Any] = training.sort_values(NAMES).to_dict("records")
    return records


def summaries(training: pd.DataFrame, operators: pd.DataFrame, memory_bytes: int | None) -> dict[TrainingKey, str]:
    """Return the summary of every measured cell by its key; arguments as `summary` takes them, of all cells."""
    texts = {}
    for cell in _cells(training[training["status"] == "ok"]):
        key = TrainingKey(*(cell[name] for name in NAMES))
        texts[key] = summary(cell, operators[_alike(operators, cell, NAMES)], training, memory_bytes)
    return texts


def _alike(rows: pd.DataFrame, cell: Cell, names: list[str]) -> pd.Series[bool]:
    """Tell which rows have a cell's values in these columns."""
    return (rows[names] == [cell[name] for name in names]).all(axis=1)


def summary(cell: Cell, operators: pd.DataFrame, training: pd.DataFrame, memory_bytes: int | None) -> str:
    """Return the summary of one measured cell.

    Args:
        operators: the cell's rows of that table; empty without a trace.
        training: all cells, to compare with.
        memory_bytes: the GPU's memory, None on a CPU.
    """
    top = ["top operations", *_top(operators)] if len(operators) else []
    advice = opportunities(cell, operators, training, memory_bytes) or ["none that stands out"]
    return "\n".join([_title(cell), *_metrics(cell), *top, "opportunities", *(f"- {line}" for line in advice)])


def _title(cell: Cell) -> str:
    several = f" × {cell['processes']} processes" if cell["processes"] > 1 else ""
    settings = f"{cell['algorithm']}, {cell['dtype']}, {cell['math']}{_execution(cell)}"
    return f"{cell['model']} on {cell['dataset']}, batch {cell['batch_size']}{several}, {cell['device']} ({settings})"


def _metrics(cell: Cell) -> list[str]:
    def timed(name: str) -> str:
        mean, std, p95 = (or_dash(cell[f"{name}_{kind}"], ".2f") for kind in ("ms", "std_ms", "p95_ms"))
        share = "" if name == "step" else f", {100 * cell[f'{name}_ms'] / cell['step_ms']:.1f} %"
        on_gpu_ms = math.nan if name == "step" else cell[f"{name}_gpu_ms"]
        kernels = "" if pd.isna(on_gpu_ms) else f"; kernels {on_gpu_ms:.2f} ms"
        return f"{mean} ± {std} ms (p95 {p95}{share}{kernels})"

    lines = [f"throughput: {cell['throughput_samples_per_s']:,.1f} samples/s"]
    lines += [f"{name} time: {timed(name)}" for name in ("step", *PHASES)]
    if cell["host_bound"] is True:
        lines.append("host-bound: the GPU waits, and the phases are times of the host")
    if not pd.isna(cell["launch_ms"]):
        lines.append(f"host's time for a step, without its data: {cell['launch_ms']:.2f} ms")
    if not pd.isna(cell["gpu_busy_ms"]):
        share_pct = 100 * cell["gpu_busy_ms"] / cell["step_ms"]
        lines.append(f"GPU busy in a step: {cell['gpu_busy_ms']:.2f} ms ({share_pct:.1f} %)")
    if not pd.isna(cell["peak_memory_bytes"]):
        mean = "" if pd.isna(cell["mean_memory_bytes"]) else f", mean {cell['mean_memory_bytes'] / 1e6:,.1f} MB"
        lines.append(f"memory: peak {cell['peak_memory_bytes'] / 1e6:,.1f} MB{mean}")
    if not pd.isna(cell["energy_per_sample_j"]):
        energy_mj, uncertainty_mj = cell["energy_per_sample_j"] * 1e3, cell["energy_uncertainty_j"] * 1e3
        lines.append(f"energy: {energy_mj:.3f} ± {uncertainty_mj:.3f} mJ a sample at {cell['power_mean_w']:.1f} W")
    elif not pd.isna(cell["reason"]):
        lines.append(cell["reason"])
    lines.append(f"loss {cell['loss']:.4f}, accuracy {or_dash(cell['accuracy_pct'], '.1f', ' %')} on held-out images")
    over = several(cell["steps"], "step", ".0f")
    return [f"- {line}" for line in lines] + [
        f"  over {over}, the first {cell['skipped_steps']:.0f} left out; {cell['timing_method']}"
    ]


def _top(operators: pd.DataFrame) -> list[str]:
    shares = operators.groupby("operator")["share_pct"].sum().nlargest(TOP)
    kinds = operators.groupby("category")["share_pct"].sum().sort_values(ascending=False)
    lines = [f"{number:2}. {name}: {share:.1f} %" for number, (name, share) in enumerate(shares.items(), 1)]
    lines.append("    " + ", ".join(f"{kind} {share:.1f} %" for kind, share in kinds.items()))
    quoted = ", ".join(f"{kind} {low} to {high} %" for kind, (low, high) in _QUOTED_PCT.items())
    return [*lines, f"    often quoted: {quoted}"]


def opportunities(
    cell: Cell, operators: pd.DataFrame, training: pd.DataFrame, memory_bytes: int | None = None
) -> list[str]:
    """Return advice that could make the cell faster, each with the figures it follows from."""
    advice = []
    step_ms = cell["step_ms"]
    if cell["host_bound"] is True:
        rest_ms = step_ms - cell["data_ms"]
        fewer = "a larger batch" if cell["captured"] else "--capture, --compile, a larger batch"
        advice.append(
            f"host-bound: the host takes {cell['launch_ms']:.2f} ms to launch what takes {rest_ms:.2f}: "
            f"fewer launches ({fewer}) help, a faster GPU does not"
        )
    if cell["step_p95_ms"] >= _UNSTEADY * step_ms:
        advice.append(
            f"unsteady: one step in 20 takes {cell['step_p95_ms']:.2f} ms and more, the mean is {step_ms:.2f}: "
            "look for what else the machine does"
        )
    if cell["data_ms"] >= _DATA_BOUND * step_ms:
        advice.append(f"waits for data: {100 * cell['data_ms'] / step_ms:.0f} % of a step: more --num-workers")
    moving = operators[operators["category"].isin([NORMALISATION, ACTIVATION, COPIES])]["share_pct"].sum()
    if moving >= 100 * _MEMORY_BOUND:
        advice.append(
            f"memory-bound: {moving:.0f} % goes to normalisation, activation and copies, which move more than they "
            "compute: fuse them (--compile), or halve what is moved (--dtype bfloat16)"
        )
    larger = _larger_batch(cell, training)
    if larger is not None:
        gain = larger["throughput_samples_per_s"] / cell["throughput_samples_per_s"]
        advice.append(f"small batch: batch {larger['batch_size']} trains {gain:.1f} times as many samples a second")
    if memory_bytes and cell["peak_memory_bytes"] >= _NEARLY_FULL * memory_bytes:
        advice.append(f"memory nearly full: {100 * cell['peak_memory_bytes'] / memory_bytes:.0f} % of the GPU's")
    if pd.isna(cell["loss"]):
        advice.append("the loss is no number any more: a smaller --learning-rate")
    return advice


def _larger_batch(cell: Cell, training: pd.DataFrame) -> Cell | None:
    """Return the cell of a larger batch, all else equal, with the most throughput, if that is much more."""
    same = (training["status"] == "ok") & _alike(training, cell, SERIES)
    larger = training[same & (training["batch_size"] > cell["batch_size"])]
    enough = larger[larger["throughput_samples_per_s"] >= _LARGER_GAIN * cell["throughput_samples_per_s"]]
    best: list[Any] = enough.nlargest(1, "throughput_samples_per_s").to_dict("records")
    return best[0] if best else None


def write_scalars(folder: Path, row: TrainingRow, trained: Trained, note: Callable[[str], None]) -> None:
    """Write a cell's curves as one file of events; without the package tensorboard nothing but a note."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        note("no curves for TensorBoard: pip install 'convscope[study]'")
        return
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    curves: dict[str, tuple[Sequence[float | None], int]] = {
        "loss/step": ([loss for epoch in trained.epochs for loss in epoch.losses], 0),
        "loss/held_out": ([epoch.test_loss for epoch in trained.epochs], 1),
        "accuracy_pct": ([epoch.accuracy_pct for epoch in trained.epochs], 1),
        **{f"time_ms/{name}": (times, row.skipped_steps or 0) for name, times in phase_times(trained).items()},
        **{name: ([getattr(row, name)], 0) for name in TOTALS},
    }
    with SummaryWriter(str(folder)) as writer:
        for name, (values, first) in curves.items():
            for step, value in enumerate(values, first):
                if value is not None:
                    writer.add_scalar(name, value, step)


def draw(training: pd.DataFrame, memory: pd.DataFrame, folder: Path, note: Callable[[str], None]) -> None:
    """Draw the tables into a folder; without matplotlib nothing, which is noted."""
    figures = Figures(folder, note)
    measured = training[training["status"] == "ok"]
    if len(measured):
        figures.save("batch_size", (9, 4), lambda figure: _batch_sizes(figure, measured))
    if len(memory):
        figures.save("memory", (9, 4), lambda figure: _memory(figure, memory))


def _batch_sizes(figure: Any, measured: pd.DataFrame) -> None:
    pictures = [("throughput_samples_per_s", 1.0, "throughput, samples/s")]
    if measured["peak_memory_bytes"].notna().any():
        pictures.append(("peak_memory_bytes", 1e-9, "peak memory of a process, GB"))
    panels = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axes, (column, factor, title) in zip(panels, pictures, strict=True):
        for _, rows in measured.groupby(SERIES):
            ordered = rows.sort_values("batch_size")
            axes.plot(ordered["batch_size"], ordered[column] * factor, "o-", label=_label(rows))
        size_axis(axes, measured["batch_size"])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="batch size of a process", ylabel=title)
        grid(axes)
        axes.legend()


def _memory(figure: Any, memory: pd.DataFrame) -> None:
    """Draw a panel for each model, a curve for each batch size: of GPUs, where there is one."""
    on_gpu = memory[memory["device"] != "cpu"]
    of_models = list((memory if on_gpu.empty else on_gpu).groupby(SERIES))
    panels = figure.subplots(1, len(of_models), squeeze=False, sharey=True)[0]
    for axes, (_, rows) in zip(panels, of_models, strict=True):
        for size, of_size in rows.groupby("batch_size"):
            axes.step(of_size["time_ms"], of_size["allocated_bytes"] * 1e-6, where="post", label=f"batch {size}")
        axes.set(title=_label(rows), xlabel="time in the traced steps, ms")
        grid(axes)
    panels[0].set_ylabel("held by PyTorch's allocator, MB")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="upper left")


def _label(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    several = f", {first['processes']} processes" if first["processes"] > 1 else ""
    return f"{first['model']}{several}{_execution(first)}"


def _execution(cell: Any) -> str:
    return ", compiled" * bool(cell["compiled"]) + ", captured" * bool(cell["captured"])
