"""Catalogue of inference engines by name: each builds a `runners.Runner` from a workload.

Every engine but eager and graph-unfolded gets the model with its batch normalisation folded (`convolution.fusion`),
all but eager and cudnn-best PyTorch's search among all of cuDNN's plans on a GPU (`torch.backends.cudnn.benchmark`);
the graphs keep cuDNN's heuristic where that is faster (`variants`). cudnn-best races plans itself (`atlas.tuning`).
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from convscope.atlas import tuning
from convscope.atlas.offered import FIRST_PLANS
from convscope.convolution import algorithms, backends, models, operator, swap
from convscope.convolution.fusion import branches, graphs
from convscope.convolution.layer import Layer
from convscope.errors import DeviceFaultError, MissingError, NotSupportedError
from convscope.inference.engines import compilers, exported, variants
from convscope.inference.engines.eight_bits import layers as eight_bits
from convscope.inference.engines.fused import first, joined, own, rows, steps, tails
from convscope.inference.engines.runners import LocalRunner
from convscope.inference.engines.variants import Variant
from convscope.inference.engines.workload import BuildCost, Engine, Workload
from convscope.profiling.request import Run
from convscope.verification.candidates import HEURISTIC

EIGHT_BITS_FROM = (9, 0)  # compute capability
RANGED_IMAGES = 32  # that the ranges of 8-bit numbers are taken from


def eager(workload: Workload) -> Engine:
    """Build the baseline: the model called from Python, nothing folded."""
    model, given = workload.placed(copy.deepcopy(workload.model)), workload.input()

    def step() -> torch.Tensor:
        with torch.inference_mode():
            output: torch.Tensor = model(given)
            return output

    return workload.local(step, given), BuildCost()


def graph(workload: Workload) -> Engine:
    """Build a CUDA graph of the same operators."""
    workload.needs_gpu("graph")
    folded, remark = workload.folded()

    def build(variant: Variant) -> LocalRunner:
        return _captured(workload, copy.deepcopy(folded))

    return _fastest(workload, build, variants.GRAPH_STEPS, remark)


def graph_unfolded(workload: Workload) -> Engine:
    """Build a CUDA graph of the same operators, batch normalisation among them."""
    workload.needs_gpu("graph-unfolded")

    def build(variant: Variant) -> LocalRunner:
        return _captured(workload, copy.deepcopy(workload.model))

    return _fastest(workload, build, variants.GRAPH_STEPS, "nothing folded")


def fused(workload: Workload) -> Engine:
    """Build a CUDA graph in which convolution, bias, addition and ReLU are one call of cuDNN, or of a kernel here."""
    workload.needs_gpu("fused")
    folded, remark = workload.folded()
    choices: own.Choices = {}  # what is chosen for the variant that is timed is what is kept
    count, chosen = 0, ""

    def build(variant: Variant) -> LocalRunner:
        nonlocal count, chosen
        if variant.own and not choices:
            workload.note(f"fused, batch {len(workload.given)}: {own.SLOW}")
        make = partial(steps.step_of, channels=variant.channels, products=variant.products)
        model, count = graphs.fused(copy.deepcopy(folded), make)
        for name, change in _changes(choices).items():
            if getattr(variant, name) and not change(model):
                raise NotSupportedError(f"{variant}: there is nothing in this model for it")
        runner = _captured(workload, model)
        chosen = ", ".join(filter(None, (own.count(model), joined.count(model))))
        return runner

    without = set(variants.IN_16_BITS) if workload.dtype not in own.DTYPES else set()
    without |= set(variants.CHANNELS_LAST) if workload.layout != "nhwc" else set()
    try:
        runner, cost = _fastest(
            workload, build, [step for step in variants.FUSED_STEPS if not without & {*step}], remark
        )
    except Exception:
        own.close(choices.values())
        raise
    assert isinstance(runner, LocalRunner)
    runner.when_closed(lambda: own.close(choices.values()))
    variant = (cost.remark or "").removeprefix(remark)
    remark = f"{remark}, {count} convolutions fused with their ReLU{variant}"
    return runner, dataclasses.replace(cost, remark=f"{remark}; {chosen}" if chosen else remark)


def _changes(choices: own.Choices) -> Mapping[str, Callable[[nn.Module], object]]:
    """Return the changes to a fused trace by the name in `Variant`, in order; each says whether it found anything."""
    return {
        "pools": steps.with_maxima, "rows": rows.with_rows, "tails": lambda model: any(tails.with_tails(model)),
        "heads": steps.with_heads, "first": first.with_first, "pooled": first.with_pooled_first,
        "own": partial(own.with_chosen, choices=choices), "joined": partial(joined.with_joined, choices=choices),
        "branches": branches.with_branches,
    }  # fmt: skip


def fused_int8(workload: Workload) -> Engine:
    """Build the engine `fused` with its convolutions of many channels on 8-bit integers."""
    workload.needs_gpu("fused-int8")
    capability = torch.cuda.get_device_capability(workload.device)
    if workload.dtype not in own.DTYPES or workload.layout != "nhwc" or capability < EIGHT_BITS_FROM:
        needs = "--dtype float16 or bfloat16, --layout nhwc, and a card of compute capability 9.0 or later"
        raise NotSupportedError(f"fused-int8 needs {needs}")
    folded, remark = workload.folded()
    workload.note(f"fused-int8, batch {len(workload.given)}: {eight_bits.SLOW}")
    images = workload.as_input(workload.more(RANGED_IMAGES))
    count = every = 0

    def build(variant: Variant) -> LocalRunner:
        nonlocal count, every
        model, _ = graphs.fused(copy.deepcopy(folded), steps.step_of)
        for name, change in _changes({}).items():
            if getattr(variant, name) and not change(model):
                raise NotSupportedError(f"{variant}: there is nothing in this model for it")
        model = workload.placed(model)
        count, every = eight_bits.with_eight_bits(model, images)
        if not count:
            raise NotSupportedError("fused-int8: no convolution has a multiple of 32 channels and one of 64 filters")
        given = workload.input()
        return workload.local(lambda: model(given), given, captured=True)

    runner, cost = _fastest(workload, build, variants.EIGHT_BIT_STEPS, remark)
    found = f"{count} of {every} convolutions in 8 bits, ranges of {len(images)} images"
    return runner, dataclasses.replace(cost, remark=f"{cost.remark}; {found}")


def _captured(workload: Workload, model: nn.Module) -> LocalRunner:
    model, given = workload.placed(model), workload.input()
    return workload.local(lambda: model(given), given, captured=True)


def _fastest(
    workload: Workload, build: Callable[[Variant], LocalRunner], steps: Sequence[Mapping[str, int]], remark: str
) -> Engine:
    started_s = time.perf_counter()
    runner, variant, times_ms = variants.fastest(build, workload.device, steps)
    compile_s = time.perf_counter() - started_s
    raced = ", the next ".join(f"{time_ms:.3g} ms" for time_ms in times_ms[:2])
    return runner, BuildCost(compile_s=compile_s, remark=f"{remark}; best of {len(times_ms)}: {variant} ({raced})")


def cudnn_best(workload: Workload) -> Engine:
    """Build a CUDA graph with the fastest for each layer of cuDNN's plans and PyTorch's own convolution.

    PyTorch runs cuDNN's heuristic here, in the race and in the graph: its search would pick among the same plans by one
    launch of each.
    """
    workload.needs_gpu("cudnn-best")
    model, remark = workload.folded()
    layers = models.followed(workload.name, model, workload.given.shape)
    model, given = workload.placed(model), workload.input()
    started_s = time.perf_counter()
    with backends.settings(layout=workload.layout), backends.searching(False):
        best = _fastest_of_each(workload, model, given, layers)
        compile_s = time.perf_counter() - started_s
        swap.Swap(model).apply(best)
        runner = workload.local(lambda: model(given), given, captured=True)
    for plan in operator.hand_over(workload.device):  # the next engine's race must not close what this graph runs
        runner.when_closed(plan.close)
    chosen = ", ".join(f"{count} {name}" for name, count in Counter(best.values()).most_common())
    return runner, BuildCost(compile_s=compile_s, remark=f"{remark}; {chosen}")


def _fastest_of_each(
    workload: Workload, model: nn.Module, given: torch.Tensor, layers: Sequence[Layer]
) -> dict[str, str]:
    """Return the fastest plan of each layer among the first of each heuristic, "torch" for those left to PyTorch.

    Raises:
        DeviceFaultError: a plan has lost the GPU; a note names it, for the error that ends the study may not.
    """
    size_px = workload.given.shape[-1]
    run = Run(
        model=workload.name, algorithm=algorithms.AUTOTUNE, stage="1_sanity", gpu="cuda", input_sizes=(size_px,),
        device=str(workload.device), batch_size=workload.given.shape[0], math=workload.math, dtype=workload.dtype,
        layout=workload.layout, energy=False,
    )  # fmt: skip
    bench = workload.make_bench(run, model)
    bench.calibrate(size_px)
    try:
        found = tuning.raced(run, model, (given,), layers, bench, workload.note, FIRST_PLANS, with_pytorch=True)
    except DeviceFaultError as fault:
        workload.note(f"cudnn-best: {fault}; --engines without it measures the others")
        raise
    return dict.fromkeys((layer.name for layer in layers), HEURISTIC) | dict(found.algorithms)


@dataclass(frozen=True)
class Recipe:
    """Recipe of an engine: the function that builds it, the packages it needs, and the command that installs them.

    `rounds` is the type that its convolutions round to, "" for the data type of the workload.
    """

    make: Callable[[Workload], Engine]
    needs: tuple[str, ...] = ()
    install: str = ""
    rounds: str = ""


ENGINES = {
    "eager": Recipe(eager),
    "graph": Recipe(graph),
    "graph-unfolded": Recipe(graph_unfolded),
    "fused": Recipe(fused),
    "fused-int8": Recipe(fused_int8, rounds="int8"),
    "compile": Recipe(compilers.compiled),
    "compile-graph": Recipe(compilers.compiled_graph),
    "compile-overhead": Recipe(compilers.compiled_overhead),
    "compile-max": Recipe(compilers.compiled_most),
    "aot": Recipe(compilers.aot),
    "aot-graph": Recipe(compilers.aot_graph),
    "onnxruntime": Recipe(
        exported.onnxruntime,
        ("onnx", "onnxscript", "onnxruntime"),
        "pip install 'convscope[inference]' (on a GPU onnxruntime-gpu in onnxruntime's place)",
    ),
    "tensorrt": Recipe(exported.tensorrt, ("onnx", "onnxscript", "tensorrt"), "pip install tensorrt onnx onnxscript"),
    "cudnn-best": Recipe(cudnn_best),
}
BASELINE = "eager"


def make(name: str, workload: Workload) -> Engine:
    """Build an engine by its name.

    Raises:
        MissingError: something that it needs is not installed; the message says how to get it.
    """
    recipe = ENGINES[name]
    missing = [package for package in recipe.needs if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingError(f"{name} needs {' and '.join(missing)}, not installed: {recipe.install}")
    held_bytes = torch.cuda.memory_allocated(workload.device) if workload.on_gpu else 0
    runner, cost = recipe.make(workload)
    if isinstance(runner, LocalRunner) and runner.held_before_bytes is None:
        runner.held_before_bytes = held_bytes
    return runner, cost
