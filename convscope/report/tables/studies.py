"""Tables of the page from the studies beside profiles: choice and plans, training, inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from convscope.gpus import Gpu
from convscope.report.folders import Folder
from convscope.report.labels import kernel_names, plain
from convscope.report.tables.frames import MIB, card_of, column, dimensions, numeric, panels, renamed, texts, whole

PICKS = {"torch": "torch_regret_us", "torch benchmark": "benchmark_regret_us", "guess": "guess_regret_us"}
MOST_EXPANDED = 20_000
"""Rows of plans above which each shape stands once, under its first layer, and not under each of its layers."""


def _of_verification(folder: Folder, rows: pd.DataFrame) -> dict[str, Any]:
    """Return what rows of a verification have in common; the algorithm of its request chooses nothing."""
    found = dimensions(folder)
    del found["algorithm"]
    sizes = folder.request.get("input_sizes")
    size = whole(sizes[0]) if isinstance(sizes, list) and sizes else None
    fused = " · fused" if folder.request.get("fused") else ""
    pixels = f" · {size} px" if size else ""
    cudnn = plain(folder.environment.get("cudnn") or "")
    found["fused"] = True if fused else None
    return found | {"cudnn": cudnn, "size": size, "panel": f"{found['panel']}{pixels}{fused} · {folder.study}"}


def of_candidates(folder: Folder) -> pd.DataFrame:
    """Return a row for each layer and each algorithm or plan that was tried for it."""
    rows = folder.tables.get("plans" if folder.study == "plans" else "choice", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    rows = _of_every_layer(rows, folder.tables.get("plan_layers", pd.DataFrame()))
    names = ("layer", "position", "candidate", "mean_ms", "std_ms", "regret_us", "regret_ci99_us", "relative_error")
    frame = renamed(rows, {name: name for name in names} | {"outcome": "outcome", "reason": "reason"})
    if folder.study == "choice":
        frame["outcome"] = "ok"
    frame["kernels"] = texts(column(rows, "kernels"), kernel_names)
    frame["workspace_mib"] = numeric(rows, "workspace_bytes", 1 / MIB)
    frame["energy_mj"] = numeric(rows, "energy_j", 1e3)
    frame["energy_ci_mj"] = numeric(rows, "energy_uncertainty_j", 1e3)
    is_plan = frame["candidate"].astype(str).str.startswith(("plan:", "plan+"))
    return frame.assign(**_of_verification(folder, rows), algorithm=frame["candidate"].mask(is_plan))


def _of_every_layer(rows: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a shape under each layer that has it."""
    if not len(layers) or len(rows) * len(layers) / max(1, rows["position"].nunique()) > MOST_EXPANDED:
        return rows
    of_shape = layers[["layer", "position", "shape_position"]]
    shapes = rows.drop(columns=["layer", "position"]).assign(shape_position=rows["position"])
    return of_shape.merge(shapes, on="shape_position", how="inner")


def picks(candidates: pd.DataFrame) -> pd.DataFrame:
    """Return for each layer the fastest, the most frugal and the least workspace, and the regret of each chooser."""
    if not len(candidates):
        return pd.DataFrame()
    timed = candidates[(candidates["outcome"] == "ok") & np.isfinite(numeric(candidates, "mean_ms"))]
    found = []
    shared = ("panel", "model", "gpu", "batch", "dtype", "layout", "math", "fused", "cudnn", "size", "run", "layer",
              "position")  # fmt: skip
    for _, rows in timed.groupby(["run", "position"], sort=False):
        real = rows[~rows["candidate"].isin(list(PICKS))]
        real = rows if not len(real) else real
        best = rows.loc[rows["mean_ms"].astype(float).idxmin()]
        row = {name: best[name] for name in shared} | {"fastest": best["candidate"], "fastest_ms": best["mean_ms"]}
        row |= _least(real, "energy_mj", "frugal", "frugal_mj") | _least(
            real, "workspace_mib", "smallest", "smallest_mib"
        )
        for name, regret in PICKS.items():
            chosen = rows[rows["candidate"] == name]["regret_us"]
            row[regret] = chosen.iloc[0] if len(chosen) else None
        found.append(row)
    return pd.DataFrame(found)


