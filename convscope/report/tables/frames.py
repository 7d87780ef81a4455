"""Tables of the page from the tables of all folders: columns with one name and unit, whatever study they are of.

An absent figure stays absent. Every row names its run, and what the filters choose by as far as it has that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convscope.gpus import Gpu, by_label, identify
from convscope.profiling.comparison.compare import ENVIRONMENT
from convscope.report.folders import Folder
from convscope.report.labels import OTHERS, STAR, kernel_names, plain, title
from convscope.storage.environment import PROCESSOR

MIB = 1024.0**2
SHAPE = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "in_size",
         "in_height_px", "in_width_px")  # fmt: skip
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
        "batch": whole(asked.get("batch_size", 1)),
        "dtype": plain(asked.get("dtype", "float32")),
        "layout": plain(asked.get("layout", "nchw")),
        "math": plain(asked.get("math", "")),
        "run": plain(folder.path),
    }
    shape = asked.get("input_shape")
    return found | {"panel": panel(found, plain(shape) if shape else "")}


def whole(value: Any) -> int | None:
    """Return a size as a description has it, None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def panel(found: Mapping[str, Any], shape: str = "") -> str:
    """Return the title of a picture: model, card, batch, data type with its arithmetic, layout; what is absent is not.

    Without a model in `found` it is that of a picture of several models, without a batch of several batch sizes.
    """
    math = f" ({found['math']})" if found["dtype"] == "float32" and found["math"] else ""
    batch = found.get("batch")
    several = "" if batch is None else f"batch {batch}"
    words = found.get("model"), found["gpu"], several, found["dtype"] + math, found["layout"], shape
    return " · ".join(filter(None, words))


def panels(rows: pd.DataFrame, *left_out: str) -> list[str]:
    """Return the titles of pictures of rows, without the model or the batch where these are left out."""
    names = [name for name in ("model", "gpu", "batch", "dtype", "math", "layout") if name not in left_out]
    return [panel({str(name): value for name, value in row.items()}) for row in rows[names].to_dict("records")]


def marks(folders: Sequence[Folder]) -> dict[str, str]:
    """Return what is added to titles of pictures, by run: " · cuDNN 9.19.0", " · 2_quick, run 2".

    Else runs in different environments would be compared, and figures of two runs be drawn as those of one.
    """
    found = environments(folders)
    for run, words in repeated(folders, found).items():
        found[run] = found.get(run, "") + words
    return found


def environments(folders: Sequence[Folder]) -> dict[str, str]:
    """Return that part of `marks` which names the environment."""
    groups: dict[tuple[str, str], list[Folder]] = {}
    for folder in folders:
        groups.setdefault((folder.study, panel(dimensions(folder) | {"model": None})), []).append(folder)
    return {run: words for group in groups.values() for run, words in surroundings(group).items()}


def surroundings(folders: Sequence[Folder]) -> dict[str, str]:
    """Return by run that of its environment in which not all of these folders agree: " · cuDNN 9.19.0, driver 580".

    As in `convscope compare` the processor counts for runs on it alone.
    """
    known = {plain(folder.path): folder.environment for folder in folders}
    on_cpu = any("cpu" in (folder.request.get("device"), folder.request.get("gpu")) for folder in folders)
    names = ENVIRONMENT + (PROCESSOR if on_cpu else ())
    differing = [name for name in names if len({plain(each.get(name)) for each in known.values()}) > 1]
    words = {run: [f"{title(name)} {plain(each.get(name))}" for name in differing] for run, each in known.items()}
    return {run: f" · {', '.join(each)}" for run, each in words.items() if each}


