"""Checks of a data set or of a file of samples: what `convscope check` finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convscope.cli.display import several
from convscope.dataset.check import folder, reading, rows
from convscope.dataset.check.rows import Checked
from convscope.dataset.package import partition
from convscope.dataset.package.documents import DATAPACKAGE, SAMPLES_FILE
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError


@dataclass
class Result:
    """Outcome of a check: errors, a line each; numbers of samples; remarks, which are no errors."""

    errors: list[str] = field(default_factory=list)
    samples: int = 0
    checked: Checked = field(default_factory=Checked)
    remarks: list[str] = field(default_factory=list)


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
        calls, wrong = folder.of_calls(place, found.rows)
        divided, refused = partition.every_kind(every, calls)
        result.errors += [
            *wrong, *folder.of_keys(place / SAMPLES_FILE, found.rows),
            *folder.of_splits(place, every, divided, refused), *folder.of_conflicts(place, found.rows),
            *folder.of_documents(place, found.rows, divided),
        ]  # fmt: skip
    _of_rows(place / SAMPLES_FILE, found, result)
    return result


def _of_rows(path: Path, found: reading.Reading, result: Result) -> None:
    result.samples = found.samples
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
