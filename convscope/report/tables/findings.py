"""Findings in sentences: the fastest, what pinning gains, 3-D kernels, completeness, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from convscope.report.folders import Found
from convscope.report.labels import number, several
from convscope.report.tables.frames import numeric


def sentences(found: Found, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return what was found, how complete it is, and how far it can be trusted: a sentence each."""
    runs = tables["runs"]
    if not len(runs):
        return ["No folder of results could be read."]
    cards = sorted(set(runs["card"].astype(str)))
    models = runs["model"].replace("", None).nunique()
    many = f"{several(len(runs), 'run')} of {several(models, 'model')}" if models else several(len(runs), "run")
    said = (
        f"{many} on {', '.join(cards)}. {_of_passes(tables['passes'])}".strip(),
        _of_choice(tables["choice_passes"]),
        _of_volumes(tables["conv3d"]),
        _complete(runs),
        _trust(found, tables["flags"]),
    )
    return [each for each in said if each]


def _of_passes(passes: pd.DataFrame) -> str:
    """Return the fastest algorithm of the panel with most algorithms, and how often which is fastest; GPUs first."""
    if not len(passes) or not passes["is_reference"].any():
        return ""
    rows = passes[passes["is_reference"] & (passes["status"] == "ok") & passes["time_ratio"].notna()]
    if not len(rows):
        return ""
    on_gpu = rows[rows["gpu"] != "cpu"]
    rows = on_gpu if len(on_gpu) else rows
    rows = rows.assign(ci95_ms=numeric(rows, "ci95_ms")).sort_values("mean_ms", kind="stable")
    counts = rows.groupby("panel")["algorithm"].nunique().sort_values(ascending=False, kind="stable")
    first = str(counts.index[0])
    return f"{_best(first, rows[rows['panel'] == first])} {_wins(rows)}".strip()


def _best(panel: str, rows: pd.DataFrame) -> str:
    """Return the fastest of a panel beside PyTorch's or the slowest; rows come with the fastest first."""
    best, last = rows.iloc[0], rows.iloc[-1]
    doubt = f" ± {best['ci95_ms']:.2g}" if np.isfinite(best["ci95_ms"]) else ""
    took = f"{number(best['mean_ms'])}{doubt} ms a pass"
    where = f"Of {panel} at {number(best['size'])} px, {best['series']}"
    if best["series"] == last["series"]:
        return f"{where} takes {took}."
    if level := _level(rows):
        return f"{where} has the least time, {took}, but not beyond the 95 % intervals of {', '.join(level)}."
    torch = rows[rows["algorithm"] == "torch"]
    other = torch.iloc[0] if len(torch) and best["algorithm"] != "torch" else last
    return f"{where} is fastest with {took}; {other['series']} takes {other['time_ratio']:.3g} times as long."


def _level(rows: pd.DataFrame) -> list[str]:
    """Return those that the first of a panel does not beat beyond the 95 % intervals of the two."""
    best = rows.iloc[0]
    apart = rows["mean_ms"] - best["mean_ms"] > np.hypot(rows["ci95_ms"], best["ci95_ms"])
    return [str(each) for each in rows[~apart]["series"].tolist()[1:]]


def _wins(rows: pd.DataFrame) -> str:
    """Return how often each algorithm is the fastest, where several panels compare some."""
    panels = [own for _, own in rows.groupby("panel", sort=False) if own["series"].nunique() > 1]
    if len(panels) < 2:
        return ""
    names = ["" if _level(own) else str(own.iloc[0]["series"]) for own in panels]
    counts = pd.Series([name for name in names if name], dtype=object).value_counts()
    parts = [f"{name} is fastest in {count}" for name, count in counts.items()]
    parts += [f"in {names.count('')} the first are level within their intervals"] if "" in names else []
    return f"Of {len(panels)} models and settings at one size, {', '.join(parts)}."


def _of_choice(passes: pd.DataFrame) -> str:
    """Return how much the fastest of each layer gains over PyTorch's choice, and in how many passes."""
    if not len(passes):
        return ""
    rows = passes[(passes["convolutions_by"] == "fastest of each layer") & passes["gain_pct"].notna()]
    if not len(rows):
        return ""
    gain, doubt = numeric(rows, "saved_us"), numeric(rows, "saved_ci99_us")
    shorter, longer = int((gain > doubt).sum()), int((gain < -doubt).sum())
    said = (
        f"The fastest algorithm or plan of each layer, pinned, makes the whole pass shorter than PyTorch's choice in "
        f"{shorter} of {several(len(rows), 'comparison')}"
    )
    said += f" and longer in {longer}" if longer else ""
    if not shorter:
        return f"{said}, beyond the 99 % intervals."
    best = rows.loc[rows["gain_pct"].where(gain > doubt).astype(float).idxmax()]
    interval = f" ± {best['gain_ci99_pct']:.2g}" if np.isfinite(best["gain_ci99_pct"]) else ""
    return f"{said}, beyond the 99 % intervals; most for {best['panel']}: by {best['gain_pct']:.3g}{interval} %."


def _of_volumes(rows: pd.DataFrame) -> str:
    """Return in how many layers of 3-D studies a Triton kernel beats all calls of libraries."""
    if not len(rows):
        return ""
    timed = rows[(rows["status"] == "ok") & np.isfinite(numeric(rows, "mean_ms"))]
    compared, ratios = 0, list[float]()
    for _, own in timed.groupby(["panel", "position"], sort=False):
        mine, others = (own[(own["provider"] == "triton") == is_mine] for is_mine in (True, False))
        if len(mine) and len(others):
            compared += 1
            best, rival = (each.loc[each["mean_ms"].astype(float).idxmin()] for each in (mine, others))
            if _high(best) < _low(rival):
                ratios.append(float(rival["mean_ms"]) / float(best["mean_ms"]))
    if not compared:
        return ""
    said = f"In 3-D, a Triton kernel is faster than cuDNN and PyTorch in {len(ratios)} of {several(compared, 'case')}"
    return f"{said} (a layer in a layout)" + (f", at most {max(ratios):.3g} times." if ratios else ".")


def _high(row: Mapping[Any, Any]) -> float:
    return float(row["high_ms"] if row["high_ms"] == row["high_ms"] else row["mean_ms"])


def _low(row: Mapping[Any, Any]) -> float:
    return float(row["low_ms"] if row["low_ms"] == row["low_ms"] else row["mean_ms"])


def _complete(runs: pd.DataFrame) -> str:
    profiles = runs[(runs["study"] == "profile") & runs["asked"].notna()]
    if not len(profiles):
        return ""
    wanted, ok = int(profiles["asked"].sum()), int((profiles["rows"] - profiles["not_ok"]).sum())
    return (
        f"{ok:,} of the {wanted:,} sizes that were asked for are measured and ok ({100 * ok / max(1, wanted):.0f} %)."
    )


def _trust(found: Found, every: pd.DataFrame) -> str:
    grave = every[every["flag"] != "remark"] if len(every) else every
    parts = (
        [f"{count:,} × {name}" for name, count in grave.groupby("flag", sort=False)["rows"].sum().items()]
        if len(grave)
        else []
    )
    said = f"Flags: {', '.join(parts)}." if parts else "No row is flagged."
    return f"{said} {several(len(found.faults), 'fault')} of folders, listed below." if found.faults else said