def repeated(folders: Sequence[Folder], apart: Mapping[str, str]) -> dict[str, str]:
    """Return what tells runs of the same work in the same environment apart, by run: " · 2_quick, run 2"."""
    groups: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    for folder in folders:
        shared, asked = dimensions(folder), folder.request
        alike = (
            folder.study,
            shared["panel"],
            apart.get(shared["run"], ""),
            repr(folder.study != "profile" and asked.get("input_sizes")),
            *(name for name, rows in folder.tables.items() if folder.study == "conv3d" and len(rows)),
        )
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


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as charts and programs read them: what is no finite number is None."""

    def value(cell: Any) -> Any:
        cell = cell.item() if isinstance(cell, np.generic) else cell
        return None if isinstance(cell, float) and not np.isfinite(cell) else cell

    return [{str(name): value(cell) for name, cell in row.items()} for row in rows.to_dict("records")]


def told_apart(rows: pd.DataFrame, words: Mapping[str, str]) -> pd.DataFrame:
    """Return rows whose panels say what `marks` has for their runs."""
    if not len(rows) or not words:
        return rows
    return rows.assign(panel=rows["panel"] + rows["run"].map(words).fillna(""))


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
    """Return a row for each input size of a profile.

    The `series` of a pass in which other algorithms ran some layers is not that of the algorithm alone.
    """
    rows = folder.tables.get("overall", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    frame = renamed(rows, PASS_COLUMNS).assign(**dimensions(folder), size=numeric(rows, "input_size"))
    replaced = numeric(rows, "fallback_layers").fillna(0) + numeric(rows, "unsupported_layers").fillna(0)
    frame["replaced_layers"] = replaced.where(replaced > 0)
    frame["series"] = frame["algorithm"].where(replaced <= 0, frame["algorithm"] + OTHERS)
    frame["star"] = (replaced > 0).map({True: STAR, False: ""})
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
    frame["shape"] = shapes(rows)
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
        peak_tflops = card.tflops(frame["dtype"].iloc[0], frame["math"].iloc[0])
        frame["bound_ms"] = np.maximum(flops / (peak_tflops * 1e9), moved / (card.bandwidth_gbps * 1e6))
    frame["of_bound_pct"] = 100 * frame["bound_ms"] / time_ms.where(time_ms > 0)
    return frame


def card_of(folder: Folder) -> Gpu | None:
    """Return the catalogue's entry of the card that a folder was measured on, None for a CPU and unknown cards."""
    name = folder.environment.get("gpu_name")
    if isinstance(name, str):
        return identify(name)
    label = folder.request.get("gpu")
    return by_label(label) if isinstance(label, str) else None


def shapes(rows: pd.DataFrame) -> Any:
    """Return the shape of each layer in words: "64 → 128, 3x3, stride 2x2, padding 1x1, of 56x56"."""
    names = [name for name in SHAPE if name in rows]
    which = rows.groupby(names, dropna=False, sort=False).ngroup()
    first = rows[names].assign(which=which).drop_duplicates("which")
    return which.map({row["which"]: _shape(row) for row in first.to_dict("records")})


def _shape(row: Mapping[Hashable, Any]) -> str:
    known = {str(name): value for name, value in row.items() if value is not None and value == value}
    height, width = known.get("in_height_px"), known.get("in_width_px")
    size = known.get("in_size") or (f"{height:.0f}x{width:.0f}" if height and width else "")
    words = [f"{known.get('in_channels', '?')} → {known.get('out_channels', '?')}", known.get("kernel_size")]
    usual = {"stride": "1x1", "padding": "0x0", "dilation": "1x1", "groups": "1"}
    words += [f"{name} {known[name]}" for name, value in usual.items() if str(known.get(name, value)) != value]
    return plain(", ".join(filter(None, [*map(str, filter(None, words)), f"of {size}" if size else ""])))


def of_work(folder: Folder) -> pd.DataFrame:
    """Return the time of each kind of work in each pass of a profile."""
    rows = folder.tables.get("work", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    sums = rows.groupby(["input_size", "category"], sort=False)["kernel_ms"].sum().reset_index()
    whole = sums.groupby("input_size")["kernel_ms"].transform("sum")
    frame = sums.rename(columns={"input_size": "size"}).assign(**dimensions(folder))
    frame["category"] = texts(frame["category"])
    series = of_passes(folder)
    frame["series"] = frame["size"].map(dict(zip(series["size"], series["series"], strict=True)) if len(series) else {})
    frame["kernel_share_pct"] = 100 * frame["kernel_ms"] / whole.where(whole > 0)
    return frame


def with_reference(passes: pd.DataFrame) -> pd.DataFrame:
    """Return passes with ratios to the best of their panel and size, the time-energy front, and the reference size.

    The reference size of a panel is one at which most of its algorithms have a time; of several the one that most
    models of the same setting (`panel_of_models`) have too, and then the largest.
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
    counts = counts[counts["algorithm"] == counts.groupby("panel")["algorithm"].transform("max")]
    setting = passes.groupby("panel")["panel_of_models" if "panel_of_models" in passes else "panel"].first()
    counts["shared"] = counts.groupby([counts["panel"].map(setting), "size"])["panel"].transform("size")
    best = counts.sort_values(["shared", "size"]).groupby("panel")["size"].last()
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
