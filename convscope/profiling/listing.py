"""Lists of `run_profile.py`: combinations for `--matrix`, algorithms, the machine's GPUs and their power sensors."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

import torch

from convscope import gpus
from convscope.cli import driver, programs
from convscope.cli.display import table
from convscope.cli.options import at_least, device_here, find_device, gpu_count
from convscope.convolution import algorithms, assignment, backends, models
from convscope.convolution.algorithms import Algorithm
from convscope.convolution.layer import Layer
from convscope.convolution.names import with_arguments
from convscope.convolution.operator import card_check
from convscope.convolution.sources.source import Size, Source
from convscope.cudnn import library
from convscope.errors import CudnnError, InputError, SensorError
from convscope.power import nvml, sensor_test
from convscope.profiling import report
from convscope.profiling.request import RANGE_PX, parse_shape
from convscope.storage import paths
from convscope.storage.paths import RESULTS, slug
from convscope.timing import graphs


def combination_list(
    model_names: Sequence[str] | None,
    algorithm_names: Sequence[str] | None,
    gpu: str | None,
    input_range: tuple[int, int],
    unsupported: str = "error",
    dtype: str = "float32",
    layout: str = "nchw",
    batch_size: int = 1,
    sizes_by: str = "",
) -> str:
    """Return a line for each combination: model, algorithm and, where one is named, GPU, separated by tabs.

    Batch, data type and layout follow as settings where they are not 1, float32 and nchw.

    A combination against the rules is a comment with the reason. No GPU is used: cuDNN may refuse more than its rules.

    Args:
        gpu: the GPU's name; "cpu" lists what a CPU runs, None leaves the column out.
        input_range: smallest and largest size in pixels, both of which must be possible; a model that takes one size
            alone is asked about that.
        unsupported: "error" rules out an algorithm that one layer cannot use, else only one that no layer can use.
        sizes_by: option that named the range, "" where it is a default.

    Raises:
        InputError: an unknown model or algorithm, or a batch of nothing.
    """
    chosen = [algorithms.find(name) for name in algorithm_names or algorithms.ALGORITHMS]
    at_least("--batch-size", batch_size, 1)
    named = (("batch_size", batch_size, 1), ("dtype", dtype, "float32"), ("layout", layout, "nchw"))
    settings = [f"{name}={value}" for name, value, usual in named if value != usual]
    lines = []
    for source in map(models.find_source, model_names or models.MODELS):
        name, (layers, other_size) = source.name, _layers(source, input_range, sizes_by)
        for algorithm in chosen:
            device_type = "cpu" if gpu == "cpu" else "cuda"
            why = other_size or _why_not(algorithm, layers, device_type, unsupported, (dtype, layout))
            fields = filter(None, (name, algorithm.name, gpu, *settings))
            lines.append(f"# {name} {algorithm.name}: {why}" if why else "\t".join(fields))
    return "\n".join(lines) + "\n"


def _layers(source: Source, input_range: tuple[int, int], sizes_by: str) -> tuple[list[Layer], str | None]:
    """Return the layers of a model at both ends of a range, and why it does not take them, None where it does."""
    sizes = sorted(set(input_range))
    try:
        source.refuse_other_sizes(sizes, sizes_by)
    except InputError as refused:
        return [], str(refused)
    asked = sizes if source.fixed_px is None else [source.fixed_px]
    return [layer for size in asked for layer in models.layers_of(source, size)], None


def _why_not(
    algorithm: Algorithm, layers: Sequence[Layer], device_type: str, unsupported: str, precision: tuple[str, str]
) -> str | None:
    if nowhere := algorithms.why_not_on_device(algorithm, device_type):
        return nowhere
    if algorithm.name == algorithms.PLANNED:
        return f"a document of plans is for {programs.called('run_profile')} --algorithm-file"
    reasons = assignment.why_not_each(algorithm, layers, device_type, None, *precision)
    ruled_out = any(reasons) if unsupported == "error" else all(reasons)
    return next(filter(None, reasons)) if ruled_out else None


def algorithm_list(
    model: str | None,
    batch_size: int,
    input_size: Size,
    device_name: str,
    dtype: str = "float32",
    layout: str = "nchw",
    as_json: bool = False,
    sizes_by: str = "",
) -> str:
    """Return the algorithms with their providers; for a model, how many of its convolutions can use each, and why not.

    On a GPU that is here cuDNN decides, without one its rules, and the text says so.

    Args:
        as_json: a list of objects, one a line of the text, in place of the text.
        sizes_by: option that named the size, "" where it is a default.

    Raises:
        InputError: there is no such model, the model does not take the size, or the name is none of a device.
    """
    if model is None:
        every = [(a.name, a.cpu_provider, a.cuda_providers, a.title) for a in _named()]
        every.append(
            (algorithms.PLAN_PATTERN, None, (algorithms.GRAPH,), "an engine of cuDNN with values of its knobs")
        )
        if as_json:
            return _objects(("algorithm", "cpu", "gpu", "title"), every)
        cells = [(name, cpu or "-", ", ".join(gpu) or "-", title) for name, cpu, gpu, title in every]
        return table(("algorithm", "CPU", "GPU", "what it is"), cells)
    at_least("--batch-size", batch_size, 1)
    device = device_here(device_name) or torch.device("cpu")
    source = models.find_source(model)
    source.refuse_other_sizes([input_size], sizes_by)
    name, size = source.name, input_size if source.fixed_px is None else source.fixed_px
    layers = models.layers_of(source, size, batch_size)
    rows = _usable(name, layers, device, dtype, layout)
    if as_json:
        return _objects(("algorithm", "on", "usable_layers", "layers", "why_not"), rows)
    where = f"on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "by rule, no GPU here to ask"
    extent = size if isinstance(size, int) else "×".join(map(str, size))
    title = f"{slug(name)} at {extent} px, batch {batch_size}{paths.precision(dtype, layout)} ({where})"
    lines = [(algorithm, on, f"{usable} of {every}", why or "") for algorithm, on, usable, every, why in rows]
    return title + "\n" + table(("algorithm", "on", "layers", "why not"), lines)


def _usable(
    name: str, layers: Sequence[Layer], device: torch.device, dtype: str, layout: str
) -> list[tuple[str, str, int, int, str | None]]:
    """Return algorithm, kind of device, layers that can use it, all layers, and why the others cannot."""
    check = card_check(device, dtype=dtype)
    rows = []
    for kind in ("cpu", "cuda"):
        for algorithm in _named():
            if kind == "cpu" and algorithm.cpu_provider is None:
                continue
            with backends.settings(layout=layout):
                every_reason = assignment.why_not_each(algorithm, layers, kind, check, dtype, layout)
            usable = sum(reason is None for reason in every_reason)
            no_device = algorithms.why_not_on_device(algorithm, kind)
            why = no_device or "; ".join(algorithms.refusals(every_reason, slug(name))) or None
            rows.append((algorithm.name, "GPU" if kind == "cuda" else "CPU", usable, len(layers), why))
    return rows


def _objects(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=1)


def _named() -> list[Algorithm]:
    tuned = algorithms.MIXTURES[algorithms.AUTOTUNE]
    return [*algorithms.ALGORITHMS.values(), *algorithms.HEURISTICS.values(), tuned]


def cuda_report() -> tuple[str, bool]:
    """Return the versions and GPUs of this machine as text, and whether it has a GPU and cuDNN."""
    lines = [f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"]
    try:
        lines.append(f"cuDNN {library.version()} (loaded through ctypes)")
    except CudnnError as error:
        lines.append(f"cuDNN: {error}")
        return "\n".join(lines), False
    count = gpu_count()
    if not count:
        why = driver.why_too_old(torch.version.cuda) or "no CUDA device"
        lines.append(f"{why}: direct, smm and torch can be measured here, on the CPU")
    for index in range(count):
        name = torch.cuda.get_device_name(index)
        lines.append(f"cuda:{index} {name} (--gpu {gpus.label(name)}){_peaks(name)}")
    return "\n".join(lines), count > 0


def _peaks(device_name: str) -> str:
    gpu = gpus.identify(device_name)
    if gpu is None:
        return ""
    tf32 = f"{gpu.tf32_tflops:g} TFLOP/s tf32, " if gpu.tf32_tflops else ""
    return f": {gpu.fp32_tflops:g} TFLOP/s fp32, {tf32}{gpu.bandwidth_gbps:g} GB/s by {gpu.source}"


def power_check(device_name: str) -> str:
    """Test the power sensors of a GPU, save what was found under `results/`, and return it as text.

    Raises:
        InputError: there is no GPU here, or its sensors cannot be read.
    """
    needs = "--check-power tests a GPU's sensors"
    device = find_device(device_name, needs)
    if device.type == "cpu":
        raise InputError(f"{needs}: there is none here, or --device names the CPU")
    properties = torch.cuda.get_device_properties(device)
    name = properties.name
    try:
        card = nvml.NvmlCard(gpus.uuid(name, properties.uuid))
    except SensorError as error:
        raise InputError(f"--check-power: {error}") from None
    with contextlib.closing(card), torch.cuda.device(device):
        if card.reason:
            raise InputError(f"--check-power: {card.reason}")
        found = sensor_test.check(card, graphs.full_load(), name)
    path = RESULTS / f"sensor_{gpus.label(name)}.json"
    report.save(found, path)
    return f"{report.sensor_report(found)}\nsaved: {path}"


def print_lists(options: argparse.Namespace) -> int:
    """Print the lists, but that of models, that the options of `run_profile.py` ask for.

    Return 1 where there is no usable GPU, else 0.
    """
    sizes = sorted(options.input_sizes or options.input_range or RANGE_PX)
    if options.list_algorithms:
        size = parse_shape(options.input_shape) if options.input_shape else sizes[0]
        model = options.model and with_arguments(options.model, options.model_args)
        precision = (options.dtype, options.layout)
        given = (model, options.batch_size, size, options.device, *precision, options.json, _sizes_by(options))
        print(algorithm_list(*given))
    if options.check_power:
        print(power_check(options.device))
    if options.list_combinations:
        gpu = "cpu" if options.device == "cpu" else options.gpu
        chosen = (options.models, options.algorithms, gpu, (sizes[0], sizes[-1]), options.unsupported)
        print(combination_list(*chosen, options.dtype, options.layout, options.batch_size, _sizes_by(options)), end="")
    if options.check_cuda:
        text, usable = cuda_report()
        print(text)
        return 0 if usable else 1
    return 0


def _sizes_by(options: argparse.Namespace) -> str:
    """Return the option that named the input sizes, "" where none did."""
    by = {"input_shape": "--input-shape", "input_sizes": "--input-size", "input_range": "--input-range"}
    return next((option for name, option in by.items() if getattr(options, name)), "")
