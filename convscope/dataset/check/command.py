"""`python -m convscope check FOLDER|SAMPLES…`: whether published data sets and files of samples hold."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.cli.display import several
from convscope.cli.options import at_least
from convscope.cli.parser import OneLineParser, one_line

if TYPE_CHECKING:
    from convscope.dataset.check.checking import Result

SHOWN = 1000


def main(arguments: Sequence[str]) -> int:
    """Check data; return the exit code, 1 where something is wrong with them.

    Raises:
        InputError: there is no such folder or file, or it is none of these.
    """
    options = _parser().parse_args(arguments)
    from convscope.dataset.check.checking import check  # pandas: what is asked for may be help

    if options.most is not None:
        at_least("--most", options.most, 1)
    if options.json:
        every = {str(path): check(path) for path in options.data}
        print(json.dumps([_document(*each, options.most) for each in every.items()], indent=1))
        return int(any(found.errors for found in every.values()))
    code = 0
    for path in options.data:
        found = check(path)
        for line in _shown(found, options.most or SHOWN):
            print(one_line(line))
        verdict = f"{several(len(found.errors), 'error')}" if found.errors else "holds"
        looked = f"{found.checked.floors} against the card's limits, {found.checked.kernels} against their kernels"
        print(f"{path}: {verdict}: {several(found.samples, 'sample')}, {looked}")
        code = 1 if found.errors else code
    return code


def _document(path: str, found: Result, most: int | None) -> dict[str, Any]:
    checked = {"limits": found.checked.floors, "kernels": found.checked.kernels}
    unchecked = dict(found.checked.not_checked)
    numbers = {"samples": found.samples, "checked": checked, "not_checked": unchecked}
    errors = {"errors": found.errors[:most], "errors_left_out": len(found.errors[most:]) if most else 0}
    return {"path": path, **errors, **numbers, "remarks": found.remarks}


def _shown(found: Result, most: int) -> Iterator[str]:
    yield from found.errors[:most]
    if len(found.errors) > most:
        yield f"and {len(found.errors) - most} more (--most {len(found.errors)} shows all)"
    yield from found.remarks


def _parser() -> argparse.ArgumentParser:
    examples = "data/h200", "results/dataset/h200/samples.csv --most 20"
    parser = OneLineParser(
        prog="convscope check",
        description="Check data sets and files of samples. Exit code 1: something is wrong; 0: nothing is.",
        allow_abbrev=False,
        examples=examples,
    )
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="folder of a data set, or file of samples")
    text = f"errors of each that are shown; default {SHOWN}, with --json all"
    parser.add_argument("--most", type=int, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser
