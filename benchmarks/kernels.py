#!/usr/bin/env python3
"""Comparison of the Triton kernels with cuDNN's algorithms, layer by layer. Prints a table, asserts nothing.

Every distinct convolution of some models, in float32 with FMA or in 16 bits on the matrix unit: time of a call in a
replayed CUDA graph, several calls in a row on the same tensors (what fits into the L2 cache stays there, for all
algorithms alike), without the bias. Data type and layout are those of both sides; input and filters lie in the layout
before the call, so that no side copies them in it.

    python benchmarks/kernels.py                                    # VGG16, ResNet-50, DenseNet-121; batch 1 and 32
    python benchmarks/kernels.py --dtype float16 --layout nhwc
    python benchmarks/kernels.py --models alexnet --batch-sizes 8 --csv table.csv
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope import gpus
from convscope.cli.display import table
from convscope.cli.options import find_device
from convscope.convolution import algorithms, backends, models
from convscope.convolution.layer import Layer
from convscope.convolution.operator import cuda_operator
from convscope.convolution.reference import relative_distance
from convscope.cudnn import library
from convscope.cudnn.shape import Convolution
from convscope.errors import NotSupportedError
from convscope.timing.stopwatch import Stopwatch

OURS = ("direct", "winograd")
CUDNN = ("implicit gemm", "gemm", "implicit precomp gemm", "winograd nonfused")
COMPARED = (
    *(("direct", name) for name in ("implicit gemm", "gemm", "implicit precomp gemm")),
    *(("winograd", name) for name in ("winograd nonfused", "implicit precomp gemm", "direct")),
)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
REPLAYS, PROBES, LEAST_MS, CALLS_MOST = 10, 3, 0.3, 50


@dataclass(frozen=True)
class Timed:
    """One layer: its floors, the time of each algorithm that supports it, our chosen blocks and our errors."""

    layer: Layer
    arithmetic_us: float
    memory_us: float
    times_us: dict[str, float]
    errors: dict[str, float]
    chosen: dict[str, str]

    @property
    def floor_us(self) -> float:
        """The time below which no direct implementation gets on this card, by its datasheet."""
        return max(self.arithmetic_us, self.memory_us)


def distinct(model_names: Sequence[str], size: int, batch_size: int) -> list[Layer]:
    """Return the layers of some models, one of each shape, in the order in which they are met."""
    found: dict[Convolution, Layer] = {}
    for name in model_names:
        for layer in models.convolutions(name, size, batch_size):
            found.setdefault(layer.convolution(), layer)  # without bias and padding mode
    return list(found.values())


def calls_in_a_row(single_ms: float) -> int:
    """Return the number of calls in one graph that together take long enough to be timed."""
    return min(CALLS_MOST, round(LEAST_MS / max(single_ms, 1e-3)))


def call_us(stopwatch: Stopwatch, call: Callable[[], object]) -> float:
    """Return the median time of one call inside a replayed graph."""
    times = stopwatch.measure_calls(call, calls=calls_in_a_row, samples=REPLAYS, probes=PROBES)
    return statistics.median(times.all_ms) * 1e3


def operands(layer: Layer, device: torch.device, dtype: torch.dtype, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random input and filters of a layer, contiguous in a layout."""
    memory = backends.LAYOUTS[layout]
    x, weight = (torch.randn(size, device=device).to(dtype) for size in (layer.input, layer.weight))
    return x.contiguous(memory_format=memory), weight.contiguous(memory_format=memory)


def peak_tflops(gpu: gpus.Gpu, dtype: torch.dtype) -> float:
    """Return the peak that the arithmetic is held against: FMA units in float32, the matrix unit in 16 bits."""
    return gpu.fp32_tflops if dtype == torch.float32 else gpu.fp16_tflops


def measure(layer: Layer, device: torch.device, gpu: gpus.Gpu, dtype: torch.dtype, layout: str) -> Timed:
    """Time one layer with every algorithm that supports it, in a data type and a layout."""
    engine, stopwatch = cuda_operator(), Stopwatch(device)
    x, weight = operands(layer, device, dtype, layout)
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), None, *layer.options)
    times_us: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name in (*OURS, *CUDNN):
        if algorithms.why_not_by_rule(algorithms.find(name), layer, "cuda"):
            continue
        with backends.settings(provider="triton" if name in OURS else "cudnn", layout=layout):
            try:
                output = engine.convolve(x, weight, layer, name)
            except (NotSupportedError, NotImplementedError):
                continue
            errors[name] = relative_distance(output, expected) or 0.0
            times_us[name] = call_us(stopwatch, functools.partial(engine.convolve, x, weight, layer, name))
    engine.tuned.clear()
    engine.release()  # fills `tuned` with the blocks that were chosen
    chosen = {key.split()[0]: text for key, text in engine.tuned.items()}
    arithmetic_us = layer.flops / peak_tflops(gpu, dtype) / 1e6
    memory_us = layer.minimum_bytes(dtype.itemsize) / gpu.bandwidth_gbps / 1e3
    return Timed(layer, arithmetic_us, memory_us, times_us, errors, chosen)


