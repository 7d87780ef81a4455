"""Folder of a published data set: samples, splits and conflicts as files, and the documents that describe them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.dataset import calls, parquet
from convscope.dataset.calls import CALLS, CallRow
from convscope.dataset.package import documents, merging, partition, readme
from convscope.dataset.package.documents import DataFile
from convscope.dataset.package.facts import Release, facts
from convscope.dataset.package.merging import CONFLICTS, Conflict
from convscope.dataset.samples import SAMPLES, SampleRow
from convscope.errors import InputError
from convscope.gpus import label
from convscope.storage import table

MEGABYTE = 10**6
MOST_BYTES = 25 * MEGABYTE
"""Size of a whole folder that a repository can carry."""


@dataclass(frozen=True)
class Package:
    """A data set in memory.

    Attributes:
        refused: kinds of splits that the samples cannot be divided by, with the reason.
        texts: of the documents, by name.
    """

    rows: Sequence[SampleRow]
    conflicts: Sequence[Conflict]
    files: Sequence[DataFile]
    refused: dict[str, str]
    texts: dict[str, str]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(len(each.content) for each in self.files) + sum(len(each.encode()) for each in self.texts.values())


def package(rows: Sequence[SampleRow], release: Release, known: Sequence[CallRow] = ()) -> Package:
    """Return samples, in the order of their keys, as a data set: the same for the same samples.

    Args:
        known: calls of whole models; those of models and sizes that no sample is of are left out.

    Raises:
        InputError: a sample says another shape of a layer.
    """
    every, conflicts, own = partition.frame(rows), merging.conflicts(rows), calls.of_samples(known, rows)
    for problem in calls.problems(own, rows):
        raise InputError(f"{problem}: give calls of the version of the model that was measured")
    divided, refused = partition.every_kind(every, own)
    files = [documents.samples_file(parquet.content(SAMPLES, rows))]
    if own:
        files.append(documents.calls_file(parquet.content(CALLS, own, numbered=False)))
    files += [documents.split_file(kind, [*found], partition.content(every, found)) for kind, found in divided.items()]
    if conflicts:
        lines = table.lines_of(CONFLICTS, conflicts, with_header=True)
        files.append(documents.conflicts_file(lines.encode()))
    return Package(rows, conflicts, files, refused, _texts(files, rows, release, refused))


def _texts(
    files: Sequence[DataFile], rows: Sequence[SampleRow], release: Release, refused: dict[str, str]
) -> dict[str, str]:
    known, name = facts(rows), name_of(rows)
    made: dict[str, Any] = {
        documents.DATAPACKAGE: documents.datapackage(files, known, release, name),
        documents.CROISSANT: documents.croissant(files, known, release, name),
    }
    texts = {each: json.dumps(document, indent=1, ensure_ascii=False) + "\n" for each, document in made.items()}
    return {readme.README: readme.text(files, known, release, refused), **texts}


def name_of(rows: Sequence[SampleRow]) -> str:
    """Return the name of a data set, by its cards: "convscope-h200"."""
    labels = sorted({label(row.gpu_name) for row in rows})
    return re.sub(r"[^a-z0-9]+", "-", f"convscope-{'-'.join(labels)}")


def check_place(folder: Path) -> None:
    """Raise InputError unless a data set may be written there: a new or empty folder, or one that holds a data set."""
    holds_one = (folder / documents.DATAPACKAGE).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not holds_one:
        what = f"has files and no {documents.DATAPACKAGE}, so it is no data set"
        raise InputError(f"{folder} {what}: name a new folder, or one of an earlier package")


def write(folder: Path, made: Package) -> None:
    """Write a data set into a folder, its documents last; files of splits that it no longer has are removed.

    Raises:
        InputError: it is larger than `MOST_BYTES`, or the folder cannot be written.
    """
    if made.bytes > MOST_BYTES:
        size = f"{made.bytes / MEGABYTE:.1f} MB, more than {MOST_BYTES // MEGABYTE}"
        raise InputError(f"the data set would be {size}: package fewer runs, or the cards one by one")
    contents = {each.path: each.content for each in made.files} | {
        name: text.encode() for name, text in made.texts.items()
    }
    try:
        (folder / "splits").mkdir(parents=True, exist_ok=True)
        may_go = documents.CONFLICTS_FILE, documents.CALLS_FILE
        for path in [*(folder / "splits").glob(f"*{parquet.SUFFIX}"), *(folder / name for name in may_go)]:
            if str(path.relative_to(folder)) not in contents:
                path.unlink(missing_ok=True)
        for name, content in contents.items():
            table.write_atomically(folder / name, content)
        with contextlib.suppress(OSError):
            (folder / "splits").rmdir()  # where there is none
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): name another folder") from None
