"""`python -m convscope check FOLDER|SAMPLES…`: whether published data sets and files of samples hold."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convscope.cli.display import several
from convscope.cli.options import at_least
from convscope.cli.parser import OneLineParser, one_line
from convscope.dataset.check import folder, reading, rows
from convscope.dataset.check.rows import Checked
from convscope.dataset.package import partition
from convscope.dataset.package.documents import DATAPACKAGE, SAMPLES_FILE
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError

SHOWN = 1000


@dataclass
class Result:
    """Outcome of a check: errors, a line each; numbers of samples; remarks, which are no errors."""

    errors: list[str] = field(default_factory=list)
    samples: int = 0
    checked: Checked = field(default_factory=Checked)
    remarks: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Check data; return the exit code, 1 where something is wrong with them.

    Raises:
        InputError: there is no such folder or file, or it is none of these.
    """
    options = _parser().parse_args(arguments)
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


def check(path: Path) -> Result:
    """Check a folder of a data set, or a file of samples.

    Raises:
        InputError: it is neither.
    """
    if path.name == DATAPACKAGE:
        path = path.parent
    return _of_folder(path) if path.is_dir() else _of_samples(path)


def _of_samples(path: Path) -> Result:
    found, result = reading.read(path), Result()
    result.errors += found.faults
    if not found.rows and not found.faults:
        raise InputError(f"{path}: no samples in it: measure some, or import them")
    _of_rows(path, found, result)
    return result


def _of_folder(place: Path) -> Result:
    folder.document(place / DATAPACKAGE)
    try:
        result = Result([*folder.of_files(place)])
    except InputError as error:  # the other document
        return Result([str(error)])
    try:
        found = reading.read(place / SAMPLES_FILE)
    except InputError as error:
        result.errors.append(str(error))
        return result
    result.errors += found.faults
    if found.rows and not found.faults:
        every = partition.frame(found.rows)
        result.errors += [
            *folder.of_keys(place / SAMPLES_FILE, found.rows), *folder.of_splits(place, every),
            *folder.of_conflicts(place, found.rows), *folder.of_documents(place, found.rows, every),
        ]  # fmt: skip
    _of_rows(place / SAMPLES_FILE, found, result)
    return result


def _of_rows(path: Path, found: reading.Reading, result: Result) -> None:
    result.samples = len(found.rows) + len(found.faults)
    for each in rows.findings(found.rows, result.checked):
        result.errors.append(each.line(f"{path}, {found.places[each.sample]}"))
    renamed = [*_renamed(found.rows)]
    result.remarks += [f"{path}: {each}" for each in renamed]
    for reason, count in result.checked.not_checked.items():
        result.remarks.append(f"{path}: {several(count, 'sample')} not checked {reason}")


def _renamed(every: Sequence[SampleRow]) -> Iterator[str]:
    """Yield how often a name ran as another algorithm, and says so."""
    counted = Counter((row.algorithm, row.ran_algorithm) for row in every if rows.is_renamed(row))
    for (name, ran), count in sorted(counted.items(), key=str):
        yield f"{several(count, 'sample')} called {name} ran {ran}, as they say"


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
