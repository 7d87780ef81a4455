"""Options of `run_profile.py` that exclude each other: those beside a study, in a stage, in a line of a matrix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from convscope.cli.parser import OneLineParser
from convscope.errors import InputError
from convscope.storage.paths import STAGES

OF_STAGES = (
    *("model", "algorithm", "gpu", "test", "quick", "list_models", "list_algorithms", "list_combinations"),
    *(
        "models",
        "algorithms",
        "algorithm_file",
        "check_cuda",
        "check_power",
        "batch_sizes",
        "study",
        "estimate",
        "json",
    ),
)
"""Options that a stage sets itself, or that measure nothing."""
OF_SUBMISSION = ("device", "output_dir", "overwrite", "retry", "any_card", "take_over")
"""Options of a whole submission: a line of a matrix cannot set them either."""
OF_STUDY = (
    *("model", "model_args", "algorithm", "num_sizes", "input_range", "input_shape", "input_size", "batch_size"),
    *("batch_sizes", "dtype", "layout", "warmup", "measure", "math", "unsupported", "max_workspace", "provider"),
    *("pretrained", "seed", "no_energy", "energy_warmup", "energy_precision", "energy_budget", "layer_energy"),
    *("check_power", "list_models", "list_algorithms", "models", "algorithms", "algorithm_file", "check_cuda"),
)
"""Options that a study file sets itself, or that ask for something else."""
_OF_MODEL = ("model_args", "input_size", "input_range", "input_shape", "batch_size", "device", "dtype", "layout")
OF_LISTS: dict[str, tuple[str, ...]] = {
    "list_models": (),
    "list_algorithms": (),
    "list_combinations": (
        *("models", "algorithms", "gpu", "device", "unsupported", "dtype", "layout", "batch_size"),
        *("input_size", "input_range"),
    ),
    "check_cuda": (),
    "check_power": ("device",),
}
"""Lists and checks, and the options that each makes use of: --json and its model aside."""


def refuse_contradictions(parser: OneLineParser, arguments: Sequence[str] | None, options: argparse.Namespace) -> None:
    """End the program with one line where options of a profile exclude each other; `options` are those parsed."""
    if not options.energy:
        parser.refuse_ignored(arguments, ("energy_warmup", "energy_precision", "energy_budget"), "--no-energy")
    others = ("test", "quick", "num_sizes", "input_range")
    if options.input_sizes:
        parser.refuse_ignored(arguments, (*others, "input_shape"), "--input-size")
    if options.input_shape:
        parser.refuse_ignored(arguments, others, "--input-shape")


def lists_asked(options: argparse.Namespace) -> list[str]:
    """Return the lists and checks that are asked for, in place of a measurement."""
    return [name for name in OF_LISTS if getattr(options, name)]


def refuse_beside_lists(
    parser: OneLineParser, arguments: Sequence[str] | None, options: argparse.Namespace, asked: Sequence[str]
) -> None:
    """End the program with one line where an option has no effect on any of the lists and checks that are asked for."""
    used = {"json", *OF_LISTS, *(name for each in asked for name in OF_LISTS[each])}
    if "list_algorithms" in asked and options.model:
        used |= {"model", *_OF_MODEL}
    if options.study and asked == ["list_combinations"]:
        used = {"study", "gpu", "device", "test", "quick", "json", *OF_LISTS}
    by = " with ".join(f"--{name.replace('_', '-')}" for name in asked)
    parser.refuse_ignored(arguments, [name for name in parser.option_names() if name not in used], by)
    refuse_contradictions(parser, arguments, options)


def refuse_json(parser: OneLineParser, options: argparse.Namespace) -> None:
    """End the program with one line where --json is given beside anything but the one list or estimate it is for."""
    asked = [*lists_asked(options), *(["estimate"] if options.estimate else [])]
    if options.json and asked not in (["list_models"], ["list_algorithms"], ["estimate"]):
        parser.error("--json goes with one of --list-models, --list-algorithms, --estimate")


def refuse_own_sizes(options: argparse.Namespace, stage: str) -> None:
    """Raise InputError where options name the sizes of a stage that has its own."""
    if stage == STAGES[-1]:
        return
    if options.input_shape:
        raise InputError(f"--input-shape is {STAGES[-1]}'s: it is one size, the stages before it have their own")
    if options.input_sizes:
        raise InputError(f"--input-size is {STAGES[-1]}'s: the stages before it have their own sizes")
