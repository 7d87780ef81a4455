"""Check of a published data set: files against their documents, keys, splits, conflicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from convscope.dataset import calls, parquet
from convscope.dataset.calls import CallRow
from convscope.dataset.package import documents, folder, merging, partition
from convscope.dataset.package.documents import (
    CALLS_FILE,
    CONFLICTS_FILE,
    CROISSANT,
    DATAPACKAGE,
    SAMPLES_FILE,
    DataFile,
)
from convscope.dataset.package.facts import Release, facts
from convscope.dataset.package.merging import CONFLICTS
from convscope.dataset.package.readme import README
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError
from convscope.storage import table

_FREE = frozenset({
    "description", "title", "keywords", "created", "homepage", "contributors", "name", "version", "citeAs", "creator",
    "datePublished", "url", "hash", "sha256", "contentSize", "prov:wasGeneratedBy", "prov:wasDerivedFrom",
})  # fmt: skip
"""Properties that need only be there: words, which later versions may better, and those that are checked otherwise."""


def document(path: Path) -> dict[str, Any]:
    """Read a document.

    Raises:
        InputError: there is none, or it is no JSON object.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        advice = "name a folder that `convscope dataset package` wrote, or a file of samples"
        raise InputError(f"{path} cannot be read ({error.strerror}): {advice}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}): write it anew (python -m convscope dataset package)") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object: write it anew (python -m convscope dataset package)")
    return found


def of_files(place: Path) -> Iterator[str]:
    """Yield where a file is not what the documents say, or all are too large."""
    described = {str(each.get("path")): str(each.get("hash")) for each in _listed(place, DATAPACKAGE, "resources")}
    distributed = {
        str(each.get("contentUrl")): f"sha256:{each.get('sha256')}"
        for each in _listed(place, CROISSANT, "distribution")
    }
    present = sorted(path for path in place.rglob("*") if path.is_file())
    for name in sorted({*described, *distributed}):
        path = place / name
        if path not in present:
            yield f"{path}: there is no such file in the folder, and the documents name it"
            continue
        digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for title, said in ((DATAPACKAGE, described.get(name)), (CROISSANT, distributed.get(name))):
            if said != digest:
                yield f"{path}: it was changed: its hash is {digest[:19]}…, {title} says {str(said)[:19]}…"
    for path in present:
        if path.suffix in (parquet.SUFFIX, ".csv") and str(path.relative_to(place)) not in described:
            yield f"{path}: {DATAPACKAGE} does not name it"
    if not (place / README).is_file():
        yield f"{place / README}: there is no card"
    if (total := sum(path.stat().st_size for path in present)) > folder.MOST_BYTES:
        yield f"{place}: {total / folder.MEGABYTE:.1f} MB, more than {folder.MOST_BYTES // folder.MEGABYTE}"


def _listed(place: Path, name: str, key: str) -> list[Mapping[str, Any]]:
    found = document(place / name).get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def of_keys(path: Path, rows: Sequence[SampleRow]) -> Iterator[str]:
    """Yield where the samples are not numbered from 0, not in the order of their keys, or share one."""
    numbers = parquet.read(path).column(parquet.NUMBER).to_pylist()
    if numbers != [*range(len(numbers))]:
        yield f"{path}: column {parquet.NUMBER} does not count from 0: write it anew"
    seen: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows):
        if (earlier := seen.setdefault(merging.key_of(row), number)) != number:
            yield f"{path}, sample {number} ({merging.title(row)}): it has the key of sample {earlier}"
    if merging.in_order(rows) != [*rows]:
        yield f"{path}: its rows are not in the order of their keys"


def of_calls(place: Path, rows: Sequence[SampleRow]) -> tuple[list[CallRow], list[str]]:
    """Return the calls of whole models, none without a file of them, and what is wrong with it."""
    path = place / CALLS_FILE
    if not path.is_file():
        return [], []
    try:
        found = calls.read([path])
    except InputError as error:
        return [], [str(error)]
    problems = [f"{path}: {problem}" for problem in calls.problems(found, rows)]
    if parquet.read(path).num_rows > len(found):
        problems.append(f"{path}: a call of a pass stands in it twice")
    return found, problems


