#!/usr/bin/env python3
"""Profile one CNN with one convolution algorithm at many input sizes: time, power and energy, model and layers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from convscope.cli.parser import OneLineParser, as_program, command, note_by
from convscope.cli.signals import GRACE_S, STOPPED, StopSignal
from convscope.storage.paths import SIZES_BY_STAGE, STAGES

if TYPE_CHECKING:
    from convscope.profiling.request import Run

NAME = "run_profile.py"
STAGE_FLAGS = dict(zip(("test", "quick"), STAGES, strict=False))


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog=NAME, description=__doc__)
    made.add_argument("--model", help="vgg16, densenet121, resnet152, googlenet, alexnet, resnet50, torchvision:NAME")
    made.add_argument("--algorithm", help="a name that --list-algorithms prints, with spaces or underscores")
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument("--test", action="store_true", help="1 input size")
    sizes.add_argument("--quick", action="store_true", help="10 input sizes")
    sizes.add_argument("--num-sizes", type=int, metavar="N", help="N input sizes (default 100)")
    made.add_argument("--input-range", type=int, nargs=2, default=(224, 512), metavar=("MIN", "MAX"), help="pixels")
    made.add_argument("--batch-size", type=int, default=1)
    made.add_argument(
        "--warmup", dest="warmup_iters", type=int, default=10, metavar="N", help="passes before measuring"
    )
    made.add_argument("--measure", dest="measure_iters", type=int, default=20, metavar="N", help="measured passes")
    made.add_argument("--output-dir", metavar="DIR", help="default results/<stage>/<model>_<algorithm>_<gpu>")
    made.add_argument("--overwrite", action="store_true", help="measure again; what is there is kept")
    made.add_argument("--retry", action="store_true", help="measure sizes again that failed or ran out of memory")
    any_card = "go on with a folder that another card of the same name began"
    made.add_argument("--any-card", action="store_true", help=any_card)
    made.add_take_over()
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--gpu", metavar="NAME", help="the GPU's name in the folder; checked against the card")
    made.add_argument("--math", choices=("tf32", "fp32"), help="default tf32 on a GPU, fp32 on a CPU")
    made.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error")
    made.add_argument("--max-workspace", metavar="BYTES", help="rule out larger workspaces: 512MB, 2GiB (GPU only)")
    made.add_argument("--provider", choices=("cudnn", "triton"), help="for direct, winograd; default cudnn if it can")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--no-energy", dest="energy", action="store_false", help="leave the energy window out (a second a size)"
    )
    load = "seconds of load before the window"
    made.add_argument("--energy-warmup", dest="energy_warmup_s", type=float, default=0.2, metavar="S", help=load)
    made.add_argument("--energy-precision", type=float, default=0.01, metavar="P", help="uncertainty over energy")
    longest = "longest window, seconds"
    made.add_argument("--energy-budget", dest="energy_budget_s", type=float, default=5.0, metavar="S", help=longest)
    made.add_argument("--layer-energy", action="store_true", help="energy of each layer, replayed alone")
    made.add_argument("--check-power", action="store_true", help="test the power sensors (30 s)")
    made.add_argument("--list-models", action="store_true")
    made.add_argument("--list-algorithms", action="store_true", help="with --model: how many layers can use each")
    made.add_argument("--list-combinations", action="store_true", help="what ./3_full_run.sh --matrix FILE reads")
    made.add_argument("--models", nargs="+", metavar="NAME", help="for --list-combinations; default the six")
    made.add_argument("--algorithms", nargs="+", metavar="NAME", help="for --list-combinations; default all")
    made.add_argument("--check-cuda", action="store_true", help="say what is here to measure with")
    made.add_argument("--check-stages", metavar="STAGE,…", help=argparse.SUPPRESS)  # convscope/profiling/preflight.py
    made.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # with it: they are to run here
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0, 1 where a size failed, 2 for bad input, 70 where the GPU was lost, 74 where the folder can
    not be written any more, 75 where TERM, INT, HUP or USR1 ended it before its last size, 85 where USR2 or the end of
    its job did.
    """
    made = parser()
    options = made.parse_args(arguments)
    if options.check_stages:
        return command(NAME, lambda stop: _check_stages(made, arguments, options), 0)
    lists = options.list_models, options.list_algorithms, options.list_combinations
    asks_to_list = any(lists) or options.check_cuda or options.check_power
    if not asks_to_list and not (options.model and options.algorithm):
        made.error("say --model NAME and --algorithm NAME (--list-models and --list-algorithms print them)")
    if not asks_to_list:
        made.refuse_ignored(arguments, ("models", "algorithms", "here"), "a profile")
        _refuse_without_energy(made, arguments, options)
    grace_s = 0 if asks_to_list else GRACE_S
    return command(NAME, lambda stop: _list(options) if asks_to_list else _profile(options, stop), grace_s)


def _refuse_without_energy(made: OneLineParser, arguments: Sequence[str] | None, options: argparse.Namespace) -> None:
    if not options.energy:
        made.refuse_ignored(arguments, ("energy_warmup", "energy_precision", "energy_budget"), "--no-energy")


