"""Progress of a run, from the files it wrote: `run.json`, the overall table, and the history of its jobs.

No pandas and no table of layers: a thousand folders are read in a second on a login node.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from convscope.gpus import slowed_by
from convscope.storage.paths import KEPT, PROFILE_VERSION, SIZES_BY_STAGE, STAGES, Combination, slug

HISTORY = "jobs.log"
"""One line an event, tab-separated: time, job, event, model, algorithm, GPU, flags. `slurm/stage.sh` writes it too."""
_TAIL_BYTES = 8192
_NUMBER = re.compile(r"(\d+(\.\d+)?(e-?\d{1,3})?)?", re.ASCII)


@dataclass(frozen=True)
class Job:
    """The latest job of a folder: `event` is submitted, started, requeued or ended; `flags` as a shell reads them."""

    number: str
    event: str
    exit_code: int | None = None
    flags: str = ""


@dataclass(frozen=True)
class Progress:
    """Progress of one folder.

    Attributes:
        sizes: asked for by the last start; empty as long as no run has begun.
        measured: the status of every size that has a row, whoever asked for it.
        bad: the number of rows of `sizes` by status, without those that are ok.
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
    job: Job | None = None
    written_s: float = 0.0
    broken: str = ""

    @property
    def expected(self) -> int:
        """Number of sizes that the run measures: from `run.json`, else its stage's."""
        return len(self.sizes) or SIZES_BY_STAGE[self.stage]

    @property
    def done(self) -> int:
        """Number of sizes of the run that have a row."""
        return len(self.measured.keys() & set(self.sizes))

    @property
    def complete(self) -> bool:
        """True where every size of the run has a row."""
        return bool(self.sizes) and self.done >= len(self.sizes)


def read_all(results: Path, stages: Sequence[str] = STAGES) -> Iterator[Progress]:
    """Yield the progress of every folder under `results/<stage>/`, in order; empty folders are left out."""
    for stage in stages:
        for path in sorted((results / stage).glob("[!.]*/")):
            folder = None if KEPT in path.name else read(path, stage)
            if folder is not None:
                yield folder


def read(path: Path, stage: str) -> Progress | None:
    """Return the progress of one folder, None where nothing was submitted or run."""
    document, broken = _document(path / "run.json")
    job, submitted = _history(path / HISTORY)
    run = document.get("run", {})
    combination = Combination(run["model"], run["algorithm"], run["gpu"]) if document else submitted
    if combination is None:
        return Progress(path, stage, Combination(path.name, "?", "?"), broken=broken) if broken else None
    sizes = tuple(document.get("starts", [{}])[-1].get("asked", run).get("input_sizes", ()))
    every, unread = _rows(path / f"{slug(combination.model)}_{slug(combination.algorithm)}_overall.csv")
    rows = [row for row in every if int(row.input_size) in sizes]
    bad = [row for row in rows if row.status != "ok"]
    return Progress(
        path,
        stage,
        combination,
        sizes,
        measured={int(row.input_size): row.status for row in every},
        bad=Counter(row.status for row in bad),
        reason=bad[-1].reason if bad else "",
        fallback_layers=max((int(float(count or 0)) for count in {row.fallback_layers for row in rows}), default=0),
        throttled=sum(bool(slowed_by(row.throttle_reasons)) for row in rows),
        slowest_s=max((float(wall_s or 0) for wall_s in {row.wall_s for row in rows}), default=0.0),
        job=job,
        written_s=_last_write(path),
        broken=broken or unread,
    )


def _document(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content of `run.json` and its fault, "" for none; a run just begun may have no file."""
    try:
        document = json.loads(path.read_text())
        version = document["schema_version"]
        if version > PROFILE_VERSION:
            return {}, f"run.json has schema version {version}, this program reads {PROFILE_VERSION}"
        names = [document["run"][name] for name in ("model", "algorithm", "gpu")]
        asked = document.get("starts", [{}])[-1].get("asked", document["run"])
        sizes = [*document["run"]["input_sizes"], *asked["input_sizes"]]
        if not all(isinstance(name, str) for name in names) or not all(type(size) is int for size in sizes):
            return {}, "run.json cannot be read"
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}, "run.json cannot be read"
    return dict(document), ""


class _Row(NamedTuple):
    """Columns of the overall table that are read here, as text; "" where the table lacks one."""

    input_size: str
    status: str
    reason: str
    fallback_layers: str
    throttle_reasons: str
    wall_s: str


def _rows(path: Path) -> tuple[list[_Row], str]:
    """Return the rows and the fault of the file, "" for none; a row cut off at the end is none."""
    try:
        text = path.read_text()
        # Where nothing is quoted, cutting at the commas is the same, and several times as fast.
        lines = csv.reader(io.StringIO(text)) if '"' in text else (line.split(",") for line in text.split("\n"))
        header = next(lines, [])
        width = len(header)
        pick = operator.itemgetter(*(header.index(name) if name in header else width for name in _Row._fields))
        rows = [_Row(*pick([*line, ""])) for line in lines if len(line) == width]
    except FileNotFoundError:
        return [], ""
    except (OSError, ValueError, csv.Error):
        return [], f"{path.name} cannot be read"
    of_run = [row for row in rows if row.input_size.isdecimal()]
    if all(map(_NUMBER.fullmatch, {row.fallback_layers for row in of_run} | {row.wall_s for row in of_run})):
        return of_run, ""
    for at, row in enumerate(of_run):
        odd = [name for name in ("fallback_layers", "wall_s") if not _NUMBER.fullmatch(getattr(row, name))]
        of_run[at] = row._replace(**dict.fromkeys(odd, ""))
    return of_run, f"{path.name} has words where numbers belong"


def _history(path: Path) -> tuple[Job | None, Combination | None]:
    """Return the latest job and the combination it is for.

    A job may start before its submitter has written "submitted": that event counts only where the job has no other.
    """
    try:
        lines = [line.split("\t") for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return None, None
    events = [line for line in lines if len(line) == 7]
    if not events:
        return None, None
    of_job = [event for event in events if event[1] == events[-1][1]]
    _, number, event, model, algorithm, gpu, flags = ([e for e in of_job if e[2] != "submitted"] or of_job)[-1]
    word, _, code = event.partition(" ")
    return Job(number, word, int(code) if code.isdecimal() else None, flags), Combination(model, algorithm, gpu)


def _last_write(path: Path) -> float:
    written = (file for file in path.iterdir() if file.suffix in (".csv", ".json") or file.name == HISTORY)
    return max((file.stat().st_mtime for file in written), default=0.0)


def note_event(path: Path, time_utc: str, job: str, event: str, combination: Combination, flags: Sequence[str]) -> None:
    """Add a line to the history of a folder's jobs."""
    fields = (time_utc, job, event, combination.model, combination.algorithm, combination.gpu, shlex.join(flags))
    with (path / HISTORY).open("a") as file:
        file.write("\t".join(fields) + "\n")


def last_error(path: Path) -> str:
    """Return the last line of the newest `.err` log of a folder that is not blank, "" where there is none.

    Lines that srun adds after the program's own ("task 0: Exited with exit code 2") are passed over.
    """
    logs = sorted(path.glob("*.err"), key=lambda log: log.stat().st_mtime)
    if not logs:
        return ""
    with logs[-1].open("rb") as file:
        file.seek(max(0, logs[-1].stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    messages = [line for line in lines if line and not line.startswith("srun: ")]
    return messages[-1] if messages else ""
