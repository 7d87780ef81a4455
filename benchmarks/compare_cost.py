#!/usr/bin/env python3
"""Time of `convscope compare`: two invented runs with 50,000 rows of layers each. Prints, asserts nothing.

python benchmarks/compare_cost.py [SIZES]

A run has a model of 155 layers, as ResNet-152 has, at so many sizes (323). No GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.convolution.layer import Layer
from convscope.profiling.comparison import compare
from convscope.profiling.request import Run
from convscope.profiling.rows import SCHEMA, SCHEMA_VERSION, LayerRow, OverallRow
from convscope.storage.paths import slug
from convscope.storage.table import columns, lines_of

LAYERS = 155
MODEL, ALGORITHM = "resnet152", "implicit precomp gemm"
ENVIRONMENT = {"host": "node", "device_type": "cuda", "gpu_name": "NVIDIA H200", "driver": "580", "cudnn": "9.19.0"}


def write(folder: Path, sizes: list[int], seed: int) -> None:
    """Write a run: `run.json`, a row a size, and a row a layer and size, with times that scatter by 1 %."""
    folder.mkdir()
    drawn = random.Random(seed)
    run = dataclasses.asdict(Run(MODEL, ALGORITHM, "3_full", "h200", tuple(sizes), "cuda:0", math="tf32"))
    start: dict[str, object] = {"utc": "", "command": [], "environment": ENVIRONMENT, "asked": run, "error": None}
    document = {"schema_version": SCHEMA_VERSION, "run": run, "environment": ENVIRONMENT, "starts": [start]}
    (folder / "run.json").write_text(json.dumps(document))
    plain = Layer.of_sizes(
        "conv", 0, batch=1, in_channels=64, out_channels=64, size=(56, 56), kernel=(3, 3), padding=(1, 1)
    ).columns()
    plain = {name: plain[name] for name in columns(LayerRow) if name in plain and name not in ("layer", "position")}
    passes, layers = [], []
    for size in sizes:
        passes.append(OverallRow(MODEL, ALGORITHM, size, mean=drawn.gauss(10, 0.1), std=0.05, samples=20))
        for position in range(LAYERS):
            time_ms = drawn.gauss(0.05, 0.0005)
            layers.append(
                LayerRow(**plain, model=MODEL, algorithm=ALGORITHM, input_size=size, layer=f"layer{position}",
                         position=position, mean_ms=time_ms, percentage=0.5, std_ms=0.0005,
                         samples=20, out_height_px=56, out_width_px=56)
            )  # fmt: skip
    for name, rows in (("overall", passes), ("layers", layers)):
        text = lines_of(SCHEMA.tables[name], rows, with_header=True)
        (folder / f"{slug(MODEL)}_{slug(ALGORITHM)}_{name}.csv").write_text(text)


def main() -> int:
    """Print the time of three comparisons, passes alone and with layers."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 323
    with tempfile.TemporaryDirectory() as folder:
        a, b = Path(folder, "a"), Path(folder, "b")
        for seed, path in enumerate((a, b)):
            write(path, list(range(64, 64 + count)), seed)
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
