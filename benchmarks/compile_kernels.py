#!/usr/bin/env python3
"""Time to compile this project's 2-D Triton kernels for the convolutions of a data set. Prints, asserts nothing.

python benchmarks/compile_kernels.py [--sizes 107 224 299] [--models resnet50 …] [--capability 90] [--multiprocessors N]

It needs no GPU. What it compiles stays in Triton's cache (TRITON_CACHE_DIR); a second call prints what that leaves of
the time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.convolution import backends
from convscope.convolution.layer import Layer
from convscope.dataset.collect.request import BATCHES, FAMILIES, SETTINGS
from convscope.dataset.collect.uses import uses_of
from convscope.kernels.catalogue import KERNELS, Conv2dPlan, why_no_kernel

META = torch.device("meta")
HEADER = ("kernel", "arithmetic", "candidates of all shapes", "binaries", "s")


class Compiler:
    """Stand-in for Triton's driver of a card: names the architecture, launches nothing."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        """Return the number of the card."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return the architecture to compile for."""
        return self._target

    def get_active_torch_device(self) -> torch.device:
        """Return the device of tensors without memory."""
        return META


def shapes(models: list[str], sizes: list[int]) -> list[Layer]:
    """Return the different convolutions of models at these image sizes, at batch 1."""
    uses = (use for model in models for size in sizes for use in uses_of(model, size))
    return [*{layer.cost_key: layer for layer, _ in uses}.values()]


def launches(name: str, layer: Layer, setting: str, multiprocessors: int) -> Iterator[None]:
    """Launch every candidate of a kernel for a layer, as its choice on the card does."""
    how = SETTINGS[setting]
    shape = layer.convolution(how["dtype"], how["math"], how["layout"])
    if why_no_kernel(name, shape):
        return
    options: Any = {"dtype": getattr(torch, shape.dtype), "device": META}
    memory = backends.LAYOUTS[shape.layout]
    x = torch.empty(shape.input, **options).contiguous(memory_format=memory)
    weight = torch.empty(shape.weight, **options)
    plan = Conv2dPlan(name, shape, META)
    for blocks in KERNELS[name].candidates(shape, shape.output, multiprocessors):
        plan._launch(x, KERNELS[name].pack(weight, shape, blocks), None, blocks)
        yield


def main() -> None:
    """Print a line for each kernel and arithmetic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[107, 224, 299], metavar="PX")
    parser.add_argument("--models", nargs="+", default=[name for models in FAMILIES.values() for name in models])
    parser.add_argument("--capability", type=int, default=90, metavar="N", help="of the card, default 90 (Hopper)")
    parser.add_argument("--multiprocessors", type=int, default=132, metavar="N", help="of the card, default 132")
    options = parser.parse_args()
    every, compiled, run = shapes(options.models, options.sizes), set[object](), JITFunction.run

    def only_compile(self: Any, *given: Any, grid: object, warmup: bool, **constants: Any) -> None:
        types = tuple(each.dtype for each in given if isinstance(each, torch.Tensor))
        key = self.__name__, types, tuple(sorted(constants.items()))
        if key not in compiled:
            run(self, *given, grid=grid, warmup=True, **constants)
            compiled.add(key)

    rows = []
    driver.set_active(Compiler(options.capability))
    with patch.object(JITFunction, "run", only_compile):
        for setting in SETTINGS:
            for name in KERNELS:
                before, began_s = len(compiled), time.monotonic()
                layers = (layer.resized(batch=batch) for batch in BATCHES for layer in every)
                count = sum(1 for layer in layers for _ in launches(name, layer, setting, options.multiprocessors))
                took_s = time.monotonic() - began_s
                rows.append((name, setting, f"{count:,}", str(len(compiled) - before), f"{took_s:.0f}"))
    print(f"{len(every):,} shapes at batch {', '.join(map(str, BATCHES))}")
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
