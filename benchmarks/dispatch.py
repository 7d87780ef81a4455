#!/usr/bin/env python3
"""Cost of a convolution to the host: by PyTorch, through `ai3::conv2d`, by the plan itself. Prints, asserts nothing.

python benchmarks/dispatch.py [--model resnet50] [--algorithm "implicit precomp gemm"] [--math tf32] [--dtype float32]
    [--layout nchw] [--device cuda]

The algorithm must take every convolution of the model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from convscope.cli.display import table
from convscope.cli.options import MATHS, find_device
from convscope.convolution import algorithms, backends, models, swap
from convscope.convolution.providers.legacy import CudnnPlan
from convscope.convolution.sources.network import Network
from convscope.profiling.request import DTYPES
from convscope.storage.paths import precision
from convscope.timing.hooks import convolution_modules, hooked

CALLS = 20  # in a row, a few kernels each: less than the GPU's queue holds, so that the host never waits for it
PASSES, REPEATS, SIZE_PX = 100, 15, 224
ON_A_CPU = {"passes": 3, "repeats": 1, "size_px": 64}
CUDNN = "cudnnConvolutionForward"
WAYS = "PyTorch", "ai3's module, ai3::conv2d", "swapped module, its plan"


def wait(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def call_us(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the host's microseconds for a call, which does not wait for the GPU: the median of rows of `CALLS`."""
    call()
    rows_us = []
    for _ in range(repeats):
        wait(device)
        begun = perf_counter()
        for _ in range(CALLS):
            call()
        rows_us.append((perf_counter() - begun) / CALLS * 1e6)
    wait(device)
    return statistics.median(rows_us)


