"""Tables of profiles as data frames, for analysis in Python: `convscope.read("results")`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from convscope.errors import InputError
from convscope.report import folders
from convscope.report.folders import Folder
from convscope.storage.paths import RESULTS


class ReadWarning(UserWarning):
    """A folder, or a part of one, could not be read."""


class Tables(NamedTuple):
    """Tables of all profiles that were read, with the columns of docs/columns.md, `run` and `gpu`.

    Attributes:
        overall: a row for each run and input size; `mean_ms` is `mean` by another name.
        layers: a row for each convolution of them.
        work: a row for each kernel and module of them.
    """

    overall: pd.DataFrame
    layers: pd.DataFrame
    work: pd.DataFrame


def read(*roots: str | os.PathLike[str]) -> Tables:
    """Return the tables of every profile below some folders, `results/` by default.

    `run` is the folder of a row's run, `gpu` the name of its card in names of folders: rows of several cards can be
    told apart. Results that `--overwrite` moved aside are left out. Neither PyTorch nor a GPU is needed.

    Raises:
        InputError: a folder does not exist, or no profile can be read below any.

    Warns:
        ReadWarning: a profile is damaged or half-finished; what can be read of it is returned.
    """
    paths = [Path(root) for root in roots] or [RESULTS]
    found = folders.read(paths, ["profile"])
    for fault in found.faults:
        warnings.warn(f"{fault.path}: {fault.what}", ReadWarning, stacklevel=2)
    if not found.folders:
        names = ", ".join(map(str, paths))
        raise InputError(f"no profile below {names}: give a folder of results, or measure one with convscope profile")
    overall, layers, work = (_together(found.folders, name) for name in Tables._fields)
    return Tables(overall.assign(mean_ms=overall["mean"]) if "mean" in overall else overall, layers, work)


def _together(profiles: Sequence[Folder], name: str) -> pd.DataFrame:
    """Return a table of all profiles, each row with its run and card first."""
    tables = [
        rows.assign(run=str(each.path), gpu=each.request.get("gpu"))
        for each in profiles
        if len(rows := each.tables.get(name, pd.DataFrame()))
    ]
    if not tables:
        return pd.DataFrame()
    whole = pd.concat(tables, ignore_index=True)
    return whole[["run", "gpu", *(column for column in whole if column not in ("run", "gpu"))]]
