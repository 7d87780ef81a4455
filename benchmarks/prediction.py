#!/usr/bin/env python3
"""Figures of docs/prediction.md beside those of `predict evaluate`: each fifth of the layers held back in turn.

python benchmarks/prediction.py data/h100 --fifths 1                 four minutes on one core, the layers that predict
                                                                     evaluate holds back
python benchmarks/prediction.py data/h100 --fifths 1 --split rows    rows at random
python benchmarks/prediction.py data/h100                            five times as much
python benchmarks/prediction.py data/h100 --target energy            joules
python benchmarks/prediction.py data/h200 data/h100                  both learned together, errors of each card

Layers of models and shapes that no model has are told apart. For times it also prints the errors by the time of the
call, beside how far repeats are apart, and by how much the errors of two algorithms for one shape correlate.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd

from convscope.dataset import samples, splits
from convscope.dataset.samples import ARITHMETIC, SHAPE, TARGETS
from convscope.prediction import predictor
from convscope.prediction.evaluation import LEVEL, repeats

SHAPES_LEAST = 100  # that two algorithms share, for a correlation
EDGES_US = (0, 5, 10, 20, 50, 100, np.inf)
COMPARED = ("torch", "guess", "implicit precomp gemm", "implicit gemm", "gemm", "fft tiling", "direct", "winograd")


def missed(frame: pd.DataFrame, target: str, kind: str, fifths: Sequence[int]) -> pd.DataFrame:
    """Return the samples with a target of these fifths by a split, and the logarithm of predicted over measured."""
    parts = np.array([splits.part(label) for label in splits.labels(frame, kind)])
    judged = predictor.has(frame, target)
    found = []
    for fifth in fifths:
        held_back = parts == fifth - 1
        learned = frame[splits.beside(frame, kind, held_back)].reset_index(drop=True)
        rows = frame[held_back & judged].reset_index(drop=True)
        middle = predictor.fit(learned, target, {}).predict(rows, LEVEL).middle
        found.append(rows.assign(fifth=str(fifth), error=np.log(middle / rows[TARGETS[target][0]].to_numpy(float))))
    together: pd.DataFrame = pd.concat(found, ignore_index=True)
    return together


def score(errors: pd.Series) -> dict[str, float]:
    """Return what `predict evaluate` prints of errors."""
    pct = 100 * np.abs(np.exp(errors) - 1)
    return {"samples": len(pct), "median, %": round(pct.median(), 1), "MAPE, %": round(pct.mean(), 1)}


def table(found: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of each fifth and of all together, of all shapes, of those of models and of the others."""
    no_model = found["family"].isna()
    kinds = {"": found, ", of models": found[~no_model], ", of no model": found[no_model]}
    lines: dict[str, dict[str, float]] = {}
    for kind, rows in kinds.items() if no_model.any() else [("", found)]:
        lines |= {f"fifth {name}{kind}": score(part["error"]) for name, part in rows.groupby("fifth")}
        lines[f"all{kind}"] = score(rows["error"])
    return pd.DataFrame(lines).T


def by_time(found: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Return the scores of predictions and of repeats by the measured time of the call."""
    lines = {
        (f"{low:g} to {high:g} \u00b5s", what): score(part["error"])
        for low, high in itertools.pairwise(EDGES_US)
        for what, rows in (("predicted", found), ("a repeat", again))
        if len(part := rows[(1e3 * rows["mean_ms"]).between(low, high, inclusive="left")])
    }
    return pd.DataFrame(lines).T


def main() -> int:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options.add_argument("--target", choices=("time", "energy"), default="time")
    options.add_argument("--split", choices=("layer", "rows"), default="layer", help="what is divided in fifths")
    every = [*range(1, splits.PARTS + 1)]
    options.add_argument("--fifths", type=int, nargs="+", choices=every, default=every, metavar="N", help="1 to 5")
    asked = options.parse_args()
    files = [folder / "samples.parquet" for folder in asked.folders]
    frame = predictor.usable(samples.read(files), asked.target)
    found, again = missed(frame, asked.target, asked.split, asked.fifths), repeats(frame, asked.target)
    for card, of_card in found.groupby("gpu_name"):
        print(card, table(of_card).to_string(), sep="\n", end="\n\n")
        if asked.target == "time":
            print(by_time(of_card, again[again["gpu_name"] == card]).to_string(), end="\n\n")
    if asked.target == "time":
        wide = found.pivot_table("error", ["gpu_name", *SHAPE, *ARITHMETIC], "algorithm")
        wide = wide[[name for name in COMPARED if name in wide]]
        print("correlation of errors for one shape, all arithmetics")
        print(wide.corr(min_periods=SHAPES_LEAST).round(2).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
