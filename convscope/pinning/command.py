"""`python -m convscope plans export|diff|errata|repro`: plans of an atlas as a document, two atlases side by side, a
file that blocks an engine in PyTorch, a layer's plan as a script.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from convscope.cli.display import interval_or_dash, or_dash, several, table
from convscope.cli.options import apart_from_inputs, percent
from convscope.cli.parser import OneLineParser
from convscope.convolution.algorithms import PLAN
from convscope.cudnn.graph.plan import Plan
from convscope.errors import InputError
from convscope.pinning import difference, document, errata, repro
from convscope.pinning.difference import Changed
from convscope.pinning.document import FASTEST, TORCH, Pins
from convscope.storage.table import write_atomically

DENIED = ("layer", "calls", "PyTorch runs", "µs", "instead", "µs", "a pass, µs")
HEADER = ("layer", "A", "B", "B's time against A's, %", "changed")

FOLDER = "results/plans/FOLDER"
EXAMPLES = {
    "export": (FOLDER, f"{FOLDER} --pick torch -o torch.json"),
    "diff": ("results/plans/BEFORE results/plans/AFTER", "before.json after.json --tolerance 2 --json"),
    "errata": (f"{FOLDER} plan:38", f"{FOLDER} plan:38:k2=8 -o errata.json"),
    "repro": (f"{FOLDER} layer1.0.conv1", "plans.json layer1.0.conv1 -o repro.py"),
}
"""Arguments in the help of each subcommand."""


def main(arguments: Sequence[str]) -> int:
    """Run a command of plans; return 1 where `diff` found what somebody must look at, else 0.

    Raises:
        InputError: a folder or file cannot be read, or the two are of other work.
    """
    options = _parser().parse_args(arguments)
    return {"export": _export, "diff": _diff, "errata": _errata, "repro": _repro}[options.command](options)


def _export(options: argparse.Namespace) -> int:
    apart_from_inputs(options.output, options.atlas)
    pins = document.from_atlas(options.atlas, options.pick)
    path = options.output or options.atlas / "plans.json"
    _write(path, pins.text())
    print(f"{several(len(pins.layers), 'layer')}: {path}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    a, b = (_side(path, options.pick) for path in (options.a, options.b))
    found = difference.compared(a, b, options.tolerance)
    exit_code = int(any(each.is_bad for each in found))
    if options.json:
        rows = [*map(dataclasses.asdict, found)]
        print(json.dumps({"a": a.stack, "b": b.stack, "layers": rows, "exit_code": exit_code}, indent=1))
        return exit_code
    for line in difference.stack_lines(a, b):
        print(line)
    print(table(HEADER, [_cells(each) for each in found if each.verdicts != ("same",)]))
    counted = Counter(word for each in found for word in each.verdicts)
    print(f"{several(len(found), 'layer')}: " + ", ".join(f"{count} {word}" for word, count in counted.most_common()))
    return exit_code


def _errata(options: argparse.Namespace) -> int:
    apart_from_inputs(options.output, options.atlas)
    plan = Plan.named(options.plan.removeprefix(PLAN))
    rows = document.rows_of(options.atlas)
    found = list(errata.costs(rows, plan))
    path = options.output or options.atlas / "errata.json"
    _write(path, errata.text(plan, str(rows[0].cudnn)))
    cells = [
        (
            *(each.layer, str(each.calls), each.now, or_dash(each.now_us, ".1f"), each.instead or "-"),
            *(or_dash(each.instead_us, ".1f"), or_dash(each.more_us, "+.1f")),
        )
        for each in found
    ]
    print(table(DENIED, cells) if cells else f"PyTorch runs {options.plan} in no layer: blocking it costs nothing here")
    known = [each.more_us for each in found if each.more_us is not None]
    more = " and more" if len(known) < len(found) else ""
    print(f"{several(len(found), 'shape')}: {sum(known):+.1f} µs a pass{more}")
    print(f"CUDNN_ERRATA_JSON_FILE={path}")
    return 0


def _repro(options: argparse.Namespace) -> int:
    apart_from_inputs(options.output, options.atlas)
    text = repro.script(_side(options.atlas, options.pick), options.layer)
    if options.output is None:
        print(text, end="")
    else:
        _write(options.output, text)
    return 0


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror}): choose another file with --output") from None


def _side(path: Path, pick: str) -> Pins:
    """Return the plans of an atlas by a pick, or those of a document, which has one for each layer."""
    if path.is_dir():
        return document.from_atlas(path, pick)
    if pick != FASTEST:
        raise InputError(f"--pick {pick} is for an atlas: {path} has one plan for each layer")
    return document.read(path)


def _cells(each: Changed) -> tuple[str, ...]:
    interval = interval_or_dash(each.low_pct, each.high_pct, "+.1f")
    return each.layer, each.a, each.b, f"{or_dash(each.change_pct, '+.1f')} {interval}", ", ".join(each.verdicts)


def _parser() -> argparse.ArgumentParser:
    measures = "With options alone, --model M and others of convscope verify, it measures: an atlas of every plan."
    made = OneLineParser(
        prog="convscope plans",
        description="Export the plans of an atlas, compare two atlases, block an engine in PyTorch, "
        "write a layer's plan as a script.",
        epilog=measures,
        examples=("--model resnet50", f"export {FOLDER} -o plans.json"),
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="|".join(EXAMPLES))
    export = commands.add_parser("export", examples=EXAMPLES["export"], help="write the plan of each layer as JSON")
    export.add_argument("atlas", type=Path, help="a folder of results/plans")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default plans.json in the atlas")
    diff = commands.add_parser(
        "diff",
        examples=EXAMPLES["diff"],
        help="compare two atlases or exported documents; exit code 1: a layer is worse or runs other kernels",
    )
    diff.add_argument("a", type=Path, metavar="A", help="folder or file to compare with")
    diff.add_argument("b", type=Path, metavar="B", help="folder or file to judge")
    diff.add_argument("--tolerance", type=percent, default=difference.TOLERANCE_PCT, metavar="P", help="percent")
    diff.add_argument("--json", action="store_true", help="print JSON, for programs")
    denies = commands.add_parser(
        "errata",
        examples=EXAMPLES["errata"],
        help="write a file that keeps PyTorch from running a plan or an engine, and print the cost",
    )
    denies.add_argument("atlas", type=Path, help="a folder of results/plans")
    denies.add_argument("plan", help="plan:38, or with values of knobs plan:38:k2=8")
    denies.add_argument("-o", "--output", type=Path, metavar="FILE", help="default errata.json in the atlas")
    shows = commands.add_parser(
        "repro",
        examples=EXAMPLES["repro"],
        help="write a script that runs a layer's plan without convscope, and prints its time and error",
    )
    shows.add_argument("atlas", type=Path, help="a folder of results/plans, or a document")
    shows.add_argument("layer", help="by name: layer1.0.conv1")
    shows.add_argument("-o", "--output", type=Path, metavar="FILE", help="default the standard output")
    for command in (export, diff, shows):
        command.add_argument("--pick", choices=(FASTEST, TORCH), default=FASTEST, help="of an atlas; default fastest")
    return made
