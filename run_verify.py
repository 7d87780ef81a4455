#!/usr/bin/env python3
"""Prove which convolution algorithm ran in a CNN: names, identifiers, kernels, errors against float64, time."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from convscope.cli.display import table
from convscope.cli.options import at_least, find_device, parse_bytes
from convscope.cli.parser import OneLineParser, as_program, report_error
from convscope.convolution import models
from convscope.convolution.backends import environment_on
from convscope.errors import InputError
from convscope.profiling import bench
from convscope.profiling.request import PROVIDERS, Run, make_run
from convscope.storage.paths import RESULTS, slug
from convscope.verification import choice, report, support, verdict
from convscope.verification.evidence import gather, open_subject
from profiler import CUDALayerTimer, PowerMonitor


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog="run_verify.py", description=__doc__)
    made.add_argument("--model", required=True, help="a name that run_profile.py --list-models prints; or all")
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--algorithm", help="verify this one: a name that run_profile.py --list-algorithms prints")
    what.add_argument("--support", action="store_true", help="which of cuDNN's algorithms each layer can use")
    what.add_argument("--choice", action="store_true", help="the fastest for each layer, and what other choices cost")
    made.add_argument("--input-size", type=int, default=224, metavar="PX", help="pixels, default 224")
    made.add_argument("--batch-size", type=int, default=1)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--math", choices=("tf32", "fp32"), help="default tf32 on a GPU, fp32 on a CPU")
    made.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error")
    made.add_argument("--provider", choices=PROVIDERS, help="for direct, winograd; default cudnn if it can")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="for --choice: captures of each candidate")
    made.add_argument("--dtype", choices=("float32", "float64", "float16", "bfloat16"), help="for --support")
    made.add_argument("--max-workspace", metavar="BYTES", help="for --support: 512MB, 2GiB; default what is free")
    made.add_argument("--output-dir", metavar="DIR", help="where --support and --choice save, default results/<study>")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 for CONFIRMED (of all models), 1 for NOT CONFIRMED, where rule and card differ, or
    where memory runs out; 2 for bad input.
    """
    options = parser().parse_args(arguments)
    try:
        names = models.MODELS if options.model == "all" else (options.model,)
        study = _support if options.support else _choice if options.choice else _verify
        return max(study(options, name) for name in names)
    except InputError as error:
        return report_error("run_verify.py", error)
    except torch.OutOfMemoryError as error:
        cause = str(error).splitlines()[0]
        print(f"run_verify.py: {cause} Choose a smaller --batch-size or --input-size.", file=sys.stderr)
        return 1


def _verify(options: argparse.Namespace, model: str) -> int:
    run = _run(options, model, options.algorithm)
    if run.algorithm == "torch":
        raise InputError("torch is the model as it is: there is nothing to verify; choose another algorithm")
    with open_subject(run) as subject:
        evidence = gather(subject)
    every = verdict.checks(evidence)
    print(report.subject_title(run))
    for check in every:
        print(check)
    print(verdict.last_line(evidence, every))
    return 0 if verdict.confirmed(every) else 1


def _support(options: argparse.Namespace, model: str) -> int:
    run = _run(options, model, "guess")
    device = torch.device(run.device)
    if device.type == "cpu":
        raise InputError("--support asks cuDNN on a GPU; what the rules say is in run_profile.py --list-algorithms")
    allowed = options.max_workspace
    limit_bytes = None if allowed is None else parse_bytes("--max-workspace", allowed)
    with open_subject(run) as subject, PowerMonitor.of_device(device) as monitor:
        here = environment_on(device, monitor.settings())
        rows = support.survey(subject, here, limit_bytes, options.dtype or run.dtype)
    print(report.subject_title(run))
    print(table(("algorithm", "layers", "why not; what is the same"), support.summary(rows)))
    differing = support.disagreements(rows)
    for line in differing:
        print(f"rule and card differ: {line}")
    _save(rows, options, "support", run)
    return 1 if differing else 0


def _choice(options: argparse.Namespace, model: str) -> int:
    at_least("--rounds", options.rounds, 2)
    run = _run(options, model, "torch")
    device = torch.device(run.device)
    with open_subject(run) as subject, PowerMonitor.of_device(device) as monitor:
        here = environment_on(device, monitor.settings())
        timer = CUDALayerTimer(subject.model, device.type)
        made = bench.Bench(run, subject.model, device, timer, monitor, _note)
        made.calibrate(run.input_sizes[0])
        study = choice.study(subject, made, _note, options.rounds)
        rows = choice.rows(run, here, subject.layers, study.candidates)
    print(report.subject_title(run))
    print(report.choice_report(rows, study.passes))
    _save(rows, options, "choice", run)
    return 0


def _save(rows: Sequence[Any], options: argparse.Namespace, study: str, run: Run) -> None:
    folder = Path(options.output_dir or RESULTS / study)
    path = folder / f"{slug(run.model)}_{slug(run.gpu)}_{run.input_sizes[0]}px_batch{run.batch_size}_{run.math}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([dataclasses.asdict(row) for row in rows]).convert_dtypes().to_csv(path, index=False)
    except OSError as error:
        raise InputError(f"cannot save to {path} ({error.strerror}): choose another folder with --output-dir") from None
    print(f"saved: {path}")


def _note(line: str) -> None:
    print(f"run_verify.py: {line}", file=sys.stderr)


def _run(options: argparse.Namespace, model: str, algorithm: str) -> Run:
    device = find_device(options.device)
    return make_run(
        model,
        algorithm,
        num_sizes=1,
        input_size_range=(options.input_size, options.input_size),
        device=device,
        gpu=None,
        stage=None,
        math=options.math,
        unsupported=options.unsupported,
        provider=options.provider if options.algorithm else None,
        batch_size=options.batch_size,
        warmup_iters=10,
        measure_iters=20 if device.type == "cuda" else 3,
        pretrained=options.pretrained,
        seed=options.seed,
        energy=False,
    )


if __name__ == "__main__":
    sys.exit(as_program(main))