def of_splits(
    place: Path, every: pd.DataFrame, divided: Mapping[str, partition.Roles], refused: Mapping[str, str]
) -> Iterator[str]:
    """Yield leaks of splits, and where a file is not the split that the samples give.

    Args:
        divided: the splits that they give, by kind, and `refused` why there are none of the others.
    """
    for kind, right in divided.items():
        path = place / "splits" / f"{kind}{parquet.SUFFIX}"
        if not path.is_file():
            yield f"{path}: there is no such file, and the samples can be split by {kind}"
            continue
        yield from (f"{path}, {problem}" for problem in _of_split(path, kind, every, right))
    for kind, why in refused.items():
        if (place / "splits" / f"{kind}{parquet.SUFFIX}").exists():
            yield f"{place / 'splits' / kind}{parquet.SUFFIX}: the samples cannot be split by {kind}: {why}"


def _of_split(path: Path, kind: str, every: pd.DataFrame, right: partition.Roles) -> Iterator[str]:
    try:
        found = parquet.read(path)
    except InputError as error:
        yield str(error)
        return
    if problems := [*parquet.differences(found.schema, partition.schema([*right]))]:
        yield from problems
        return
    columns: dict[str, list[Any]] = found.to_pydict()
    numbers, taking_part = columns.pop(parquet.NUMBER), partition.taking_part(every).tolist()
    if numbers != taking_part:
        odd = sorted({*numbers} ^ {*taking_part}, key=str)[:3]
        look = ", ".join(map(str, odd)) or "their order"
        yield f"it does not have the samples with a time and sizes, each once (look at {look})"
        return
    yield from partition.leaks(every, kind, numbers, columns)
    for name, roles in columns.items():
        wrong = [place for place, role in enumerate(roles) if role != right[name][place]]
        if wrong:
            at = wrong[0]
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            yield f"{name}: sample {numbers[at]} is {roles[at]!r}, and by its shape {right[name][at]!r}{more}"


def of_conflicts(place: Path, rows: Sequence[SampleRow]) -> Iterator[str]:
    """Yield where the list of conflicts is not that of the samples."""
    path, conflicts = place / CONFLICTS_FILE, merging.conflicts(rows)
    wanted = table.lines_of(CONFLICTS, conflicts, with_header=True) if conflicts else ""
    found = path.read_text(errors="replace") if path.is_file() else ""
    if found != wanted:
        count = max(0, found.count("\n") - 1)
        yield f"{path}: it lists {count} conflicts, the samples have {len(conflicts)}, or others"


def of_documents(place: Path, rows: Sequence[SampleRow], divided: Mapping[str, partition.Roles]) -> Iterator[str]:
    """Yield where a document says other columns, units, types, keys or values than the samples have."""
    files = [*_files(place, divided)]
    known, name, words = facts(rows), folder.name_of(rows), Release("1.0.0", "2026-01-01", "", "-")
    for title, made in ((DATAPACKAGE, documents.datapackage), (CROISSANT, documents.croissant)):
        found, wanted = document(place / title), made(files, known, words, name)
        yield from (f"{place / title}: {each}" for each in _differences(wanted, found, ""))


def _files(place: Path, divided: Mapping[str, partition.Roles]) -> Iterator[DataFile]:
    def content(name: str) -> bytes:
        path = place / name
        return path.read_bytes() if path.is_file() else b""

    yield documents.samples_file(content(SAMPLES_FILE))
    if (place / CALLS_FILE).is_file():
        yield documents.calls_file(content(CALLS_FILE))
    for kind, found in divided.items():
        yield documents.split_file(kind, [*found], content(f"splits/{kind}{parquet.SUFFIX}"))
    if (place / CONFLICTS_FILE).is_file():
        yield documents.conflicts_file(content(CONFLICTS_FILE))


def _differences(wanted: Any, found: Any, where: str) -> Iterator[str]:
    """Yield where a document lacks what it should say, or says something else; what it says besides is its own."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            inside = f"{where}.{key}".lstrip(".")
            if key not in found:
                yield f"{inside} is not there"
            elif key in _FREE or key.startswith("rai:"):
                if value not in ("", None) and found[key] in ("", None, [], {}):
                    yield f"{inside} is empty"
            else:
                yield from _differences(value, found[key], inside)
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield f"{where} has {len(found)} entries, not {len(wanted)}"
        for number, (one, other) in enumerate(zip(wanted, found, strict=False)):
            name = one.get("name", number) if isinstance(one, dict) else number
            yield from _differences(one, other, f"{where}[{name}]")
    elif wanted != found:
        yield f"{where} is {json.dumps(found)[:60]}, not {json.dumps(wanted)[:60]}"
