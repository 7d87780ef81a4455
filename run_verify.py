#!/usr/bin/env python3
"""Prove which convolution algorithm ran in a CNN: names, identifiers, kernels, errors against float64, time."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.cli.options import ON_CPU, find_device, parse_bytes
from convscope.cli.parser import OneLineParser, as_program, note_by, report_error
from convscope.cli.programs import again, called
from convscope.convolution.algorithms import AUTOTUNE, PLANNED
from convscope.convolution.names import KINDS, MODELS, check_model, with_arguments
from convscope.errors import InputError, StopError
from convscope.profiling.options import UNSUPPORTED
from convscope.profiling.request import PROVIDERS
from convscope.storage.paths import RESULTS
from convscope.verification.request import CHOICE, FIRST_CALL, PLANS, SUPPORT, Verification, make_verification

if TYPE_CHECKING:
    import torch

    from convscope.convolution.assignment import Assignment
    from convscope.pinning.document import Pins
    from convscope.verification.evidence import Subject

NAME = "run_verify.py"
OF_PLANS = ("energy", "first", "fused", "with_algorithms", "minutes", "any_card", "turns")
IGNORED = {
    "--algorithm": (*OF_PLANS, "rounds", "max_workspace", "output_dir", "overwrite", "take_over"),
    "--support": (*OF_PLANS, "unsupported", "provider", "rounds"),
    "--choice": (*OF_PLANS, "unsupported", "provider", "max_workspace"),
    "--first-call": (*OF_PLANS, "unsupported", "provider", "rounds", "max_workspace"),
    "--plans": ("unsupported", "provider", "max_workspace"),
}
EXAMPLES = {
    "convscope choice": ("--model resnet50", "--model alexnet --device cpu --rounds 3"),
    "convscope plans": ("--model resnet50", "--model resnet50 --first 8 --rounds 3"),
}
OF_VERIFY = "--model resnet50 --algorithm gemm", "--model alexnet --algorithm direct --device cpu"
SETTINGS = ("device", "math", "dtype", "layout", "unsupported", "batch_size", "pretrained", "seed")


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog=NAME, description=__doc__, examples=EXAMPLES.get(NAME, OF_VERIFY))
    made.add_argument("--model", required=True, help=f"all, {', '.join(MODELS)}; {KINDS}")
    made.add_model_args()
    _add_question(made)
    _add_settings(made)
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="for --choice, --plans: captures of each")
    _add_of_plans(made)
    made.add_argument("--max-workspace", metavar="BYTES", help="for --support: 512MB, 2GiB; default what is free")
    made.add_argument("--output-dir", metavar="DIR", help="where tables are saved, default results/<study>")
    made.add_argument("--overwrite", action="store_true", help="measure a table again; earlier results are kept")
    made.add_take_over()
    return made


def _add_question(made: OneLineParser) -> None:
    """Add the options of which exactly one is given."""
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--algorithm", help="verify this one: a name that convscope profile --list-algorithms prints")
    plans = "plan of each layer, in place of --algorithm: a document of convscope plans export"
    what.add_argument("--algorithm-file", type=Path, metavar="FILE", help=plans)
    what.add_argument("--support", action="store_true", help="which of cuDNN's algorithms each layer can use")
    what.add_argument("--choice", action="store_true", help="the fastest for each layer, and what other choices cost")
    what.add_argument("--plans", action="store_true", help="every plan of cuDNN's graph API, and what PyTorch's costs")
    first = "what the first pass costs: search, plans, compilation; when it has paid"
    what.add_argument("--first-call", action="store_true", help=first)


def _add_settings(made: OneLineParser) -> None:
    """Add the options that say in what setting the model runs."""
    made.add_argument("--input-size", type=int, metavar="PX", help="pixels, default 224")
    made.add_argument("--batch-size", type=int, default=1, metavar="N", help="images per batch (default 1)")
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--math", choices=("tf32", "fp32"), help="of float32; default tf32 on a GPU, fp32 on a CPU")
    types = ("float32", "float64", "float16", "bfloat16")
    made.add_argument("--dtype", choices=types, help="default float32; float64 is for --support")
    made.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="nhwc: channels last")
    made.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error", help=UNSUPPORTED)
    made.add_argument("--provider", choices=PROVIDERS, help="for direct, winograd; default cudnn if it can")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0, help="seed of weights and images (default 0)")


def _add_of_plans(made: OneLineParser) -> None:
    """Add the options that are for `--plans` alone."""
    energy = "for --plans: energy of the fastest plans of each shape, and of passes (minutes more)"
    made.add_argument("--energy", action="store_true", help=energy)
    fused = "for --plans: with bias, addition and ReLU in the plans, normalisation folded"
    made.add_argument("--fused", action="store_true", help=fused)
    few = "for --plans: only the first N of each heuristic of cuDNN; default all"
    made.add_argument("--first", type=int, metavar="N", help=few)
    named = "for --plans: cuDNN's eight algorithms and the Triton kernels, beside the plans"
    made.add_argument("--with-algorithms", action="store_true", help=named)
    made.add_argument("--minutes", type=_minutes, metavar="N", help="for --plans: begin no round after N minutes")
    any_card = "for --plans: continue a folder that another card of the same name began"
    made.add_argument("--any-card", action="store_true", help=any_card)
    turns = "for --plans: time alone, by turns with processes on the same GPU that name the same file"
    made.add_argument("--turns", type=Path, metavar="FILE", help=turns)


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


_minutes.__name__ = "number of minutes"  # argparse says "invalid number of minutes value"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 for CONFIRMED (of all models), 1 for NOT CONFIRMED, where rule and card differ, or
    where memory runs out or a kernel is refused; 2 for bad input.
    """
    made = parser()
    options = made.parse_args(arguments)
    question = next(
        (f"--{name.replace('_', '-')}" for name in (SUPPORT, CHOICE, PLANS, FIRST_CALL) if getattr(options, name)),
        "--algorithm",
    )
    made.refuse_ignored(arguments, IGNORED[question], question)
    try:
        if options.model == "all" and _device(options).type == "cuda":
            return _one_by_one(sys.argv[1:] if arguments is None else arguments)
        ask = _tabulate if question != "--algorithm" else _verify
        return max(_asked(ask, options, name) for name in (MODELS if options.model == "all" else (options.model,)))
    except StopError as error:
        return report_error(NAME, error)