def title(layer: Layer) -> str:
    """Return a layer in short: "64-128 3x3/2 56"."""
    kernel, stride = "x".join(map(str, layer.kernel)), layer.stride[0]
    options = (f"/{stride}" if stride > 1 else "", f" g{layer.groups}" if layer.groups > 1 else "")
    return f"{layer.in_channels}-{layer.out_channels} {kernel}{options[0]} {layer.in_height}{options[1]}"


def line(timed: Timed) -> tuple[str, ...]:
    """Return one row of the table: times in µs, then ours as multiples of the floor."""
    floor = f"{timed.floor_us:.1f}{'a' if timed.arithmetic_us >= timed.memory_us else 'm'}"
    times = [f"{timed.times_us[name]:.1f}" if name in timed.times_us else "-" for name in (*OURS, *CUDNN)]
    ratios = [f"{timed.times_us[name] / timed.floor_us:.1f}" if name in timed.times_us else "-" for name in OURS]
    return (title(timed.layer), floor, *times, *ratios, "; ".join(text.split(";")[0] for text in timed.chosen.values()))


def summary(every: Sequence[Timed], batch_size: int) -> list[str]:
    """Return the lines on the goals: geometric means of ratios of times, and the layers that miss."""
    lines = []
    for ours, theirs in COMPARED:
        pairs = [(timed, timed.times_us[ours] / timed.times_us[theirs]) for timed in every
                 if {ours, theirs} <= timed.times_us.keys()]  # fmt: skip
        if not pairs:
            continue
        mean = math.exp(statistics.fmean(math.log(ratio) for _, ratio in pairs))
        in_order = sorted(((ratio, title(timed.layer)) for timed, ratio in pairs), reverse=True)
        slower = sum(ratio > 1 for ratio, _ in in_order)
        worst = ", ".join(f"{name} {ratio:.2f}" for ratio, name in in_order[: max(1, min(slower, 8))])
        head = f"batch {batch_size}: {ours} takes {mean:.3f} of the time of {theirs} (geometric mean of {len(pairs)})"
        lines.append(f"{head}; slower in {slower}; slowest: {worst}")
    for ours in OURS:
        ratios = [timed.times_us[ours] / timed.floor_us for timed in every if ours in timed.times_us]
        worst_error = max((timed.errors[ours] for timed in every if ours in timed.errors), default=0.0)
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            floors = f"{ours} takes {mean:.2f} times the floor (at most {max(ratios):.1f})"
            lines.append(f"batch {batch_size}: {floors}; largest error {worst_error:.1e}")
    return lines


def record(timed: Timed) -> dict[str, object]:
    """Return one row of the CSV."""
    floors = {"arithmetic_us": timed.arithmetic_us, "memory_us": timed.memory_us}
    times = {f"{name.replace(' ', '_')}_us": timed.times_us.get(name) for name in (*OURS, *CUDNN)}
    errors = {f"{name}_error": timed.errors.get(name) for name in OURS}
    chosen = {f"{name}_blocks": timed.chosen.get(name) for name in OURS}
    return {"layer": title(timed.layer), "batch_size": timed.layer.batch, **floors, **times, **errors, **chosen}


def parsed() -> argparse.Namespace:
    """Return what the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", default=("vgg16", "resnet50", "densenet121"))
    options.add_argument("--batch-sizes", nargs="+", type=int, default=(1, 32))
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th layer")
    options.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of input, filters and output; sums are of float32"
    )
    options.add_argument("--layout", choices=tuple(backends.LAYOUTS), default="nchw")
    options.add_argument("--csv", type=Path)
    return options.parse_args()


def main() -> int:
    """Print the tables."""
    chosen = parsed()
    device, dtype = find_device("cuda", "kernels.py times a GPU"), DTYPES[chosen.dtype]
    name = torch.cuda.get_device_name(device)
    gpu = gpus.identify(name)
    if gpu is None:
        print(f"{name} has no peaks in convscope/gpus.py: no floors to compare with", file=sys.stderr)
        return 2
    unit = "FMA" if dtype == torch.float32 else "matrix unit"
    print(f"{name}, torch {torch.__version__}, cuDNN {library.version()}, {chosen.dtype} ({unit}), "
          f"{chosen.layout.upper()}, {chosen.size} px, us; floor: {peak_tflops(gpu, dtype):g} TFLOP/s (a), "
          f"{gpu.bandwidth_gbps:g} GB/s (m)")  # fmt: skip
    records: list[dict[str, object]] = []
    for batch_size in chosen.batch_sizes:
        with torch.inference_mode(), backends.math("fp32"):
            layers = distinct(chosen.models, chosen.size, batch_size)[:: chosen.every]
            every = [measure(layer, device, gpu, dtype, chosen.layout) for layer in layers]
        header = (f"batch {batch_size}", "floor", *OURS, "implicit", "gemm", "precomp", "nonfused", "direct/floor",
                  "winograd/floor", "blocks")  # fmt: skip
        print(table(header, [line(timed) for timed in every]))
        print("\n".join(summary(every, batch_size)), flush=True)
        records += [{"dtype": chosen.dtype, "layout": chosen.layout, **record(timed)} for timed in every]
    if chosen.csv:
        pd.DataFrame(records).to_csv(chosen.csv, index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
