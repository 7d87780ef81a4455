"""Titles of columns with their units, for tables and axes, and texts from a disk as the page shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from typing import Any

from convscope.cli import display
from convscope.cli.parser import one_line

VIEWS = {
    "overview": "Overview",
    "scaling": "Scaling",
    "heat": "Heat map",
    "layers": "Layers",
    "roofline": "Roofline",
    "energy": "Energy",
    "choice": "Choice",
    "training": "Training",
    "inference": "Inference",
    "conv3d": "3-D",
    "compare": "Compare",
    "method": "Method",
}
"""Views of the report, each with its title."""
LONGEST = 160
"""Characters of a text that are shown; the rest is cut off, and its length said."""

OTHERS = " + others"
"""Ends the name of an algorithm in a pass of which other algorithms ran some layers."""
STAR = "*"
"""Ends a figure of such a pass in a heat map."""
SEPARATED = 10_000
"""Numbers from here on have commas between thousands."""

DIMENSIONS = ("model", "gpu", "algorithm", "batch", "dtype", "size")
"""Columns that the page's filters choose by, and the tables of all studies share as far as they have them."""

TITLES = {
    "gpu": "GPU",
    "dtype": "data type",
    "size": "size, px",
    "mean_ms": "time, ms",
    "ci95_ms": "± 95 %, ms",
    "std_ms": "std, ms",
    "p95_ms": "95th percentile, ms",
    "eager_ms": "launched from Python, ms",
    "spread_pct": "spread over placements, %",
    "power_w": "power, W",
    "energy_mj": "energy, mJ",
    "energy_ci_mj": "± 2 std, mJ",
    "edp_mj_ms": "energy × time, mJ·ms",
    "memory_mib": "memory, MiB",
    "workspace_mib": "workspace, MiB",
    "time_ratio": "time / best",
    "energy_ratio": "energy / best",
    "edp_ratio": "energy × time / best",
    "memory_ratio": "memory / best",
    "is_front": "on the front",
    "share_pct": "share of the pass, %",
    "shape": "channels in → out, kernel, input",
    "replaced_layers": "layers by others",
    "series": "algorithm",
    "kernels": "kernels that ran",
    "ran": "ran",
    "relative_error": "relative error",
    "intensity": "intensity, FLOP/byte",
    "tflops": "attained, TFLOP/s",
    "gflop": "work, GFLOP",
    "moved_mib": "input, weights, output, MiB",
    "bound_ms": "least time by peaks, ms",
    "of_bound_pct": "least time / time, %",
    "category": "kind of work",
    "kernel_ms": "kernels, ms",
    "kernel_share_pct": "share of kernels, %",
    "regret_us": "regret, µs",
    "regret_ci99_us": "± 99 %, µs",
    "saved_us": "gain over PyTorch, µs",
    "saved_ci99_us": "± 99 %, µs",
    "model_at": "model",
    "gain_pct": "gain over PyTorch, %",
    "gain_ci99_pct": "± 99 % interval, %",
    "convolutions_by": "convolutions by",
    "extra_ms": "extra in the first pass, ms",
    "first_layers_ms": "layers in the first pass, ms",
    "library_ms": "library's first call, ms",
    "power_limit_w": "power limit, W",
    "sm_clock_max_mhz": "highest SM clock, MHz",
    "mean_of_ms": "time of the pass, ms",
    "fastest": "fastest",
    "fastest_ms": "fastest, ms",
    "frugal": "most frugal",
    "frugal_mj": "most frugal, mJ",
    "smallest": "smallest workspace",
    "smallest_mib": "smallest workspace, MiB",
    "torch_regret_us": "PyTorch's regret, µs",
    "benchmark_regret_us": "benchmark's regret, µs",
    "guess_regret_us": "guess's regret, µs",
    "training_step_ms": "training step, ms",
    "throughput": "samples/s",
    "step_ms": "step, ms",
    "data_ms": "data, ms",
    "forward_ms": "forward, ms",
    "backward_ms": "backward, ms",
    "optimizer_ms": "optimizer, ms",
    "accuracy_pct": "accuracy, %",
    "train_loss": "training loss",
    "test_loss": "held-out loss",
    "energy_per_sample_mj": "energy of a sample, mJ",
    "latency_ms": "latency, ms",
    "latency_p99_ms": "99th percentile, ms",
    "images_per_s": "images/s",
    "energy_per_image_mj": "energy of an image, mJ",
    "low_ms": "low, ms",
    "high_ms": "high, ms",
    "to_cudnn": "cuDNN's best time / this",
    "to_torch": "PyTorch's best time / this",
    "change_pct": "change of B, %",
    "low_pct": "95 % low, %",
    "high_pct": "95 % high, %",
    "a_ms": "A, ms",
    "b_ms": "B, ms",
    "a_w": "A, W",
    "b_w": "B, W",
    "a_mj": "A, mJ",
    "b_mj": "B, mJ",
    "done_pct": "measured and ok, %",
    "cudnn": "cuDNN",
    "cuda": "CUDA",
    "cpu": "CPU",
    "ecc": "ECC",
    "python": "Python",
    "gpu_uuid": "GPU UUID",
    "torch": "PyTorch",
    "triton": "Triton",
    "began_utc": "began (UTC)",
    "ended_utc": "ended (UTC)",
}

