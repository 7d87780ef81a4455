"""Where every combination stands in each stage: `python -m convscope status`, `./check_status.sh`.

What the runs wrote decides; SLURM's queue and accounts are added where they answer. Missing from the queue is not the
same as finished.
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
from convscope.cli.parser import OneLineParser
from convscope.cli.signals import STOPPED
from convscope.cluster import progress
from convscope.cluster.progress import Progress
from convscope.convolution import algorithms
from convscope.storage.paths import RESULTS, STAGES, Combination

STATES = ("queued", "running", "done", "failed", "stale")
SCRIPTS = dict(zip(STAGES, ("./1_sanity_check.sh", "./2_quick_sweep.sh", "./3_full_run.sh"), strict=True))

# A job that the queue no longer knows is given this long to write its last line.
_LEFT_QUEUE_S = 120
# Without a queue only silence tells: longer than this, and than several of the slowest size so far.
_SILENT_S = 1800
_SLOWEST_SIZES = 5
_SETTLED = ("COMPLETED", "PENDING", "RUNNING", "REQUEUED", "COMPLETING", "SUSPENDED")


@dataclass(frozen=True)
class Standing:
    """Where one combination stands in one stage: one of `STATES`, and its why."""

    progress: Progress
    state: str
    detail: str = ""

    @property
    def cell(self) -> str:
        """Return the cell of the table: "running 3/10, 0:21:04 left"."""
        detail = f", {self.detail}" if self.state in ("queued", "running", "done") and self.detail else ""
        return f"{self.state} {self.progress.done}/{self.progress.expected}{detail}"


def survey(
    results: Path,
    stages: Sequence[str] = STAGES,
    ask: slurm.RunCommand = slurm.run_command,
    now_s: float | None = None,
) -> list[Standing]:
    """Return the standing of every combination that has left a trace, stage by stage."""
    found = list(progress.read_all(results, stages))
    queue = slurm.queue(ask) if any(_of_slurm(each) for each in found) else None
    open_jobs = {each.job.number for each in found if each.job and _of_slurm(each) and not each.complete}
    ended = slurm.accounts(open_jobs - set(queue or ()), ask)
    now_s = time.time() if now_s is None else now_s
    return [standing(each, queue, ended, now_s) for each in found]


def _of_slurm(found: Progress) -> bool:
    return found.job is not None and not found.job.number.startswith("local")


def standing(
    found: Progress, queue: Mapping[str, slurm.QueuedJob] | None, ended: Mapping[str, str], now_s: float
) -> Standing:
    """Decide where a combination stands.

    Args:
        queue: the jobs in SLURM's queue, None where no queue answers.
        ended: how jobs ended, by number, as far as accounts say.
    """
    if found.broken:
        return Standing(found, "failed", found.broken)
    number = found.job.number if found.job else ""
    if entry := (queue or {}).get(number):
        if entry.state == "PENDING":
            return Standing(found, "queued", entry.reason)
        return Standing(found, "running", f"{entry.time_left} left")
    if found.complete:
        return Standing(found, "failed", _bad_sizes(found)) if found.bad else Standing(found, "done")
    if found.job and found.job.event == "ended":
        if found.job.exit_code == 0 and "--output-dir" in found.job.flags:
            return Standing(found, "done", "written elsewhere, by --output-dir")
        return Standing(found, "failed", _why_ended(found, found.job))
    if number in ended and not ended[number].startswith(_SETTLED):
        why = f"job {number}: {ended[number].lower()}"
        return Standing(found, "failed", "; ".join(filter(None, (why, progress.last_error(found.path)))))
    if found.job and found.job.event == "submitted":
        return _not_started(found, number, queue is not None)
    return _by_silence(found, queue is not None and _of_slurm(found), now_s)


def _bad_sizes(found: Progress) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in found.bad.items())
    return f"of {found.done} sizes {counts}; last: {found.reason}"


def _why_ended(found: Progress, job: progress.Job) -> str:
    if job.exit_code == STOPPED:
        return "stopped before its time limit, not put into the queue again; submitting it again goes on from there"
    return progress.last_error(found.path) or f"job {job.number} ended with exit code {job.exit_code} and no last words"


def _not_started(found: Progress, number: str, queue_known: bool) -> Standing:
    if queue_known:
        why = "left the queue without starting: cancelled, or the stage before failed"
        return Standing(found, "failed", f"job {number} {why}")
    return Standing(found, "queued", f"as job {number}")


def _by_silence(found: Progress, gone: bool, now_s: float) -> Standing:
    silent_s = now_s - found.written_s
    limit_s = _LEFT_QUEUE_S if gone else max(_SILENT_S, _SLOWEST_SIZES * found.slowest_s)
    if silent_s <= limit_s:
        return Standing(found, "running")
    where = "the queue does not know its job; " if gone else ""
    last = progress.last_error(found.path)
    return Standing(found, "stale", f"{where}nothing written for {_duration(silent_s)}" + (f"; {last}" if last else ""))


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def table(standings: Sequence[Standing]) -> str:
    """Return a line a combination, a column a stage; below it what failed, and how to submit that again."""
    if not standings:
        return "nothing here yet: ./1_sanity_check.sh MODEL ALGORITHM GPU begins"
    by_name: dict[Combination, dict[str, Standing]] = {}
    for each in standings:
        by_name.setdefault(each.progress.combination, {})[each.progress.stage] = each
    stages = [stage for stage in STAGES if any(each.progress.stage == stage for each in standings)]
    rows = [_line(who, stages, there) for who, there in sorted(by_name.items(), key=lambda item: str(item[0]))]
    lines = _columns(("combination", *stages, "fallback", "throttled"), rows)
    counts = Counter(each.state for each in standings)
    lines += ["", ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])]
    troubled = [each for each in standings if each.state in ("failed", "stale")]
    lines += [f"{each.state}: {each.progress.stage} {each.progress.combination}: {each.detail}" for each in troubled]
    commands = again(troubled)
    return "\n".join(lines + (["", "again:", *(f"  {command}" for command in commands)] if commands else []))


def _line(who: Combination, stages: Sequence[str], there: Mapping[str, Standing]) -> tuple[str, ...]:
    cells = [there[stage].cell if stage in there else "-" for stage in stages]
    fallback = max(each.progress.fallback_layers for each in there.values())
    throttled = sum(each.progress.throttled for each in there.values())
    return (str(who), *cells, f"{fallback} layers" if fallback else "-", f"{throttled} sizes" if throttled else "-")


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    every = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows))
    return ["  ".join(cells).rstrip() for cells in every]


def again(troubled: Sequence[Standing]) -> list[str]:
    """Return the commands that submit just these again: one for each stage and set of flags.

    Of one combination only the earliest stage is named: what failed there stopped the others.
    """
    groups: dict[tuple[str, str], list[Combination]] = {}
    earliest: dict[Combination, Standing] = {}
    for each in sorted(troubled, key=lambda each: STAGES.index(each.progress.stage)):
        earliest.setdefault(each.progress.combination, each)
    for each in earliest.values():
        groups.setdefault((each.progress.stage, _flags(each)), []).append(each.progress.combination)
    return [_command(stage, flags, who) for (stage, flags), who in groups.items()]


def _flags(each: Standing) -> str:
    found = each.progress
    local = ["--local"] if found.job and not _of_slurm(found) else []
    overwrite = ["--overwrite"] if found.complete else []
    return " ".join([*local, *([found.job.flags] if found.job and found.job.flags else []), *overwrite])


def _command(stage: str, flags: str, who: Sequence[Combination]) -> str:
    if len(who) == 1:
        names = shlex.join((who[0].model, who[0].algorithm, who[0].gpu))
        return f"{SCRIPTS[stage]} {names} {flags}".rstrip()
    words = shlex.join(word for each in who for word in (each.model, each.algorithm, each.gpu))
    return f"{SCRIPTS[stage]} --matrix <(printf '%s\\t%s\\t%s\\n' {words}) {flags}".rstrip()


def as_json(standings: Sequence[Standing]) -> str:
    """Return the standings as a JSON list of objects."""
    return json.dumps([_plain(each) for each in standings], indent=2)


def _plain(each: Standing) -> dict[str, object]:
    found = each.progress
    return {
        "stage": found.stage,
        **dataclasses.asdict(found.combination),
        "state": each.state,
        "detail": each.detail,
        "done": found.done,
        "expected": found.expected,
        "bad_sizes": dict(found.bad),
        "fallback_layers": found.fallback_layers,
        "throttled_sizes": found.throttled,
        "job": found.job.number if found.job else None,
    }


def main(
    arguments: Sequence[str],
    results: Path = RESULTS,
    ask: slurm.RunCommand = slurm.run_command,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print the table, or the JSON; with --watch again and again until nothing is queued or running any more."""
    options = _parser().parse_args(arguments)
    while True:
        found = [each for each in survey(results, options.stage or STAGES, ask) if _wanted(each, options)]
        said = as_json(found) if options.json else table(found)
        print(said if options.watch is None else f"\033[H\033[2J{said}", flush=True)
        if options.watch is None or not any(each.state in ("queued", "running") for each in found):
            return 0
        try:
            sleep(options.watch)
        except KeyboardInterrupt:
            return 0


def _wanted(each: Standing, options: argparse.Namespace) -> bool:
    who = each.progress.combination
    wanted = (options.model, options.algorithm, options.gpu, options.state)
    values = (who.model, who.algorithm, who.gpu, each.state)
    return all(not names or value in names for names, value in zip(wanted, values, strict=True))


def _parser() -> argparse.ArgumentParser:
    made = OneLineParser(prog="check_status.sh", description="Where every combination stands in each stage.")
    made.add_argument("--stage", nargs="+", choices=STAGES)
    made.add_argument("--model", nargs="+", metavar="NAME")
    made.add_argument("--algorithm", nargs="+", metavar="NAME", type=lambda name: algorithms.find(name).name)
    made.add_argument("--gpu", nargs="+", metavar="NAME")
    made.add_argument("--state", nargs="+", choices=STATES)
    made.add_argument("--watch", nargs="?", type=float, const=10.0, metavar="S", help="again every S seconds (10)")
    made.add_argument("--json", action="store_true", help="for programs")
    return made
