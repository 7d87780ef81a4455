"""Runs without what says where they were measured, for a page that anybody may read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from convscope.report.folders import Fault, Folder, Found

PRIVATE = ("host", "gpu_uuid", "slurm_job_id", "cuda_visible_devices")
"""Fields of an environment that name a place or one card."""
FREE_TEXTS = ("model", "reason", "error")
"""Columns in which a file may be named with its folders."""
_FOLDERS = re.compile(r"(?<![\w.:/~])(?:~|[A-Za-z]:)?[\\/](?:[^\s\\/'\"=,;:]+[\\/])*(?=[^\s\\/])|~/")


def without_origin(found: Found) -> Found:
    """Return runs without hosts, card UUIDs, job numbers, and the folders that absolute paths begin with."""
    faults = [Fault(fault.path, without_folders(fault.what)) for fault in found.faults]
    return Found([_of_folder(each) for each in found.folders], faults)


def without_folders(text: str) -> str:
    """Return a text in which absolute paths are the names of their files."""
    return _FOLDERS.sub("", text.replace("file://", ""))


def _of_folder(folder: Folder) -> Folder:
    document = {name: _cleaned(value) for name, value in folder.document.items()}
    document["environment"] = _of_environment(folder.environment)
    document["starts"] = [_of_start(start) for start in folder.document["starts"]]
    tables = {name: _of_table(rows) for name, rows in folder.tables.items()}
    return dataclasses.replace(folder, document=document, tables=tables)


def _of_start(start: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _cleaned(value) for name, value in start.items()}
    if isinstance(command := start.get("command"), list):
        found["command"] = [_word(str(word)) for word in command]
    return found | {"environment": _of_environment(start.get("environment") or {})}


def _word(word: str) -> str:
    """Return a word of a command in which a path is the name of its file."""
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (value.rstrip("/").rpartition("/")[2] or value)


def _of_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in environment.items() if name not in PRIVATE}


def _of_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table without private columns, its texts cleaned; each different text is looked at once."""
    kept = rows.drop(columns=[name for name in PRIVATE if name in rows])
    texts = [name for name in FREE_TEXTS if name in kept]
    known = {name: {each: _cleaned(each) for each in kept[name].dropna().unique()} for name in texts}
    return kept.assign(**{name: kept[name].map(words).where(kept[name].notna()) for name, words in known.items()})


def _cleaned(value: Any) -> Any:
    """Return a value of a document whose texts, at any depth, name files alone."""
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {name: _cleaned(each) for name, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list) else value