def _profile(options: argparse.Namespace, stop: StopSignal) -> int:
    from convscope.convolution import algorithms, names

    names.check_model(options.model)  # before PyTorch is imported, which takes seconds
    algorithms.find(options.algorithm)
    from convscope.profiling.report import results_table, work_line
    from convscope.profiling.rows import profile_store
    from profiler import UnifiedProfiler

    log = None if sys.stdout.isatty() else lambda line: print(line, flush=True)
    profiler = UnifiedProfiler.of(_request(options), stop, note_by(NAME), log)
    overall, layers = profiler.run(
        options.output_dir,
        overwrite=options.overwrite,
        retry=options.retry,
        any_card=options.any_card,
        take_over=options.take_over,
    )
    print(results_table(overall, layers))
    folder = options.output_dir or profiler.folder
    if line := work_line(profile_store(folder, profiler.request.stem).read("work")):
        print(line)
    print(f"results: {folder}")
    if profiler.stopped:
        code, why = (stop.exit_code, f"by {stop.said}") if stop() else (STOPPED, "before the job ends")
        line = f"{NAME}: stopped {why} with {len(overall)} sizes in the folder: the same command goes on"
        print(line, file=sys.stdout if code == STOPPED else sys.stderr, flush=True)
        return code
    return 0 if (overall["status"] == "ok").all() else 1


# What a stage sets itself, or what measures nothing.
OF_STAGES = (
    *("model", "algorithm", "gpu", "test", "quick", "list_models", "list_algorithms", "list_combinations"),
    *("models", "algorithms", "check_cuda", "check_power"),
)


def _check_stages(made: OneLineParser, arguments: Sequence[str] | None, options: argparse.Namespace) -> int:
    from convscope.profiling import preflight
    from convscope.profiling.request import run_elsewhere

    stages = options.check_stages.split(",")
    if not {*stages} <= {*STAGES}:
        made.error(f"--check-stages {options.check_stages}: some of {','.join(STAGES)}")
    made.refuse_ignored(arguments, OF_STAGES, "a stage")
    if options.num_sizes is not None and stages != [STAGES[-1]]:
        made.error(f"--num-sizes is {STAGES[-1]}'s: the stages before it have their own number of sizes")
    _refuse_without_energy(made, arguments, options)

    def make(model: str, algorithm: str, gpu: str, stage: str) -> Run:
        changed = vars(options) | {"model": model, "algorithm": algorithm, "gpu": gpu}
        flags = {flag: flag_stage == stage for flag, flag_stage in STAGE_FLAGS.items()}
        return _request(argparse.Namespace(**changed | flags), run_elsewhere)

    lines = sys.stdin.read().splitlines()
    requests = preflight.answer(lines, stages, make, options.device, options.here, note_by(NAME))
    reuse = {name: getattr(options, name) for name in ("overwrite", "retry", "output_dir")}
    print(json.dumps(reuse | {"requests": requests}))
    return 0


def _request(options: argparse.Namespace, make: Callable[..., Run] | None = None) -> Run:
    from convscope.cli.options import parse_bytes
    from convscope.profiling.request import Run, make_run

    stage = next((stage for flag, stage in STAGE_FLAGS.items() if getattr(options, flag)), STAGES[-1])
    count = SIZES_BY_STAGE[stage] if options.num_sizes is None else options.num_sizes
    limit = options.max_workspace
    names = {field.name for field in dataclasses.fields(Run)}
    return (make or make_run)(
        **{name: value for name, value in vars(options).items() if name in names},
        num_sizes=count,
        input_size_range=tuple(options.input_range),
        stage=stage,
        max_workspace_bytes=parse_bytes("--max-workspace", limit) if limit else None,
    )


def _list(options: argparse.Namespace) -> int:
    from convscope.profiling import listing

    if options.list_models:
        print(listing.model_list())
    if options.list_algorithms:
        print(listing.algorithm_list(options.model, options.batch_size, options.input_range[0], options.device))
    if options.check_power:
        print(_check_power(options.device))
    if options.list_combinations:
        gpu = "cpu" if options.device == "cpu" else options.gpu
        chosen = (options.models, options.algorithms, gpu, tuple(options.input_range), options.unsupported)
        print(listing.combination_list(*chosen), end="")
    if options.check_cuda:
        text, usable = listing.cuda_report()
        print(text)
        return 0 if usable else 1
    return 0


def _check_power(device_name: str) -> str:
    import torch

    from convscope import gpus
    from convscope.cli.options import find_device
    from convscope.errors import InputError, SensorError
    from convscope.power import nvml, sensor_test
    from convscope.profiling import report
    from convscope.storage.paths import RESULTS
    from convscope.timing import graphs

    device = find_device(device_name)
    if device.type == "cpu":
        raise InputError("--check-power tests a GPU's sensors: there is none here")
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


if __name__ == "__main__":
    sys.exit(as_program(main))