def pass_ms(step: Callable[[], object], device: torch.device, passes: int) -> tuple[float, float]:
    """Return milliseconds of an eager pass, medians: until the host has issued it, and until it has ended."""
    issued_ms, ended_ms = [], []
    for number in range(passes + passes // 10 + 1):
        wait(device)
        begun = perf_counter()
        step()
        issued = perf_counter()
        wait(device)
        if number > passes // 10:
            issued_ms.append((issued - begun) * 1e3)
            ended_ms.append((perf_counter() - begun) * 1e3)
    return statistics.median(issued_ms), statistics.median(ended_ms)


def by_ai3(module: nn.Module) -> nn.Module:
    """Return ai3's own module in place of a swapped one: it calls the operator `ai3::conv2d`."""
    assert isinstance(module, swap.Conv2d)
    own: nn.Module = SwappedConv2d(swap.original(module), module.algorithm, module.target)
    setattr(own, "padding_mode", module.padding_mode)  # noqa: B010 - a number, which PyTorch's types do not foresee
    return own


def inputs_of(model: nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the input of each convolution of a pass."""
    found: dict[str, torch.Tensor] = {}
    with hooked(model, before=lambda name, module, given: found.update({name: given.clone()})):
        model(images)
    return found


def parts(module: nn.Module, x: torch.Tensor) -> Mapping[str, Callable[[], object]]:
    """Return what a call of a swapped module on a GPU consists of, each part within the one before it."""
    assert isinstance(module, swap.Conv2d)
    module(x)
    found = module._direct._found
    plan = found and found.plan()
    if found is None or not isinstance(plan, CudnnPlan):
        return {}
    weight, bias = module.weight, module.bias
    y, handle, stream = plan.launch(x, weight, bias), plan._handles.mine(), torch.cuda.current_stream().cuda_stream
    scratch = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
    addresses = x.data_ptr(), weight.data_ptr(), y.data_ptr(), scratch.data_ptr()

    def take_workspace() -> None:
        address = torch._C._cuda_cudaCachingAllocator_raw_alloc(max(1, plan.workspace_bytes), stream)
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    def run() -> None:
        plan._call.run(handle, *addresses)
        assert scratch is not None

    costs: dict[str, Callable[[], object]] = {
        "call of the swapped module": lambda: module(x),
        "  its forward": partial(module.forward, x),
        "    check: nothing but the kernel": partial(swap._is_plain, x, weight, bias),
        "    check: the plan holds": partial(found.holds_for, x, weight, bias),
        "    launch of the plan": partial(plan.launch, x, weight, bias),
        "      an output": plan._output,
        "      a workspace": take_workspace,
        f"      {CUDNN}": run,
    }
    if bias is not None:
        costs["      the bias"] = lambda: y.add_(bias.view(1, -1, 1, 1))
    return costs


def cudnns(module: nn.Module, x: torch.Tensor) -> Callable[[], object] | None:
    """Return cuDNN's own part of a call of a swapped module, None where another library computes it."""
    return next((call for part, call in parts(module, x).items() if part.endswith(CUDNN)), None)


def read_command_line() -> argparse.Namespace:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="resnet50")
    options.add_argument("--algorithm", default=algorithms.FALLBACK)
    options.add_argument("--math", choices=MATHS, default="tf32")
    options.add_argument("--dtype", choices=DTYPES, default="float32")
    options.add_argument("--layout", choices=tuple(backends.LAYOUTS), default="nchw")
    options.add_argument("--device", default="cuda")
    return options.parse_args()


def cost_rows(
    model: nn.Module, images: torch.Tensor, algorithm: str, passes: int, repeats: int
) -> tuple[list[tuple[str, ...]], str, list[tuple[str, ...]]]:
    """Return the rows of the three ways, and of the parts of one layer's call with that layer's name."""
    device, rows = images.device, list[tuple[str, ...]]()
    given, swapping = inputs_of(model, images), swap.Swap(model)
    originals: dict[str, nn.Module] = dict(swapping.originals)
    swapping.apply(dict.fromkeys(originals, algorithm))
    swapped = {name: convolution_modules(model)[name] for name in originals}
    through_operator = {name: by_ai3(module) for name, module in swapped.items()}
    for way, modules in zip(WAYS, (originals, through_operator, swapped), strict=True):
        for name, module in modules.items():
            models.set_module(model, name, module)
        calls_us = [call_us(partial(module, given[name]), device, repeats) for name, module in modules.items()]
        issued_ms, ended_ms = pass_ms(partial(model, images), device, passes)
        ends = f"{min(calls_us):.1f} … {max(calls_us):.1f}"
        rows.append((f"{issued_ms:.2f}", f"{ended_ms:.2f}", f"{statistics.fmean(calls_us):.1f}", ends, way))
    if device.type == "cuda":
        calls_us = [
            call_us(cudnn, device, repeats) for name in swapped if (cudnn := cudnns(swapped[name], given[name]))
        ]
        ends = f"{min(calls_us):.1f} … {max(calls_us):.1f}"
        rows.append(("-", "-", f"{statistics.fmean(calls_us):.1f}", ends, f"{CUDNN} alone, {len(calls_us)} layers"))
    name = list(swapped)[len(swapped) // 2]
    within = parts(swapped[name], given[name]) if device.type == "cuda" else {}
    costs: list[tuple[str, ...]] = [(f"{call_us(call, device, repeats):.1f}", part) for part, call in within.items()]
    return rows, f"{name}, {originals[name]}", costs


def main() -> int:
    """Print the tables."""
    asked = read_command_line()
    device, algorithm = find_device(asked.device), algorithms.find(asked.algorithm).name
    passes, repeats, size_px, card = PASSES, REPEATS, SIZE_PX, "CPU"
    if device.type == "cpu":
        passes, repeats, size_px = ON_A_CPU["passes"], ON_A_CPU["repeats"], ON_A_CPU["size_px"]
        algorithm = algorithm if algorithms.ALGORITHMS[algorithm].cpu_provider else "direct"
        print("a CPU computes in the call, slowly: times are of that; the swapped module goes through ai3::conv2d too")
    else:
        torch.cuda.set_device(device)
        card = torch.cuda.get_device_name(device)
    network = Network(models.find_source(asked.model), dtype=asked.dtype, layout=asked.layout)
    with torch.inference_mode(), backends.math(asked.math), backends.settings(layout=asked.layout):
        model, (images,) = network.on(device), network.inputs(size_px, device)
        rows, layer, costs = cost_rows(model, images, algorithm, passes, repeats)
    settings = f"{asked.math}{precision(asked.dtype, asked.layout)}, batch 1, {size_px} px"
    print(f"{card}, torch {torch.__version__}, {asked.model}, {algorithm}, {settings}")
    print(table(("pass issued, ms", "pass, ms", "a call, µs", "least … most", "convolutions by"), rows))
    if costs:
        print(f"parts of a call: {layer}\n{table(('µs', 'part'), costs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
