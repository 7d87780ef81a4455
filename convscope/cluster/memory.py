"""Progress of many folders, remembered between calls: a folder is read again where one of its files has changed.

Kept in `$XDG_CACHE_HOME/convscope` (`~/.cache/convscope`): a file for each place of results, where that has hundreds of
folders. It can be deleted at any time. What cannot be read or written there is forgotten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from convscope.cluster.history import Job
from convscope.cluster.progress import Look, Progress, finished
from convscope.storage.paths import Combination, cache_folder
from convscope.storage.table import write_atomically

_FEWEST = 300
"""Folders from which on remembering pays."""
_SETTLED_S = 5.0
"""A file that was written a shorter time ago may be written again within the same tick of the file system's clock."""
_PLAIN = ("reason", "fallback_layers", "throttled", "slowest_s")


class Remembered:
    """Progress of the folders of one place of results, as of an earlier call and of this one."""

    def __init__(self, results: Path) -> None:
        name = hashlib.blake2b(os.fsencode(os.path.realpath(results)), digest_size=12).hexdigest()
        self._path = cache_folder() / f"status_{name}.json"
        self._lists, self._folders = _read(self._path)
        self._numbers = {numbers: at for at, numbers in enumerate(self._lists)}
        self._seen: set[str] = set()
        self._changed, self._now_s = False, time.time()

    def has(self, path: Path, stage: str) -> bool:
        """Tell whether the progress of a folder is known, as of some time."""
        return f"{stage}/{path.name}" in self._folders

    def find(self, path: Path, stage: str, look: Look) -> Progress | None:
        """Return the progress of a folder that still looks so, None where that is not known."""
        key = f"{stage}/{path.name}"
        self._seen.add(key)
        entry = self._folders.get(key)
        try:
            return self._progress(path, stage, look, *entry[1:]) if entry and entry[0] == look.signature else None
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    def keep(self, look: Look, progress: Progress) -> None:
        """Remember the progress of a folder that looked so before it was read."""
        self._seen.add(f"{progress.stage}/{progress.path.name}")
        is_faulty = progress.broken or progress.remark  # which may pass without a change of the files
        if is_faulty or look.locked or self._now_s - look.written_s < _SETTLED_S:
            return
        sizes = self._number(progress.sizes)
        is_finished = progress.measured == finished(progress.sizes)[1]
        measured = None if is_finished else [*progress.measured.items()]
        self._folders[f"{progress.stage}/{progress.path.name}"] = [
            look.signature, [*vars(progress.combination).values()], sizes, measured,
            dict(progress.bad), [[*vars(job).values()] for job in progress.jobs], list(progress.command),
            *(getattr(progress, name) for name in _PLAIN),
        ]  # fmt: skip
        self._changed = True

    def save(self, stages: Collection[str]) -> None:
        """Write down what is known of the folders of these stages that were looked at, and of other stages."""
        kept = {key: entry for key, entry in self._folders.items()
                if key in self._seen or key.partition("/")[0] not in stages}  # fmt: skip
        if len(kept) < _FEWEST or (not self._changed and len(kept) == len(self._folders)):
            return
        document = {"of": _source_digest(), "sizes": self._lists, "folders": kept}
        with contextlib.suppress(OSError):  # a home that is full, or cannot be written
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(document, separators=(",", ":")))

    def _number(self, sizes: tuple[int, ...]) -> int:
        """Return the number of a list of sizes: many folders have the same."""
        if sizes not in self._numbers:
            self._numbers[sizes] = len(self._lists)
            self._lists.append(sizes)
        return self._numbers[sizes]

    def _progress(
        self, path: Path, stage: str, look: Look, named: list[Any], number: int, measured: list[Any] | None,
        bad: Mapping[str, int], jobs: list[list[Any]], command: list[str], *plain: Any,
    ) -> Progress:  # fmt: skip
        model, algorithm, gpu, batch_size, dtype, layout, input_shape, settings = named
        who = Combination(model, algorithm, gpu, batch_size, dtype, layout, input_shape, tuple(settings))
        sizes, done = finished(self._lists[number])
        return Progress(
            path, stage, who, sizes, done if measured is None else dict(measured),
            Counter(bad), jobs=tuple(Job(*job) for job in jobs), command=tuple(command), owner=look.owner,
            written_s=look.written_s, **dict(zip(_PLAIN, plain, strict=True)),
        )  # fmt: skip


def _read(path: Path) -> tuple[list[tuple[int, ...]], dict[str, list[Any]]]:
    """Return what the file of an earlier call has, nothing where it is not of this version of the program."""
    try:
        document = json.loads(path.read_bytes())
        if document["of"] == _source_digest():
            sizes = [tuple(map(int, numbers)) for numbers in document["sizes"]]
            return sizes, {key: list(entry) for key, entry in document["folders"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return [], {}


@functools.cache
def _source_digest() -> str:
    """Return a digest of the modules that make progress of files: other code may read other things in them."""
    folder = Path(__file__).parent
    names = (
        *("folders.py", "progress.py", "history.py", "plain_files.py", "memory.py"),
        *("../storage/paths.py", "../gpus.py", "../convolution/names.py", "../cli/fields.py"),
    )
    content = b"".join((folder / name).read_bytes() for name in names)
    fields = [field.name for field in dataclasses.fields(Progress)]
    return hashlib.sha256(content + repr(fields).encode()).hexdigest()[:16]