def _device(options: argparse.Namespace) -> torch.device:
    """Return the device; InputError, with what to do, where the question needs a GPU and this is none."""
    needs, instead = "", ""
    if options.support:
        lists = f"{called('run_profile')} --list-algorithms"
        needs, instead = "--support asks cuDNN on a GPU", f"what the rules say is in {lists}"
    elif options.plans and not options.with_algorithms:
        needs, instead = "--plans times cuDNN's plans on a GPU", "--with-algorithms times those of a CPU"
    device = find_device(options.device, f"{needs}; {instead}" if needs else ON_CPU)
    if needs and device.type == "cpu":
        raise InputError(f"{needs}: there is none here, or --device names the CPU; {instead}")
    return device


def _asked(ask: Callable[[argparse.Namespace, str], int], options: argparse.Namespace, model: str) -> int:
    """Ask about one model; return the exit code, 1 with a line that says why where its own error is no answer."""
    from convscope import failures

    try:
        return ask(options, model)
    except StopError:
        raise
    except Exception as error:
        failure = failures.of_cell(error, find_device(options.device), model)
        smaller = " Choose a smaller --batch-size or --input-size." if failure.status == "oom" else ""
        note_by(NAME)(f"{model}: {failure.status}: {failure.reason}{smaller}")
        return 1


def _one_by_one(arguments: Sequence[str]) -> int:
    """Ask of each model in a process of its own, for none may be timed after another was traced; as `main`."""
    codes = [0]
    for name in MODELS:
        command = [*again(NAME, __file__), *arguments, "--model", name]
        codes.append(subprocess.run(command, check=False).returncode)
        if codes[-1] not in (0, 1):  # bad input, or a signal
            return codes[-1]
    return max(codes)


