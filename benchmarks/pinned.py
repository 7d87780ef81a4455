#!/usr/bin/env python3
"""A model as PyTorch runs it, pinned to its fastest plans, and fused: whole captured passes. Prints, asserts nothing.

python benchmarks/pinned.py [--models resnet50] [--settings tf32 float16,nhwc] [--batch-sizes 1] [--passes 10]

The plans are those of `run_verify.py --plans`, and of `--plans --fused`, which are measured first where --results has
them not. All passes of a line are timed in turn, each round in another placement in memory; `±` is half the 99 %
interval of the difference to PyTorch's own pass. `fused` has batch normalisation folded, and bias, addition and ReLU in
the call of the convolution: by PyTorch's own fused calls of cuDNN, and by the fastest plans. With `--compile` PyTorch's
compiler is beside them, its output captured as the others are.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models import asked_for, settings_of
from plans import add_options, atlas_of

import convscope
from convscope.cli.display import table
from convscope.convolution import backends
from convscope.convolution.operator import release
from convscope.convolution.reference import relative_distance
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs, first_tensor
from convscope.pinning import document
from convscope.profiling.request import Run, make_run
from convscope.timing import placement
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import paired_difference, summarize

CONFIDENCE = 0.99
STOCK, SIZE_PX = "PyTorch", 224
HEADER = ("model", "setting", "batch", "pass", "ms", "less than PyTorch's, µs", "%", "error against float64")


def passes_of(run: Run, atlas: Path, fused_atlas: Path, compiles: bool) -> dict[str, nn.Module]:
    """Return the models of a line by name, on the GPU."""
    network, device = Network.of(run), torch.device(run.device)
    stock = network.on(device)
    fused = network.on(device, convscope.fused)
    ours, ours_fused = document.from_atlas(atlas), document.from_atlas(fused_atlas)
    found = {
        STOCK: stock,
        "pinned": convscope.pin(copy.deepcopy(stock), ours, strict=True),
        "fused by PyTorch": fused,
        "fused and pinned": convscope.pin(copy.deepcopy(fused), ours_fused, strict=True),
    }
    if compiles:
        copied = copy.deepcopy(stock)
        copied.compile()
        found["compiled by PyTorch"] = copied
    return found


def timed(models: Mapping[str, nn.Module], inputs: Inputs, rounds: int) -> dict[str, list[float]]:
    """Return the times of the captured passes in ms, by name, a round after the other."""
    stopwatch = Stopwatch(inputs[0].device)
    found: dict[str, list[float]] = {name: [] for name in models}
    for place in range(rounds):
        for name, model in models.items():
            with placement.moved(model, inputs, place) as there:
                found[name].append(stopwatch.pass_ms(partial(model, *there)))
            release(inputs[0].device)
    return found


def lines(model: str, setting: str, batch_size: int, asked: argparse.Namespace) -> list[tuple[str, ...]]:
    """Measure one model in one setting; return a line for each pass."""
    begun = model, setting, str(batch_size)
    folders = [atlas_of(model, setting, batch_size, asked, *more) for more in ((), ("--fused",))]
    if failed := next((folder for folder in folders if isinstance(folder, str)), None):
        return [(*begun, *("-",) * (len(HEADER) - 4), failed)]
    kind: dict[str, Any] = dict(settings_of(setting))
    run = make_run(
        model, "torch", num_sizes=1, input_size_range=(SIZE_PX, SIZE_PX), batch_size=batch_size, energy=False, **kind
    )
    device = torch.device(run.device)
    with torch.inference_mode(), backends.math(run.math), backends.settings(layout=run.layout):
        inputs = Network.of(run).inputs(SIZE_PX, device)
        atlas, fused_atlas = (folder for folder in folders if isinstance(folder, Path))
        models = passes_of(run, atlas, fused_atlas, asked.compile)
        exact = first_tensor(copy.deepcopy(models[STOCK]).double()(*(given.double() for given in inputs)))
        errors = {name: relative_distance(first_tensor(each(*inputs)), exact) for name, each in models.items()}
        times = timed(models, inputs, asked.passes)
    return [(*begun, *_cells(name, times), f"{errors[name]:.1e}") for name in times]


def _cells(name: str, times: Mapping[str, list[float]]) -> tuple[str, ...]:
    mine, torchs = summarize(times[name]), summarize(times[STOCK])
    less = paired_difference(times[STOCK], times[name], CONFIDENCE)
    share = 100 * less.mean_ms / torchs.mean_ms
    saved = "-" if name == STOCK else f"{1e3 * less.mean_ms:+.1f} ± {1e3 * less.half_width_ms:.1f}"
    return name, f"{mine.mean_ms:.4f}", saved, "-" if name == STOCK else f"{share:+.1f}"


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    add_options(options, ("resnet50",), (1,))
    options.add_argument("--passes", type=int, default=10, metavar="N", help="placements that passes are timed in")
    options.add_argument("--compile", action="store_true", help="PyTorch's compiler too: a minute more")
    asked = options.parse_args()
    found = []
    for model, setting, batch_size in asked_for(asked):
        found += lines(model, setting, batch_size, asked)
    print(table(HEADER, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
