"""Work of `run_verify.py`: a model is verified, or its tables of support, choice, plans or first calls are filled."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from convscope import failures
from convscope.atlas import tuning
from convscope.atlas.study import AtlasStudy, plans_text
from convscope.cli.options import find_device, parse_bytes
from convscope.cli.parser import note_by, report_error
from convscope.convolution import models
from convscope.convolution.algorithms import AUTOTUNE, PLANNED
from convscope.convolution.assignment import Assignment
from convscope.convolution.names import with_arguments
from convscope.errors import InputError, StopError
from convscope.pinning import document, planned
from convscope.pinning.document import Pins
from convscope.storage.paths import RESULTS
from convscope.verification import report, verdict
from convscope.verification.evidence import Subject, gather, open_subject
from convscope.verification.request import CHOICE, FIRST_CALL, PLANS, SUPPORT, Verification, make_verification
from convscope.verification.study import TEXTS, VerificationStudy
from profiler import CUDALayerTimer, PowerMonitor

NAME = "run_verify.py"
_PROGRAM = str(Path(__file__).resolve().parents[2] / NAME)
SETTINGS = ("device", "math", "dtype", "layout", "unsupported", "batch_size", "pretrained", "seed")


def run(options: argparse.Namespace, question: str, arguments: Sequence[str]) -> int:
    """Do what the parsed options ask for; return the exit code of `run_verify.main`.

    Args:
        question: the option that says what is asked: "--algorithm", "--choice".
        arguments: the command line, for further processes.
    """
    try:
        if options.model == "all" and find_device(options.device).type == "cuda":
            return _one_by_one(arguments)
        names = models.MODELS if options.model == "all" else (options.model,)
        ask = _tabulate if question != "--algorithm" else _verify
        return max(_asked(ask, options, name) for name in names)
    except StopError as error:
        return report_error(NAME, error)


def _asked(ask: Callable[[argparse.Namespace, str], int], options: argparse.Namespace, model: str) -> int:
    """Ask about one model; return the exit code, 1 with a line that says why where its own error is no answer."""
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
    for name in models.MODELS:
        command = [sys.executable, _PROGRAM, *arguments, "--model", name]
        codes.append(subprocess.run(command, check=False).returncode)
        if codes[-1] not in (0, 1):  # bad input, or a signal
            return codes[-1]
    return max(codes)


def _verify(options: argparse.Namespace, model: str) -> int:
    pins = document.read(options.algorithm_file) if options.algorithm_file else None
    own = {} if pins is None else {"plans_digest": pins.plans_digest}
    request = _request(options, model, options.algorithm or PLANNED, **own)
    if request.algorithm == "torch":
        raise InputError("torch is the model as it is: there is nothing to verify; choose another algorithm")
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
    if pins is not None:
        return planned.assignment(pins, run, subject.layers)
    if run.algorithm != AUTOTUNE or run.device_type == "cpu":
        return None
    with PowerMonitor.of_device(subject.device) as monitor:
        bench = VerificationStudy(run, monitor, CUDALayerTimer, note_by(NAME)).bench(subject)
        return tuning.raced(run, subject.model, subject.inputs, subject.layers, bench, note_by(NAME))


def _tabulate(options: argparse.Namespace, model: str) -> int:
    """Fill the tables of support, choice or plans and print them; return 1 where rule and card differ."""
    if options.support:
        limit = options.max_workspace
        limit_bytes = parse_bytes("--max-workspace", limit) if limit else None
        request = _request(options, model, "guess", question=SUPPORT, limit_bytes=limit_bytes)
    else:
        question = PLANS if options.plans else CHOICE if options.choice else FIRST_CALL
        asked = {"rounds": options.rounds, "energy": options.energy, "fused": options.fused, "first": options.first}
        request = _request(options, model, "torch", question=question, **asked)
    if options.support and request.device_type == "cpu":
        raise InputError("--support asks cuDNN on a GPU; what the rules say is in run_profile.py --list-algorithms")
    if options.plans and request.device_type == "cpu":
        raise InputError("--plans times cuDNN's plans on a GPU: there is none here, or --device names the CPU")
    folder = Path(options.output_dir or RESULTS / str(request.question)) / request.name
    with PowerMonitor.of_device(torch.device(request.device)) as monitor:
        given = request, monitor, CUDALayerTimer, note_by(NAME), options.any_card
        budget_s = None if options.minutes is None else 60 * options.minutes
        study = AtlasStudy(*given, budget_s) if options.plans else VerificationStudy(*given)
        store = study.measure(folder, options.overwrite, options.take_over)
    text, agrees = (TEXTS | {PLANS: plans_text})[str(request.question)](store)
    print(f"{report.subject_title(request)}\n{text}\nsaved: {store.files.table(str(request.question))}")
    return 0 if agrees else 1


def _request(options: argparse.Namespace, model: str, algorithm: str, **question: Any) -> Verification:
    settings = {name: getattr(options, name) for name in SETTINGS} | question
    provider = options.provider if question.get("question") is None else None
    model = with_arguments(model, options.model_args)
    return make_verification(model, algorithm, options.input_size, provider=provider, **settings)