def _verify(options: argparse.Namespace, model: str) -> int:
    from convscope.pinning import document
    from convscope.verification import report, verdict
    from convscope.verification.evidence import gather, open_subject

    pins = document.read(options.algorithm_file) if options.algorithm_file else None
    own = {} if pins is None else {"plans_digest": pins.plans_digest}
    request = _request(options, model, options.algorithm or PLANNED, **own)
    if request.algorithm == "torch":
        me = called("run_verify")
        picked = f"{me} --plans names the plan that PyTorch picked for each layer, {me} --choice what that costs"
        raise InputError(f"torch is the model as it is: there is nothing to verify; {picked}; or verify another one")
    with open_subject(request) as subject:
        evidence = gather(subject, _wanted(request, subject, pins))
    findings = verdict.checks(evidence)
    print(report.subject_title(request))
    for finding in findings:
        print(finding)
    print(verdict.last_line(evidence, findings))
    return 0 if verdict.confirmed(findings) else 1


def _wanted(run: Verification, subject: Subject, pins: Pins | None) -> Assignment | None:
    """Return the algorithm of each layer where it is another from layer to layer: of a document, or of a race."""
    from convscope.atlas import tuning
    from convscope.pinning import planned
    from convscope.verification.study import VerificationStudy
    from profiler import CUDALayerTimer, PowerMonitor

    if pins is not None:
        return planned.assignment(pins, run, subject.layers)
    if run.algorithm != AUTOTUNE or run.device_type == "cpu":
        return None
    with PowerMonitor.of_device(subject.device) as monitor:
        bench = VerificationStudy(run, monitor, CUDALayerTimer, note_by(NAME)).bench(subject)
        return tuning.raced(run, subject.model, subject.inputs, subject.layers, bench, note_by(NAME))


def _tabulate(options: argparse.Namespace, model: str) -> int:
    """Fill the tables of support, choice or plans and print them; return 1 where rule and card differ."""
    from convscope.atlas.study import AtlasStudy, plans_text
    from convscope.atlas.turns import Turns
    from convscope.verification import report
    from convscope.verification.study import TEXTS, VerificationStudy
    from profiler import CUDALayerTimer, PowerMonitor

    check_model(with_arguments(model, options.model_args))
    _device(options)
    if options.support:
        limit = options.max_workspace
        limit_bytes = parse_bytes("--max-workspace", limit) if limit else None
        request = _request(options, model, "guess", question=SUPPORT, limit_bytes=limit_bytes)
    else:
        question = PLANS if options.plans else CHOICE if options.choice else FIRST_CALL
        asked = {name: getattr(options, name) for name in ("rounds", "energy", "fused", "first")}
        asked["by_name"] = options.with_algorithms
        request = _request(options, model, "torch", question=question, **asked)
    folder = Path(options.output_dir or RESULTS / str(request.question)) / request.name
    with PowerMonitor.of_device(find_device(request.device)) as monitor:
        given = request, monitor, CUDALayerTimer, note_by(NAME), options.any_card
        budget_s = None if options.minutes is None else 60 * options.minutes
        study = AtlasStudy(*given, budget_s, Turns(options.turns)) if options.plans else VerificationStudy(*given)
        store = study.measure(folder, options.overwrite, options.take_over)
    text, agrees = (TEXTS | {PLANS: plans_text})[str(request.question)](store)
    print(f"{report.subject_title(request)}\n{text}\nsaved: {store.files.table(str(request.question))}")
    return 0 if agrees else 1


def _request(options: argparse.Namespace, model: str, algorithm: str, **question: Any) -> Verification:
    settings = {name: getattr(options, name) for name in SETTINGS} | question
    provider = options.provider if question.get("question") is None else None
    model = with_arguments(model, options.model_args)
    return make_verification(model, algorithm, options.input_size, provider=provider, **settings)


if __name__ == "__main__":
    sys.exit(as_program(main))
