#!/usr/bin/env python3
"""Errors of predicted times of whole models of a kind that was not learned: by kind, algorithm, arithmetic and batch.

python benchmarks/whole_models.py data/h100 [--processes 2]     an hour on one core
python benchmarks/whole_models.py data/h200 data/h100           both learned together, a kind held back of both
python benchmarks/whole_models.py data/h100 --kinds vgg resnext

As `predict evaluate FOLDER/samples.parquet --split family` judges them, which prints sums by kind alone.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd

from convscope.dataset import calls, samples, splits
from convscope.dataset.calls import CallRow
from convscope.dataset.splits import Split
from convscope.prediction import held_out, predictor
from convscope.prediction.evaluation import LEVEL
from convscope.prediction.processes import starmap

PARTS = ("gpu_name", "kind", "algorithm", "arithmetic", "batch_size")
TABLES = (["gpu_name"], ["gpu_name", "kind"], ["algorithm"], ["arithmetic"], ["batch_size"])
LEAST = 8  # sums of a part that is shown


def read(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[CallRow]]:
    """Return the samples with a time, and the calls of whole models."""
    paths = [folder / "samples.parquet" for folder in folders]
    known = calls.named_or_beside([], paths)
    if not known:
        where = " ".join(map(str, folders))
        raise SystemExit(f"{where}: no calls of whole models there: convscope dataset calls writes them")
    return predictor.usable(samples.read(paths), "time"), known


def missed(frame: pd.DataFrame, known: list[CallRow], split: Split) -> pd.DataFrame:
    """Return the sums over models that are held back, with the error of each."""
    learned, held_back = (frame[rows].reset_index(drop=True) for rows in (split.learned, split.held_back))
    rows = held_out.of_models(held_back, known, "mean_ms").reset_index(drop=True)
    if rows.empty:
        return pd.DataFrame(columns=[*PARTS, "error"])
    rows = rows.assign(kind=rows["family"], arithmetic=rows["dtype"].where(rows["dtype"] != "float32", rows["math"]))
    keys = rows["key"].to_numpy(dtype=object)
    found = predictor.fit(learned, "time", {}, "family", known).sums(rows, keys, LEVEL)
    each = rows.groupby("key")
    return each[[*PARTS]].first().assign(error=found["middle"] / each["mean_ms"].sum() - 1)


def table(found: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the errors by the values of columns, the most accurate first."""
    parts = found.assign(pct=100 * found["error"].abs(), signed=100 * found["error"]).groupby(by)
    sizes, signed = parts["pct"], parts["signed"]
    figures = {
        "sums": parts.size(), "median, %": sizes.median(), "MAPE, %": sizes.mean(), "mean error, %": signed.mean(),
        "within 10 %, %": sizes.apply(lambda each: 100 * (each <= 10).mean()),
    }  # fmt: skip
    return pd.DataFrame(figures).query(f"sums >= {LEAST}").round(1).sort_values("MAPE, %")


def main() -> int:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options.add_argument("--kinds", nargs="+", metavar="KIND", help="held back one after another; default all")
    options.add_argument("--processes", type=int, default=1)
    asked = options.parse_args()
    frame, known = read(asked.folders)
    by_kind = {each.name.removeprefix("family "): each for each in splits.splits(frame, "family", known)}
    if unknown := {*(asked.kinds or [])} - by_kind.keys():
        options.error(f"argument --kinds: no such kind: {', '.join(sorted(unknown))}; there are {', '.join(by_kind)}")
    work = [(by_kind[kind],) for kind in asked.kinds or by_kind]
    found = pd.concat([*starmap(functools.partial(missed, frame, known), work, asked.processes)])
    for by in TABLES:
        print(table(found, by).to_string(), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
