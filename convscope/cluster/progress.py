"""Progress of a run, from the files it wrote: `run.json`, the overall table, and the history of its jobs.

No pandas and no table of layers: a thousand folders are read in less than a second on a login node, and what was read
is remembered until the files change (`memory`). Folders are shared, so each file counts as written by a stranger: links
that lead out of the results are not followed, names are checked before they become paths.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from convscope.cli.parser import one_line
from convscope.cluster import history, plain_files
from convscope.cluster.history import HISTORY, Job
from convscope.cluster.plain_files import ForeignError
from convscope.gpus import slowed_by
from convscope.storage.lock import NAME as LOCK
from convscope.storage.paths import PROFILE_VERSION, SIZES_BY_STAGE, Combination, slug

_TAIL_BYTES = 8192
_OWN = (".csv", ".json")
_NAMING = ("batch_size", "dtype", "layout", "input_shape")  # settings in a folder's name, beside the three names
_NUMBER = re.compile(r"(\d{1,18}(\.\d{0,30})?(e[+-]?\d{1,2})?)?", re.ASCII)
_DIGITS_MOST = 9  # of an input size
_NUMBERS = ("fallback_layers", "wall_s")


@dataclass(frozen=True)
class Progress:
    """Progress of one folder.

    Attributes:
        sizes: asked for by the last start; empty as long as no run has begun.
        measured: the status of every size that has a row, whoever asked for it.
        bad: the number of rows of `sizes` by status, without those that are ok.
        jobs: those of its history, the latest last.
        command: that of the last start.
        locked: True where a run holds the folder, or one that was killed held it.
        owner: the number of the user who submitted, or else of the one who holds the folder; None where nobody did.
        broken: the fault of its files, "" for none.
        remark: the fault of its history, which is then left out.
    """

    path: Path
    stage: str
    combination: Combination
    sizes: tuple[int, ...] = ()
    measured: Mapping[int, str] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    fallback_layers: int = 0
    throttled: int = 0
    slowest_s: float = 0.0
    jobs: tuple[Job, ...] = ()
    command: tuple[str, ...] = ()
    locked: bool = False
    owner: int | None = None
    written_s: float = 0.0
    broken: str = ""
    remark: str = ""

    @property
    def job(self) -> Job | None:
        """The latest job that was not refused; where all were and nothing was ever measured, the latest."""
        accepted = [job for job in self.jobs if not job.refused]
        return accepted[-1] if accepted else self.jobs[-1] if self.jobs and not self.sizes else None

    @property
    def expected(self) -> int:
        """Number of sizes that the run measures: from `run.json`, else its stage's."""
        return len(self.sizes) or SIZES_BY_STAGE[self.stage]

    @functools.cached_property
    def done(self) -> int:
        """Number of sizes of the run that have a row."""
        return len(self.measured.keys() & set(self.sizes))

    @property
    def complete(self) -> bool:
        """True where every size of the run has a row."""
        return bool(self.sizes) and self.done >= len(self.sizes)


class Look(NamedTuple):
    """A folder's own files as they lie there, not read.

    Attributes:
        signature: another one where a file was written, came or went.
        written_s: when they were written last.
        locked: there is a lock.
        owner: as in `Progress`.
    """

    signature: str
    written_s: float
    locked: bool
    owner: int | None


def read(path: Path, stage: str) -> Progress | None:
    """Return the progress of one folder, None where nothing was submitted or run."""
    try:
        return read_as(path, stage, look_at(os.fspath(path)))
    except ForeignError as error:
        return Progress(path, stage, Combination(path.name, "?", "?"), broken=str(error))


