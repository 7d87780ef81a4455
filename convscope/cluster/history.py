"""History of a folder's jobs: `jobs.log`, one line an event, tab-separated.

Time, job, event, model, algorithm, GPU, flags as a shell reads them. `slurm/stage.sh` writes it too; anybody may have
written a line, so a line is an event only where each of its fields has its form.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convscope.cli.fields import naming
from convscope.cli.parser import one_line
from convscope.cluster import plain_files
from convscope.cluster.plain_files import ForeignError
from convscope.convolution import names
from convscope.storage.paths import Combination

HISTORY = "jobs.log"
FORGOTTEN = "forgotten"
EVENTS = ("submitted", "started", "requeued", "ended", FORGOTTEN)
BAD_INPUT = 2
_JOB = re.compile(r"(local-)?\d{1,12}(_\d{1,9})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:+-]{0,99}", re.ASCII)
_LONGEST = 4096  # name of a model: a path, and arguments


@dataclass(frozen=True)
class Job:
    """Job of a folder at its latest event: submitted, started, requeued or ended; `flags` as a shell reads them."""

    number: str
    event: str
    exit_code: int | None = None
    flags: str = ""

    @property
    def refused(self) -> bool:
        """True where its input was bad, or the folder was another run's: it measured nothing."""
        return self.event == "ended" and self.exit_code == BAD_INPUT

    @property
    def of_slurm(self) -> bool:
        """True where SLURM runs it."""
        return not self.number.startswith("local")


def is_combination(*named: object) -> bool:
    """Tell whether these can be model, algorithm and GPU; none has control characters, and a model alone slashes."""
    model, *others = named
    return is_model(model) and all(isinstance(name, str) and _NAME.fullmatch(name) for name in others)


def is_model(name: object) -> bool:
    """Tell whether a model can be called that, of a kind of `names.KINDS` or not, whatever its arguments."""
    if not isinstance(name, str) or _NAME.fullmatch(name):
        return isinstance(name, str)
    if len(name) > _LONGEST or not name.isprintable() or name != name.strip() or name.startswith("-"):
        return False
    base = names.without_arguments(name)
    return bool(_NAME.fullmatch(base) or names.kind_of(base) or base.startswith((names.TIMM, names.HF)))


def read(path: Path) -> tuple[tuple[Job, ...], Combination | None]:
    """Return the jobs of a folder, the latest last, and the combination that the latest is for.

    A job may start before its submitter has written "submitted": that event counts only where the job has no other.
    Jobs that were forgotten are left out.

    Raises:
        ForeignError: the history is no plain file that can be read, or it has lines and none is an event.
    """
    content = plain_files.read(os.path.join(path, HISTORY))
    by_job: dict[str, list[str]] = {}
    for line in (content or b"").decode(errors="replace").split("\n"):
        fields = line.split("\t")
        if _is_event(fields):
            before = by_job.pop(fields[1], fields)
            by_job[fields[1]] = before if fields[2] == "submitted" else fields
    if content and not by_job:
        raise ForeignError(f"{HISTORY} has no line that can be read")
    last = [fields for fields in by_job.values() if fields[2] != FORGOTTEN]
    return tuple(map(_job, last)), _combination(last[-1]) if last else None


def _combination(event: Sequence[str]) -> Combination:
    """Return the combination of an event; its flags name the folder too, as far as they can be read."""
    model, algorithm, gpu, flags = event[3:7]
    try:
        words = shlex.split(flags) if flags else []
    except ValueError:
        words = []
    return Combination(model, algorithm, gpu, **naming(words))


def _is_event(fields: Sequence[str]) -> bool:
    return (
        len(fields) == 7
        and _JOB.fullmatch(fields[1]) is not None
        and fields[2].partition(" ")[0] in EVENTS
        and _are_named(*fields[3:6])
    )


@functools.lru_cache
def _are_named(model: str, algorithm: str, gpu: str) -> bool:
    return is_combination(model, algorithm, gpu)


def _job(fields: Sequence[str]) -> Job:
    word, _, code = fields[2].partition(" ")
    return Job(fields[1], word, int(code) if code.isdecimal() and len(code) < 4 else None, fields[6])


def note_event(path: Path, time_utc: str, job: str, event: str, combination: Combination, flags: Sequence[str]) -> None:
    """Add a line to the history of a folder's jobs."""
    fields = (time_utc, job, event, combination.model, combination.algorithm, combination.gpu, shlex.join(flags))
    plain_files.append_line(path / HISTORY, "\t".join(map(one_line, fields)))
