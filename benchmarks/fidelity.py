#!/usr/bin/env python3
"""Fidelity of a layer's `mean_ms` against CUPTI of another process, and of a pass beside one that never saw CUPTI.

The truth for a layer is its span, from the start of its first kernel to the end of its last, in replays of a captured
graph; traced by a process that no figure of the profile comes from, with its own model, in other placements. Layers in
which the driver sets or copies memory are counted apart: traced, that takes some microseconds more than it does
untraced, so that CUPTI is no truth for them. Prints, asserts nothing. On a GPU where CUPTI may be used:

    python benchmarks/fidelity.py [--models resnet50,torchvision:mobilenet_v2] [--size 224] [--as-tables]

With --as-tables each model's convolutions are measured as a table (`layers.csv`), one behind the other without a
network, as data sets are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import MATHS, find_device
from convscope.convolution import backends, models, swap
from convscope.convolution.operator import release
from convscope.dataset.collect.coverage import Group, Stratum
from convscope.dataset.collect.uses import uses_of
from convscope.profiling.bench import Bench
from convscope.profiling.measurement import Measurement
from convscope.profiling.request import Run, make_run
from convscope.profiling.tracing import TraceProcess
from convscope.timing import placement
from convscope.timing.graphs import SETTLING_S
from convscope.timing.layer_times import SPAN_METHOD
from convscope.timing.stopwatch import Stopwatch
from convscope.timing.summary import summarize_placed
from convscope.timing.trace import LayerTrace
from profiler import CUDALayerTimer, PowerMonitor

MODELS = (
    *models.MODELS, "torchvision:regnet_y_400mf", "torchvision:mobilenet_v2", "torchvision:shufflenet_v2_x1_0",
    "torchvision:convnext_tiny",
)  # fmt: skip
ALGORITHMS = ("torch", "implicit precomp gemm")
SAMPLES = 20
OTHER_PLACEMENTS = range(101, 106)


def request(model: str, algorithm: str, math: str, size: int) -> Run:
    """Return the request of `run_profile.py` for one model, algorithm and size, or for a table, which has its own."""
    sizes = None if model.endswith(".csv") else (size, size)
    return make_run(
        model, algorithm, num_sizes=1, input_size_range=sizes, device="cuda", math=math, energy=False,
        measure_iters=SAMPLES,
    )  # fmt: skip


def as_table(model: str, size: int, folder: Path) -> str:
    """Write the different convolutions of a model as a table; return its path."""
    uses = {use.key: use for _, use in uses_of(model, size)}
    path = folder / f"{model.removeprefix('torchvision:')}.csv"
    path.write_text(Group.of(Stratum("fp32", 1), [*uses.values()], energy=False).table())
    return str(path)


def measure(
    run: Run, model: nn.Module, device: torch.device, tracer: TraceProcess, other: TraceProcess
) -> tuple[Measurement, Measurement, list[LayerTrace]]:
    """Measure as `run_profile.py` does, then by events alone, then trace in another process and in other placements."""
    size = run.input_sizes[0]
    layers = models.convolutions(run.model, size, run.batch_size)
    algorithms = {layer.name: run.algorithm for layer in layers}
    with torch.inference_mode(), backends.math(run.math):
        bench = Bench(run, model, device, CUDALayerTimer(model, device.type), PowerMonitor(), print, tracer)
        swapped = swap.Swap(model)
        bench.calibrate(size)
        swapped.apply(algorithms)
        found = bench.measure(size, layers, check_errors=False, algorithms=algorithms)
        alone = Bench(run, model, device, CUDALayerTimer(model, device.type), PowerMonitor(), print)
        alone.reference = bench.reference
        by_events = alone.measure(size, layers, check_errors=False)
        bench.release()
        swapped.restore()
    truth, reason = other.trace(size, algorithms)
    if reason:
        raise SystemExit(f"{run.model}: {reason}")
    return found, by_events, truth


def passes_alone(names: list[str], size: int, device: torch.device) -> dict[str, float]:
    """Time PyTorch's own passes in this process, which traces nothing; return the means in ms by model and math."""
    stopwatch, found = Stopwatch(device), dict[str, float]()
    for name in names:
        for math in MATHS:
            with torch.inference_mode(), backends.math(math):
                model = models.build(name).to(device)
                inputs, times_ms = (models.images(1, size, 0).to(device),), list[list[float]]()
                for index in range(placement.PLACEMENTS):
                    with placement.moved(model, inputs, index) as there:
                        step = partial(model, *there)
                        times_ms.append(stopwatch.measure(step, samples=SAMPLES, settle_s=SETTLING_S).all_ms)
                    release(device)
            found[f"{name} {math}"] = summarize_placed(times_ms).mean_ms
    return found


