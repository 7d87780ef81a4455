"""State of a combination in a stage, decided from its files, its lock, and SLURM's queue and accounts."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from convscope import slurm
from convscope.cli.display import several
from convscope.cli.parser import uncollected
from convscope.cli.signals import ENDED, STOPPED
from convscope.cluster import folders, plain_files, progress
from convscope.cluster.history import Job
from convscope.cluster.memory import Remembered
from convscope.cluster.progress import Progress
from convscope.storage import lock
from convscope.storage.lock import Holder
from convscope.storage.paths import STAGES

STATES = ("queued", "running", "done", "stopped", "failed", "stale")
OPEN = ("queued", "running")
TROUBLED = ("stopped", "failed", "stale")

# A job that the queue no longer lists has this long to write its last line.
_LEFT_QUEUE_S = 120
# A run takes its lock within this time, for which it loads its model.
_BEFORE_LOCK_S = 600
# A run that nobody can see is stale when it wrote nothing for longer than this, and than several of its slowest size.
_SILENT_S = 1800
_SLOWEST_SIZES = 5
_SETTLED = ("COMPLETED", "PENDING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class Standing:
    """State of one combination in one stage: one of `STATES`, and the reason or details.

    `never_ran` is true where its latest job left the queue without starting.
    """

    progress: Progress
    state: str
    detail: str = ""
    never_ran: bool = False

    @property
    def cell(self) -> str:
        """The cell of the table: "running 3/10, 0:21:04 left"."""
        detail = f", {self.detail}" if self.state in (*OPEN, "done") and self.detail else ""
        return f"{self.state} {self.progress.done}/{self.progress.expected}{detail}"

    @property
    def bad_input(self) -> bool:
        """True where the job that failed was refused: the same command would be again."""
        return self.state == "failed" and self.progress.job is not None and self.progress.job.refused

    @property
    def refused(self) -> Job | None:
        """The latest job, where it was refused and an earlier one, or none, decides the state."""
        jobs = self.progress.jobs
        return jobs[-1] if jobs and jobs[-1].refused and not self.bad_input else None

    @property
    def forgettable(self) -> list[Job]:
        """The jobs that measured nothing and never will: refused, or gone from the queue without starting."""
        unstarted = [self.progress.job] if self.never_ran and self.progress.job else []
        return [job for job in self.progress.jobs if job.refused] + unstarted


@dataclass
class View:
    """Everything that is known of jobs and processes.

    Attributes:
        queue: the jobs in SLURM's queue by number, None where none answers.
        ended: how jobs ended, as SLURM's accounts say.
        ask: asks SLURM.
    """

    queue: Mapping[str, slurm.QueuedJob] | None
    ended: Mapping[str, str]
    now_s: float
    ask: slurm.RunCommand

    @functools.cached_property
    def me(self) -> Holder:
        """This process, as the holder of a lock would be described."""
        return lock.myself()

    @functools.cached_property
    def _others_are_hidden(self) -> bool:
        return slurm.hides_jobs(self.ask)

    def queue_for(self, folder: Progress) -> Mapping[str, slurm.QueuedJob] | None:
        """Return the queue, None where it may hide the jobs of the folder's owner."""
        if self.queue is None or (folder.job is not None and folder.job.number in self.queue):
            return self.queue
        is_others = folder.owner not in (None, os.getuid())
        return None if is_others and self._others_are_hidden else self.queue

    def lives(self, holder: Holder) -> bool | None:
        """Tell whether the run that holds a lock lives; None where nobody can tell from here."""
        known, _ = lock.lives(holder, self.me, lambda command: None)  # the queue has been asked already
        if known is not None:
            return known
        entry = (self.queue or {}).get(holder.job or "")
        return True if entry and entry.state != "PENDING" else None


class Survey(NamedTuple):
    """Standing of every combination, and a remark about each thing that was skipped."""

    standings: list[Standing]
    skipped: list[str]


def survey(
    results: Path,
    stages: Sequence[str] = STAGES,
    run_command: slurm.RunCommand = slurm.run_command,
    now_s: float | None = None,
) -> Survey:
    """Return the standing of every combination that was submitted or run, stage by stage."""
    with uncollected():
        return _survey(results, stages, run_command, now_s)


def _survey(results: Path, stages: Sequence[str], run_command: slurm.RunCommand, now_s: float | None) -> Survey:
    memory = Remembered(results)
    every, skipped = folders.read_all(results, stages, memory)
    memory.save(stages)
    of_slurm = [each for each in every if each.locked or any(job.of_slurm for job in each.jobs)]
    queue = slurm.queue(run_command) if of_slurm else None
    open_jobs = {each.job.number for each in of_slurm if each.job and each.job.of_slurm and not each.complete}
    ended = slurm.accounts(open_jobs - set(queue or ()), run_command)
    view = View(queue, ended, time.time() if now_s is None else now_s, run_command)
    return Survey([standing(each, view) for each in every], skipped)


