"""Exhibits of the page in the order of the views: each a table, with the chart of it where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from convscope.cli.programs import called
from convscope.report import charts
from convscope.report.charts import Spec
from convscope.report.tables import overview

OF_STUDIES = ("training", "inference", "conv3d")
"""Views whose exhibits are left out one by one where no folder has their table."""
VERIFY = called("run_verify")
MEASURED_BY = {
    **dict.fromkeys(("scaling", "heat", "layers", "roofline"), called("run_profile")),
    "energy": f"{called('run_profile')} on a card whose power can be read",
    "choice": f"{VERIFY} --plans",
    "training": called("run_training"), "inference": called("run_inference"), "conv3d": called("run_conv3d"),
    "compare": "two runs of the same work",
}  # fmt: skip
"""Programs whose runs fill a view that is left out."""
ALWAYS = ("overview", "method")
"""Views that are there even where they have nothing to show."""
WHERE = ("model", "gpu", "batch", "dtype")
RUN = (*WHERE, "layout", "math")
SETTINGS = (*RUN[1:], "cudnn", "size", "card")
"""Columns that stand last in a table where all rows share their value."""


@dataclass(frozen=True)
class Exhibit:
    """One table with its chart.

    Attributes:
        columns: those of the table that are shown; the others are for charts and filters.
        needs: a column that must have a value in some row, else `without` says why there is nothing to see.
        draws: makes the chart of a panel's rows; None for a table alone.
        panel: the column that has the title of a row's picture.
        order: the column that rows are sorted by; descending with a "-" before it.
        at_reference: rows of the reference size alone, where no filter names a size.
        only: a column that drawn rows need a value in.
        top: columns of which some values are drawn, each with how many, and the column by whose order these are the
            first; "" is the order of rows.
        one: a column of which one value is drawn at a time, that whose first row comes last unless a filter names one.
        several: a column of which a picture has two values at least; others are not drawn, and a line says so.
        has_log: the reader may switch to logarithmic axes.
    """

    name: str
    view: str
    title: str
    text: str
    table: str
    columns: Sequence[str]
    needs: str = ""
    without: str = "No run has measured this."
    draws: Any = None
    panel: str = "panel"
    order: str = ""
    at_reference: bool = False
    only: str = ""
    top: Sequence[tuple[str, int, str]] = ()
    one: str = ""
    several: str = ""
    has_log: bool = False


def fastest(series: str) -> tuple[tuple[str, int, str]]:
    """Return as `top` the fastest of a series that one picture can hold."""
    return ((series, charts.MOST_SERIES, "mean_ms"),)


def _lines(y: str, error: str, domain: dict[str, list[str]]) -> Spec:
    return charts.lines("size", y, error, "series", domain["algorithm"])


def _heat(ratio: str, value: str, domain: dict[str, list[str]]) -> Spec:
    return charts.heat("algorithm", "model_at", ratio, value, star="star")


def _heat_exhibit(name: str, title: str, ratio: str, value: str, without: str = "No run has measured this.") -> Exhibit:
    text = "Over the best algorithm of the same model, card and size: 1 is the best. *: others ran some layers."
    columns = (*RUN, "size", "algorithm", "replaced_layers", value, ratio, "status", "reason")
    return Exhibit(
        name, "heat", title, text, "passes", columns, needs=ratio, without=without, draws=partial(_heat, ratio, value),
        panel="panel_of_models", order="model", at_reference=True, only=ratio,
    )  # fmt: skip


NO_ENERGY = "No run has measured energy: the sensors were off, or there was none."
EXHIBITS = (
    Exhibit(
        "runs", "overview", "What was measured where", "A row for each folder of results that was read.", "runs",
        ("study", *RUN, "algorithm", "card", "rows", "asked", "not_ok", "state", "error", "began_utc", "ended_utc",
         *overview.SOFTWARE, "run"), order="began_utc",
    ),
    Exhibit(
        "matrix", "overview", "How complete the matrix is",
        "Sizes that are measured and ok, of those asked for, all runs together.",
        "matrix", (*RUN, "algorithm", "asked", "rows", "ok", "done_pct"), needs="done_pct",
        without="No run profiles a model at several sizes.",
        draws=lambda domain: charts.share("algorithm", "model", "done_pct"), order="model",
    ),
    Exhibit(
        "flags", "overview", "Quality flags", "What a reader of the figures must know, as the rows say it themselves.",
        "flags", (*WHERE, "algorithm", "size", "flag", "detail", "rows", "run"), needs="flag",
        without="No row is flagged.",
    ),
    Exhibit(
        "faults", "overview", "Folders with faults", "Damaged or half-finished; what could be read of them is shown.",
        "faults", ("run", "fault"), needs="fault", without="Every folder could be read.",
    ),
    Exhibit(
        "time", "scaling", "Time against input size",
        "One pass on the GPU, an algorithm a line; the band is the 95 % interval.", "passes",
        (*RUN, "algorithm", "size", "mean_ms", "ci95_ms", "p95_ms", "eager_ms", "spread_pct", "memory_mib",
         "replaced_layers", "status", "reason"),
        needs="mean_ms", draws=partial(_lines, "mean_ms", "ci95_ms"), only="time_ratio", has_log=True,
        top=fastest("series"), several="size",
    ),
    Exhibit(
        "energy-by-size", "scaling", "Energy against input size",
        "Energy of one pass; the band is two standard deviations.", "passes",
        (*RUN, "algorithm", "size", "energy_mj", "energy_ci_mj", "power_w", "replaced_layers", "status", "reason"),
        needs="energy_mj", without=NO_ENERGY, draws=partial(_lines, "energy_mj", "energy_ci_mj"), only="energy_ratio",
        has_log=True, top=(("series", charts.MOST_SERIES, "energy_mj"),), several="size",
    ),
    _heat_exhibit("heat-time", "Time, model × algorithm", "time_ratio", "mean_ms"),
    _heat_exhibit("heat-energy", "Energy, model × algorithm", "energy_ratio", "energy_mj", NO_ENERGY),
    _heat_exhibit("heat-edp", "Energy × time, model × algorithm", "edp_ratio", "edp_mj_ms", NO_ENERGY),
    _heat_exhibit("heat-memory", "Memory, model × algorithm", "memory_ratio", "memory_mib", "No run measured memory."),
    Exhibit(
        "layers", "layers", "Where the time goes, layer by layer",
        "The slowest layers first. Colour: time over the fastest algorithm of the same layer. "
        "A layer's name shows that layer alone.",
        "layers",
        (*WHERE, "size", "algorithm", "layer", "shape", "mean_ms", "ci95_ms", "share_pct", "time_ratio", "ran",
         "kernels", "workspace_mib", "gflop", "moved_mib", "intensity", "tflops", "bound_ms", "of_bound_pct",
         "energy_mj", "relative_error", "status", "reason"), needs="mean_ms",
        draws=lambda domain: charts.heat("algorithm", "layer", "time_ratio", "mean_ms", "position"), order="-mean_ms",
        at_reference=True, only="time_ratio", top=(("layer", 20, ""),),
    ),
    Exhibit(
        "layer-times", "layers", "Each algorithm by layer", "Time on a logarithmic axis; the slowest layers.", "layers",
        (*RUN, "size", "algorithm", "layer", "mean_ms", "ci95_ms", "share_pct", "status", "reason"),
        needs="mean_ms", draws=lambda domain: charts.dots("mean_ms", "layer", "algorithm", domain["algorithm"]),
        order="-mean_ms", at_reference=True, only="time_ratio", top=(("layer", 20, ""), *fastest("algorithm")),
    ),
    Exhibit(
        "work", "layers", "Where the time goes, by kind of kernel", "All kernels of a pass (on a CPU operators).",
        "work",
        (*RUN, "size", "algorithm", "category", "kernel_ms", "kernel_share_pct"), needs="kernel_ms",
        draws=lambda domain: charts.pieces("kernel_ms", "series", "category", domain["category"],
                                            "kernel_share_pct"),
        at_reference=True, only="kernel_ms", order="-kernel_ms",
    ),
    Exhibit(
        "candidates", "layers", "All candidates of a layer",
        "Each algorithm and plan that was tried, the fastest first; the chart is of one layer, the slowest unless "
        "one is chosen (a layer's name chooses it).",
        "candidates",
        (*WHERE, "size", "layer", "candidate", "mean_ms", "std_ms", "regret_us", "regret_ci99_us", "workspace_mib",
         "energy_mj", "relative_error", "kernels", "outcome", "reason"), needs="mean_ms",
        without=f"No run has tried several candidates: {VERIFY} --choice or --plans does.",
        draws=lambda domain: charts.bars("mean_ms", "candidate", "std_ms", None, []),
        order="mean_ms", only="mean_ms", one="layer", top=(("candidate", 15, ""),),
    ),
    Exhibit(
        "support", "layers", "What each layer can use", "The library's answer for each layer and algorithm.",
        "support",
        (*WHERE, "size", "layer", "algorithm", "status", "reason", "same_kernels_as", "workspace_mib",
         "relative_error", "kernels"), needs="status", without=f"No run has asked: {VERIFY} --support does.",
    ),
    Exhibit(
        "roofline", "roofline", "Layers under the card's ceilings",
        "Work over bytes, both counted from the layer's shape, against the rate that was reached.", "roofline",
        (*WHERE, "size", "algorithm", "layer", "ceiling", "intensity", "tflops", "mean_ms", "bound_ms",
         "of_bound_pct"),
        needs="tflops", draws=lambda domain: charts.roofline(domain["algorithm"]), top=fastest("algorithm"),
    ),
    Exhibit(
        "power", "energy", "Power against time", "Mean power over the energy window of each pass.", "passes",
        (*RUN, "algorithm", "size", "mean_ms", "power_w", "replaced_layers", "status", "reason"), needs="power_w",
        without=NO_ENERGY,
        draws=lambda domain: charts.scatter("mean_ms", "power_w", None, "series", domain["algorithm"]),
        only="energy_ratio", has_log=True, top=fastest("series"),
    ),
    Exhibit(
        "front", "energy", "Time against energy",
        "At one size; on the dashed front no other algorithm is better in both.", "passes",
        (*RUN, "algorithm", "size", "mean_ms", "ci95_ms", "energy_mj", "energy_ci_mj", "edp_mj_ms", "is_front",
         "replaced_layers", "status", "reason"), needs="energy_mj", without=NO_ENERGY,
        draws=lambda domain: charts.scatter(
            "mean_ms", "energy_mj", "energy_ci_mj", "series", domain["algorithm"], "is_front", is_log=True
        ), at_reference=True, only="energy_ratio", top=(("series", charts.MOST_SERIES, "-is_front"),),
    ),
    Exhibit(
        "choice-passes", "choice", "What pinning would gain",
        "How much shorter a whole pass is than with PyTorch's choice: with the fastest of each layer put together, "
        "and with each other chooser. Right of 0 is a gain; the bar is the 99 % interval. The fastest were picked in "
        "other rounds than these.",
        "choice_passes",
        (*RUN, "fused", "cudnn", "size", "convolutions_by", "mean_ms", "gain_pct", "gain_ci99_pct", "saved_us",
         "saved_ci99_us", "regret_us", "regret_ci99_us", "energy_mj", "energy_ci_mj", "std_ms", "rounds", "run"),
        needs="mean_ms", without=f"No run has compared choices: {VERIFY} --choice or --plans does.",
        draws=lambda domain: charts.gains("gain_pct", "gain_ci99_pct", "model_at", "convolutions_by",
                                          domain["convolutions_by"]),
        panel="panel_of_models", order="-gain_pct", only="gain_pct",
    ),
    Exhibit(
        "picks", "choice", "The best of each layer, and the regret of the choosers",
        "The fastest, the most frugal and the least workspace; extra time of what PyTorch, its benchmark and cuDNN's "
        "legacy heuristic (guess) picked.",
        "picks",
        (*WHERE, "fused", "cudnn", "size", "layer", "fastest", "fastest_ms", "frugal", "frugal_mj", "smallest",
         "smallest_mib", *charts.REGRETS), needs="fastest", draws=lambda domain: charts.regrets("layer"),
        order="-torch_regret_us", only="torch_regret_us", top=(("layer", 15, ""),),
        without=f"No run has compared choices: {VERIFY} --choice or --plans does.",
    ),
    Exhibit(
        "first-passes", "choice", "What the first pass costs", "Search, plans and compilation before the first pass.",
        "first_passes",
        (*WHERE, "size", "convolutions_by", "extra_ms", "first_layers_ms", "library_ms", "mean_of_ms", "saved_us",
         "saved_ci99_us", "pays_after"), needs="extra_ms",
        without=f"No run has measured it: {VERIFY} --first-call does.",
    ),
    Exhibit(
        "training", "training", "Where the time of a training step goes", "Means over the measured steps.", "training",
        (*WHERE, "algorithm", "processes", "compiled", "captured", "step_ms", "data_ms", "forward_ms", "backward_ms",
         "optimizer_ms", "throughput", "memory_mib", "energy_per_sample_mj", "accuracy_pct", "status", "reason"),
        needs="status", draws=lambda domain: charts.stacked(charts.PHASES, "bar", "time, ms"), only="step_ms",
        order="batch",
    ),
    Exhibit(
        "epochs", "training", "Accuracy by epoch", "On the held-out images.", "epochs",
        (*WHERE, "algorithm", "processes", "compiled", "captured", "epoch", "train_loss", "test_loss", "accuracy_pct"),
        needs="accuracy_pct", draws=lambda domain: charts.lines("epoch", "accuracy_pct", None, "bar", [], "run"),
        only="accuracy_pct",
    ),
    Exhibit(
        "throughput", "inference", "Throughput against batch size", "Images per second of each engine.", "inference",
        (*WHERE, "engine", "scenario", "processes", "target_qps", "images_per_s", "latency_ms", "latency_p99_ms",
         "energy_per_image_mj", "memory_mib", "status", "reason", "remark"), needs="status",
        draws=lambda domain: charts.lines("batch", "images_per_s", None, "engine", domain["engine"]),
        only="images_per_s", has_log=True, top=(("engine", charts.MOST_SERIES, "-images_per_s"),),
    ),
    Exhibit(
        "latency", "inference", "Latency against batch size", "Of one call of a batch.", "inference",
        (*WHERE, "engine", "scenario", "latency_ms", "low_ms", "high_ms", "latency_p99_ms", "status"),
        needs="latency_ms", draws=lambda domain: charts.lines("batch", "latency_ms", None, "engine", domain["engine"]),
        only="latency_ms", has_log=True, top=(("engine", charts.MOST_SERIES, "latency_ms"),),
    ),
    Exhibit(
        "conv3d", "conv3d", "3-D convolutions, layer by layer",
        "Median time of each implementation; a ratio over 1 is faster than the best of that library.", "conv3d",
        (*WHERE, "layout", "layer", "shape", "implementation", "provider", "arithmetic", "mean_ms", "to_cudnn",
         "to_torch", "low_ms", "high_ms", "tflops", "error", "tolerance", "status", "reason"), needs="status",
        draws=lambda domain: charts.dots("mean_ms", "layer", "implementation", domain["implementation"]),
        only="mean_ms", top=fastest("implementation"),
    ),
    Exhibit(
        "networks", "conv3d", "A 3-D network, all its convolutions by one implementation",
        "Median time of an inference pass, and of a training step whose gradients are PyTorch's.", "networks",
        (*WHERE, "layout", "implementation", "mean_ms", "training_step_ms", "low_ms", "high_ms", "relative_error",
         "tolerance", "status", "reason"), needs="mean_ms", only="mean_ms", order="mean_ms",
        draws=lambda domain: charts.bars("mean_ms", "implementation", None, None, []), top=fastest("implementation"),
    ),
    Exhibit(
        "network-kinds", "conv3d", "Where the time of a 3-D network goes", "Median time of each kind of layer.",
        "network_kinds", (*WHERE, "layout", "implementation", "category", "layers", "mean_ms", "share_pct"),
        needs="mean_ms", only="mean_ms", order="pass_ms",
        top=(("implementation", charts.MOST_SERIES, "pass_ms"),),
        draws=lambda domain: charts.pieces("mean_ms", "implementation", "category", domain["kind"], "share_pct", None),
    ),
    Exhibit(
        "pairs", "compare", "Runs side by side", "Verdicts counted, and in what the two runs differ.", "pairs",
        ("a", "b", "differ_in", "passes", "layers", "fault"), needs="a",
        without="No two runs are of the same work: --compare A B names two.",
    ),
    Exhibit(
        "verdicts", "compare", "Change of each size", "How much longer B took than A, with its 95 % interval.",
        "verdicts",
        ("a", "b", "model", "algorithm", "size", "a_ms", "b_ms", "change_pct", "low_pct", "high_pct", "a_w", "b_w",
         "a_mj", "b_mj", "verdict", "reason"), needs="verdict", without="No size of two runs can be compared.",
        draws=lambda domain: charts.changes(), only="change_pct",
    ),
    Exhibit(
        "methods", "method", "How passes were timed", "Passes by the method that their rows name.", "methods",
        ("gpu", "timing_method", "passes"), needs="passes", without="No pass was timed.",
    ),
    Exhibit(
        "commands", "method", "Commands", "Each start of each run.", "commands",
        ("began_utc", "command", "error", "host", "gpu_uuid", "run"), needs="run",
    ),
    Exhibit(
        "environments", "method", "Environments", "Machines and versions, and how many runs had them.", "environments",
        ("card", "cpu", "python", "torch", "torchvision", "ai3", "driver", "cuda", "cudnn", "triton", "power_limit_w",
         "ecc", "sm_clock_max_mhz", "host", "git_commit", "runs"), needs="card",
    ),
)  # fmt: skip
