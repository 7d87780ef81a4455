"""Overview of what was read: runs, completeness, flags and faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from convscope.gpus import slowed_by
from convscope.report.folders import VERIFICATIONS, Folder, Found, main_table
from convscope.report.labels import kernel_names, plain, several, utc
from convscope.report.tables.frames import column, dimensions, numeric, panels, renamed, texts, together

SOFTWARE = ("driver", "cuda", "cudnn", "torch", "triton", "host", "git_commit")
CHOSEN_BY_LIBRARY = ("guess", "heuristic a", "heuristic b", "autotune", "torch")
"""Algorithms whose name says who chooses, not what runs."""
COUNTED = {
    "fallback_layers": "fallback",
    "unsupported_layers": "unsupported",
    "wrong_layers": "wrong",
}


REPLACED = ("fallback", "unsupported")
"""Statuses of layers that another algorithm ran because it was asked for: `COUNTED` has them."""


def device(folder: Folder) -> str:
    """Return the name of the card, or else of the processor, that a folder was measured on."""
    return plain(folder.environment.get("gpu_name") or folder.environment.get("cpu") or "unknown")


def of_runs(folders: list[Folder]) -> pd.DataFrame:
    """Return a row for each folder: what it is of, where and with what it was measured, how far it has come."""
    found = []
    for folder in folders:
        shared, rows = dimensions(folder), main_rows(folder)
        status = column(rows, "status").dropna().astype(str)
        if folder.study != "profile":
            shared.pop("algorithm")
        facts = {name: plain(value) for name in SOFTWARE if (value := folder.environment.get(name)) is not None}
        ended = folder.document.get("ended_utc")
        found.append(
            {"study": folder.study, **shared, "card": device(folder), "rows": len(rows), "asked": asked(folder)}
            | {"not_ok": int((status != "ok").sum()), "state": "ended" if ended else "stopped, or at work"}
            | {"error": plain(folder.document["error"]) if folder.document.get("error") else None}
            | {"began_utc": utc(folder.document.get("started_utc")), "ended_utc": utc(ended), **facts}
        )
    return pd.DataFrame(found)


def main_rows(folder: Folder) -> pd.DataFrame:
    """Return the table that makes a folder's cells count; where it is empty, the first that is not."""
    tables = folder.tables.get(main_table(folder.study), pd.DataFrame()), *folder.tables.values()
    return next((rows for rows in tables if len(rows)), tables[0])


def asked(folder: Folder) -> int | None:
    """Return how many rows a folder was asked for, None where its request does not say."""
    sizes = folder.request.get("input_sizes")
    return len(sizes) if folder.study == "profile" and isinstance(sizes, list) else None


def completeness(runs: pd.DataFrame) -> pd.DataFrame:
    """Return for each model and algorithm how many of its sizes are measured and ok, in all its runs."""
    if not len(runs) or not (runs["study"] == "profile").any():
        return pd.DataFrame()
    profiles = runs[(runs["study"] == "profile") & runs["asked"].notna()]
    frame = profiles.assign(ok=profiles["rows"] - profiles["not_ok"])
    names = ["model", "gpu", "algorithm", "batch", "dtype", "layout", "math"]
    sums = frame.groupby(names, sort=False, dropna=False)[["asked", "rows", "ok"]].sum().reset_index()
    sums["done_pct"] = 100 * sums["ok"].astype(float) / sums["asked"].astype(float).where(sums["asked"] > 0)
    return sums.assign(panel=panels(sums, "model"))


def flags(folders: list[Folder]) -> pd.DataFrame:
    """Return a row for each thing that a reader of the figures must know, as the columns of the tables have it.

    What several rows of a run say alike is one row, without a size.
    """
    every = together([frame for folder in folders for frame in (_of_passes(folder), _of_layers(folder))])
    if not len(every):
        return every
    same = every.groupby([name for name in every if name != "size"], dropna=False, sort=False)["size"]
    found = same.agg(["first", "size"]).reset_index()
    return found.assign(size=found["first"].where(found["size"] == 1), rows=found["size"]).drop(columns="first")


