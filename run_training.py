#!/usr/bin/env python3
"""Train CNNs and say where the time of a step goes: data, forward, backward, optimizer; throughput, memory, energy."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.options import whole_numbers
from convscope.cli.parser import OneLineParser, as_program, command, note_by, say_nothing
from convscope.cli.signals import STOPPED, StopSignal
from convscope.convolution.names import KINDS, with_arguments

if TYPE_CHECKING:
    import torch

    from convscope.training.request import Training
    from convscope.training.study import TrainingStudy


SUMMARIES_PRINTED = 2  # of more cells the matrix says enough, and summary.txt the rest

NAME = "run_training.py"


def parser() -> OneLineParser:
    """Return the command line."""
    examples = (
        "--model resnet18 --dataset digits --device cpu",
        "--model resnet50 --stem imagenet --dataset synthetic --input-size 224 --batch-sizes 16,32",
    )
    made = OneLineParser(prog=NAME, description=__doc__, examples=examples)
    _add_data(made)
    _add_optimizer(made)
    _add_settings(made)
    _add_results(made)
    return made


def _add_data(made: OneLineParser) -> None:
    made.add_argument("--model", nargs="+", default=["resnet18"], metavar="NAME",
                      help=f"resnet18, resnet34, resnet50; {KINDS}; several make a matrix")  # fmt: skip
    made.add_model_args()
    images = "images to train on (default digits); synthetic: one batch of noise on the device"
    made.add_argument("--dataset", choices=("digits", "cifar10", "synthetic"), default="digits", help=images)
    made.add_argument("--data-dir", default="data", metavar="DIR", help="where cifar-10-batches-py is")
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument("--batch-size", type=int, default=32, help="of each process, default 32")
    sizes.add_argument("--batch-sizes", type=whole_numbers, metavar="N,N,…", help="a sweep: 16,32,64,128,256")
    made.add_argument("--epochs", type=int, default=5, metavar="N", help="passes over the training images (default 5)")
    made.add_argument("--max-steps", type=int, metavar="N", help="stop after N steps")
    skipped = "first steps, left out of means (default 10); half of them all where all epochs have no more"
    made.add_argument("--skip-steps", type=int, default=10, metavar="N", help=skipped)


def _add_optimizer(made: OneLineParser) -> None:
    rate = "learning rate of SGD (default 0.01); falls to 0 along a cosine"
    made.add_argument("--learning-rate", type=float, default=0.01, metavar="X", help=rate)
    made.add_argument("--momentum", type=float, default=0.9, metavar="X", help="momentum of SGD (default 0.9)")
    decay = "weight decay of SGD (default 0.0005)"
    made.add_argument("--weight-decay", type=float, default=5e-4, metavar="X", help=decay)
    made.add_argument("--fused-optimizer", action="store_true", help="all parameters are updated by one kernel")
    made.add_argument("--num-workers", type=int, default=0, metavar="N", help="processes that load images (default 0)")
    classes = "classes of the model (default 10); another number needs --dataset synthetic"
    made.add_argument("--num-classes", type=int, default=10, metavar="N", help=classes)
    made.add_argument("--input-size", "--image-size", dest="image_size", type=int, default=32, metavar="PX",
                      help="side of the images in pixels, default 32")  # fmt: skip


def _add_settings(made: OneLineParser) -> None:
    stem = "how a ResNet begins (default cifar)"
    made.add_argument("--stem", choices=("cifar", "imagenet"), default="cifar", help=stem)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; torchrun: auto or cpu")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16 by autocast")
    made.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="nhwc is channels last")
    made.add_argument("--math", choices=("tf32", "fp32"), help="default tf32 on a GPU, fp32 on a CPU")
    made.add_argument("--cudnn-benchmark", action="store_true", help="PyTorch takes the fastest of cuDNN's plans")
    made.add_argument("--algorithm", default="torch", help="for the convolutions' forward pass; gradients by PyTorch")
    made.add_argument("--compile", action="store_true", help="torch.compile")
    made.add_argument("--capture", action="store_true", help="each step is a CUDA graph; with --fused-optimizer")
    seed = "seed of weights, image order and synthetic images (default 42)"
    made.add_argument("--seed", type=int, default=42, metavar="N", help=seed)
    made.add_argument("--deterministic", action="store_true", help="the same losses each time")


def _add_results(made: OneLineParser) -> None:
    made.add_argument("--no-energy", action="store_true", help="measure no power and no energy")
    made.add_argument("--enable-pytorch-profiler", action="store_true", help="trace three steps after the timing")
    made.add_argument("--profile-memory", action="store_true", help="with --enable-pytorch-profiler: record memory too")
    made.add_argument("--profile-dir", metavar="DIR", help="traces and curves, default <results>/profiles")
    folder = "default results/training/<dataset>_<algorithm>_<gpu>_<other settings>"
    made.add_argument("--output-dir", metavar="DIR", help=folder)
    made.add_argument("--overwrite", action="store_true", help="measure again; earlier results are kept")
    any_card = "resume a folder that another card of the same name began"
    made.add_argument("--any-card", action="store_true", help=any_card)
    made.add_take_over()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a cell could not be trained, 2 for bad input, 70 where the GPU was lost, 74 where
    the folder cannot be written any more, 75 where TERM, INT or USR1 ended it before its last cell, 85 where USR2 did.
    """
    made = parser()
    options = made.parse_args(arguments)
    if options.dataset != "cifar10":
        made.refuse_ignored(arguments, ("data_dir",), f"--dataset {options.dataset}")
    return command(NAME, lambda stop: _train(options, stop))