DOUBTS = {
    "mean_ms": "ci95_ms", "energy_mj": "energy_ci_mj", "gain_pct": "gain_ci99_pct", "saved_us": "saved_ci99_us",
    "regret_us": "regret_ci99_us",
}  # fmt: skip
"""The column with the interval of a column; digits below the second of the interval are not shown."""
DOUBTS |= {name: name for name in DOUBTS.values()}


def title(column: str) -> str:
    """Return a column's title with its unit: "time, ms"."""
    return TITLES.get(column, column.replace("_", " "))


def utc(said: Any) -> str:
    """Return a time as `run.json` says it, without its zone, which the title of the column has."""
    return plain(said or "").removesuffix("+00:00").replace("T", " ")


def plain(value: Any, longest: int = LONGEST) -> str:
    """Return a text from a disk on one line, without signs that a reader cannot see, and not too long."""
    text = one_line(value)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def number(value: Any, doubt: Any = None) -> str:
    """Return a number with four digits that count, "" for none; infinities by their names.

    Args:
        doubt: half the number's interval, whose second digit is the last that is shown.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    number = float(value)
    if number in (float("inf"), float("-inf")):
        return "∞" if number > 0 else "−∞"
    if abs(number) >= 1000:
        return f"{number:,.0f}" if abs(number) >= SEPARATED else f"{number:.0f}"
    if isinstance(doubt, (int, float)) and 0 < doubt < math.inf and number:
        decimals = min(1 - math.floor(math.log10(doubt)), 3 - math.floor(math.log10(abs(number))))
        text = f"{number:.{max(0, decimals)}f}"
        return text if float(text) else text.removeprefix("-")
    if number.is_integer():
        return str(int(number))
    return f"{number:.4g}" if abs(number) >= 1e-3 else f"{number:.3g}" if abs(number) >= 1e-4 else f"{number:.2e}"


def several(count: float, noun: str) -> str:
    """Return a number, with commas between thousands, and its noun: "1 run", "3,000 runs"."""
    return display.several(count, noun, ",.0f")


def kernel_names(cell: Hashable) -> str:
    """Return a cell with names and counts of kernels in words: "3 × implicit_gemm, nchwToNhwc"."""
    if not isinstance(cell, str):
        return ""
    try:
        counts = json.loads(cell)
        named = [f"{count} × {name}" if count != 1 else str(name) for name, count in counts.items()]
    except (ValueError, AttributeError, RecursionError):
        return plain(cell)
    return plain(", ".join(named))
