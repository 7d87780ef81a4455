"""Combinations on their way to the queue: what cannot run is refused, what is finished or queued is left out.

`python -m convscope stages MODEL ALGORITHM GPU` prints the stages that one combination still needs; `matrix`, `local`
ask the same of many. What a request would measure is for `run_profile.py --check-stages` to say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope import slurm
from convscope.cli import fields, programs
from convscope.cli.parser import OneLineParser, one_line, split_flags
from convscope.cluster import history, progress
from convscope.cluster.plain_files import ForeignError
from convscope.convolution import algorithms, names
from convscope.errors import InputError
from convscope.storage.paths import PROFILE_FREE, RESULTS, RETRIED, SCRIPTS, STAGES, Combination, slug
from convscope.storage.schema import difference

_LONGEST_FOLDER = 200  # characters; a name on disk may have 255, and logs add stage and job to it
LOCAL = "local"  # the GPU that is here, whatever it is
_OVER = ("COMPLETING",)  # states of a job in the queue that measures no more


@dataclass(frozen=True)
class Requests:
    """Answer of `run_profile.py`: the request of each combination in each stage, and the flags on what is there."""

    runs: Mapping[tuple[Combination, str], Mapping[str, Any]]
    overwrite: bool
    retry: bool
    output_dir: str | None


@dataclass(frozen=True)
class Work:
    """Stages that a combination still needs, in order; `retry` where sizes of theirs failed and are measured again."""

    combination: Combination
    stages: tuple[str, ...]
    retry: bool = False


def requests(
    combinations: Sequence[Combination], stages: Sequence[str], flags: Sequence[str], is_here: bool = False
) -> Requests:
    """Return what these would measure; with `is_here` on this machine.

    Raises:
        InputError: one of them cannot run; the message says which and why.
    """
    lines = "".join(f"{line_of(each)}\n" for each in combinations)
    options = ["--check-stages", ",".join(stages), *(["--here"] if is_here else [])]
    command = [*programs.command("run_profile"), *options, *flags]
    own = programs.environment()
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, env=own)
    if done.returncode:
        message = (
            done.stderr.strip().splitlines() or [f"{programs.called('run_profile')} ended with {done.returncode}"]
        )[-1]
        raise InputError(message.removeprefix("run_profile.py: "))
    sys.stderr.write(done.stderr)
    answer = json.loads(done.stdout)
    runs = iter(answer["requests"])
    by_stage = {(each, stage): next(runs) for each in combinations if each.gpu != LOCAL for stage in stages}
    return Requests(by_stage, answer["overwrite"], answer["retry"], answer["output_dir"])


@dataclass(frozen=True)
class Plan:
    """Works of combinations that still need something, the number of finished ones, and jobs of those in the queue."""

    works: list[Work]
    finished: int
    queued: dict[Combination, str]


@dataclass(frozen=True)
class Planner:
    """Decides which stages each combination still needs.

    Attributes:
        first: the stage that was called; those before it are done only where they are missing.
        results: the folder of all results.
        ask: asks SLURM's queue.
    """

    requests: Requests
    stages: Sequence[str]
    first: str
    results: Path = RESULTS
    ask: slurm.RunCommand = slurm.run_command

    def plan(self, combinations: Sequence[Combination]) -> Plan:
        """Return what is left to do for these combinations.

        Raises:
            InputError: the folder of one of them holds a run with other settings.
        """
        works = [work for work in map(self._work, combinations) if work.stages]
        queued = self._queued(works)
        left = [work for work in works if work.combination not in queued]
        return Plan(left, len(combinations) - len(works), queued)

    def _work(self, each: Combination) -> Work:
        if self.requests.output_dir or each.gpu == LOCAL:  # its folder is known to the run alone
            return Work(each, tuple(self.stages))
        if self._is_finished(each, self.stages[-1]):
            return Work(each, ())
        needed = tuple(stage for stage in self.stages if not self._is_finished(each, stage))
        failed = RETRIED if not (self.requests.overwrite or self.requests.retry) else ()
        retry = any(status in failed for stage in needed for status in self._statuses(each, stage))
        return Work(each, needed, retry)

    def _is_finished(self, each: Combination, stage: str) -> bool:
        overwrite = self.requests.overwrite
        if overwrite and STAGES.index(stage) >= STAGES.index(self.first):
            return False
        folder = self._folder(each, stage)
        odd = _differences(folder, self.requests.runs[each, stage])
        if odd and not overwrite:
            raise InputError(
                f"{each}: {folder} holds a run with other settings ({'; '.join(odd)}): leave the combination out, "
                "or --overwrite measures it anew and keeps the earlier results"
            )
        return not odd and all(status not in ("", *RETRIED) for status in self._statuses(each, stage))

    def _statuses(self, each: Combination, stage: str) -> list[str]:
        """Return the status of every size of a request, "" for one that has no row."""
        found = progress.read(self._folder(each, stage), stage)
        measured = found.measured if found else {}
        return [measured.get(size, "") for size in self.requests.runs[each, stage]["input_sizes"]]

    def _queued(self, works: Sequence[Work]) -> dict[Combination, str]:
        """Return a job in the queue for each combination that one measures into the same folder."""
        known = [
            (work.combination, number)
            for work in works
            for stage in work.stages
            for number, flags in _jobs(self._folder(work.combination, stage))
            if _output_dir(flags) == self.requests.output_dir
        ]
        queue = (slurm.queue(self.ask) if known else None) or {}
        return {each: number for each, number in known if number in queue and queue[number].state not in _OVER}

    def _folder(self, each: Combination, stage: str) -> Path:
        return self.results / stage / each.folder_name


def _differences(folder: Path, request: Mapping[str, Any]) -> list[str]:
    """List the settings in which the run of a folder differs, as far as its `run.json` can be read."""
    try:
        run = json.loads((folder / "run.json").read_text())["run"]
        compared = [name for name in request if name in run and name not in PROFILE_FREE]
        return list(filter(None, (difference(name, run[name], request[name]) for name in compared)))
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _jobs(folder: Path) -> list[tuple[str, list[str]]]:
    """Return the jobs of a folder's history that are SLURM's, with their flags."""
    try:
        return [(job.number, shlex.split(job.flags)) for job in history.read(folder)[0] if job.of_slurm]
    except (OSError, ValueError, ForeignError):
        return []


def _output_dir(flags: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--output-dir", nargs="?")
    output_dir: str | None = parser.parse_known_args(list(flags))[0].output_dir
    return output_dir


def line_of(each: Combination) -> str:
    """Return the line of a matrix that names a combination."""
    return "\t".join((each.model, each.algorithm, each.gpu, *each.settings))


def find(
    model: str,
    algorithm: str,
    gpu: str,
    known_gpus: Collection[str] = (),
    flags: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Combination:
    """Return the combination of these names in the spelling of folders.

    Args:
        known_gpus: other names are refused; none refuses none.
        flags: as `run_profile.py` gets them.
        settings: further fields of its line in a matrix; what they say counts more than the flags.

    Raises:
        InputError: a name is unknown, or a field is no setting.
    """
    if known_gpus and gpu.lower() not in known_gpus:
        raise InputError(f"unknown GPU {gpu!r}: name one of {', '.join(known_gpus)}, or add it to your gpus.conf")
    naming = fields.naming([*flags, *fields.flags(fields.check(settings))])
    name = algorithms.find(algorithm).name
    found = Combination(
        names.check_model(model, is_elsewhere=True), name, gpu.lower(), **naming, settings=tuple(settings)
    )
    if not history.is_model(found.model):
        raise InputError(f"model {found.model!r} has characters that no history can have: give its file another name")
    if len(found.folder_name) > _LONGEST_FOLDER:
        raise InputError(f"{found.folder_name} is too long for a folder's name: give the model fewer arguments")
    return found


def check_quotes(model: str, words: Sequence[str], script: str) -> None:
    """Raise InputError where the words after the model are an algorithm of several words without quotes."""
    slugs = {slug(name) for name in (*algorithms.ALGORITHMS, *algorithms.HEURISTICS)}
    for count in range(len(words), 1, -1):
        written = "_".join(words[:count]).lower()
        if written in slugs:
            gpu = words[count] if count < len(words) else "GPU"
            right = f"./{script} {shlex.quote(model)} {written} {gpu}"
            raise InputError(f"{' '.join(words[:count])!r} needs quotes, or underscores: {right}")


def main(arguments: Sequence[str]) -> int:
    """Print model, algorithm and GPU, the stages still needed, and --retry (or -) where sizes failed; tabs between."""
    own, flags = split_flags(arguments)
    options = _parser().parse_args(own)
    script = SCRIPTS[options.first or options.stages[0]]
    try:
        check_quotes(options.model, [options.algorithm, options.gpu, *itertools.takewhile(_is_word, flags)], script)
        each = find(options.model, options.algorithm, options.gpu, options.known_gpus, flags)
        found = requests([each], options.stages, flags, options.here)
        if options.here:
            return 0
        plan = _plan_of_one(each, Planner(found, options.stages, options.first or options.stages[0]))
    except InputError as error:
        print(f"{script}: {one_line(error)}", file=sys.stderr)
        return 2
    if plan.finished:
        print(f"{script}: {each} is finished: nothing is queued (--overwrite measures it anew)", file=sys.stderr)
    for work in plan.works:
        if work.retry:
            print(f"{script}: {each} has sizes that failed, measured again by --retry", file=sys.stderr)
        retry = "--retry" if work.retry else "-"
        print(each.model, each.algorithm, each.gpu, " ".join(work.stages), retry, sep="\t")
    return 0


def _plan_of_one(each: Combination, planner: Planner) -> Plan:
    plan = planner.plan([each])
    if plan.queued:
        line = f"{each} is in the queue as job {plan.queued[each]}: nothing is queued again (scancel takes it out)"
        raise InputError(line)
    return plan


def _is_word(flag: str) -> bool:
    return not flag.startswith("-")


def _parser() -> argparse.ArgumentParser:
    description = (
        "Whether a combination can run, and the stages it still needs. "
        f"Behind -- stand options for {programs.called('run_profile')}."
    )
    parser = OneLineParser(prog="convscope stages", description=description)
    parser.add_argument("model")
    parser.add_argument("algorithm")
    parser.add_argument("gpu")
    add_stages(parser)
    parser.add_argument("--here", action="store_true", help="on this machine, without a queue; print nothing")
    return parser


def add_stages(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is submitted: stages, the first of them that was asked for, GPUs that there are."""
    parser.add_argument(
        "--stages", nargs="+", choices=STAGES, required=True, metavar="STAGE", help=f"in order: {' '.join(STAGES)}"
    )
    parser.add_argument("--first", choices=STAGES, help="redo those before it only where they are missing")
    parser.add_argument("--known-gpus", nargs="+", default=(), metavar="NAME", help="refuse other names")
