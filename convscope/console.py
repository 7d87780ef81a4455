"""What the command lines print: tables and lists as text. Returns strings; printing is the caller's."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torchvision

from convscope import algorithms, assignment, choice, cudnn, gpus, models, request, swap
from convscope.choice import ChoiceRow
from convscope.commandline import table
from convscope.records import Run, slug
from convscope.sensor import SensorReport
from convscope.statistics import Summary


def results_table(overall: pd.DataFrame, layers: pd.DataFrame) -> str:
    """Return one line an input size: mean ± std, power, energy, and the slowest three layers with their shares."""
    header = ("size", "mean ± std, ms", "W", "mJ", "slowest three layers, ms (% of the pass)")
    ordered: list[dict[Any, Any]] = overall.sort_values("input_size").to_dict("records")
    return table(header, [_size_line(row, layers[layers["input_size"] == row["input_size"]]) for row in ordered])


def _size_line(row: dict[Any, Any], layers: pd.DataFrame) -> tuple[str, ...]:
    size = str(row["input_size"])
    if pd.isna(row["mean"]):
        return size, row["status"], "-", "-", row["reason"]
    times = f"{row['mean']:.3f} ± {_or_dash(row['std'], '.3f')}"
    energy = _or_dash(row["energy_per_inference_j"] * 1e3, ".1f")
    return size, times, _or_dash(row["power_mean_w"], ".0f"), energy, _slowest(layers)


def _or_dash(value: float | None, spec: str) -> str:
    return "-" if value is None or pd.isna(value) else format(value, spec)


def _slowest(layers: pd.DataFrame) -> str:
    if layers.empty:
        return ""
    timed: list[dict[Any, Any]] = layers.dropna(subset=["mean_ms"]).nlargest(3, "mean_ms").to_dict("records")
    return ", ".join(f"{row['layer']} {row['mean_ms']:.3f} ({row['percentage']:.0f} %)" for row in timed)


def model_list() -> str:
    """Return the models by name, and the other classification models of torchvision."""
    others = [name for name in torchvision.models.list_models(module=torchvision.models) if name not in models.MODELS]
    return "\n".join([*models.MODELS, *(models.PREFIX + name for name in others)])


def algorithm_list(model: str | None, batch_size: int, input_size: int, device_name: str) -> str:
    """Return the algorithms, each with who runs it; for a model, how many of its convolutions can use it, and why not.

    On a GPU cuDNN is asked; without one its rules decide, and the text says so.
    """
    if model is None:
        header = ("algorithm", "CPU", "GPU", "what it is")
        every = algorithms.ALGORITHMS.values()
        return table(
            header, [(a.name, a.cpu_provider or "-", ", ".join(a.cuda_providers) or "-", a.title) for a in every]
        )
    request.at_least("--batch-size", batch_size, 1)
    device = request.find_device(device_name)
    name = models.check_name(model)
    layers = models.convolutions(name, input_size, batch_size)
    ask = swap.asker(device)
    rows = []
    for kind in ("cpu", "cuda"):
        for algorithm in algorithms.ALGORITHMS.values():
            if kind == "cpu" and algorithm.cpu_provider is None:
                continue
            every_reason = assignment.reasons_not(algorithm, layers, kind, ask)
            usable = sum(reason is None for reason in every_reason)
            whole = algorithms.why_no_device(algorithm, kind)
            why = whole or "; ".join(algorithms.refusals(every_reason, slug(name)))
            rows.append((algorithm.name, "GPU" if kind == "cuda" else "CPU", f"{usable} of {len(layers)}", why))
    where = f"on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "by rule, no GPU here to ask"
    title = f"{slug(name)} at {input_size} px, batch {batch_size} ({where})"
    return title + "\n" + table(("algorithm", "on", "layers", "why not"), rows)


def subject_title(run: Run) -> str:
    """Return one line that says what is looked at, and on what."""
    device = torch.device(run.device)
    where = "a CPU"
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, cuDNN {cudnn.version()}"
    return f"{run.model}, {run.algorithm}, {run.input_sizes[0]} px, batch {run.batch_size}, {run.math}, on {where}"


def choice_report(rows: Sequence[ChoiceRow], passes: Mapping[str, Summary]) -> str:
    """Return the fastest algorithm of each layer and what each choice takes more, then the totals and whole passes."""
    layers: dict[int, list[ChoiceRow]] = {}
    for row in rows:
        layers.setdefault(row.position, []).append(row)
    picks = [pick for pick in choice.PICKS if any(row.candidate == pick for row in rows)]
    header = ("layer", "µs", *(f"{pick}: regret µs" for pick in picks), "fastest")
    lines = [table(header, [_choice_line(found, picks) for found in layers.values()])]
    fastest_ms = sum(found[0].mean_ms - found[0].regret_us / 1e3 for found in layers.values())
    lines.append(f"sum over {len(layers)} layers of the fastest: {fastest_ms * 1e3:.1f} µs")
    for pick, regret in choice.totals(rows).items():
        lines.append(
            f"{pick}: {regret.mean_ms * 1e3:+.1f} ± {regret.half_width_ms * 1e3:.1f} µs "
            f"({100 * regret.mean_ms / fastest_ms:+.1f} %)"
        )
    for name, found in passes.items():
        lines.append(f"whole pass, {name}: {found.mean_ms:.4f} ± {_or_dash(found.std_ms, '.4f')} ms")
    return "\n".join(lines)


def _choice_line(rows: Sequence[ChoiceRow], picks: Sequence[str]) -> tuple[str, ...]:
    field = [row for row in rows if row.candidate not in choice.PICKS]
    ties = [row.candidate for row in field[1:] if row.rank == 1]
    by_name = {row.candidate: row for row in rows}
    fastest = field[0].candidate + (f" (ties: {', '.join(ties)})" if ties else "")
    return field[0].layer, f"{field[0].mean_ms * 1e3:.1f}", *(_pick(by_name.get(pick)) for pick in picks), fastest


def _pick(row: ChoiceRow | None) -> str:
    if row is None:
        return "-"
    sure = "" if abs(row.regret_us) > row.regret_ci99_us else " (tie)"
    return f"{row.chosen or 'another'} {row.regret_us:+.1f}{sure}"


def cuda_report() -> tuple[str, bool]:
    """Return what is here to measure with, and whether a GPU and cuDNN are."""
    lines = [f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"]
    try:
        lines.append(f"cuDNN {cudnn.version()} (loaded through ctypes)")
    except cudnn.CudnnError as error:
        lines.append(f"cuDNN: {error}")
        return "\n".join(lines), False
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        lines.append("no CUDA device: direct, smm and torch can be measured here, on the CPU")
    for index in range(count):
        name = torch.cuda.get_device_name(index)
        lines.append(f"cuda:{index} {name} (--gpu {gpus.label(name)}){_peaks(name)}")
    return "\n".join(lines), count > 0


def _peaks(device_name: str) -> str:
    gpu = gpus.identify(device_name)
    if gpu is None:
        return ""
    tf32 = f"{gpu.tf32_tflops:g} TFLOP/s tf32, " if gpu.tf32_tflops else ""
    return f": {gpu.fp32_tflops:g} TFLOP/s fp32, {tf32}{gpu.bandwidth_gbps:g} GB/s by {gpu.source}"


def sensor_report(found: SensorReport) -> str:
    """Return a sensor self-test as a table: update period, averaging window, rise time, swing under a square wave."""
    rows = [
        (
            "energy counter",
            _or_dash(found.counter_period_ms, ".0f"),
            "-",
            "-",
            _or_dash(found.counter_swing_pct, ".0f"),
        ),
        (
            "instant power",
            _or_dash(found.instant_period_ms, ".0f"),
            _or_dash(found.instant_window_ms, ".0f"),
            _or_dash(found.instant_rise_ms, ".0f"),
            _or_dash(found.instant_swing_pct, ".0f"),
        ),
        (
            "average power",
            _or_dash(found.average_period_ms, ".0f"),
            _or_dash(found.average_window_ms, ".0f"),
            _or_dash(found.average_rise_ms, ".0f"),
            "-",
        ),
    ]
    header = ("sensor", "period ms", "window ms", "rise ms", "swing %")
    differ = ", ".join(
        f"{name} {_or_dash(value, '+.1f')} %"
        for name, value in (
            ("idle", found.idle_disagreement_pct),
            ("full load", found.load_disagreement_pct),
            ("square wave", found.wave_disagreement_pct),
        )
    )
    field_191 = {True: "equals the counter", False: "differs from the counter", None: "does not answer"}
    lines = [
        f"{found.gpu_name}, driver {found.driver}, {found.looked_s:.0f} s, one look in {found.read_time_ms:.1f} ms",
        f"idle {_or_dash(found.idle_power_w, '.1f')} W, full load {_or_dash(found.load_power_w, '.1f')} W",
        table(header, rows),
        f"integral of instant power against the counter: {differ}",
        f"memory power {_or_dash(found.memory_power_w, '.1f')} W; energy field 191 "
        + field_191[found.energy_field_equals_counter],
    ]
    return "\n".join(lines)
