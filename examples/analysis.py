"""Result tables as data frames: time against image size, the slowest layers, energy.

python examples/analysis.py results/2_quick
"""

from __future__ import annotations

import sys

import convscope

overall, layers, _ = convscope.read(*sys.argv[1:2])
overall = overall[overall["status"] == "ok"]  # other rows have a reason instead of figures

print("time of a pass, ms")
print(
    overall.pivot_table(index=["gpu", "model", "input_size"], columns="algorithm", values="mean_ms")
    .round(3)
    .to_string()
)

print("\nslowest layers, ms, at the largest size of each run")
largest = layers[layers["input_size"] == layers.groupby("run")["input_size"].transform("max")]
print(
    largest.nlargest(10, "mean_ms")[["gpu", "model", "algorithm", "layer", "mean_ms", "ran_algorithm"]].to_string(
        index=False
    )
)

print("\nenergy of a pass, mJ, and its uncertainty")
energy = overall.dropna(subset="energy_per_inference_j").copy()
energy[["mJ", "±"]] = 1e3 * energy[["energy_per_inference_j", "energy_uncertainty_j"]]
print(energy[["gpu", "model", "algorithm", "input_size", "mJ", "±", "power_mean_w"]].round(2).to_string(index=False))