def _least(rows: pd.DataFrame, by: str, name: str, value: str) -> dict[str, Any]:
    """Return the candidate with the least of a column, the fastest of several, and that value."""
    known = rows[rows[by].notna()]
    if not len(known):
        return {name: None, value: None}
    first = known.sort_values([by, "mean_ms"]).iloc[0]
    return {name: first["candidate"], value: first[by]}


def of_choice_passes(folder: Folder) -> pd.DataFrame:
    """Return the whole passes of a choice or an atlas: put together by layer, and by each chooser."""
    rows = folder.tables.get("passes", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    names = ("mean_ms", "std_ms", "rounds", "regret_us", "regret_ci99_us", "saved_us", "saved_ci99_us")
    frame = renamed(rows, {name: name for name in names}).assign(**_of_verification(folder, rows))
    frame["convolutions_by"] = texts(rows["convolutions_by"])
    frame["energy_mj"] = numeric(rows, "energy_per_inference_j", 1e3)
    frame["energy_ci_mj"] = numeric(rows, "energy_uncertainty_j", 1e3)
    others_us = 1e3 * numeric(frame, "mean_ms") + numeric(frame, "saved_us")
    for name, us in (("gain_pct", "saved_us"), ("gain_ci99_pct", "saved_ci99_us")):
        frame[name] = 100 * numeric(frame, us) / others_us.where(others_us > 0)
    fused = " · fused" if folder.request.get("fused") else ""
    return frame.assign(panel_of_models=[f"{title}{fused}" for title in panels(frame, "model")])


def of_study(folder: Folder, rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return rows of a study whose cells name model and batch themselves."""
    shared = dimensions(folder)
    frame = renamed(rows, names).assign(**{name: value for name, value in shared.items() if name != "panel"})
    frame["model"] = texts(column(rows, "model")) if "model" in rows else shared["model"]
    batch = next((name for name in ("batch_size", "batch") if name in rows), None)
    frame["batch"] = column(rows, batch) if batch else shared["batch"]
    return frame


def of_training(folder: Folder) -> pd.DataFrame:
    """Return a row for each model and batch size that was trained."""
    rows = folder.tables.get("training", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    phases = ("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms")
    names = (*phases, "processes", "compiled", "captured", "accuracy_pct", "power_w", "status", "reason")
    frame = of_study(folder, rows, {name: name for name in names} | {"throughput_samples_per_s": "throughput"})
    frame["power_w"] = numeric(rows, "power_mean_w")
    frame["energy_per_sample_mj"] = numeric(rows, "energy_per_sample_j", 1e3)
    frame["memory_mib"] = numeric(rows, "peak_memory_bytes", 1 / MIB)
    return frame.assign(panel=panels(frame, "batch"), bar=_named(frame))


def _named(frame: pd.DataFrame) -> list[str]:
    """Return names of training cells: the batch, and what else sets them apart."""
    found = []
    for row in frame.to_dict("records"):
        words = [f"batch {row['batch']}", f"{row['processes']} processes" if row["processes"] != 1 else ""]
        words += [word for word in ("compiled", "captured") if row[word] in (True, "True")]
        found.append(", ".join(filter(None, words)))
    return found


def of_epochs(folder: Folder) -> pd.DataFrame:
    """Return a row for each epoch of each training."""
    rows = folder.tables.get("epochs", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    names = ("epoch", "train_loss", "test_loss", "accuracy_pct", "processes", "compiled", "captured")
    frame = of_study(folder, rows, {name: name for name in names})
    return frame.assign(panel=panels(frame, "batch"), bar=_named(frame))


def of_inference(folder: Folder) -> pd.DataFrame:
    """Return a row for each engine at each batch size, or under each load."""
    rows = folder.tables.get("inference", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    own = ("engine", "processes", "scenario", "images_per_s", "latency_p99_ms", "status", "reason", "remark")
    renames = {"latency_mean_ms": "latency_ms", "latency_low_ms": "low_ms", "latency_high_ms": "high_ms"}
    frame = of_study(folder, rows, {name: name for name in own} | renames)
    for name in ("engine", "scenario"):
        frame[name] = texts(frame[name])
    frame["target_qps"] = numeric(rows, "target_qps")
    frame["energy_per_image_mj"] = numeric(rows, "energy_per_image_j", 1e3)
    frame["memory_mib"] = numeric(rows, "peak_memory_bytes", 1 / MIB)
    frame["size"] = whole(folder.request.get("image_size_px"))
    scenarios = frame["scenario"].astype(str).to_list()
    titles = zip(panels(frame, "batch"), scenarios, strict=True)
    return frame.drop(columns="algorithm").assign(panel=[f"{text} · {scenario}" for text, scenario in titles])


def roofline(layers: pd.DataFrame, folders: list[Folder]) -> pd.DataFrame:
    """Return layers at the reference size under ceilings: peaks of their card, and rates that a 3-D study measured."""
    known = (
        layers[
            layers["is_reference"] & (layers["status"] == "ok") & layers["intensity"].notna() & layers["tflops"].notna()
        ]
        if len(layers)
        else layers
    )
    if not len(known):
        return pd.DataFrame()
    names = ["panel", "model", "gpu", "algorithm", "batch", "dtype", "size", "layer", "intensity", "tflops", "run"]
    points = known[[*names, "mean_ms", "bound_ms", "of_bound_pct"]].assign(ceiling=None)
    measured = {str(folder.request.get("gpu")): folder for folder in folders if folder.document.get("ceilings")}
    found = [points]
    for title, rows in points.groupby("panel", sort=False):
        folder = next(each for each in folders if dimensions(each)["run"] == rows["run"].iloc[0])
        ends = float(rows["intensity"].min()) / 2, float(rows["intensity"].max()) * 2
        first = {name: rows.iloc[0][name] for name in ("model", "gpu", "batch", "dtype", "size")}
        for kind, tflops, gbps in _ceilings(card_of(folder), known[known["panel"] == title], measured):
            knee = tflops * 1e3 / gbps
            places = sorted({*ends, min(max(knee, ends[0]), ends[1])})
            line = [{"intensity": at, "tflops": min(tflops, at * gbps / 1e3)} for at in places]
            found.append(pd.DataFrame(line).assign(panel=title, ceiling=kind, **first))
    return pd.concat([each.astype(object) for each in found], ignore_index=True).infer_objects()


def _ceilings(card: Gpu | None, rows: pd.DataFrame, measured: Mapping[str, Folder]) -> list[tuple[str, float, float]]:
    """Return name, TFLOP/s and GB/s of the ceilings over a panel's rows."""
    found = []
    if card is not None:
        peak_tflops = card.tflops(rows.iloc[0]["dtype"], rows.iloc[0]["math"])
        found.append((f"peaks ({card.source})", peak_tflops, float(card.bandwidth_gbps)))
    folder = measured.get(str(rows.iloc[0]["gpu"]))
    ceilings = folder.document["ceilings"] if folder else None
    if isinstance(ceilings, dict):
        arithmetic = {"float16": "fp16", "bfloat16": "fp16"}.get(str(rows.iloc[0]["dtype"]), str(rows.iloc[0]["math"]))
        rate, copy = (ceilings.get("tflops") or {}).get(arithmetic), ceilings.get("copy_gbps")
        if isinstance(rate, (int, float)) and isinstance(copy, (int, float)) and rate > 0 and copy > 0:
            found.append(("measured on such a card", float(rate), float(copy)))
    return found
