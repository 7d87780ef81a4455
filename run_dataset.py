#!/usr/bin/env python3
"""Collect a data set: convolutions of many models at many sizes, each by every algorithm and plan, as samples."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.options import device_here, find_device, folder_gpu
from convscope.cli.parser import OneLineParser, as_program, command, note_by
from convscope.errors import CONTINUE
from convscope.storage.paths import RESULTS

if TYPE_CHECKING:
    import torch

    from convscope.cli.signals import StopSignal
    from convscope.dataset.collect.request import Collection
    from convscope.dataset.collect.uses import Use

NAME = "run_dataset.py"


def parser() -> OneLineParser:
    """Return the command line."""
    examples = "--list", "--models resnet50 vgg16 --sizes 224 --budget-minutes 60"
    made = OneLineParser(prog=NAME, description=__doc__, examples=examples)
    _add_shapes(made)
    _add_measuring(made)
    _add_choice(made)
    made.add_argument(
        "--list", action="store_true", help="print how much is measured and how much is left; needs no GPU"
    )
    made.add_argument("--json", action="store_true", help="with --list: print JSON, for programs")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--seed", type=int, default=0, help="of the order in which models and sizes come")
    folder = "default results/dataset/<gpu>, with --part results/dataset/<gpu>_part<I>of<N>"
    made.add_argument("--output-dir", metavar="DIR", help=folder)
    made.add_take_over()
    return made


def _add_shapes(made: OneLineParser) -> None:
    """Add how long to measure, and which models, sizes and settings."""
    from convscope.dataset.collect.request import FAMILIES, SETTINGS, SIZES

    count = sum(map(len, FAMILIES.values()))
    budget = "begin no group that would end after N minutes, but for those that are begun together at first"
    made.add_argument("--budget-minutes", type=float, metavar="N", help=budget)
    models = f"default {count} models of {len(FAMILIES)} kinds"
    made.add_argument("--models", nargs="+", metavar="NAME", help=models)
    sizes = f"of square images; default {len(SIZES)} from {SIZES[0]} to {SIZES[-1]}"
    made.add_argument("--sizes", nargs="+", type=int, metavar="PX", help=sizes)
    made.add_argument("--batch-sizes", nargs="+", type=int, metavar="N", help="default 1 8 32")
    made.add_argument("--settings", nargs="+", metavar="NAME", help=f"default {' '.join(SETTINGS)}; on a CPU fp32")


def _add_measuring(made: OneLineParser) -> None:
    """Add what is measured of a shape, and how."""
    made.add_argument("--first", type=int, default=4, metavar="N", help="plans of each heuristic, default 4")
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="placements in memory, default 5")
    energy = "measure the energy of every Nth group, of six shapes; default 8 on a GPU, 0 is none"
    made.add_argument("--energy-every", type=int, metavar="N", help=energy)
    made.add_argument("--group-shapes", type=int, metavar="N", help="shapes that are measured together at most")
    processes = "groups under way at once, one of them timed; default 1 for each 16 GiB of a GPU, at most 4"
    made.add_argument("--processes", type=int, metavar="N", help=processes)


def _add_choice(made: OneLineParser) -> None:
    """Add which shapes are measured beside those of models, or in place of them."""
    from convscope.dataset.collect import drawn

    number = "N convolutions that no model has, drawn over the range of networks'; no models then but those of --models"
    made.add_argument("--drawn", type=int, default=0, metavar="N", help=number)
    others = (
        f"{drawn.UNEVEN}, grouped ones of a multiple of eight channels that is no power of two",
        f"{drawn.NARROW}, grouped ones of at most {drawn.NARROW_MOST} channels",
        f"{drawn.IMAGE}, of three channels",
        f"{drawn.PATCHES}, whose stride is their kernel",
        f"{drawn.LARGE}, of at least {drawn.LARGE_LEAST // 10**6} million multiplications for an image, without groups",
        f"{drawn.SQUEEZE}, of one pixel",
    )
    kinds = f"kinds that --drawn takes, default {' '.join(drawn.DEFAULT_KINDS)}; others: {'; '.join(others)}"
    made.add_argument("--drawn-kinds", nargs="+", metavar="KIND", help=kinds)
    part = "measure part I of N of the shapes, 1/1: several GPUs take one part each, each into its own folder"
    made.add_argument("--part", type=_part, default="1/1", metavar="I/N", help=part)
    known = (
        "samples of this device, a published set or another collection: what this version timed is not measured again"
    )
    made.add_argument("--known", nargs="+", type=Path, default=[], metavar="FILE", help=known)
    renewed = "measure again what earlier versions timed in these samples of this device; no models and no sizes then"
    made.add_argument("--renew", nargs="+", type=Path, default=[], metavar="FILE", help=renewed)


def _part(text: str) -> tuple[int, int]:
    """Read "2/4"; whether there is such a part is the request's to say."""
    try:
        number, count = text.split("/")
        return int(number), int(count)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, as in 1/2") from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a group of shapes could not be measured, 2 for bad input, 75 where TERM, INT or
    USR1 ended it before its end, 85 where USR2 did.
    """
    made = parser()
    options = made.parse_args(arguments)
    if options.json and not options.list:
        made.error("--json goes with --list")
    return command(NAME, lambda stop: _collect(options, stop))


def _collect(options: argparse.Namespace, stop: StopSignal) -> int:
    from convscope.dataset.collect.known import outdated, shapes
    from convscope.dataset.collect.study import SAMPLES, CollectStudy, standing

    _check(options)
    minutes = options.budget_minutes
    device, note = (device_here if options.list else find_device)(options.device), note_by(NAME)
    gpu_uuid, memory_bytes = _card(None if options.list else device)
    gpu_name = None if device is None else _name(device)
    renewed = outdated(options.renew, gpu_name) if options.renew else []
    asked = _request(options, "cuda" if device is None else str(device), memory_bytes, renewed)
    if options.renew and not renewed:
        note(f"earlier versions alone timed no shape of {' '.join(map(str, options.renew))}: there is nothing to renew")
    else:
        _check_shapes(asked, note)
    known = shapes(options.known, gpu_name) if options.known else set()
    if options.output_dir:
        folder = Path(options.output_dir)
    elif device:
        (number, count), gpu = asked.part, folder_gpu(None, device)
        folder = RESULTS / "dataset" / (gpu if count == 1 else f"{gpu}_part{number}of{count}")
    else:
        print(standing(asked, known, options.json))
        note("no GPU is here: --output-dir names the folder whose samples are counted")
        return 0
    study = CollectStudy(asked, folder, stop, note, gpu_uuid, None if minutes is None else 60 * minutes, known)
    study.check()
    code = 0 if options.list else study.run(options.take_over)
    print(standing(asked, study.done(), options.json))
    if (folder / SAMPLES).exists() and not options.list:
        print(f"saved: {folder / SAMPLES}")
    if stop():
        note(f"stopped by {stop.said}: what was measured is in {folder}; {CONTINUE}")
        return stop.exit_code
    return code


def _check(options: argparse.Namespace) -> None:
    """Check what the request itself does not."""
    from convscope.errors import InputError

    minutes = options.budget_minutes
    if options.drawn_kinds and not options.drawn:
        raise InputError("--drawn-kinds goes with --drawn N: say how many")
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"--budget-minutes {minutes}: say how many minutes, above 0")
    for flag in ("--models", "--sizes", "--drawn"):
        if options.renew and getattr(options, flag.removeprefix("--")):
            raise InputError(f"{flag} does not go with --renew: the shapes are those of its samples, leave {flag} out")


def _check_shapes(asked: Collection, note: Callable[[str], None]) -> None:
    """Note each model of which nothing is measured; InputError where nothing is left to measure."""
    from convscope.dataset.collect import coverage
    from convscope.errors import InputError

    if asked.renewed:
        if not any(coverage.shapes_of(asked, stratum) for stratum in coverage.strata(asked)):
            flags = "--batch-sizes, --settings and --part"
            raise InputError(f"{flags}: no shape to renew is of these, leave one of them out")
        return
    sizes, empty = " ".join(map(str, asked.sizes)), coverage.without_shapes(asked)
    reason = f"no convolution to measure at --sizes {sizes}: name sizes that the model takes"
    if len(empty) == len(asked.models) and not asked.drawn:
        raise InputError(f"{', '.join(empty)}: {reason}")
    for model in empty:
        note(f"{model}: {reason}")


def _name(device: torch.device) -> str:
    """Return the name of a device, as samples have it."""
    if device.type == "cpu":
        from convscope.storage.environment import processor_name

        return processor_name()
    import torch

    return torch.cuda.get_device_properties(device).name


def _card(device: torch.device | None) -> tuple[str | None, int | None]:
    """Return the UUID and the memory of a GPU; nothing of another device."""
    if device is None or device.type == "cpu":
        return None, None
    import torch

    from convscope import gpus

    properties = torch.cuda.get_device_properties(device)
    return gpus.uuid(properties.name, properties.uuid), properties.total_memory


def _request(
    options: argparse.Namespace, device: str, memory_bytes: int | None, renewed: Sequence[tuple[str, Use]] = ()
) -> Collection:
    from convscope.dataset.collect import drawn, request

    kind = device.partition(":")[0]
    every = [] if options.drawn or options.renew else [name for models in request.FAMILIES.values() for name in models]
    models = options.models or every
    settings = options.settings or (request.ON_CPU if kind == "cpu" else request.SETTINGS)
    batch_sizes = options.batch_sizes or sorted({use.batch_size for _, use in renewed}) or request.BATCHES
    few, shapes, count = options.energy_every, options.group_shapes, options.processes
    return request.Collection(
        device=device, models=tuple(models), sizes=tuple(options.sizes or request.SIZES),
        batch_sizes=tuple(batch_sizes), settings=tuple(settings),
        first=options.first, rounds=options.rounds, seed=options.seed,
        energy_every=request.ENERGY_EVERY[kind] if few is None else few,
        group_shapes=request.GROUP_SHAPES[kind] if shapes is None else shapes,
        group_bytes=request.GROUP_BYTES[kind], part=options.part, drawn=options.drawn, renewed=tuple(renewed),
        drawn_kinds=tuple(options.drawn_kinds or drawn.DEFAULT_KINDS),
        processes=request.processes_for(kind, memory_bytes) if count is None else count,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(as_program(main))
