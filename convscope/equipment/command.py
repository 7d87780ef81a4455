"""`python -m convscope env`: what this machine can measure, and what to do about what it cannot; for an issue, too."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from convscope.cli.display import table
from convscope.cli.parser import OneLineParser
from convscope.equipment import checks


def main(arguments: Sequence[str]) -> int:
    """Print what is there and what is not; return 0."""
    options = _parser().parse_args(arguments)
    found = checks.every()
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
        return 0
    print(table(("", "here", "", "to have it"), [dataclasses.astuple(each) for each in _named(found)], all_left=True))
    return 0


def _named(found: Sequence[checks.Finding]) -> list[checks.Finding]:
    """Return findings with a dash where there is nothing to do, so that columns stay in line."""
    return [dataclasses.replace(each, advice=each.advice or "-") for each in found]


def _parser() -> argparse.ArgumentParser:
    examples = "", "--json"
    parser = OneLineParser(
        prog="convscope env",
        description="Equipment of this machine: what can be measured here, and what to do about the rest.",
        allow_abbrev=False,
        examples=examples,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser
