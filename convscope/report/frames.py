"""Tables of the page from the tables of all folders: columns with one name and unit, whatever study they are of.

An absent figure stays absent. Every row names its run, and what the filters choose by as far as it has that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convscope.gpus import Gpu, by_label, identify
from convscope.report.folders import Folder
from convscope.report.labels import kernel_names, plain

MIB = 1024.0**2
PASS_COLUMNS = {
    "mean": "mean_ms",
    "mean_ci95_ms": "ci95_ms",
    "std": "std_ms",
    "p95_ms": "p95_ms",
    "eager_mean_ms": "eager_ms",
    "placement_spread_pct": "spread_pct",
    "power_mean_w": "power_w",
    "timing_method": "timing_method",
    "status": "status",
    "reason": "reason",
}
LAYER_COLUMNS = {
    "layer": "layer",
    "position": "position",
    "mean_ms": "mean_ms",
    "mean_ci95_ms": "ci95_ms",
    "percentage": "share_pct",
    "relative_error": "relative_error",
    "status": "status",
    "reason": "reason",
}
TEXTS = ("status", "reason", "layer", "timing_method", "ran", "kernels", "candidate", "outcome", "remark")


def dimensions(folder: Folder) -> dict[str, Any]:
    """Return what a folder's rows have in common: names, batch, type, layout, arithmetic, and its panel's title."""
    asked = folder.request
    found: dict[str, Any] = {
        "model": plain(asked.get("model", "")),
        "gpu": plain(asked.get("gpu", "")),
        "algorithm": plain(asked.get("algorithm", "")),
        "batch": asked.get("batch_size", 1) if isinstance(asked.get("batch_size", 1), int) else None,
        "dtype": plain(asked.get("dtype", "float32")),
        "layout": plain(asked.get("layout", "nchw")),
        "math": plain(asked.get("math", "")),
        "run": plain(folder.path),
    }
    shape = asked.get("input_shape")
    return found | {"panel": panel(found, plain(shape) if shape else "")}


def panel(found: Mapping[str, Any], shape: str = "") -> str:
    """Return the title of a picture: model, card, batch, data type with its arithmetic, layout."""
    math = f" ({found['math']})" if found["dtype"] == "float32" and found["math"] else ""
    words = found["model"], found["gpu"], f"batch {found['batch']}", found["dtype"] + math, found["layout"], shape
    return " · ".join(filter(None, words))


def repeated(folders: Sequence[Folder]) -> dict[str, str]:
    """Return what tells runs of the same work apart in titles of pictures, by run: " · 2_quick", " · 2_quick, run 2".

    Else figures of two runs would be drawn as those of one.
    """
    groups: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    for folder in folders:
        shared, asked = dimensions(folder), folder.request
        alike = folder.study, shared["panel"], repr(folder.study != "profile" and asked.get("input_sizes"))
        own = shared["run"], plain(folder.path.parent.name), shared["algorithm"]
        groups.setdefault((*alike, repr(asked.get("fused"))), []).append(own)
    found = {}
    for runs in groups.values():
        if len({algorithm for _, _, algorithm in runs}) < len(runs):
            seen = Counter[tuple[str, str]]()
            for run, parent, algorithm in runs:
                seen[parent, algorithm] += 1
                number = seen[parent, algorithm]
                found[run] = f" · {parent}" + (f", run {number}" if number > 1 else "")
    return found


def told_apart(rows: pd.DataFrame, marks: Mapping[str, str]) -> pd.DataFrame:
    """Return rows whose panels name the run where `repeated` has a mark for it."""
    if not len(rows) or not marks:
        return rows
    return rows.assign(panel=rows["panel"] + rows["run"].map(marks).fillna(""))


def column(rows: pd.DataFrame, name: str) -> Any:
    """Return a column as it is, of a table that lacks it an empty one."""
    return rows[name] if name in rows else pd.Series([None] * len(rows), index=rows.index, dtype=object)


def numeric(rows: pd.DataFrame, name: str, factor: float = 1.0) -> Any:
    """Return a column of numbers times a factor, NaN where there is none."""
    return pd.to_numeric(column(rows, name), errors="coerce") * factor


def texts(cells: Any, words: Any = plain) -> Any:
    """Return a column of texts as they are shown; each different text is looked at once, absent is None."""
    known = {each: words(each) for each in cells.dropna().unique()}
    found = cells.map(known).astype(object)
    found[cells.isna()] = None
    return found


def renamed(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return some columns by other names, texts among them as they are shown."""
    found = {to: column(rows, name) for name, to in names.items()}
    return pd.DataFrame({to: texts(cells) if to in TEXTS else cells for to, cells in found.items()}, index=rows.index)


def together(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Return tables one below the other; none of them, or empty ones, make an empty one."""
    filled = [frame.astype(object) for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True).infer_objects() if filled else pd.DataFrame()


def of_passes(folder: Folder) -> pd.DataFrame:
    """Return a row for each input size of a profile."""
    rows = folder.tables.get("overall", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    frame = renamed(rows, PASS_COLUMNS).assign(**dimensions(folder), size=numeric(rows, "input_size"))
    frame["energy_mj"] = numeric(rows, "energy_per_inference_j", 1e3)
    frame["energy_ci_mj"] = numeric(rows, "energy_uncertainty_j", 1e3)
    frame["edp_mj_ms"] = frame["energy_mj"] * numeric(rows, "mean")
    frame["memory_mib"] = numeric(rows, "peak_memory_bytes", 1 / MIB)
    return frame


def of_layers(folder: Folder) -> pd.DataFrame:
    """Return a row for each layer and input size of a profile, with its place under the card's peaks."""
    rows = folder.tables.get("layers", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    frame = renamed(rows, LAYER_COLUMNS).assign(**dimensions(folder), size=numeric(rows, "input_size"))
    channels = rows["in_channels"].astype(str) + " → " + rows["out_channels"].astype(str)
    frame["kernel"] = texts(channels + ", " + rows["kernel_size"].astype(str))
    frame["ran"] = texts(column(rows, "ran_algorithm"))
    frame["kernels"] = texts(column(rows, "kernels"), kernel_names)
    frame["workspace_mib"] = numeric(rows, "workspace_bytes", 1 / MIB)
    frame["energy_mj"] = numeric(rows, "energy_j", 1e3)
    flops, moved = numeric(rows, "flops"), numeric(rows, "bytes")
    frame["gflop"], frame["moved_mib"] = flops / 1e9, moved / MIB
    frame["intensity"] = flops / moved.where(moved > 0)
    time_ms = numeric(rows, "mean_ms")
    frame["tflops"] = flops / time_ms.where(time_ms > 0) / 1e9
    frame["bound_ms"] = np.nan
    if card := card_of(folder):
        frame["bound_ms"] = np.maximum(flops / (peak_tflops(card, frame) * 1e9), moved / (card.bandwidth_gbps * 1e6))
    frame["of_bound_pct"] = 100 * frame["bound_ms"] / time_ms.where(time_ms > 0)
    return frame


def card_of(folder: Folder) -> Gpu | None:
    """Return the catalogue's entry of the card that a folder was measured on, None for a CPU and unknown cards."""
    name = folder.environment.get("gpu_name")
    if isinstance(name, str):
        return identify(name)
    label = folder.request.get("gpu")
    return by_label(label) if isinstance(label, str) else None


def peak_tflops(card: Gpu, rows: pd.DataFrame) -> float:
    """Return the card's peak in the arithmetic of a folder's rows."""
    first = rows.iloc[0]
    if first["dtype"] != "float32":
        return card.fp16_tflops
    return (card.tf32_tflops if first["math"] == "tf32" else None) or card.fp32_tflops


def of_work(folder: Folder) -> pd.DataFrame:
    """Return the time of each kind of work in each pass of a profile."""
    rows = folder.tables.get("work", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    sums = rows.groupby(["input_size", "category"], sort=False)["kernel_ms"].sum().reset_index()
    whole = sums.groupby("input_size")["kernel_ms"].transform("sum")
    frame = sums.rename(columns={"input_size": "size"}).assign(**dimensions(folder))
    frame["category"] = texts(frame["category"])
    frame["kernel_share_pct"] = 100 * frame["kernel_ms"] / whole.where(whole > 0)
    return frame


def with_reference(passes: pd.DataFrame) -> pd.DataFrame:
    """Return passes with ratios to the best of their panel and size, the time-energy front, and the reference size.

    The reference size of a panel is the largest of those at which most of its algorithms have a time.
    """
    if not len(passes):
        return passes
    passes = passes.copy()
    is_timed = (passes["status"] == "ok") & np.isfinite(numeric(passes, "mean_ms"))
    group = [passes["panel"], passes["size"]]
    for name, ratio in (("mean_ms", "time"), ("energy_mj", "energy"), ("edp_mj_ms", "edp"), ("memory_mib", "memory")):
        value = numeric(passes, name).where(is_timed)
        value = value.where(np.isfinite(value) & (value > 0))
        passes[f"{ratio}_ratio"] = value / value.groupby(group).transform("min")
    timed = passes[is_timed]
    counts = timed.groupby(["panel", "size"])["algorithm"].nunique().reset_index()
    best = counts.sort_values(["algorithm", "size"]).groupby("panel")["size"].last()
    passes["is_reference"] = passes["size"] == passes["panel"].map(best)
    passes["is_front"] = _front(passes, is_timed)
    return passes


def _front(passes: pd.DataFrame, is_timed: pd.Series[bool]) -> Any:
    """Tell which passes no other of the same panel and size beats in time and energy; None without energy."""
    found: Any = pd.Series([None] * len(passes), index=passes.index, dtype=object)
    known = passes[is_timed & passes["energy_mj"].notna()]
    for _, rows in known.groupby(["panel", "size"], sort=False):
        least = float("inf")
        for at, energy in rows.sort_values(["mean_ms", "energy_mj"])["energy_mj"].items():
            found[at] = bool(energy < least)
            least = min(least, energy)
    return found


def at_reference(rows: pd.DataFrame, passes: pd.DataFrame) -> pd.DataFrame:
    """Return rows of passes' parts with the mark of the reference size of their panel."""
    if not len(rows):
        return rows
    sizes = passes[passes["is_reference"]].groupby("panel")["size"].first() if len(passes) else pd.Series(dtype=float)
    return rows.assign(is_reference=rows["size"] == rows["panel"].map(sizes))
