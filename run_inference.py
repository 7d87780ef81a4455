#!/usr/bin/env python3
"""Compare inference engines by batch size: latency, images/s, memory, energy, set-up; also under a server's load."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from convscope.cli.options import whole_numbers
from convscope.cli.parser import OneLineParser, as_program, command, note_by, say_nothing
from convscope.cli.programs import again
from convscope.cli.signals import STOPPED, StopSignal
from convscope.convolution.names import KINDS, MODELS, with_arguments

if TYPE_CHECKING:
    import torch
    from torch import nn

    from convscope.distributed import Ranks
    from convscope.inference.request import Inference
    from convscope.inference.study import InferenceStudy
    from convscope.profiling.request import Run
    from convscope.storage.store import Store


T = TypeVar("T")
NAME = "run_inference.py"
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
ENGINES = [
    *("eager", "graph", "graph-unfolded", "fused", "fused-int8", "compile", "compile-graph", "compile-overhead"),
    *("compile-max", "aot", "aot-graph", "onnxruntime", "tensorrt", "cudnn-best"),
]


def parser() -> OneLineParser:
    """Return the command line."""
    examples = "--model resnet50 --batch-sizes 1,8,64", "--model resnet50 --scenario server --qps 500,1000 --slo-ms 15"
    made = OneLineParser(prog=NAME, description=__doc__, examples=examples)
    add = made.add_argument
    add("--model", default="resnet50", metavar="NAME", help=f"{', '.join(MODELS)}; {KINDS}")
    made.add_model_args()
    add(
        "--batch-sizes",
        type=whole_numbers,
        default=SIZES,
        metavar="N,N,…",
        help="images per batch, on all GPUs together",
    )
    add("--engines", type=_list_of(str), metavar="NAME,…", help=",".join(ENGINES))
    add("--dtype", choices=("float32", "float16", "bfloat16"), help="default float16, on a CPU float32")
    add("--layout", choices=("nchw", "nhwc"), help="default nhwc (channels last), on a CPU nchw")
    add("--math", choices=("tf32", "fp32"), help="of float32; default tf32 on a GPU, fp32 on a CPU")
    add(
        "--input-size", "--image-size", dest="image_size", type=int, default=224, metavar="PX", help="side, default 224"
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N; with --gpus auto or cpu")
    add("--gpus", type=int, default=1, metavar="N", help="one process a GPU, each a share of the batch")
    add("--warmup", type=int, default=10, metavar="N", help="calls before the first that counts")
    add("--measure", type=int, default=100, metavar="N", help="calls whose latency is taken, of the scenario batch")
    add(
        "--min-seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="least time of a throughput, and of a run of MLPerf's",
    )
    add("--pretrained", action="store_true", help="trained weights, downloaded")
    add("--weights", default="", metavar="FILE", help="trained weights: a state dict that torch.save wrote")
    add("--images", default="", metavar="DIR", help="photographs for trained weights; default: two of scikit-learn")
    add("--seed", type=int, default=0, metavar="N", help="seed of weights, images and request times (default 0)")
    add("--no-energy", action="store_true", help="measure no power and no energy")
    add("--scenario", help="batch (default), or MLPerf's single-stream, multi-stream, server, offline")
    add(
        "--qps",
        type=_list_of(float),
        default=[],
        metavar="R,R,…",
        help="requests per second of the scenario server; default: around the highest rate that meets --slo-ms",
    )
    add("--slo-ms", type=float, default=15.0, metavar="MS", help="limit of a server's p99, default 15")
    add("--max-delay-ms", type=float, default=0.0, metavar="MS", help="longest wait of a request for others")
    add("--seeds", type=int, default=3, metavar="N", help="runs of MLPerf's scenarios, each with another seed")
    add("--resident", action="store_true", help="MLPerf's scenarios: images lie on the device, nothing is copied")
    add("--with-copies", action="store_true", help="scenario batch: a call copies from and to host memory")
    add("--keep", action="store_true", help="keep compiled files (.pt2, .onnx, .plan), with a program that runs them")
    add("--output-dir", metavar="DIR", help="default results/inference/<model>_<dtype>_<gpu>")
    add("--overwrite", action="store_true", help="measure again; earlier results are kept")
    add("--any-card", action="store_true", help="resume a folder that another card of the same name began")
    made.add_take_over()
    return made


def _list_of(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def read(text: str) -> list[T]:
        try:
            found = [kind(part.strip()) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: say numbers with commas between, such as 500,1000") from None
        if twice := next((each for each in found if found.count(each) > 1), None):
            raise argparse.ArgumentTypeError(f"{text!r} has {twice} twice: say each once")
        return found

    return read


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a cell could not be measured though its engine is there, or an engine of --engines
    could not be measured at all, 2 for bad input, 70 where the GPU was lost, 74 where the folder cannot be written any
    more, 75 where TERM, INT or USR1 ended it before its last cell, 85 where USR2 did.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    made = parser()
    options = made.parse_args(arguments)
    scenario = options.scenario or ("server" if options.qps else "batch")
    if scenario != "server":
        made.refuse_ignored(arguments, ("slo_ms", "max_delay_ms"), f"--scenario {scenario}")
    made.refuse_ignored(arguments, ("seeds",) if scenario == "batch" else ("measure",), f"--scenario {scenario}")
    if scenario in ("single-stream", "multi-stream"):
        made.refuse_ignored(arguments, ("batch_sizes",), f"--scenario {scenario}")
    return command(NAME, lambda stop: _infer(options, arguments, stop))


def _infer(options: argparse.Namespace, arguments: list[str], stop: StopSignal) -> int:
    import torch

    from convscope import distributed
    from convscope.inference.request import build_model
    from convscope.inference.rows import SCHEMA
    from convscope.inference.study import InferenceStudy
    from convscope.profiling.bench import Bench
    from convscope.storage.paths import RESULTS, slug
    from convscope.storage.store import Store
    from profiler import CUDALayerTimer, PowerMonitor

    place = distributed.from_environment()
    device = _device(options, place)
    request = _request(options, device)
    if request.processes > 1 and place.world == 1:
        code = distributed.launch([*again(NAME, __file__), *arguments], request.processes, stop)
        return stop.exit_code if stop() else code
    silent = PowerMonitor(reason="it was not asked for")

    def monitor() -> PowerMonitor:
        return PowerMonitor.of_device(device) if request.energy else silent

    def bench(run: Run, model: nn.Module) -> Bench:
        return Bench(run, model, device, CUDALayerTimer(model, device.type), silent, note)

    note, begun = note_by(NAME) if place.is_first else say_nothing, False
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        name = "_".join(map(slug, (request.model, request.dtype, request.gpu)))
        store = Store(
            Path(options.output_dir or RESULTS / "inference" / name), SCHEMA, note=note, take_over=options.take_over
        )
        if place.is_first:
            stack.enter_context(store)
            with monitor() as opened:
                begun = _begin(store, request, options, device, opened.settings())
        stack.enter_context(distributed.joined(place, device))
        model = build_model(request)
        study = InferenceStudy(request, model, device, place, monitor, bench, store, stop, note)
        study.run()
    if begun and not study.measured:
        note("nothing was measured this time: rows with figures are of earlier commands")
    code = _report(study, named=options.engines is not None) if place.is_first else 0
    return (stop.exit_code if stop() else STOPPED) if study.stopped else code


def _begin(
    store: Store, request: Inference, options: argparse.Namespace, device: torch.device, card: Mapping[str, object]
) -> bool:
    """Begin a run in a folder unless it has every cell of the request already; tell whether it was begun."""
    from convscope.convolution.backends import environment_on
    from convscope.inference.cells import cells_of, covers
    from convscope.inference.rows import is_current

    environment = environment_on(device, card)
    missing = store.missing(
        request,
        environment,
        cells_of(request),
        options.overwrite,
        covers=lambda key: covers(request, key),
        counts=lambda row: row["status"] == "ok" and is_current(row),
        any_card=options.any_card,
    )
    begun = bool(missing) or request.scenario == "server"
    if begun:
        store.begin(request, environment, sys.argv)
    return begun


def _device(options: argparse.Namespace, place: Ranks) -> torch.device:
    import torch

    from convscope.cli.options import at_most, find_device
    from convscope.errors import InputError

    device = find_device(options.device)
    if options.gpus <= 1 or device.type == "cpu":
        return device
    if ":" in options.device:
        raise InputError(f"--gpus {options.gpus} takes the first GPUs: leave --device {options.device} out")
    at_most("--gpus", options.gpus, torch.cuda.device_count())
    return find_device(f"cuda:{place.local}")


def _request(options: argparse.Namespace, device: torch.device) -> Inference:
    from convscope.cli.options import folder_gpu, math_on
    from convscope.inference.request import BATCH, Inference, check
    from convscope.inference.serving.mlperf import SERVER

    on_gpu = device.type == "cuda"
    return check(Inference(
        model=with_arguments(options.model, options.model_args),
        engines=tuple(dict.fromkeys(options.engines or ENGINES)),
        batch_sizes=tuple(dict.fromkeys(sorted(options.batch_sizes))), gpu=folder_gpu(None, device),
        device=str(device), processes=options.gpus, dtype=options.dtype or ("float16" if on_gpu else "float32"),
        layout=options.layout or ("nhwc" if on_gpu else "nchw"), math=math_on(device, options.math),
        image_size_px=options.image_size, pretrained=options.pretrained, weights=options.weights,
        images=options.images, seed=options.seed,
        warmup_iters=options.warmup, measure_iters=options.measure, min_seconds=options.min_seconds,
        energy=not options.no_energy, scenario=options.scenario or (SERVER if options.qps else BATCH),
        qps=tuple(dict.fromkeys(options.qps)), slo_ms=options.slo_ms, max_delay_ms=options.max_delay_ms,
        seeds=options.seeds, resident=options.resident, with_copies=options.with_copies,
        keep=options.keep,
    ))  # fmt: skip


def _report(study: InferenceStudy, named: bool) -> int:
    """Print what the folder has of the request, and draw all of it.

    Returns 1 where an engine that is there could not be measured, or none of the cells of a `named` one.
    """
    from convscope.inference import report
    from convscope.inference.cells import is_asked
    from convscope.inference.rows import TABLE
    from convscope.inference.serving.mlperf import SERVER

    store, request = study.store, study.inference
    every = store.read(TABLE)
    keys = map(store.schema.part_of(TABLE).key_of_row, store.objects(TABLE)[TABLE])
    rows = every[[is_asked(request, key) for key in keys]]
    report.draw(every, store.path, study.note)
    if (rows["scenario"] != SERVER).any():
        print(report.cells(rows, every))
    if several := report.scaling(rows):
        print(f"\n{several}")
    if (rows["scenario"] == SERVER).any():
        print(report.under_load(rows))
    if beside := report.side_by_side(every):
        store.save_text("table.md", beside)
    if beside := report.side_by_side(rows, every):
        print(f"\n{beside}\n")
    print(f"results: {store.path}")
    absent = set(request.engines) - set(rows[rows["status"] == "ok"]["engine"])
    return int(study.failed or (named and bool(absent)))


if __name__ == "__main__":
    sys.exit(as_program(main))
