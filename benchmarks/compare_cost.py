#!/usr/bin/env python3
"""Time of `convscope compare`: two invented runs with 50,000 rows of layers each. Prints, asserts nothing.

python benchmarks/compare_cost.py [SIZES]

A run has a model of 155 layers, as ResNet-152 has, at so many sizes (323). No GPU.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from invented import write

from convscope.profiling.comparison import compare

LAYERS = 155
MODEL, ALGORITHM = "resnet152", "implicit precomp gemm"


def main() -> int:
    """Print the time of three comparisons, passes alone and with layers."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 323
    with tempfile.TemporaryDirectory() as folder:
        a, b = Path(folder, "a"), Path(folder, "b")
        for seed, path in enumerate((a, b)):
            write(path, MODEL, LAYERS, ALGORITHM, list(range(64, 64 + count)), seed)
        for _ in range(3):
            started_s, printed = time.perf_counter(), io.StringIO()
            with contextlib.redirect_stdout(printed):
                code = compare.main([str(a), str(b), "--layers"])
            lines = printed.getvalue().count("\n")
            seconds = time.perf_counter() - started_s
            print(f"2 × {count * LAYERS} layer rows: {seconds:.2f} s, {lines} lines, exit code {code}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
