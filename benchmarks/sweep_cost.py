#!/usr/bin/env python3
"""Cost of a full sweep: where the time of a size goes, and the share in which the GPU measures. It asserts nothing.

python benchmarks/sweep_cost.py                       # resnet152, implicit precomp gemm, 100 sizes
python benchmarks/sweep_cost.py --model vgg16 --num-sizes 10
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.convolution.sources.network import Network
from convscope.convolution.swap import Swap
from convscope.profiling import bench, sweep
from convscope.profiling.bench import Bench
from convscope.profiling.passes import Passes
from convscope.profiling.sweep import Sweep
from convscope.profiling.tracing import TraceProcess
from convscope.storage.store import Store
from convscope.timing import graphs, layer_times
from profiler import UnifiedProfiler

PHASES = (  # what is timed, by owner and name; a phase inside another is taken off that one
    ("layers and algorithms", Network, "layers"), ("layers and algorithms", Sweep, "_assign"),
    ("layers and algorithms", Swap, "apply"),
    ("what ran, errors against float64", bench, "observe"),
    ("question whether the pass waits", Passes, "ask_to_capture"),
    ("eager passes", Bench, "_eager_ms"),
    ("placements: moving", Bench, "_at_once"), ("placements: moving", Passes, "_in_placement"),
    ("captures", graphs, "capture"),
    ("wait for the process that traces to capture", TraceProcess, "wait_until_prepared"),
    ("load until the clocks are up", graphs, "settle"),
    ("replays", layer_times, "layer_times"),
    ("kernels, by another process", TraceProcess, "trace"),
    ("energy", Bench, "steady_energy"),
    ("rows", sweep, "layer_rows"), ("rows", sweep, "overall_row"), ("rows", sweep, "work_rows"),
    ("rows", Store, "append"), ("layer times from samples", bench, "layer_time"),
    ("calibration, once", Bench, "calibrate"),
    ("sizes, the rest", Sweep, "_measure"),
)  # fmt: skip


class Phases:
    """Seconds spent in each phase, without those inside that count for another."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = defaultdict(float)
        self._open = [0.0]  # of each open call the seconds inside that count for others

    def watch(self, phase: str, owner: Any, name: str) -> None:
        """Time each call of a function from now on."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            self._open.append(0.0)
            try:
                return function(*given, **named)
            finally:
                whole_s = time.perf_counter() - began_s
                self.spent_s[phase] += whole_s - self._open.pop()
                self._open[-1] += whole_s

        setattr(owner, name, timed)


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
    phases = Phases()
    for phase in PHASES:
        phases.watch(*phase)
    started_s = time.perf_counter()
    profiler = UnifiedProfiler(
        chosen.model, chosen.algorithm, num_sizes=chosen.num_sizes, measure_energy=not chosen.no_energy
    )
    with tempfile.TemporaryDirectory() as folder:
        overall, _ = profiler.run(folder)
    wall_s = time.perf_counter() - started_s
    measured_s = float(measuring_s(overall).sum())
    sizes = len(overall)
    print(f"{chosen.model}, {chosen.algorithm}, {sizes} sizes on {profiler.request.gpu}: {wall_s:.1f} s")
    print(f"a size: {overall['wall_s'].median():.2f} s (median), {overall['wall_s'].max():.2f} s (longest)")
    print(f"the GPU was measuring {measured_s:.1f} s, {100 * measured_s / wall_s:.0f} % of the time")
    spent_s = phases.spent_s | {"start and end": wall_s - sum(phases.spent_s.values())}
    ordered = sorted(spent_s.items(), key=lambda item: -item[1])
    rows = [(phase, f"{each_s:.1f}", f"{each_s / sizes:.2f}") for phase, each_s in ordered]
    print(table(("phase", "s", "s a size"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
