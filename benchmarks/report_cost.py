#!/usr/bin/env python3
"""Time and size of `convscope report`: invented runs with 100,000 rows of layers. Prints, asserts nothing.

python benchmarks/report_cost.py [ROWS]

The runs are of two models, of 53 and 155 layers, with five algorithms each. No GPU.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from invented import write

from convscope.storage.paths import slug

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"resnet50": 53, "resnet152": 155}
ALGORITHMS = ("gemm", "implicit gemm", "implicit precomp gemm", "winograd", "torch")


def main() -> int:
    """Print the time, memory and size of three reports."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    count = -(-rows // (sum(MODELS.values()) * len(ALGORITHMS)))
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for algorithm in ALGORITHMS:
                path = Path(folder, "results", f"{model}_{slug(algorithm)}")
                write(path, model, MODELS[model], algorithm, list(range(64, 64 + count)))
        page = Path(folder, "report.html")
        command = [sys.executable, "-m", "convscope", "report", str(Path(folder, "results")), "-o", str(page)]
        for _ in range(3):
            started_s = time.perf_counter()
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started_s
            peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            made = count * sum(MODELS.values()) * len(ALGORITHMS)
            print(f"{made} layer rows: {seconds:.2f} s, {peak_mb:.0f} MiB, page {page.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
