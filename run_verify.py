#!/usr/bin/env python3
"""Prove which convolution algorithm ran in a CNN: names, identifiers, kernels, errors against float64, time."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from convscope.cli.parser import OneLineParser, as_program
from convscope.convolution.names import KINDS, MODELS
from convscope.profiling.request import PROVIDERS
from convscope.verification.request import CHOICE, FIRST_CALL, PLANS, SUPPORT

NAME = "run_verify.py"
OF_PLANS = ("energy", "first", "fused", "minutes", "any_card")
IGNORED = {
    "--algorithm": (*OF_PLANS, "rounds", "max_workspace", "output_dir", "overwrite", "take_over"),
    "--support": (*OF_PLANS, "unsupported", "provider", "rounds"),
    "--choice": (*OF_PLANS, "unsupported", "provider", "max_workspace"),
    "--first-call": (*OF_PLANS, "unsupported", "provider", "rounds", "max_workspace"),
    "--plans": ("unsupported", "provider", "max_workspace"),
}


def parser() -> OneLineParser:
    """Return the command line."""
    made = OneLineParser(prog=NAME, description=__doc__)
    made.add_argument("--model", required=True, help=f"all, {', '.join(MODELS)}; {KINDS}")
    made.add_model_args()
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--algorithm", help="verify this one: a name that run_profile.py --list-algorithms prints")
    plans = "in its place a document of python -m convscope plans export: the plan of each layer"
    what.add_argument("--algorithm-file", type=Path, metavar="FILE", help=plans)
    what.add_argument("--support", action="store_true", help="which of cuDNN's algorithms each layer can use")
    what.add_argument("--choice", action="store_true", help="the fastest for each layer, and what other choices cost")
    what.add_argument("--plans", action="store_true", help="every plan of cuDNN's graph API, and what PyTorch's costs")
    first = "what the first pass costs: search, plans, compilation; when it has paid"
    what.add_argument("--first-call", action="store_true", help=first)
    made.add_argument("--input-size", type=int, default=224, metavar="PX", help="pixels, default 224")
    made.add_argument("--batch-size", type=int, default=1)
    made.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    made.add_argument("--math", choices=("tf32", "fp32"), help="of float32; default tf32 on a GPU, fp32 on a CPU")
    types = ("float32", "float64", "float16", "bfloat16")
    made.add_argument("--dtype", choices=types, help="default float32; float64 is for --support")
    made.add_argument("--layout", choices=("nchw", "nhwc"), default="nchw", help="nhwc: channels last")
    made.add_argument("--unsupported", choices=("error", "fallback", "skip"), default="error")
    made.add_argument("--provider", choices=PROVIDERS, help="for direct, winograd; default cudnn if it can")
    made.add_argument("--pretrained", action="store_true", help="trained weights instead of seeded ones")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="for --choice, --plans: captures of each")
    energy = "for --plans: energy of the fastest plans of each shape, and of passes (minutes more)"
    made.add_argument("--energy", action="store_true", help=energy)
    fused = "for --plans: with bias, addition and ReLU in the plans, normalisation folded"
    made.add_argument("--fused", action="store_true", help=fused)
    few = "for --plans: only the first N of each heuristic of cuDNN; default all"
    made.add_argument("--first", type=int, metavar="N", help=few)
    made.add_argument("--minutes", type=_minutes, metavar="N", help="for --plans: begin no round after N minutes")
    any_card = "for --plans: go on with a folder that another card of the same name began"
    made.add_argument("--any-card", action="store_true", help=any_card)
    made.add_argument("--max-workspace", metavar="BYTES", help="for --support: 512MB, 2GiB; default what is free")
    made.add_argument("--output-dir", metavar="DIR", help="where tables are saved, default results/<study>")
    made.add_argument("--overwrite", action="store_true", help="measure a table again; what is there is kept")
    made.add_take_over()
    return made


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
    from convscope.atlas import command

    return command.run(options, question, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(as_program(main))
