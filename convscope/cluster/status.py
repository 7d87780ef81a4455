"""Status of every combination in each stage: `python -m convscope status`, `./check_status.sh`.

The files of the runs decide; SLURM's queue and accounts are added where they answer. A job that is missing from the
queue need not have finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from convscope import slurm
from convscope.cli import display, programs, terminal
from convscope.cli.display import or_dash
from convscope.cli.parser import OneLineParser, note_by, one_line, reader_has_gone, uncollected
from convscope.cli.terminal import LiveTable, Piece, bar
from convscope.cluster import advice, history, progress
from convscope.cluster.advice import Row
from convscope.cluster.standing import OPEN, STATES, TROUBLED, Standing, Survey, survey
from convscope.convolution import algorithms
from convscope.errors import InputError
from convscope.storage.paths import RESULTS, STAGES, now_utc, slug

NAME = "check_status.sh" if programs.has_files() else "convscope status"
COMMAND = f"./{NAME}" if programs.has_files() else NAME
BEGINNING = (
    "./1_sanity_check.sh MODEL ALGORITHM GPU"
    if programs.has_files()
    else "convscope profile --model MODEL --algorithm ALGORITHM"
)
FAILED = 1
STILL_OPEN = 3
"""The exit code while something is queued or running, and nothing failed."""
INTERRUPTED = 130
SHOWN_FIRST = ("failed", "stale", "stopped", "running", "queued", "done")
STYLES = {"failed": "red", "stale": "red", "stopped": "yellow", "running": "cyan", "queued": "dim", "done": "green"}
BAR_SIGNS = 8
_SECONDS = (1.0, 86400.0)


def table(found: Survey) -> str:
    """Return a line a combination, a column a stage; below it the failures, and the commands that submit them again."""
    with uncollected():
        stages, rows = _by_combination(found.standings)
        lines = [_line(row, stages, rows[row]) for row in sorted(rows, key=str)]
        return "\n".join(
            [
                display.table(_header(stages), lines, all_left=True),
                "",
                _counts(found.standings),
                *(one_line(line) for line in _remarks(found)),
                *_again(found.standings),
            ]
        )


def _by_combination(standings: Sequence[Standing]) -> tuple[list[str], dict[Row, dict[str, Standing]]]:
    """Return the stages that there are, and the standings by combination and stage."""
    rows: dict[Row, dict[str, Standing]] = {}
    for each in standings:
        rows.setdefault(advice.row_of(each.progress), {})[each.progress.stage] = each
    return [stage for stage in STAGES if any(each.progress.stage == stage for each in standings)], rows


def _header(stages: Sequence[str]) -> tuple[str, ...]:
    return ("combination", *stages, "fallback", "throttled")


def _counts(standings: Sequence[Standing]) -> str:
    counts = Counter(each.state for each in standings)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _line(row: Row, stages: Sequence[str], by_stage: dict[str, Standing]) -> tuple[str, ...]:
    cells = [by_stage[stage].cell if stage in by_stage else "-" for stage in stages]
    fallback = max(each.progress.fallback_layers for each in by_stage.values())
    throttled = sum(each.progress.throttled for each in by_stage.values())
    return (str(row), *cells, or_dash(fallback or None, "d", " layers"), or_dash(throttled or None, "d", " sizes"))


def _remarks(found: Survey) -> list[str]:
    lines = [f"{each.state}: {_name(each)}: {each.detail}" for each in found.standings if each.state in TROUBLED]
    for each in found.standings:
        if each.refused:
            why = progress.last_error(each.progress.path, each.refused.number) or "its output says why"
            lines.append(f"refused: {_name(each)}: job {each.refused.number}, bad input or a folder in use: {why}")
    return lines + [f"skipped: {remark}" for remark in found.skipped]


def _name(each: Standing) -> str:
    return f"{each.progress.stage} {advice.row_of(each.progress)}"


def _again(standings: Sequence[Standing]) -> list[str]:
    commands = advice.again(standings)
    lines = ["", "again:", *(f"  {command}" for command in commands)] if commands else []
    if unsafe := [f"{each.stage} {advice.row_of(each)}" for each in advice.unsafe(standings)]:
        why = "others may have written what it would run: submit it by hand"
        lines += ["", *(one_line(f"not offered: {who}: {why}") for who in unsafe)]
    if any(each.bad_input for each in standings):
        lines += ["", f"bad input is not offered again: correct the command; {COMMAND} --forget takes it off this list"]
    return lines


def draw(screen: LiveTable, found: Survey, seconds: float) -> None:
    """Draw the table in place, with colours and bars: what fails or runs comes first, for a screen may be short."""
    stages, rows = _by_combination(found.standings)
    order = {state: at for at, state in enumerate(SHOWN_FIRST)}
    ranked = sorted(rows, key=lambda row: (min(order[each.state] for each in rows[row].values()), str(row)))
    lines = []
    for row in ranked:
        name, *cells, fallback, throttled = _line(row, stages, rows[row])
        pieces = [_with_bar(cell, rows[row].get(stage)) for stage, cell in zip(stages, cells, strict=True)]
        lines.append([Piece(name), *pieces, Piece(fallback), Piece(throttled)])
    looked = f"looked at {now_utc()}, every {seconds:g} s; Ctrl-C ends"
    screen.show(_header(stages), lines, [[Piece(_counts(found.standings), "bold")], [Piece(looked, "dim")]])


def _with_bar(cell: str, of: Standing | None) -> Piece:
    if of is None:
        return Piece(cell)
    done = bar(of.progress.done / max(1, of.progress.expected), BAR_SIGNS).ljust(BAR_SIGNS)
    return Piece(f"{done} {cell}", STYLES.get(of.state, ""))


def as_json(standings: Sequence[Standing]) -> str:
    """Return the standings as a JSON list of objects."""
    return json.dumps([_plain(each) for each in standings], indent=2)


def _plain(each: Standing) -> dict[str, object]:
    folder = each.progress
    return {
        "stage": folder.stage,
        **dataclasses.asdict(folder.combination),
        "folder": folder.path.name,
        "state": each.state,
        "detail": each.detail,
        "done": folder.done,
        "expected": folder.expected,
        "bad_sizes": dict(folder.bad),
        "fallback_layers": folder.fallback_layers,
        "throttled_sizes": folder.throttled,
        "job": folder.job.number if folder.job else None,
    }


def exit_code(standings: Sequence[Standing]) -> int:
    """Return 1 if something failed, was stopped or is stale; else 3 if something is queued or running; else 0."""
    states = {each.state for each in standings}
    return FAILED if states & {*TROUBLED} else STILL_OPEN if states & {*OPEN} else 0


def main(
    arguments: Sequence[str],
    results: Path = RESULTS,
    run_command: slurm.RunCommand = slurm.run_command,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print the table, or the JSON, and return `exit_code`; Ctrl-C ends it with the code of the latest look.

    With --watch again and again until nothing is queued or running any more; with --wait only then.
    """
    options = _parser().parse_args(arguments)
    if not (options.watch and not options.json and terminal.is_terminal()):
        return _watch(options, results, run_command, sleep, _show)
    last: list[tuple[Survey, int]] = []
    with LiveTable() as screen:

        def show(found: Survey, total: int, options: argparse.Namespace) -> bool:
            last[:] = [(found, total)]
            draw(screen, found, options.watch)
            return not reader_has_gone()

        code = _watch(options, results, run_command, sleep, show)
    if last:  # what stays when the screen has gone
        _show(*last[0], options)
    return code


