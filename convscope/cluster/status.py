"""Status of every combination in each stage: `python -m convscope status`, `./check_status.sh`.

The files of the runs decide; SLURM's queue and accounts are added where they answer. A job that is missing from the
queue need not have finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convscope import slurm
from convscope.cli import display
from convscope.cli.display import or_dash
from convscope.cli.parser import OneLineParser
from convscope.cli.signals import STOPPED
from convscope.cluster import progress
from convscope.cluster.progress import Progress
from convscope.convolution import algorithms
from convscope.storage.paths import RESULTS, RETRIED, STAGES, Combination

STATES = ("queued", "running", "done", "failed", "stale")
SCRIPTS = dict(zip(STAGES, ("./1_sanity_check.sh", "./2_quick_sweep.sh", "./3_full_run.sh"), strict=True))

# A job that the queue no longer lists has this long to write its last line.
_LEFT_QUEUE_S = 120
# Without a queue a run is stale that wrote nothing for longer than this, and than several of the slowest size so far.
_SILENT_S = 1800
_SLOWEST_SIZES = 5
_SETTLED = ("COMPLETED", "PENDING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class Standing:
    """State of one combination in one stage: one of `STATES`, and the reason or details."""

    progress: Progress
    state: str
    detail: str = ""

    @property
    def cell(self) -> str:
        """The cell of the table: "running 3/10, 0:21:04 left"."""
        detail = f", {self.detail}" if self.state in ("queued", "running", "done") and self.detail else ""
        return f"{self.state} {self.progress.done}/{self.progress.expected}{detail}"


def survey(
    results: Path,
    stages: Sequence[str] = STAGES,
    run_command: slurm.RunCommand = slurm.run_command,
    now_s: float | None = None,
) -> list[Standing]:
    """Return the standing of every combination that was submitted or run, stage by stage."""
    folders = list(progress.read_all(results, stages))
    queue = slurm.queue(run_command) if any(_of_slurm(each) for each in folders) else None
    open_jobs = {each.job.number for each in folders if each.job and _of_slurm(each) and not each.complete}
    ended = slurm.accounts(open_jobs - set(queue or ()), run_command)
    now_s = time.time() if now_s is None else now_s
    return [standing(each, queue, ended, now_s) for each in folders]


def _of_slurm(folder: Progress) -> bool:
    return folder.job is not None and not folder.job.number.startswith("local")


def standing(
    folder: Progress, queue: Mapping[str, slurm.QueuedJob] | None, ended: Mapping[str, str], now_s: float
) -> Standing:
    """Decide the state of a combination; `queue` is None where none answers, `ended` what the accounts tell of jobs."""
    if folder.broken:
        return Standing(folder, "failed", folder.broken)
    number = folder.job.number if folder.job else ""
    if entry := (queue or {}).get(number):
        if entry.state == "PENDING":
            return Standing(folder, "queued", entry.reason)
        return Standing(folder, "running", f"{entry.time_left} left")
    if folder.complete and not folder.bad:
        return Standing(folder, "done")
    if folder.complete:
        counts = ", ".join(f"{count} {status}" for status, count in folder.bad.items())
        return Standing(folder, "failed", f"of {folder.done} sizes {counts}; last: {folder.reason}")
    if folder.job and folder.job.event == "ended":
        if folder.job.exit_code == 0 and "--output-dir" in folder.job.flags:
            return Standing(folder, "done", "written elsewhere, by --output-dir")
        if folder.job.exit_code == STOPPED:
            why = "stopped before its time limit, not put into the queue again; submitting it again goes on from there"
            return Standing(folder, "failed", why)
        silent = f"job {number} ended with exit code {folder.job.exit_code} and no last words"
        return Standing(folder, "failed", progress.last_error(folder.path) or silent)
    if number in ended and not ended[number].startswith(_SETTLED):
        state = f"job {number}: {ended[number].lower()}"
        return Standing(folder, "failed", "; ".join(filter(None, (state, progress.last_error(folder.path)))))
    if folder.job and folder.job.event == "submitted":
        why = f"job {number} left the queue without starting: cancelled, or the stage before failed"
        return Standing(folder, "queued", f"as job {number}") if queue is None else Standing(folder, "failed", why)
    return _by_silence(folder, queue is not None and _of_slurm(folder), now_s)


def _by_silence(folder: Progress, left_queue: bool, now_s: float) -> Standing:
    silent_s = now_s - folder.written_s
    limit_s = _LEFT_QUEUE_S if left_queue else max(_SILENT_S, _SLOWEST_SIZES * folder.slowest_s)
    if silent_s <= limit_s:
        return Standing(folder, "running")
    where = "the queue does not know its job; " if left_queue else ""
    minutes = int(silent_s // 60)
    silence = f"{where}nothing written for " + (f"{minutes} min" if minutes < 120 else f"{minutes // 60} h")
    return Standing(folder, "stale", "; ".join(filter(None, (silence, progress.last_error(folder.path)))))


def table(standings: Sequence[Standing]) -> str:
    """Return a line a combination, a column a stage; below it the failures, and the commands that submit them again."""
    if not standings:
        return "nothing here yet: ./1_sanity_check.sh MODEL ALGORITHM GPU begins"
    by_name: dict[Combination, dict[str, Standing]] = {}
    for each in standings:
        by_name.setdefault(each.progress.combination, {})[each.progress.stage] = each
    stages = [stage for stage in STAGES if any(each.progress.stage == stage for each in standings)]
    rows = [_line(name, stages, by_name[name]) for name in sorted(by_name, key=str)]
    lines = [display.table(("combination", *stages, "fallback", "throttled"), rows, all_left=True)]
    counts = Counter(each.state for each in standings)
    lines += ["", ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])]
    troubled = [each for each in standings if each.state in ("failed", "stale")]
    lines += [f"{each.state}: {each.progress.stage} {each.progress.combination}: {each.detail}" for each in troubled]
    commands = again(troubled)
    return "\n".join(lines + (["", "again:", *(f"  {command}" for command in commands)] if commands else []))


def _line(name: Combination, stages: Sequence[str], by_stage: Mapping[str, Standing]) -> tuple[str, ...]:
    cells = [by_stage[stage].cell if stage in by_stage else "-" for stage in stages]
    fallback = max(each.progress.fallback_layers for each in by_stage.values())
    throttled = sum(each.progress.throttled for each in by_stage.values())
    return (str(name), *cells, or_dash(fallback or None, "d", " layers"), or_dash(throttled or None, "d", " sizes"))


def again(troubled: Sequence[Standing]) -> list[str]:
    """Return the commands that submit these again: one for each stage and set of flags.

    Of one combination only the earliest stage is named: its failure stopped the others.
    """
    groups: dict[tuple[str, str], list[Combination]] = {}
    earliest: dict[Combination, Standing] = {}
    for each in sorted(troubled, key=lambda each: STAGES.index(each.progress.stage)):
        earliest.setdefault(each.progress.combination, each)
    for each in earliest.values():
        groups.setdefault((each.progress.stage, _flags(each)), []).append(each.progress.combination)
    return [_command(stage, flags, names) for (stage, flags), names in groups.items()]


def _flags(each: Standing) -> str:
    folder = each.progress
    local = ["--local"] if folder.job and not _of_slurm(folder) else []
    anew = ["--retry" if folder.bad.keys() <= {*RETRIED} else "--overwrite"] if folder.complete else []
    return " ".join([*local, *([folder.job.flags] if folder.job and folder.job.flags else []), *anew])


def _command(stage: str, flags: str, names: Sequence[Combination]) -> str:
    words = shlex.join(word for each in names for word in (each.model, each.algorithm, each.gpu))
    given = words if len(names) == 1 else f"--matrix <(printf '%s\\t%s\\t%s\\n' {words})"
    return f"{SCRIPTS[stage]} {given} {flags}".rstrip()


def as_json(standings: Sequence[Standing]) -> str:
    """Return the standings as a JSON list of objects."""
    return json.dumps([_plain(each) for each in standings], indent=2)


def _plain(each: Standing) -> dict[str, object]:
    folder = each.progress
    return {
        "stage": folder.stage,
        **dataclasses.asdict(folder.combination),
        "state": each.state,
        "detail": each.detail,
        "done": folder.done,
        "expected": folder.expected,
        "bad_sizes": dict(folder.bad),
        "fallback_layers": folder.fallback_layers,
        "throttled_sizes": folder.throttled,
        "job": folder.job.number if folder.job else None,
    }


def main(
    arguments: Sequence[str],
    results: Path = RESULTS,
    run_command: slurm.RunCommand = slurm.run_command,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print the table, or the JSON; with --watch again and again until nothing is queued or running any more."""
    options = _parser().parse_args(arguments)
    while True:
        standings = [each for each in survey(results, options.stage or STAGES, run_command) if _wanted(each, options)]
        text = as_json(standings) if options.json else table(standings)
        print(text if options.watch is None else f"\033[H\033[2J{text}", flush=True)
        if options.watch is None or not any(each.state in ("queued", "running") for each in standings):
            return 0
        try:
            sleep(options.watch)
        except KeyboardInterrupt:
            return 0


def _wanted(each: Standing, options: argparse.Namespace) -> bool:
    name = each.progress.combination
    wanted = (options.model, options.algorithm, options.gpu, options.state)
    values = (name.model, name.algorithm, name.gpu, each.state)
    return all(not names or value in names for names, value in zip(wanted, values, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="check_status.sh", description="Where every combination stands in each stage.")
    parser.add_argument("--stage", nargs="+", choices=STAGES)
    parser.add_argument("--model", nargs="+", metavar="NAME")
    parser.add_argument("--algorithm", nargs="+", metavar="NAME", type=lambda name: algorithms.find(name).name)
    parser.add_argument("--gpu", nargs="+", metavar="NAME")
    parser.add_argument("--state", nargs="+", choices=STATES)
    parser.add_argument("--watch", nargs="?", type=float, const=10.0, metavar="S", help="again every S seconds (10)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser
