#!/usr/bin/env python3
"""Compare inference engines by batch size: latency, images/s, memory, energy, set-up; also under a server's load."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from convscope.cli.parser import OneLineParser, as_program, report_error
from convscope.cli.signals import STOPPED, StopSignal

if TYPE_CHECKING:
    import torch

    from convscope.inference.request import Inference
    from convscope.inference.study import InferenceStudy


T = TypeVar("T")
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
ENGINES = ["eager", "graph", "fused", "compile", "compile-max", "aot", "onnxruntime", "tensorrt", "cudnn-best"]


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog="run_inference.py", description=__doc__)
    made.add_argument("--model", default="resnet50", metavar="NAME", help="resnet50, torchvision:NAME, timm:NAME")
    made.add_argument("--batch-sizes", type=_list_of(int), default=SIZES, metavar="N,N,…", help="of all GPUs together")
    made.add_argument("--engines", type=_list_of(str), default=ENGINES, metavar="NAME,…", help=",".join(ENGINES))
    made.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default float16, on a CPU float32")
    made.add_argument("--layout", choices=("nchw", "nhwc"), help="default nhwc (channels last), on a CPU nchw")
    made.add_argument("--math", choices=("tf32", "fp32"), help="of float32; default tf32 on a GPU, fp32 on a CPU")
    made.add_argument("--image-size", type=int, default=224, metavar="PX")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; with --gpus auto or cpu")
    made.add_argument("--gpus", type=int, default=1, metavar="N", help="one process a GPU, each a share of the batch")
    made.add_argument("--warmup", type=int, default=10, metavar="N", help="calls before the first that counts")
    made.add_argument("--measure", type=int, default=100, metavar="N", help="calls whose latency is taken")
    made.add_argument(
        "--min-seconds", type=float, default=1.0, metavar="S", help="of throughput; of each rate of a server"
    )
    made.add_argument("--pretrained", action="store_true", help="trained weights, downloaded")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--no-energy", action="store_true", help="leave the power sensors alone")
    made.add_argument("--scenario", help="batch (default), or MLPerf's single-stream, multi-stream, server, offline")
    made.add_argument(
        "--qps", type=_list_of(float), default=[], metavar="R,R,…", help="a server's rates; default: around the knee"
    )
    made.add_argument("--slo-ms", type=float, default=15.0, metavar="MS", help="limit of a server's p99, default 15")
    made.add_argument(
        "--max-delay-ms", type=float, default=0.0, metavar="MS", help="a request waits so long for others"
    )
    made.add_argument("--output-dir", metavar="DIR", help="default results/inference/<model>_<dtype>_<gpu>")
    made.add_argument("--overwrite", action="store_true", help="measure again what is there")
    return made


def _list_of(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    def read(text: str) -> list[T]:
        try:
            return [kind(part.strip()) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: say numbers with commas between, such as 1,8,64") from None

    return read


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a cell could not be measured though its engine is there, 2 for bad input, 70 where
    the GPU was lost, 74 where the folder cannot be written any more, 75 where TERM, INT or USR1 ended it before its
    last cell, 85 where USR2 did.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    from convscope.errors import StopError

    try:
        with StopSignal(name="run_inference.py") as stop:
            return _infer(options, arguments, stop)
    except StopError as error:
        return report_error("run_inference.py", error)


def _infer(options: argparse.Namespace, arguments: list[str], stop: StopSignal) -> int:
    import torch

    from convscope import distributed
    from convscope.cli.options import at_most, find_device
    from convscope.convolution.backends import environment_on
    from convscope.errors import InputError
    from convscope.inference.request import build_model
    from convscope.inference.rows import SCHEMA
    from convscope.inference.study import InferenceStudy
    from convscope.profiling.bench import Bench
    from convscope.storage import lock
    from convscope.storage.ledger import Ledger
    from convscope.storage.paths import RESULTS, slug
    from profiler import CUDALayerTimer, PowerMonitor

    place = distributed.from_environment()
    device = find_device(options.device)
    if options.gpus > 1 and device.type == "cuda":
        if ":" in options.device:
            raise InputError(f"--gpus {options.gpus} takes the first GPUs: leave --device {options.device} out")
        at_most("--gpus", options.gpus, torch.cuda.device_count())
        device = find_device(f"cuda:{place.local}")
    asked = _request(options, device)
    name = "_".join(map(slug, (asked.model, asked.dtype, asked.gpu)))
    ledger = Ledger(Path(options.output_dir or RESULTS / "inference" / name), SCHEMA)
    if asked.processes > 1 and place.world == 1:
        code = distributed.launch([sys.executable, __file__, *arguments], asked.processes, stop)
        return stop.exit_code if stop() else code
    silent = PowerMonitor(reason="it was not asked for")

    def monitor() -> PowerMonitor:
        return PowerMonitor.of_device(device) if asked.energy else silent

    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        if place.is_first:
            ledger.prepare()
            stack.enter_context(lock.Lock(ledger.path / lock.NAME))
            with monitor() as opened:
                ledger.begin(asked, environment_on(device, opened.settings()), sys.argv, options.overwrite)
        stack.enter_context(distributed.joined(place, device))
        study = InferenceStudy(
            inference=asked,
            model=build_model(asked),
            device=device,
            ranks=place,
            open_meter=monitor,
            make_bench=lambda run, model: Bench(run, model, device, CUDALayerTimer(model, device.type), silent, _note),
            ledger=ledger,
            stop=stop,
            note=_note if place.is_first else _say_nothing,
        )
        study.run()
    code = _report(study) if place.is_first else 0
    return (stop.exit_code if stop() else STOPPED) if study.stopped else code


def _request(options: argparse.Namespace, device: torch.device) -> Inference:
    from convscope.cli.options import folder_gpu, math_on
    from convscope.inference.request import BATCH, SERVER, Inference, check

    on_gpu = device.type == "cuda"
    return check(
        Inference(
            model=options.model,
            engines=tuple(dict.fromkeys(options.engines)),
            batch_sizes=tuple(dict.fromkeys(sorted(options.batch_sizes))),
            gpu=folder_gpu(None, device),
            device=str(device),
            processes=options.gpus,
            dtype=options.dtype or ("float16" if on_gpu else "float32"),
            layout=options.layout or ("nhwc" if on_gpu else "nchw"),
            math=math_on(device, options.math),
            image_size_px=options.image_size,
            pretrained=options.pretrained,
            seed=options.seed,
            warmup_iters=options.warmup,
            measure_iters=options.measure,
            min_seconds=options.min_seconds,
            energy=not options.no_energy,
            scenario=options.scenario or (SERVER if options.qps else BATCH),
            qps=tuple(dict.fromkeys(options.qps)),
            slo_ms=options.slo_ms,
            max_delay_ms=options.max_delay_ms,
        )
    )


def _report(study: InferenceStudy) -> int:
    """Print what the study has now, and draw it; return 1 where an engine that is there could not be measured."""
    from convscope.inference import report
    from convscope.inference.request import SERVER
    from convscope.inference.rows import TABLE

    ledger = study.ledger
    rows = ledger.read(TABLE)
    report.draw(rows, ledger.path, study.note)
    if (rows["scenario"] != SERVER).any():
        print(report.cells(rows))
    if (rows["scenario"] == SERVER).any():
        print(report.under_load(rows))
    beside = report.side_by_side(rows)
    if beside:
        ledger.save_text("table.md", beside)
        print(f"\n{beside}\n")
    print(f"results: {ledger.path}")
    return int(study.failed)


def _say_nothing(line: str) -> None:
    """Leave it to the first process to tell."""


def _note(line: str) -> None:
    print(f"run_inference.py: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(as_program(main))