def row(run: Run, found: Measurement, truth: list[LayerTrace], alone_ms: float | None) -> tuple[str, ...]:
    """Return one line of the table; `alone_ms` is the pass in a process without CUPTI."""
    compared = [
        (times, method, summarize_placed(traced.spans_ms))
        for times, method, traced in zip(found.layers, found.layer_methods, truth, strict=True)
        if traced.spans_ms and not traced.sets_or_copies_memory
    ]
    errors_pct = np.array([100 * abs(times.mean_ms / true.mean_ms - 1) for times, _, true in compared])
    inside = [
        abs(times.mean_ms - true.mean_ms) <= np.hypot(times.ci95_ms or 0.0, true.ci95_ms or 0.0)
        for times, _, true in compared
    ]
    passes = found.passes
    return (
        Path(run.model.removeprefix("torchvision:")).stem,
        run.math,
        f"{len(compared)} of {len(truth)}",
        str(sum(method == SPAN_METHOD for _, method, _ in compared)),
        f"{np.median(errors_pct):.2f}",
        f"{np.percentile(errors_pct, 95):.1f}",
        f"{100 * np.mean(inside):.0f}",
        f"{found.overhead_us:.2f}",
        f"{passes.mean_ms:.4f}",
        f"{100 * (passes.ci95_ms or 0.0) / passes.mean_ms:.2f}",
        f"{100 * (passes.mean_ms / alone_ms - 1):+.2f}" if alone_ms else "-",
        run.algorithm,
    )


def kind(traced: LayerTrace) -> str:
    """Return the kind of work that a layer launches, as far as it matters to its times."""
    if traced.sets_or_copies_memory:
        return "kernels, and memory that the driver sets"
    if traced.overlaps:
        return "kernels on several streams"
    return "one kernel" if sum(traced.kernels.values()) == 1 else "kernels in a row"


def differences_us(by_events: Measurement, truth: list[LayerTrace]) -> list[tuple[str, float]]:
    """Return the kind of each layer, and its time by events less its span in µs."""
    return [
        (kind(traced), 1e3 * (times.mean_ms - traced.span_ms))
        for times, traced in zip(by_events.layers, truth, strict=True)
        if traced.span_ms is not None
    ]


def measured(
    names: list[str], size: int, alone: Mapping[str, float], device: torch.device
) -> tuple[list[tuple[str, ...]], list[tuple[str, float]]]:
    """Measure models or tables in each math mode; return the lines of the table, and the differences of all layers."""
    rows, differences = list[tuple[str, ...]](), list[tuple[str, float]]()
    with TraceProcess() as tracer, TraceProcess() as other:
        for name, math in itertools.product(names, MATHS):
            requests = [request(name, algorithm, math, size) for algorithm in ALGORITHMS]
            tracer.begin(requests[0])
            other.begin(requests[0], placements=OTHER_PLACEMENTS)
            for process in (tracer, other):
                process.wait_until_ready()
            with torch.inference_mode():
                model = models.build(name).to(device)
            for run in requests:
                found, by_events, truth = measure(run, model, device, tracer, other)
                rows.append(row(run, found, truth, alone.get(f"{name} {math}")))
                differences += differences_us(by_events, truth)
                print(*rows[-1], file=sys.stderr)
    return rows, differences


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--as-tables", action="store_true", help="the convolutions alone, as data sets have them")
    options.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    names, device = asked.models.split(","), find_device("cuda", "fidelity.py times a GPU")
    if asked.alone:
        print(json.dumps(passes_alone(names, asked.size, device)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if asked.as_tables:
            names, alone = [as_table(name, asked.size, Path(folder)) for name in names], dict[str, float]()
        else:
            command = [sys.executable, __file__, "--alone", "--models", asked.models, "--size", str(asked.size)]
            alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows, differences = measured(names, asked.size, alone, device)
    header = (
        "model", "math", "layers", "by span", "median %", "95th %", "covered %", "pair µs", "pass ms", "± %",
        "vs alone %", "algorithm",
    )  # fmt: skip
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, batch 1, {asked.size} px")
    print(table(header, rows))
    print(
        "layers: compared, of all; the others set or copy memory, or were not matched. by span: so many of them go by"
    )
    print("the span, the others by events. covered: differences inside the two intervals. vs alone: against PyTorch's")
    print(f"pass in a process without CUPTI. {placement.PLACEMENTS} placements of everything")
    print("\nevents less span, µs, by what a layer launches")
    print(table(("launched", "layers", "median", "5 %", "95 %"), list(_by_kind(differences))))
    return 0


def _by_kind(differences: list[tuple[str, float]]) -> Iterator[tuple[str, ...]]:
    for name in sorted({name for name, _ in differences}):
        values = [value for each, value in differences if each == name]
        yield name, str(len(values)), *(f"{np.percentile(values, share):+.2f}" for share in (50, 5, 95))


if __name__ == "__main__":
    sys.exit(main())
