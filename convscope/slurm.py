"""SLURM's answers about jobs: `squeue`, and `sacct` where the site keeps accounts; each is used where it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

RunCommand = Callable[[Sequence[str]], str | None]
"""Runs a command: what it printed, or None where it does not exist or fails."""

_TIMEOUT_S = 20
_FILTERS = ("SQUEUE_", "SACCT_", "SLURM_CLUSTERS")


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue: its state ("PENDING", "RUNNING"), SLURM's reason, the time it has left."""

    state: str
    reason: str
    time_left: str


def run_command(command: Sequence[str]) -> str | None:
    """Run a command of SLURM's; return what it printed, None where there is no answer.

    The user's own filters and formats (`SQUEUE_STATES`, `SACCT_FORMAT` and their like) do not apply.
    """
    if shutil.which(command[0]) is None:
        return None
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=clean)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def queue(ask: RunCommand = run_command) -> Mapping[str, QueuedJob] | None:
    """Return everybody's jobs by number, or None where no queue answers.

    A task of an array has two numbers, "12_3" and that of its own job; a site may hide what others have in the queue.
    """
    answer = ask(["squeue", "--noheader", "--array", "--all", "--format=%i|%T|%r|%L|%A"])
    if answer is None:
        return None
    fields = [line.strip().split("|") for line in answer.splitlines() if line.count("|") >= 3]
    jobs = {number: QueuedJob(state, reason, left) for number, state, reason, left, *_ in fields}
    return {own: jobs[number] for number, _, _, _, *owns in fields for own in owns} | jobs


def hides_jobs(ask: RunCommand = run_command) -> bool:
    """Tell whether the queue may hide the jobs of other users from this one (`PrivateData=jobs`)."""
    answer = ask(["scontrol", "show", "config"])
    private = [line.partition("=")[2] for line in (answer or "").splitlines() if line.startswith("PrivateData")]
    return not private or any({"jobs", "all"} & {*line.strip().split(",")} for line in private)


def states_of(number: str, ask: RunCommand = run_command) -> list[str] | None:
    """Return the state of a job, anybody's, by the number it has itself; None where no queue answers.

    The list is empty where the queue does not show the job: it has forgotten it, or hides other users' jobs
    (`PrivateData`). It has several states where the tasks of an array share a number.
    """
    # Asked for one number that it does not show, squeue fails, as it does where no controller answers; for two it shows
    # those that there are.
    twice = f"--jobs={number},{number}"
    answer = ask(["squeue", "--noheader", "--array", "--states=all", "--format=%A|%T", twice])
    if answer is None:
        return None
    lines = (line.strip().partition("|") for line in answer.splitlines())
    return [state for job, _, state in lines if job == number]


def accounts(numbers: Collection[str], ask: RunCommand = run_command) -> Mapping[str, str]:
    """Return how each of these jobs ended ("TIMEOUT", "CANCELLED by 0"); empty where no accounts are kept."""
    if not numbers:
        return {}
    whole = sorted({number.partition("_")[0] for number in numbers})
    form = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    command = ["sacct", *form, f"--jobs={','.join(whole)}"]
    fields = [line.split("|") for line in (ask(command) or "").splitlines() if line.count("|") == 1]
    return {number: state for number, state in fields if number in numbers}