def _train(options: argparse.Namespace, stop: StopSignal) -> int:
    import torch

    from convscope import distributed
    from convscope.cli.options import find_device
    from convscope.convolution.backends import environment_on
    from convscope.storage.paths import RESULTS, now_utc
    from convscope.storage.store import Store
    from convscope.training import datasets
    from convscope.training.request import folder_name
    from convscope.training.rows import SCHEMA
    from convscope.training.study import TrainingStudy, cells_of
    from profiler import PowerMonitor

    place = distributed.from_environment()
    device = find_device(options.device)
    if place.world > 1 and device.type == "cuda":
        device = find_device(f"cuda:{place.local}")
    request = _request(options, device, place.world)
    images = datasets.load(request.dataset, Path(options.data_dir), request.image_size_px)
    note = note_by(NAME) if place.is_first else say_nothing
    folder = Path(options.output_dir or RESULTS / "training" / folder_name(request))
    store = Store(folder, SCHEMA, note=note, take_over=options.take_over)
    profiles = Path(options.profile_dir or store.path / "profiles")
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        silent = PowerMonitor(reason="it was not asked for")
        monitor = stack.enter_context(PowerMonitor.of_device(device) if request.energy else silent)
        if place.is_first:
            stack.enter_context(store)
            with PowerMonitor.of_device(device) as card:  # its settings, whether its energy is read or not
                environment = environment_on(device, card.settings())
            cells = list(cells_of(request))
            missing = store.missing(request, environment, cells, options.overwrite, any_card=options.any_card)
            if missing or request.profiler:
                _check_writable(profiles)
            if missing:
                store.begin(request, environment, sys.argv)
        stack.enter_context(distributed.joined(place, device))
        study = TrainingStudy(request, images, device, place, monitor, store, profiles, stop, note)
        study.run()
        if place.is_first and not study.stopped:
            store.note_in_run(ended_utc=now_utc())
    code = _report(study) if place.is_first else int(study.broken)
    return (stop.exit_code if stop() else STOPPED) if study.stopped else code


def _check_writable(folder: Path) -> None:
    """Make the folder of traces and curves before anything is trained, and prove that files can be written there."""
    from convscope.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a path that no file system can have is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--profile-dir: cannot write to {folder} ({why}): choose another folder") from None


def _request(options: argparse.Namespace, device: torch.device, processes: int) -> Training:
    from convscope.cli.options import folder_gpu, math_on
    from convscope.storage.table import fill
    from convscope.training.request import Training, check

    return check(fill(
        Training, options,
        models=tuple(with_arguments(each, options.model_args) for each in dict.fromkeys(options.model)),
        batch_sizes=tuple(dict.fromkeys(options.batch_sizes or [options.batch_size])), gpu=folder_gpu(None, device),
        device=str(device), processes=processes, compiled=options.compile, captured=options.capture,
        image_size_px=options.image_size, classes=options.num_classes, skipped_steps=options.skip_steps,
        workers=options.num_workers, math=math_on(device, options.math), profiler=options.enable_pytorch_profiler,
        energy=not options.no_energy,
    ))  # fmt: skip


def _report(study: TrainingStudy) -> int:
    """Print what the study has now, draw it, and save the summaries; return 1 where a cell could not be trained."""
    import torch

    from convscope.training import report
    from convscope.training.study import cells_of

    store, on_gpu = study.store, study.device.type == "cuda"
    tables = {name: store.read(name) for name in ("training", "operators", "memory")}
    memory_bytes = torch.cuda.get_device_properties(study.device).total_memory if on_gpu else None
    summaries = report.summaries(tables["training"], tables["operators"], memory_bytes)
    store.save_text("summary.txt", "\n\n".join(summaries.values()))
    report.draw(tables["training"], tables["memory"], store.path, study.note)
    keys = cells_of(study.training)
    asked = [summaries[key] for key in keys if key in summaries]
    for text in asked if len(asked) <= SUMMARIES_PRINTED else []:
        print(text + "\n")
    print(report.matrix(tables["training"]))
    print(f"results: {store.path}")
    return 0 if keys.keys() <= summaries.keys() else 1


if __name__ == "__main__":
    sys.exit(as_program(main))