def read_as(path: Path, stage: str, look: Look) -> Progress | None:
    """Return the progress of a folder that looked so, None where nothing was submitted or run.

    Raises:
        ForeignError: something in it is none of a run's files.
    """
    document, broken = _document(os.path.join(path, "run.json"))
    jobs, submitted, remark = _history(path, document)
    run = document.get("run", {})
    combination = _combination(run) if document else submitted
    if combination is None:
        return Progress(path, stage, Combination(path.name, "?", "?"), broken=broken) if broken else None
    start = document.get("starts", [{}])[-1]
    sizes = tuple(dict.fromkeys(start.get("asked", run).get("input_sizes", ())))
    table = f"{slug(combination.model)}_{slug(combination.algorithm)}_overall.csv"
    every, unread = _columns(os.path.join(path, table))
    measured = dict(zip(map(int, every.input_size), every.status, strict=True))
    asked, (sizes, done) = frozenset(sizes), finished(sizes)
    rows = every if asked.issuperset(measured) else every.where([int(size) in asked for size in every.input_size])
    bad = rows if set(rows.status) - {"ok"} else _Columns()
    bad = bad.where([status != "ok" for status in bad.status])
    return Progress(
        path,
        stage,
        combination,
        sizes,
        measured=done if measured == done else measured,
        bad=Counter(bad.status),
        reason=bad.reason[-1] if bad.reason else "",
        fallback_layers=max((int(float(count or 0)) for count in set(rows.fallback_layers)), default=0),
        throttled=sum(count for causes, count in Counter(rows.throttle_reasons).items() if slowed_by(causes)),
        slowest_s=max((float(wall_s or 0) for wall_s in set(rows.wall_s)), default=0.0),
        jobs=jobs,
        command=tuple(start.get("command", document.get("command", ()))),
        locked=look.locked,
        owner=look.owner,
        written_s=look.written_s,
        broken=broken or unread,
        remark=remark,
    )


@functools.lru_cache
def finished(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], Mapping[int, str]]:
    """Return sizes, and each as measured without a fault: the same two objects for the many folders that have them."""
    return sizes, dict.fromkeys(sizes, "ok")


def _combination(run: Mapping[str, Any]) -> Combination:
    """Return the combination of a request; `_document` has checked its types."""
    naming = {name: run[name] for name in _NAMING if run.get(name) is not None}
    return Combination(run["model"], run["algorithm"], run["gpu"], **naming)


def _history(path: Path, document: Mapping[str, Any]) -> tuple[tuple[Job, ...], Combination | None, str]:
    """Return the jobs, their combination and a remark; raises a ForeignError only where there is no run to show."""
    try:
        return (*history.read(path), "")
    except ForeignError as error:
        if not document:
            raise
        return (), None, str(error)


def _document(path: str) -> tuple[dict[str, Any], str]:
    """Return the content of `run.json` and its fault, "" for none; a run just begun may have no file."""
    content = plain_files.read(path)
    if content is None:
        return {}, ""
    try:
        document = json.loads(content)
        version = document["schema_version"]
        if version > PROFILE_VERSION:
            return {}, f"run.json has schema version {version}, this program reads {PROFILE_VERSION}"
        run, start = document["run"], document.get("starts", [{}])[-1]
        names = [run[name] for name in ("model", "algorithm", "gpu")]
        numbers = [*run["input_sizes"], *start.get("asked", run)["input_sizes"], run.get("batch_size", 1)]
        words = [*start.get("command", document.get("command", []))]
        words += [run[name] for name in _NAMING[1:] if run.get(name) is not None]
        types = [type(each) is int for each in numbers] + [isinstance(each, str) for each in (*names, *words)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}, "run.json cannot be read"
    if not all(types):
        return {}, "run.json cannot be read"
    if not history.is_combination(*names):
        return {}, "run.json has odd names of model, algorithm or GPU"
    return dict(document), ""


class _Columns(NamedTuple):
    """Columns of the overall table that are read here, as text, an item for each row; "" where the table lacks one."""

    input_size: Sequence[str] = ()
    status: Sequence[str] = ()
    reason: Sequence[str] = ()
    fallback_layers: Sequence[str] = ()
    throttle_reasons: Sequence[str] = ()
    wall_s: Sequence[str] = ()

    def where(self, keep: Sequence[bool]) -> _Columns:
        """Return the rows that are to be kept."""
        return self if all(keep) else _Columns(*(tuple(itertools.compress(column, keep)) for column in self))


def _columns(path: str) -> tuple[_Columns, str]:
    """Return the columns and the fault of the file, "" for none; a row cut off at the end is none."""
    content = plain_files.read(path)
    if content is None:
        return _Columns(), ""
    try:
        text = content.decode()
        text = text.replace("\r\n", "\n") if "\r" in text else text
        found = _quoted(text) if '"' in text else _plain(text)
    except (ValueError, csv.Error):
        return _Columns(), f"{os.path.basename(path)} cannot be read"
    of_run = found
    if not all(map(str.isdecimal, found.input_size)) or max(map(len, found.input_size), default=0) > _DIGITS_MOST:
        of_run = found.where([size.isdecimal() and len(size) <= _DIGITS_MOST for size in found.input_size])
    if all(map(_NUMBER.fullmatch, {*of_run.fallback_layers, *of_run.wall_s})):
        return of_run, ""
    numbers = {name: [each if _NUMBER.fullmatch(each) else "" for each in getattr(of_run, name)] for name in _NUMBERS}
    return of_run._replace(**numbers), f"{os.path.basename(path)} has words where numbers belong"


