"""Content of a report: tables of the folders that were read, the exhibits that show them, and their charts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from convscope.report.catalogue import ALWAYS, EXHIBITS, OF_STUDIES, Exhibit
from convscope.report.charts import Spec
from convscope.report.folders import Folder, Found
from convscope.report.labels import VIEWS, plain
from convscope.report.tables import compared, findings, frames, method, overview, studies, volumes

NAMES_OF_RUNS = {"pairs": ("a", "b", "panel"), "verdicts": ("a", "b", "panel")}
"""Columns that name runs, by table; of all others it is `run`."""


@dataclass(frozen=True)
class Content:
    """All that the page, the figures and the summary are made from."""

    found: Found
    tables: Mapping[str, pd.DataFrame]
    sentences: Sequence[str]
    exhibits: Sequence[Exhibit]

    @functools.cached_property
    def specs(self) -> Mapping[str, Spec]:
        """Charts of the exhibits that have rows, by name; made at the first use: most of the time goes into them."""
        domain, shown = _domain(self.tables), [each for each in self.exhibits if has_rows(each, self.tables)]
        return {each.name: each.draws(domain) for each in shown if each.draws}

    @property
    def views(self) -> list[str]:
        """Views that have something to show."""
        return [view for view in VIEWS if any(each.view == view for each in self.exhibits)]

    @property
    def views_without_rows(self) -> list[str]:
        """Views that are left out, for no folder has anything to show in them."""
        return [view for view in VIEWS if view not in self.views]


def content(found: Found, pair: Sequence[Path] | None = None) -> Content:
    """Return everything to show of folders that were read.

    Args:
        pair: two runs to compare; None takes runs of the same work.
    """
    tables = _shortened(_tables(found, pair), found)
    filled = {each.view for each in EXHIBITS if has_rows(each, tables)} | set(ALWAYS)
    known = [each for each in EXHIBITS if each.view not in OF_STUDIES or len(tables[each.table])]
    shown = [each for each in known if each.view in filled]
    return Content(found, tables, findings.sentences(found, tables), shown)


def has_rows(exhibit: Exhibit, tables: Mapping[str, pd.DataFrame]) -> bool:
    """Tell whether an exhibit has anything to show."""
    rows = tables[exhibit.table]
    if not len(rows) or not exhibit.needs:
        return bool(len(rows))
    return exhibit.needs in rows and bool(rows[exhibit.needs].notna().any())


def _domain(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[str]]:
    """Return the names that have a colour, by series, in the order of the alphabet."""
    columns = {
        "algorithm": (("passes", "series"), ("layers", "algorithm")), "category": (("work", "category"),),
        "engine": (("inference", "engine"),), "kind": (("network_kinds", "category"),),
        "implementation": (("conv3d", "implementation"), ("networks", "implementation")),
        "convolutions_by": (("choice_passes", "convolutions_by"),),
    }  # fmt: skip
    return {
        series: sorted(
            {
                str(each)
                for table, name in places
                if len(tables[table])
                for each in tables[table][name].dropna().unique()
            }
        )
        for series, places in columns.items()
    }


def _tables(found: Found, pair: Sequence[Path] | None) -> dict[str, pd.DataFrame]:
    """Return all tables by name; of a study without folders an empty one."""
    folders = found.folders
    marks = frames.marks(folders)

    def gathered(make: Callable[[Folder], pd.DataFrame], chosen: Sequence[Folder] = folders) -> pd.DataFrame:
        rows = frames.together([make(each) for each in chosen])
        return frames.told_apart(rows, marks) if "panel" in rows else rows

    passes = frames.with_reference(_over_models(gathered(frames.of_passes), marks))
    layers = _ranked(frames.at_reference(gathered(frames.of_layers), passes))
    chosen = gathered(studies.of_candidates, [each for each in folders if each.study in ("choice", "plans")])
    gains = _side_by_side(gathered(studies.of_choice_passes), marks, frames.environments(folders))
    runs = overview.of_runs(folders)
    verdicts, lines = compared.of_pairs(compared.pairs(folders, pair))
    own = {
        "training": studies.of_training, "epochs": studies.of_epochs,
        "inference": studies.of_inference, "conv3d": volumes.of_conv3d, "networks": volumes.of_networks,
        "network_kinds": volumes.of_kinds, "support": overview.of_support,
        "first_passes": overview.of_first_passes,
    }  # fmt: skip
    return {name: gathered(make) for name, make in own.items()} | {
        "runs": runs,
        "matrix": overview.completeness(runs),
        "flags": overview.flags(folders),
        "faults": overview.of_faults(found),
        "passes": passes,
        "layers": layers,
        "work": frames.at_reference(gathered(frames.of_work), passes),
        "candidates": chosen,
        "choice_passes": gains,
        "picks": studies.picks(chosen),
        "roofline": studies.roofline(layers, folders),
        "verdicts": verdicts,
        "pairs": lines,
        "commands": method.of_commands(folders),
        "environments": method.of_environments(folders),
        "methods": method.of_methods(passes),
    }


def _over_models(passes: pd.DataFrame, marks: Mapping[str, str]) -> pd.DataFrame:
    """Return passes with the panel of all models of their setting, and their name in it."""
    if not len(passes):
        return passes
    panels = pd.Series(frames.panels(passes, "model"), index=passes.index) + passes["run"].map(marks).fillna("")
    return passes.assign(panel_of_models=panels, model_at=_at_size(passes))


def _shortened(tables: Mapping[str, pd.DataFrame], found: Found) -> dict[str, pd.DataFrame]:
    """Return tables in which the names of runs begin below the folder that all of them are in."""
    paths = [folder.path for folder in found.folders] + [fault.path for fault in found.faults]
    try:
        shared = os.path.commonpath([path.parent for path in paths]) if paths else ""
    except ValueError:  # absolute and relative
        shared = ""
    if not shared:
        return dict(tables)
    above = plain(Path(shared, "x"))[:-1]

    def short(cells: Any) -> Any:
        return cells.map(lambda text: text.replace(above, "") if isinstance(text, str) else text)

    return {
        name: rows.assign(**{each: short(rows[each]) for each in NAMES_OF_RUNS.get(name, ("run",)) if each in rows})
        for name, rows in tables.items()
    }


def _at_size(rows: pd.DataFrame) -> Any:
    """Return the model and size of each row: "alexnet at 224 px"."""
    return rows["model"].astype(str) + " at " + pd.to_numeric(rows["size"]).map("{:.0f} px".format)


def _side_by_side(gains: pd.DataFrame, marks: Mapping[str, str], around: Mapping[str, str]) -> pd.DataFrame:
    """Return passes of choices with names that tell runs apart within the panel of all models of an environment."""
    if not len(gains):
        return gains
    own = {run: words.removeprefix(around.get(run, "")) for run, words in marks.items()}
    panels = gains["panel_of_models"] + gains["run"].map(around).fillna("")
    return gains.assign(panel_of_models=panels, model_at=_at_size(gains) + gains["run"].map(own).fillna(""))


def _ranked(layers: pd.DataFrame) -> pd.DataFrame:
    """Return layers with their time over that of the fastest algorithm in the same panel and size."""
    if not len(layers):
        return layers
    known = pd.to_numeric(layers["mean_ms"], errors="coerce").where(layers["status"] == "ok")
    known = known.where(np.isfinite(known) & (known > 0))
    least = known.groupby([layers["panel"], layers["size"], layers["position"]]).transform("min")
    return layers.assign(time_ratio=known / least)
