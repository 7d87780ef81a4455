#!/usr/bin/env python3
"""Cost of a full sweep, and the share of it in which the GPU measures. Prints, asserts nothing.

python benchmarks/sweep_cost.py                       # resnet152, implicit precomp gemm, 100 sizes
python benchmarks/sweep_cost.py --model vgg16 --num-sizes 10
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from profiler import UnifiedProfiler


def measuring_s(overall: pd.DataFrame) -> pd.Series:
    """Return for each size the seconds of measurements on the GPU: replays, eager passes, energy."""
    # Each sample is two replays: one bare, one with events around the layers.
    replays_s = overall["samples"] * 2 * overall["mean"] / 1e3
    eager_s = overall["samples"] * overall["eager_mean_ms"] / 1e3
    return replays_s + eager_s + overall["energy_window_s"].fillna(0)


def main() -> int:
    """Run the sweep in a temporary folder and print its cost."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="resnet152")
    options.add_argument("--algorithm", default="implicit precomp gemm")
    options.add_argument("--num-sizes", type=int, default=100)
    options.add_argument("--no-energy", action="store_true")
    chosen = options.parse_args()
    started_s = time.perf_counter()
    profiler = UnifiedProfiler(
        chosen.model, chosen.algorithm, num_sizes=chosen.num_sizes, measure_energy=not chosen.no_energy
    )
    with tempfile.TemporaryDirectory() as folder:
        overall, _ = profiler.run(folder)
    wall_s = time.perf_counter() - started_s
    measured_s = float(measuring_s(overall).sum())
    print(f"{chosen.model}, {chosen.algorithm}, {len(overall)} sizes on {profiler.request.gpu}: {wall_s:.1f} s")
    print(f"a size: {overall['wall_s'].median():.2f} s (median), {overall['wall_s'].max():.2f} s (longest)")
    print(f"the GPU was measuring {measured_s:.1f} s, {100 * measured_s / wall_s:.0f} % of the time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
