"""Pairs of runs side by side, with the verdicts of `python -m convscope compare`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.errors import InputError
from convscope.profiling.comparison import compare
from convscope.report.folders import Folder
from convscope.report.labels import plain
from convscope.report.tables.frames import dimensions
from convscope.storage.environment import SOFTWARE as ENVIRONMENT

MOST_PAIRS = 12
SAME = ("model", "algorithm", "batch", "dtype", "math", "layout")
SOFTWARE = tuple(name for name in ENVIRONMENT if name not in ("gpu_name", "driver"))
"""Versions in which runs agree that are compared unasked; the card may differ, and the driver of another machine."""


def pairs(folders: Sequence[Folder], asked: Sequence[Path] | None) -> list[tuple[Path, Path]]:
    """Return the runs to compare: those asked for, else neighbours of the same work by the same software."""
    if asked:
        return [(asked[0], asked[1])]
    profiles = [folder for folder in folders if folder.study == "profile"]
    by_work: dict[tuple[Any, ...], list[Path]] = {}
    for folder in profiles:
        found = dimensions(folder)
        work = [found[name] for name in SAME] + [plain(folder.environment.get(name)) for name in SOFTWARE]
        by_work.setdefault(tuple(work), []).append(folder.path)
    return [pair for paths in by_work.values() for pair in itertools.pairwise(paths)][:MOST_PAIRS]


def of_pairs(chosen: Sequence[tuple[Path, Path]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the verdict of every pass and a line for each pair; a pair that must not be compared says why."""
    rows, lines = list[dict[str, Any]](), list[dict[str, Any]]()
    for one, other in chosen:
        named = {"a": plain(one), "b": plain(other), "panel": f"A {plain(one)} · B {plain(other)}"}
        try:
            a, b = compare.read(one), compare.read(other)
            found = _differences(a, b)
            passes = compare.passes(a, b, compare.TOLERANCE_PCT)
            layers = compare.layers(a, b, compare.TOLERANCE_PCT)
        except (InputError, OSError) as error:
            lines.append(named | {"differ_in": None, "fault": plain(error)})
            continue
        words = {"passes": compare.counted(passes), "layers": compare.counted(layers)}
        lines.append(named | {"differ_in": plain(compare.in_words(found)), **words})
        model = {"model": plain(a.about["model"]), "algorithm": plain(a.about["algorithm"])}
        rows += [named | model | _row(each) for each in passes]
    return pd.DataFrame(rows), pd.DataFrame(lines)


def _differences(a: compare.Result, b: compare.Result) -> compare.Differences:
    """Return in what two runs differ.

    Raises:
        InputError: they did different work, or had different versions of cuDNN, whose names stand for different code.
    """
    found = compare.differences(a, b, across=True)
    if versions := found.get("cudnn"):
        raise InputError(f"A and B ran with cuDNN {' and '.join(map(str, versions))}: they are not compared")
    return found


def _row(found: compare.Comparison) -> dict[str, Any]:
    row = dataclasses.asdict(found)
    row |= {name: None if row[name[:1] + "_j"] is None else row[name[:1] + "_j"] * 1e3 for name in ("a_mj", "b_mj")}
    row |= {"size": row.pop("input_size"), "reason": plain(row["reason"])}
    return {name: value for name, value in row.items() if name not in ("a_j", "b_j", "position", "layer", "p_value")}