def holder_of(folder: Progress) -> Holder | None:
    """Return who holds a folder by its lock, None where nobody does or the lock says nothing."""
    if not folder.locked:
        return None
    try:
        content = plain_files.read(folder.path / lock.NAME) or b""
    except plain_files.ForeignError:
        return None
    return lock.read_holder(content.decode(errors="replace"))


def standing(folder: Progress, view: View) -> Standing:
    """Decide the state of a combination."""
    if folder.broken:
        return Standing(folder, "failed", folder.broken)
    queue, holder = view.queue_for(folder), holder_of(folder)
    numbers = [*(job.number for job in folder.jobs), *([holder.job] if holder and holder.job else [])]
    entries = [queue[number] for number in numbers if number in queue] if queue else []
    if at_work := [entry for entry in entries if entry.state != "PENDING"]:
        return Standing(folder, "running", f"{at_work[-1].time_left} left")
    lives = view.lives(holder) if holder else False
    if lives:
        return Standing(folder, "running")
    if entries:
        return Standing(folder, "queued", entries[-1].reason)
    if folder.complete:
        return _complete(folder)
    return _ended(folder, view) or _unstarted(folder, queue) or _by_silence(folder, holder, lives, queue, view.now_s)


def _complete(folder: Progress) -> Standing:
    if not folder.bad:
        return Standing(folder, "done")
    counts = ", ".join(f"{count} {status}" for status, count in folder.bad.items())
    return Standing(folder, "failed", f"of {several(folder.done, 'size')} {counts}; last: {folder.reason}")


def _ended(folder: Progress, view: View) -> Standing | None:
    """Return the state of a run that says that it ended, or of which the accounts say so."""
    job = folder.job
    if job and job.event == "ended":
        if job.exit_code == 0 and "--output-dir" in job.flags:
            return Standing(folder, "done", "written elsewhere, by --output-dir")
        if job.exit_code in (STOPPED, ENDED):
            at = "before its time limit, not put into the queue again" if job.exit_code == STOPPED else "by a signal"
            return Standing(folder, "stopped", f"stopped {at}: submit it again to continue from there")
        silent = f"job {job.number} ended with exit code {job.exit_code} and wrote no error message"
        return Standing(folder, "failed", progress.last_error(folder.path) or silent)
    if job and job.number in view.ended and not view.ended[job.number].startswith(_SETTLED):
        state = f"job {job.number}: {view.ended[job.number].lower()}"
        return Standing(folder, "failed", "; ".join(filter(None, (state, progress.last_error(folder.path)))))
    return None


def _unstarted(folder: Progress, queue: Mapping[str, slurm.QueuedJob] | None) -> Standing | None:
    job = folder.job
    if job is None or job.event != "submitted":
        return None
    if queue is None:
        return Standing(folder, "queued", f"as job {job.number}")
    why = f"job {job.number} left the queue without starting: cancelled, or the stage before failed"
    return Standing(folder, "failed", why, never_ran=True)


def _by_silence(
    folder: Progress,
    holder: Holder | None,
    lives: bool | None,
    queue: Mapping[str, slurm.QueuedJob] | None,
    now_s: float,
) -> Standing:
    """Return the state of a run that did not say how it ended; `lives` is None where its process is out of sight."""
    of_slurm = (folder.job is not None and folder.job.of_slurm) or (holder is not None and holder.job is not None)
    if holder and lives is False:
        where, limit_s = f"process {holder.pid} on {holder.host}, which ran it, is gone", -1.0
    elif of_slurm and queue is not None:
        where, limit_s = "the queue does not know its job", _LEFT_QUEUE_S
    elif of_slurm or folder.locked:
        where, limit_s = "", max(_SILENT_S, _SLOWEST_SIZES * folder.slowest_s)
    else:
        where, limit_s = "no run holds the folder", _BEFORE_LOCK_S
    silent_s = now_s - folder.written_s
    if abs(silent_s) <= limit_s:
        return Standing(folder, "running")
    minutes = int(abs(silent_s) // 60)
    length = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    silence = f"nothing written for {length}" if silent_s >= 0 else f"its files are dated {length} ahead of the clock"
    silence = silence if minutes else ""
    return Standing(folder, "stale", "; ".join(filter(None, (where, silence, progress.last_error(folder.path)))))