def _plain(text: str) -> _Columns:
    """Return the columns of a table in which nothing is quoted: cut at the commas, all rows at once."""
    header, _, body = text.partition("\n")
    count, places = _places(header)
    fields, of_row, rows = _fields(body), count + 1, body.count("\n")
    if fields[-1] or len(fields) != rows * of_row + 1 or fields[of_row - 1 :: of_row].count("\n") != rows:
        whole = [line for line in body.split("\n") if line.count(",") == count - 1 and (line or count > 1)]
        fields = _fields("".join(f"{line}\n" for line in whole))
    return _picked(places, lambda at: fields[at:-1:of_row], len(fields) // of_row)


def _fields(body: str) -> list[str]:
    """Return the fields of all rows, a line end after those of each, and what follows the last line end."""
    return body.replace("\n", ",\n,").split(",")


def _quoted(text: str) -> _Columns:
    lines = csv.reader(io.StringIO(text))
    names = next(lines, [])
    rows = [line for line in lines if len(line) == len(names)]
    return _picked(_named(names), lambda at: [row[at] for row in rows], len(rows))


@functools.lru_cache
def _places(header: str) -> tuple[int, tuple[int | None, ...]]:
    """Return the number of columns, and the places of those that are read: thousands of tables have one header."""
    names = header.split(",")
    return len(names), _named(names)


def _named(names: Sequence[str]) -> tuple[int | None, ...]:
    """Return the place of each column that is read here, None where there is none; of two with one name the first."""
    return tuple(names.index(name) if name in names else None for name in _Columns._fields)


def _picked(places: Sequence[int | None], column: Callable[[int], Sequence[str]], count: int) -> _Columns:
    """Return the columns at these places, of so many rows."""
    return _Columns(*([""] * count if at is None else column(at) for at in places))


def look_at(path: str) -> Look:
    """Return how the run's own files lie in a folder.

    Raises:
        ForeignError: it cannot be read.
    """
    written_s, owners = 0.0, dict[str, int]()
    seen: list[tuple[object, ...]] = []
    try:
        with os.scandir(path) as entries:
            own = [each for each in entries if each.name.endswith(_OWN) or each.name in (HISTORY, LOCK)]
    except FileNotFoundError:  # it went away
        own = []
    except OSError as error:
        raise ForeignError(f"cannot be read ({error.strerror})") from None
    for each in own:
        try:
            found = each.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # a run at work replaces its files
        except OSError as error:
            raise ForeignError(f"{each.name} cannot be read ({error.strerror})") from None
        if each.name in (HISTORY, LOCK):
            owners[each.name] = found.st_uid
        if stat.S_ISREG(found.st_mode) and each.name != LOCK:
            written_s = max(written_s, found.st_mtime)
        seen.append((each.name, found.st_mode, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino))
    signature = hashlib.blake2b(repr(sorted(seen)).encode(), digest_size=12).hexdigest()
    return Look(signature, written_s, LOCK in owners, owners.get(HISTORY, owners.get(LOCK)))


def last_error(path: Path, job: str = "") -> str:
    """Return the last line of the newest `.err` log of a folder, or of a job's, that is not blank; "" without one.

    Lines that srun adds after the program's own ("task 0: Exited with exit code 2") are passed over.
    """
    end = f"_{job}.err" if job else ".err"
    try:
        with os.scandir(path) as entries:
            logs = [each for each in entries if each.name.endswith(end) and each.is_file(follow_symlinks=False)]
            newest = max(logs, key=lambda log: log.stat(follow_symlinks=False).st_mtime, default=None)
        content = plain_files.read(path / newest.name, _TAIL_BYTES) if newest else None
    except (OSError, ForeignError):
        return ""
    lines = [line.strip() for line in (content or b"").decode(errors="replace").splitlines()]
    messages = [line for line in lines if line and not line.startswith("srun: ")]
    return one_line(messages[-1]) if messages else ""
