"""Result tables as data frames: time against image size, the slowest layers, energy.

python examples/analysis.py results/2_quick
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

root = Path(sys.argv[1] if len(sys.argv) > 1 else "results")


def read(kind: str) -> pd.DataFrame:
    """Return one kind of table of all runs below the folder, without results that --overwrite moved aside."""
    paths = [path for path in sorted(root.rglob(f"*_{kind}.csv")) if "before-" not in str(path)]
    return pd.concat(map(pd.read_csv, paths), ignore_index=True)


overall, layers = read("overall"), read("layers")
overall = overall[overall["status"] == "ok"]  # other rows have a reason instead of figures

print("time of a pass, ms")
print(overall.pivot_table(index=["model", "input_size"], columns="algorithm", values="mean").round(3).to_string())

print("\nslowest layers, ms, at the largest size of each run")
largest = layers[layers["input_size"] == layers.groupby(["model", "algorithm"])["input_size"].transform("max")]
print(
    largest.nlargest(10, "mean_ms")[["model", "algorithm", "layer", "mean_ms", "ran_algorithm"]].to_string(index=False)
)

print("\nenergy of a pass, mJ, and its uncertainty")
energy = overall.dropna(subset="energy_per_inference_j").copy()
energy[["mJ", "±"]] = 1e3 * energy[["energy_per_inference_j", "energy_uncertainty_j"]]
print(energy[["model", "algorithm", "input_size", "mJ", "±", "power_mean_w"]].round(2).to_string(index=False))