def _of_passes(folder: Folder) -> pd.DataFrame:
    rows, found, shared = main_rows(folder), list[dict[str, Any]](), dimensions(folder)
    if folder.study in VERIFICATIONS:  # what they answer is no flag
        return pd.DataFrame()
    if folder.study == "conv3d":  # every implementation is tried in each layout: a refusal is an answer
        rows = rows[column(rows, "status") != "unsupported"]
    precision = folder.request.get("energy_precision")
    for row in rows.to_dict("records"):
        own: dict[str, Any] = {"size": row.get("input_size")}
        if not shared["model"]:
            own["model"] = plain(row.get("model") or folder.request.get("params") or "")
        found += [{**shared, **own, "flag": flag, "detail": plain(what)} for flag, what in _flags_of(row, precision)]
    return pd.DataFrame(found)


def _flags_of(row: Mapping[Any, Any], precision: object) -> list[tuple[str, str]]:
    """Return name and detail of the flags of one row."""
    status, reason = row.get("status", "ok"), row.get("reason")
    reason = reason if isinstance(reason, str) else ""
    found = [(str(status), reason or "no reason given")] if status != "ok" and status == status else []
    if status == "ok" and reason:
        found.append(("remark", reason))
    if slowed := slowed_by(row["throttle_reasons"] if isinstance(row.get("throttle_reasons"), str) else None):
        found.append(("throttled", ", ".join(slowed)))
    for name, flag in COUNTED.items():
        if (count := row.get(name)) and count == count and count > 0:
            found.append((flag, several(count, "layer")))
    energy, doubt = row.get("energy_per_inference_j"), row.get("energy_uncertainty_j")
    if isinstance(precision, float) and energy and doubt and energy > 0 and doubt / energy > precision:
        found.append(("uncertainty missed", f"energy ± {100 * doubt / energy:.2g} %, asked for {100 * precision:g} %"))
    odd = [str(name) for name, value in row.items() if isinstance(value, float) and value in (np.inf, -np.inf)]
    return [*found, ("not finite", ", ".join(odd))] if odd else found


def _of_layers(folder: Folder) -> pd.DataFrame:
    """Return how many layers ran something else than the algorithm's name says, by size."""
    rows, asked_for = folder.tables.get("layers", pd.DataFrame()), str(folder.request.get("algorithm"))
    if not len(rows) or "ran_algorithm" not in rows or asked_for in CHOSEN_BY_LIBRARY or asked_for.startswith("plan:"):
        return pd.DataFrame()
    other = rows[rows["ran_algorithm"].notna() & (rows["ran_algorithm"] != asked_for)]
    other = other[~column(other, "status").isin(REPLACED)]
    counts = other.groupby(["input_size", "ran_algorithm"]).size()
    found = [
        {
            "size": row["input_size"],
            "flag": "ran something else",
            "detail": plain(f"{several(row['n'], 'layer')} ran {row['ran_algorithm']}"),
        }
        for row in counts.reset_index(name="n").to_dict("records")
    ]
    return pd.DataFrame(found).assign(**dimensions(folder)) if found else pd.DataFrame()


def of_support(folder: Folder) -> pd.DataFrame:
    """Return what each algorithm answered for each layer."""
    rows = folder.tables.get("support", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    names = ("layer", "position", "status", "reason", "relative_error")
    frame = renamed(rows, {name: name for name in names}).assign(**dimensions(folder))
    for name in ("algorithm", "same_kernels_as"):
        frame[name] = texts(rows[name])
    frame["kernels"] = texts(column(rows, "kernels"), kernel_names)
    return frame.assign(size=numeric(rows, "input_size"), workspace_mib=numeric(rows, "workspace_bytes", 1 / 1024**2))


def of_first_passes(folder: Folder) -> pd.DataFrame:
    """Return the first pass of a model by each way to convolve."""
    rows = folder.tables.get("first_passes", pd.DataFrame())
    if not len(rows):
        return pd.DataFrame()
    names = ("extra_ms", "first_layers_ms", "library_ms", "saved_us", "saved_ci99_us", "pays_after")
    frame = renamed(rows, {name: name for name in names} | {"pass_ms": "mean_of_ms"}).assign(**dimensions(folder))
    frame["convolutions_by"] = texts(rows["convolutions_by"])
    return frame.drop(columns="algorithm").assign(size=numeric(rows, "input_size"))


def of_faults(found: Found) -> pd.DataFrame:
    """Return the folders that could not be read, or not wholly, and why."""
    return pd.DataFrame([{"run": plain(fault.path), "fault": plain(fault.what)} for fault in found.faults])
