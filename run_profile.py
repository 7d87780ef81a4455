#!/usr/bin/env python3
"""Profile one CNN with one convolution algorithm at many input sizes: time, power and energy, model and layers."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.exclusions import (
    OF_STAGES,
    OF_STUDY,
    OF_SUBMISSION,
    lists_asked,
    refuse_beside_lists,
    refuse_contradictions,
    refuse_json,
    refuse_own_sizes,
)
from convscope.cli.parser import OneLineParser, as_program, command, note_by
from convscope.cli.signals import ENDED, GRACE_S, STOPPED, StopSignal
from convscope.convolution.names import check_model, listed, takes_usual_sizes, with_arguments
from convscope.errors import CONTINUE
from convscope.profiling.options import EXAMPLES, add_options
from convscope.storage.paths import RESULTS, SIZES_BY_STAGE, STAGES

if TYPE_CHECKING:
    from convscope.pinning.document import Pins
    from convscope.planning.study import Item
    from convscope.profiling.request import Run

NAME = "run_profile.py"
STAGE_FLAGS = dict(zip(("test", "quick"), STAGES, strict=False))


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog=NAME, description=__doc__, examples=EXAMPLES)
    add_options(made)
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
    asked = lists_asked(options)
    if options.study:
        made.refuse_ignored(arguments, OF_STUDY, "--study")
    elif not asked and not (options.model and (options.algorithm or options.algorithm_file)):
        made.error("say --model NAME and --algorithm NAME (--list-models and --list-algorithms print them)")
    if asked:
        refuse_beside_lists(made, arguments, options, asked)
    else:
        made.refuse_ignored(arguments, ("models", "algorithms", "here"), "a profile")
        refuse_contradictions(made, arguments, options)
    refuse_json(made, options)
    measures = not (asked or options.estimate)

    def work(stop: StopSignal) -> int:
        if options.estimate:
            return _estimate(made, options)
        if options.study:
            return _print_study(made, options) if asked else _profile_study(made, options, stop)
        if options.list_models:
            print(
                json.dumps(listed(), indent=1) if options.json else "\n".join(listed())
            )  # without PyTorch, whose import takes seconds
            if asked == ["list_models"]:
                return 0
        if asked:
            from convscope.profiling import listing

            return listing.print_lists(options)
        return _profile(options, stop)

    return command(NAME, work, GRACE_S if measures else 0)


def _profile(options: argparse.Namespace, stop: StopSignal) -> int:
    from convscope.convolution import algorithms
    from convscope.profiling import tracing

    options.model = check_model(with_arguments(options.model, options.model_args))  # PyTorch's import takes seconds
    if options.algorithm_file is None:
        algorithms.find(options.algorithm)
    with tracing.kept(at_once=options.device != "cpu"):
        if options.batch_sizes is None:
            return _measure(_request(options), options, options.output_dir, stop)
        return _profile_each([_request(each) for each in _by_batch_size(options)], options, stop)


def _by_batch_size(options: argparse.Namespace) -> list[argparse.Namespace]:
    sizes = options.batch_sizes or [options.batch_size]
    return [argparse.Namespace(**vars(options) | {"batch_size": size}) for size in sizes]


def _profile_each(runs: Sequence[Run], options: argparse.Namespace, stop: StopSignal) -> int:
    """Measure runs one after the other, each into a folder of its own; return the highest exit code.

    Bad input of one is a line and leaves the others; a signal, a GPU that is lost and a full disk end them all.
    """
    import torch

    from convscope.convolution.operator import release
    from convscope.errors import InputError

    worst = 0
    for number, run in enumerate(runs, 1):
        if stop():
            line = f"stopped by {stop.said} after {number - 1} of {len(runs)} runs: {CONTINUE}"
            note_by(NAME)(line)
            return stop.exit_code
        print(f"{number} of {len(runs)}: {run.folder_name}", flush=True)
        folder = str(Path(options.output_dir) / run.folder_name) if options.output_dir else None
        try:
            code = _measure(run, options, folder, stop)
        except InputError as error:
            note_by(NAME)(f"{run.folder_name}: {error}")
            code = InputError.exit_code
        if code in (STOPPED, ENDED):
            return code
        worst = max(worst, code)
        gc.collect()  # models hold themselves in cycles
        release(torch.device(run.device))
    return worst


def _measure(run: Run, options: argparse.Namespace, folder: str | None, stop: StopSignal) -> int:
    """Measure one run into a folder, None for its own under `results/`; return the exit code."""
    from convscope.cli import terminal
    from convscope.cli.display import several
    from convscope.profiling.comparison import earlier
    from convscope.profiling.report import beside_earlier, pictures, results_table, work_line
    from convscope.profiling.rows import profile_store
    from profiler import UnifiedProfiler

    log = None if sys.stdout.isatty() else lambda line: print(line, flush=True)
    profiler = UnifiedProfiler.of(run, stop, note_by(NAME), log, _pins(options))
    overall, layers = profiler.run(
        folder,
        overwrite=options.overwrite,
        retry=options.retry,
        any_card=options.any_card,
        take_over=options.take_over,
    )
    print(results_table(overall, layers))
    folder = folder or str(profiler.folder)
    if line := work_line(profile_store(folder, profiler.request.stem).read("work")):
        print(line)
    terminal.write([*pictures(overall, layers), *beside_earlier(earlier.compared(Path(folder), RESULTS))])
    print(f"results: {folder}")
    if profiler.stopped:
        code, why = (stop.exit_code, f"by {stop.said}") if stop() else (STOPPED, "before the job ends")
        line = f"{NAME}: stopped {why} with {several(len(overall), 'size')} in the folder: {CONTINUE}"
        print(line, file=sys.stdout if code == STOPPED else sys.stderr, flush=True)
        return code
    return 0 if (overall["status"] == "ok").all() else 1


def _check_stages(made: OneLineParser, arguments: Sequence[str] | None, options: argparse.Namespace) -> int:
    from convscope.cli import fields
    from convscope.profiling import preflight
    from convscope.profiling.request import run_elsewhere

    stages = options.check_stages.split(",")
    if options.model_args:
        made.error("--model-args: a stage has them in the model's name: 'net.py:make,width=2'")
    if not {*stages} <= {*STAGES}:
        made.error(f"--check-stages {options.check_stages}: some of {','.join(STAGES)}")
    made.refuse_ignored(arguments, OF_STAGES, "a stage")
    if options.num_sizes is not None and stages != [STAGES[-1]]:
        made.error(f"--num-sizes is {STAGES[-1]}'s: the stages before it have their own number of sizes")
    refuse_contradictions(made, arguments, options)
    given = sys.argv[1:] if arguments is None else arguments

    def make(model: str, algorithm: str, gpu: str, stage: str, settings: Sequence[str]) -> Run:
        own = fields.flags(fields.check(settings), stage)
        made.refuse_ignored(own, (*OF_STAGES, *OF_SUBMISSION), "a line of a matrix")
        line = made.parse_args([*given, *own])
        refuse_contradictions(made, [*given, *own], line)
        refuse_own_sizes(line, stage)
        changed = vars(line) | {"model": model, "algorithm": algorithm, "gpu": gpu}
        flags = {flag: flag_stage == stage for flag, flag_stage in STAGE_FLAGS.items()}
        return _request(argparse.Namespace(**changed | flags), run_elsewhere)

    lines = sys.stdin.read().splitlines()
    requests = preflight.answer(lines, stages, make, options.device, options.here, note_by(NAME))
    reuse = {name: getattr(options, name) for name in ("overwrite", "retry", "output_dir")}
    print(json.dumps(reuse | {"requests": requests}))
    return 0


def _study_items(made: OneLineParser, options: argparse.Namespace, gpu: str | None) -> list[Item]:
    from convscope.cli import fields
    from convscope.planning import study
    from convscope.profiling.request import run_elsewhere

    def make(model: str, algorithm: str, gpu: str, settings: Sequence[str]) -> Run:
        line = _with_line(made, options, (model, algorithm, gpu), fields.flags(settings))
        line.device = "auto"  # that of its GPU
        return _request(line, run_elsewhere)

    return study.items(study.read(options.study), gpu, make, note_by(NAME))


def _with_line(
    made: OneLineParser, options: argparse.Namespace, names: Sequence[str], flags: Sequence[str]
) -> argparse.Namespace:
    """Return the options of one line of a study; of the command line, what it says of device and sizes counts."""
    from convscope.errors import InputError

    line = made.parse_args(flags)
    refuse_contradictions(made, flags, line)
    kept = {name: getattr(options, name) for name in ("device", "test", "quick")}
    if options.test or options.quick:
        kept["num_sizes"] = None
        if line.input_shape or line.input_sizes:
            raise InputError("--test and --quick make no use of named sizes: each has its own number of them")
    model, algorithm, gpu = names
    return argparse.Namespace(**vars(line) | kept | {"model": model, "algorithm": algorithm, "gpu": gpu})


def _print_study(made: OneLineParser, options: argparse.Namespace) -> int:
    gpu = "cpu" if options.device == "cpu" else options.gpu
    print(*(item.text for item in _study_items(made, options, gpu)), sep="\n")
    return 0


def _profile_study(made: OneLineParser, options: argparse.Namespace, stop: StopSignal) -> int:
    """Run the combinations of a study that are for the GPU that is here; return the highest exit code."""
    from convscope.cli import fields
    from convscope.cli.options import find_device, folder_gpu
    from convscope.planning import study
    from convscope.profiling import tracing

    study.read(options.study)  # before PyTorch is imported, which takes seconds
    with tracing.kept(at_once=options.device != "cpu"):
        gpu = folder_gpu(options.gpu, find_device(options.device))
        every = _study_items(made, options, gpu)
        advice = f"and here is {gpu}: run it there, or add {gpu} to its gpus"
        here = study.items_of_gpu(every, gpu, options.study, advice)
        lines = [item.line for item in here if item.why_not is None]
        print(*(item.text for item in here if item.why_not), sep="\n", end="\n" if len(lines) < len(here) else "")
        runs = [_request(_with_line(made, options, line[:3], fields.flags(line[3:]))) for line in lines]
        return _profile_each(runs, options, stop)


def _estimate(made: OneLineParser, options: argparse.Namespace) -> int:
    """Print the hours that the runs asked for will take; return 1 where nothing is known of one."""
    from convscope.planning import estimate, study
    from convscope.profiling import preflight
    from convscope.profiling.request import run_elsewhere
    from convscope.storage.paths import RESULTS

    gpu = "cpu" if options.device == "cpu" else options.gpu
    if options.study:
        every = _study_items(made, options, gpu)
        every = study.items_of_gpu(every, gpu, options.study, f"not for {gpu}: add {gpu} to its gpus") if gpu else every
        runs = [item.run for item in every if item.run and item.why_not is None]
    else:
        model = with_arguments(options.model, options.model_args)
        named = {"model": model, "gpu": gpu or _gpu_here(options.device)}
        by_size = _by_batch_size(options)
        runs = [_request(argparse.Namespace(**vars(each) | named), run_elsewhere) for each in by_size]
        if not takes_usual_sizes(runs[0].model):  # its own size may be the only one
            runs = preflight.possible(runs, note_by(NAME))
    earlier = estimate.read(RESULTS)
    found = [estimate.estimate(run, earlier, options.overwrite) for run in runs]
    print(estimate.document(found) if options.json else estimate.report(found))
    return 0 if all(each.seconds is not None for each in found) else 1


def _gpu_here(device: str) -> str:
    from convscope.cli.options import find_device, folder_gpu

    return folder_gpu(None, find_device(device, "--gpu NAME estimates for a card that is elsewhere"))


def _request(options: argparse.Namespace, make: Callable[..., Run] | None = None) -> Run:
    from convscope.cli.options import parse_bytes
    from convscope.convolution import algorithms
    from convscope.profiling.request import Run, make_run

    stage = next((stage for flag, stage in STAGE_FLAGS.items() if getattr(options, flag)), STAGES[-1])
    is_named = options.input_sizes or options.input_shape
    count = SIZES_BY_STAGE[stage] if options.num_sizes is None and not is_named else options.num_sizes
    limit = options.max_workspace
    names = {field.name for field in dataclasses.fields(Run)}
    given = {name: value for name, value in vars(options).items() if name in names}
    if pins := _pins(options):
        given |= {"algorithm": algorithms.PLANNED, "plans_digest": pins.plans_digest}
    return (make or make_run)(
        **given,
        num_sizes=count,
        input_size_range=options.input_range and tuple(options.input_range),
        stage=stage,
        max_workspace_bytes=parse_bytes("--max-workspace", limit) if limit else None,
    )


def _pins(options: argparse.Namespace) -> Pins | None:
    """Return the document that has the plan of each layer, None where none is given."""
    from convscope.pinning import document

    return document.read(options.algorithm_file) if options.algorithm_file else None


if __name__ == "__main__":
    sys.exit(as_program(main))