def _watch(
    options: argparse.Namespace,
    results: Path,
    run_command: slurm.RunCommand,
    sleep: Callable[[float], None],
    show: Callable[[Survey, int, argparse.Namespace], bool],
) -> int:
    """Look once, or again and again, and show what was found; return the exit code of the latest look."""
    code = INTERRUPTED
    try:
        while True:
            every = survey(results, options.stage or STAGES, run_command)
            found = Survey([each for each in every.standings if _wanted(each, options)], every.skipped)
            if options.forget:
                return _forget(found.standings)
            code, is_open = exit_code(found.standings), any(each.state in OPEN for each in found.standings)
            if not (options.wait and is_open) and not show(found, len(every.standings), options):
                return code
            if not (options.watch or options.wait) or not is_open:
                return code
            sleep(options.watch or options.wait)
    except KeyboardInterrupt:
        return code


def _show(found: Survey, total: int, options: argparse.Namespace) -> bool:
    """Print what was found; return False where the reader has gone (`| head`)."""
    text = as_json(found.standings) if options.json else table(found)
    if not found.standings:
        none = f"nothing here yet: {BEGINNING} begins"
        why = f"nothing matches this filter (without it: {total})" if total else none
        text = text if options.json else "\n".join([why, *map(one_line, _remarks(found))])
        if options.json:
            note_by(NAME)(why)
    print(text, flush=True)
    if options.json:
        for remark in found.skipped:
            note_by(NAME)(f"skipped: {remark}")
    return not reader_has_gone()


