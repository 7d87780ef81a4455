#!/usr/bin/env python3
"""Prove which convolution algorithm ran in a CNN: names, identifiers, kernels, errors against float64, time."""

from __future__ import annotations

import argparse
import sys

from convscope.commandline import OneLineParser
from convscope.errors import InputError
from convscope.records import Run


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog="run_verify.py", description=__doc__)
    made.add_argument("--model", required=True, help="a name that run_profile.py --list-models prints")
    made.add_argument("--algorithm", help="a name that run_profile.py --list-algorithms prints")
    made.add_argument("--input-size", type=int, default=224, metavar="PX", help="pixels, default 224")
    made.add_argument("--batch-size", type=int, default=1)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--math", choices=("tf32", "fp32"), help="default tf32 on a GPU, fp32 on a CPU")
    made.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 0 for CONFIRMED, 1 for NOT CONFIRMED, 2 for bad input."""
    made = parser()
    options = made.parse_args(arguments)
    if not options.algorithm:
        made.error("say --algorithm NAME (run_profile.py --list-algorithms prints them)")
    try:
        return _verify(options)
    except InputError as error:
        print(f"run_verify.py: {error}", file=sys.stderr)
        return 2


def _verify(options: argparse.Namespace) -> int:
    from convscope import console, verdict, verify

    run = _run(options, options.algorithm)
    if run.algorithm == "torch":
        raise InputError("torch is the model as it is: there is nothing to verify; choose another algorithm")
    with verify.subject(run) as subject:
        evidence = verify.gather(subject)
    every = verdict.checks(evidence)
    print(console.subject_title(run))
    for check in every:
        print(check)
    print(verdict.last_line(evidence, every))
    return 0 if verdict.confirmed(every) else 1


def _run(options: argparse.Namespace, algorithm: str) -> Run:
    from convscope import request

    return request.make_run(
        options.model,
        algorithm,
        num_sizes=1,
        input_size_range=(options.input_size, options.input_size),
        device=request.find_device(options.device),
        gpu=None,
        stage=None,
        math=options.math,
        unsupported=options.unsupported,
        batch_size=options.batch_size,
        warmup_iters=10,
        measure_iters=20,
        pretrained=options.pretrained,
        seed=options.seed,
        energy=False,
    )


if __name__ == "__main__":
    sys.exit(main())
