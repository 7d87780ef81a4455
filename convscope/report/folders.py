"""Result folders of all studies, found below some roots and read by the project's own stores; faults are collected."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.atlas.rows import PLANS
from convscope.cli.parser import one_line
from convscope.conv3d.rows import SCHEMA as CONV3D
from convscope.errors import InputError
from convscope.inference.rows import SCHEMA as INFERENCE
from convscope.profiling.rows import SCHEMA as PROFILE
from convscope.storage.paths import KEEPING, KEPT, slug
from convscope.storage.schema import Schema
from convscope.storage.store import Store
from convscope.training.rows import SCHEMA as TRAINING
from convscope.verification.rows import CHOICE, FIRST_CALL, SUPPORT

if TYPE_CHECKING:
    import pandas as pd

SCHEMAS = {"profile": PROFILE, "training": TRAINING, "inference": INFERENCE, "conv3d": CONV3D}
VERIFICATIONS = {"plans": PLANS, "choice": CHOICE, "support": SUPPORT, "first_call": FIRST_CALL}
"""Studies of `run_verify.py`, which share the request's name; their main tables tell them apart."""
UNREAD = ("samples", "memory", "plan_times")
"""Tables of single samples and rounds, which no view shows."""


@dataclass(frozen=True)
class Folder:
    """One folder of results: its study, `run.json` in the form of this version, and its tables."""

    path: Path
    study: str
    document: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def request(self) -> Mapping[str, Any]:
        """The request, as `run.json` has it."""
        found: Mapping[str, Any] = self.document[schema_of(self.study).request]
        return found

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the last start."""
        found: Mapping[str, Any] = self.document["environment"]
        return found


@dataclass(frozen=True)
class Fault:
    """A folder, or a part of it, that could not be read, and why."""

    path: Path
    what: str


@dataclass
class Found:
    """All folders that could be read, and all faults."""

    folders: list[Folder] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def schema_of(study: str) -> Schema:
    """Return the schema of a study's folders."""
    return (SCHEMAS | VERIFICATIONS)[study]


def main_table(study: str) -> str:
    """Return the name of the table that makes a study's cells count."""
    return {"profile": "overall", "first_call": "first_passes"}.get(study, study)


def read(roots: Sequence[Path], studies: Collection[str] | None = None) -> Found:
    """Read every folder of results below the roots, each once, in the order of their paths.

    Args:
        studies: those whose folders are read; folders of others are neither read nor a fault. None is all.

    Raises:
        InputError: a root does not exist.
    """
    found = Found()
    for root in roots:
        if not root.is_dir():
            raise InputError(f"{root} is no folder: give folders of results, like results or results/2_quick")
    seen: set[Path] = set()
    for root in roots:
        below = [*_candidates(root)]
        paths = [path for path in below if path.resolve() not in seen]
        seen.update(path.resolve() for path in paths)
        if not below:
            found.faults.append(Fault(root, "no results below this folder: no run.json and no table"))
        for path in paths:
            if studies is None or not _is_of_others(path, studies):
                _read_folder(path, found)
    return found


def _candidates(root: Path) -> Iterator[Path]:
    """Yield the folders that hold results, without what an --overwrite has kept."""
    for name, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if not (each.startswith((".", KEEPING)) or KEPT in each))
        if "run.json" in files or any(each.endswith("_overall.csv") for each in files):
            yield Path(name)


def _read_folder(path: Path, found: Found) -> None:
    if odd := _no_file(path):
        found.faults.append(Fault(path, f"{odd} is no file: nothing of this folder is read"))
        return
    try:
        study = _study(path)
        schema = schema_of(study)
        document = schema.read(path / "run.json")
        if document is None:
            found.faults.append(Fault(path, "tables without a run.json: nobody knows how they were measured"))
            return
        request = document[schema.request]
        stem = f"{slug(request['model'])}_{slug(request['algorithm'])}" if study == "profile" else ""
        tables = _tables(Store(path, schema, stem), path, found)
    except (InputError, OSError) as error:
        found.faults.append(_fault(path, error))
        return
    main = main_table(study)
    if main in tables and not any(map(len, tables.values())):
        found.faults.append(Fault(path, f"no row in {main} yet: its run has measured nothing, or nothing else"))
    found.folders.append(Folder(path, study, document, tables))


def _no_file(path: Path) -> str:
    """Return the name of a description or table that is none, such as a pipe that nobody writes to; "" for none."""
    names = [each.name for each in path.iterdir() if each.suffix in (".json", ".csv") and not each.is_file()]
    return min(names, default="")


def _is_of_others(path: Path, studies: Collection[str]) -> bool:
    """Tell whether a folder is known to be of none of these studies."""
    try:
        return _study(path) not in studies
    except InputError:
        return _is_verification(path) and not {*studies} & VERIFICATIONS.keys()


def _study(path: Path) -> str:
    """Return the study that wrote a folder."""
    for study in VERIFICATIONS:
        if (path / f"{main_table(study)}.csv").exists():
            return study
    for study, schema in SCHEMAS.items():
        try:
            schema.read(path / "run.json")
        except InputError:
            continue
        return study
    for study, schema in {**SCHEMAS, **VERIFICATIONS}.items():  # its run.json is damaged: tables tell the study
        if study != "profile" and any((path / f"{name}.csv").exists() for name in schema.tables):
            return study
    (PROFILE if not _is_verification(path) else SUPPORT).read(path / "run.json")  # which says what is wrong
    raise InputError("no table yet")


def _is_verification(path: Path) -> bool:
    try:
        return SUPPORT.read(path / "run.json") is not None
    except InputError:
        return False


def _tables(store: Store, path: Path, found: Found) -> dict[str, pd.DataFrame]:
    """Return the tables of a folder; where one is damaged the others, as far as they can be read alone."""
    names = [name for name in store.schema.tables if name not in UNREAD]
    try:
        return store.read_all(*names)
    except InputError as error:
        found.faults.append(_fault(path, error))
    tables = {}
    for name in names:
        with contextlib.suppress(InputError):
            tables[name] = store.read(name)
    return tables


def _fault(path: Path, error: InputError | OSError) -> Fault:
    what = str(error) if isinstance(error, InputError) else (error.strerror or type(error).__name__)
    return Fault(path, one_line(what).removeprefix(f"{path}/").removeprefix(f"{path} "))
