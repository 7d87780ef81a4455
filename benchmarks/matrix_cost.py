#!/usr/bin/env python3
"""Time of queueing a matrix of many lines, as a dry run: nothing is submitted. Prints, asserts nothing.

python benchmarks/matrix_cost.py [LINES]

The lines (10,000) are ResNet-50 by eight algorithms at batch sizes from 1. No GPU, no SLURM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALGORITHMS = (
    *("gemm", "implicit gemm", "implicit precomp gemm", "direct"),
    *("guess", "torch", "heuristic a", "heuristic b"),
)
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print the time of three dry runs; return 1 where one fails."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "matrix.tsv")
        lines = (f"resnet50\t{ALGORITHMS[at % 8]}\th200\tbatch_size={1 + at // 8}\n" for at in range(count))
        path.write_text("".join(lines))
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = os.environ | {"CONVSCOPE_RESULTS": folder, "PATH": programs}
        for _ in range(3):
            started_s = time.perf_counter()
            done = subprocess.run(
                ["./3_full_run.sh", "--matrix", str(path), "--dry-run"], cwd=ROOT, env=environment,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            seconds, arrays = time.perf_counter() - started_s, done.stdout.count("--array=")
            print(f"{count} lines: {seconds:.2f} s, {arrays} arrays of jobs, exit code {done.returncode}")
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