def _forget(standings: Sequence[Standing]) -> int:
    """Note in their histories that jobs are forgotten which measured nothing and never will; nothing is deleted."""
    jobs = [(each, job) for each in standings for job in each.forgettable]
    for each, job in jobs:
        folder = each.progress
        try:
            history.note_event(folder.path, now_utc(), job.number, history.FORGOTTEN, folder.combination, [])
        except OSError as error:
            path = folder.path / history.HISTORY
            raise InputError(f"cannot write to {path} ({error.strerror}): its owner can forget it") from None
        print(one_line(f"forgotten: {_name(each)}: job {job.number}"))
    if not jobs:
        print("nothing to forget: only jobs of bad input (exit code 2), and jobs that never started, are forgotten")
    return 0


def _wanted(each: Standing, options: argparse.Namespace) -> bool:
    name = each.progress.combination
    wanted = (options.model, options.algorithm, options.gpu, options.state)
    values = (name.model, name.algorithm, name.gpu, each.state)
    pairs = zip(wanted, values, strict=True)
    return all(not names or slug(value).lower() in {slug(name.lower()) for name in names} for names, value in pairs)


def _seconds(text: str) -> float:
    low, high = _SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not low <= seconds <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds, from {low:g} to {high:g}")
    return seconds


def _algorithm(text: str) -> str:
    try:
        return algorithms.find(text).name
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=NAME,
        examples=("--stage 3_full --gpu h200", "--state failed stale --json"),
        description="Status of every combination in each stage.",
        epilog="Exit code: 1 if something failed, was stopped or is stale; else 3 if something is queued or running; "
        "else 0.",
    )
    parser.add_argument("--stage", nargs="+", choices=STAGES, type=str.lower, help="only these stages (default all)")
    parser.add_argument("--model", nargs="+", metavar="NAME", help="only these models (default all)")
    algorithms_shown = "only these algorithms (default all)"
    parser.add_argument("--algorithm", nargs="+", metavar="NAME", type=_algorithm, help=algorithms_shown)
    parser.add_argument("--gpu", nargs="+", metavar="NAME", help="only these GPUs (default all)")
    states = "only combinations in these states (default all)"
    parser.add_argument("--state", nargs="+", choices=STATES, type=str.lower, help=states)
    again = parser.add_mutually_exclusive_group()
    watch = "again every S seconds (10), until nothing is queued or running"
    again.add_argument("--watch", nargs="?", type=_seconds, const=10.0, metavar="S", help=watch)
    wait = "print once nothing is queued or running any more, looking every S seconds (30)"
    again.add_argument("--wait", nargs="?", type=_seconds, const=30.0, metavar="S", help=wait)
    forget = "take jobs off the list that measured nothing and never will: bad input, cancelled before they started"
    again.add_argument("--forget", action="store_true", help=forget)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser
