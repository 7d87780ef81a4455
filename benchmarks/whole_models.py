#!/usr/bin/env python3
"""Errors of predicted times of whole models of a kind that was not learned: by kind, algorithm, arithmetic and batch.

python benchmarks/whole_models.py data/h100 [--processes 2]     an hour on one core
python benchmarks/whole_models.py data/h200 data/h100           both learned together, a kind held back of both
python benchmarks/whole_models.py data/h100 --kinds vgg resnext
python benchmarks/whole_models.py data/h100 --keep FOLDER       what was judged is kept there, and not judged again

As `predict evaluate FOLDER/samples.parquet --split family` judges them, which prints sums by kind alone. The last two
tables are of the single layers, by card and kind. What is kept says the samples and the predictors' version by its
name: of others it is judged anew.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd

from convscope.dataset import calls, samples, splits
from convscope.dataset.calls import CallRow
from convscope.dataset.splits import Split
from convscope.prediction import held_out, predictor
from convscope.prediction.document import VERSION
from convscope.prediction.evaluation import LEVEL, outcomes
from convscope.prediction.processes import starmap

PARTS = ("gpu_name", "kind", "algorithm", "arithmetic", "batch_size")
TABLES = (
    ["gpu_name"],
    ["gpu_name", "kind"],
    ["gpu_name", "algorithm"],
    ["gpu_name", "arithmetic"],
    ["gpu_name", "batch_size"],
)
LEAST = 8  # sums or layers of a part that is shown


def read(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[CallRow]]:
    """Return the samples with a time, and the calls of whole models."""
    paths = [folder / "samples.parquet" for folder in folders]
    known = calls.named_or_beside([], paths)
    if not known:
        where = " ".join(map(str, folders))
        raise SystemExit(f"{where}: no calls of whole models there: convscope dataset calls writes them")
    return predictor.usable(samples.read(paths), "time"), known


def missed(frame: pd.DataFrame, known: list[CallRow], split: Split) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the sums over models that are held back, and their layers, with the error and the interval of each."""
    learned, held_back = (frame[rows].reset_index(drop=True) for rows in (split.learned, split.held_back))
    made = predictor.fit(learned, "time", {}, "family", known)
    layers = outcomes(made, held_back)[["error", "covered"]]
    layers = layers.assign(gpu_name=held_back["gpu_name"], kind=split.name.removeprefix("family "))
    rows = held_out.of_models(held_back, known, "mean_ms").reset_index(drop=True)
    if rows.empty:
        return pd.DataFrame(columns=[*PARTS, "error", "covered"]), layers
    rows = rows.assign(kind=rows["family"], arithmetic=rows["dtype"].where(rows["dtype"] != "float32", rows["math"]))
    found = made.sums(rows, rows["key"].to_numpy(dtype=object), LEVEL)
    each = rows.groupby("key")
    truth = each["mean_ms"].sum()
    covered = (found["low"] <= truth) & (truth <= found["high"])
    return each[[*PARTS]].first().assign(error=found["middle"] / truth - 1, covered=covered), layers


def judged(
    frame: pd.DataFrame, known: list[CallRow], keep: Path | None, split: Split
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what `missed` does, from the folder where it was kept before."""
    if keep is None:
        return missed(frame, known, split)
    of_all = keep / f"{split.name.removeprefix('family ')}-version-{VERSION}-{predictor.digest(frame)}"
    sums, layers = (of_all.with_name(f"{of_all.name}-{what}.parquet") for what in ("sums", "layers"))
    if not (sums.exists() and layers.exists()):
        for path, found in zip((sums, layers), missed(frame, known, split), strict=True):
            found.to_parquet(part := path.with_suffix(".part"))
            os.replace(part, path)
    return pd.read_parquet(sums), pd.read_parquet(layers)


def table(found: pd.DataFrame, by: list[str], what: str) -> pd.DataFrame:
    """Return the errors of sums or layers by the values of columns, the most accurate first."""
    parts = found.assign(pct=100 * found["error"].abs(), signed=100 * found["error"]).groupby(by)
    sizes, signed = parts["pct"], parts["signed"]
    figures = {
        what: parts.size(), "median, %": sizes.median(), "MAPE, %": sizes.mean(), "mean error, %": signed.mean(),
        "within 10 %, %": sizes.apply(lambda each: 100 * (each <= 10).mean()),
        f"inside the {LEVEL:.0f} % interval, %": parts["covered"].apply(lambda each: 100 * each.mean()),
    }  # fmt: skip
    return pd.DataFrame(figures).query(f"{what} >= {LEAST}").round(1).sort_values("MAPE, %")


def main() -> int:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options.add_argument("--kinds", nargs="+", metavar="KIND", help="held back one after another; default all")
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="for what was judged, which is read from there")
    asked = options.parse_args()
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    frame, known = read(asked.folders)
    by_kind = {each.name.removeprefix("family "): each for each in splits.splits(frame, "family", known)}
    if unknown := {*(asked.kinds or [])} - by_kind.keys():
        options.error(f"argument --kinds: no such kind: {', '.join(sorted(unknown))}; there are {', '.join(by_kind)}")
    work = [(by_kind[kind],) for kind in asked.kinds or by_kind]
    of_split = functools.partial(judged, frame, known, asked.keep)
    found = [*starmap(of_split, work, asked.processes)]
    sums, layers = (pd.concat(each) for each in zip(*found, strict=True))
    for by in TABLES:
        print(table(sums, by, "sums").to_string(), end="\n\n")
    for by in TABLES[:2]:
        print(table(layers, by, "layers").to_string(), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
