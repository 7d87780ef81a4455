#!/usr/bin/env python3
"""Times of convolutions in a large and in a small table, with and without eviction of the L2 cache before replays.

A small table leaves its own inputs and filters in the cache, so without eviction its calls seem faster than among
others. Prints, asserts nothing. On a GPU:

    python benchmarks/eviction.py [--few 6 --many 48] [--algorithms torch,direct]
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.convolution import backends, models, swap
from convscope.dataset.collect.coverage import Group, Stratum
from convscope.dataset.collect.uses import Key, uses_of
from convscope.profiling.bench import Bench
from convscope.profiling.request import make_run
from profiler import CUDALayerTimer, PowerMonitor

MODELS = ("resnet50", "vgg16", "torchvision:mobilenet_v2")
SIZE = 224
SETTING = Stratum("fp32", 1)


def shapes(seed: int) -> list[Key]:
    """Return the different convolutions of the models at one image, in a random order."""
    found = list(dict.fromkeys(use.key for model in MODELS for _, use in uses_of(model, SIZE)))
    random.Random(seed).shuffle(found)
    return found


def times_us(keys: list[Key], algorithm: str, evicts: bool, device: torch.device) -> list[float]:
    """Return what each convolution of a table takes in its captured pass, by events, over the usual placements."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.csv"
        path.write_text(Group(SETTING, tuple(keys), (), False).table())
        run = make_run(str(path), algorithm, num_sizes=1, device=str(device), math="fp32", energy=False)
        run = dataclasses.replace(run, evicts=evicts)
        layers = models.convolutions(run.model, run.input_sizes[0], run.batch_size)
        with torch.inference_mode(), backends.math(run.math):
            model = models.build(run.model).to(device)
            bench = Bench(run, model, device, CUDALayerTimer(model, device.type), PowerMonitor(), print)
            swapped = swap.Swap(model)
            bench.calibrate(run.input_sizes[0])
            swapped.apply({layer.name: algorithm for layer in layers})
            found = bench.measure(run.input_sizes[0], layers, check_errors=False)
            bench.release()
            swapped.restore()
    return [1e3 * times.mean_ms for times in found.layers]


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--few", type=int, default=6, help="convolutions of the small table")
    options.add_argument("--many", type=int, default=48, help="those of the large one, which has them too")
    options.add_argument("--algorithms", default="torch,direct")
    options.add_argument("--seed", type=int, default=1, help="which ones")
    asked = options.parse_args()
    device, many = find_device("cuda", "eviction.py times a GPU"), shapes(asked.seed)[: asked.many]
    few, rows, changes = many[: asked.few], list[tuple[str, ...]](), list[str]()
    for algorithm in asked.algorithms.split(","):
        without, evicted = (
            [times_us(keys, algorithm, evicts, device) for keys in (many, few)] for evicts in (False, True)
        )
        for number, key in enumerate(few):
            columns = [(each[0][number], each[1][number]) for each in (without, evicted)]
            cells = (f"{value:.1f}" for pair in columns for value in (*pair, 100 * (pair[1] / pair[0] - 1)))
            rows.append((*cells, algorithm, " ".join(key)))
        change = statistics.median(new / old for new, old in zip(evicted[0], without[0], strict=True))
        changes.append(f"{algorithm}, in the large table: eviction changes the median by {100 * (change - 1):+.1f} %")
    header = (
        f"µs of {asked.many}", f"of {asked.few}", "± %", f"evicted: of {asked.many}", f"of {asked.few}", "± %",
        "algorithm",
        "batch, channels, filters, height, width, kernel, stride, padding, dilation, groups",
    )  # fmt: skip
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, fp32, batch 1, {SIZE} px")
    print(table(header, rows))
    print(*changes, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
