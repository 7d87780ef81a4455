"""File of combinations, one a line: model, algorithm, GPU and settings, separated by tabs; `#` begins a comment.

A setting is an option of `run_profile.py` and its value, "batch_size=8". `run_profile.py --list-combinations` writes
such a file, of a study file (`--study`) too. `python -m convscope matrix FILE --stages 3_full --into DIR` cuts it
into the files that the stages submit: for each GPU, files of at most as many lines as one job array may have tasks,
without the combinations that are finished or queued.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from convscope.cli import programs
from convscope.cli.options import whole_numbers
from convscope.cli.parser import OneLineParser, one_line, split_flags
from convscope.cluster import submission
from convscope.cluster.submission import Work
from convscope.convolution import names
from convscope.errors import InputError
from convscope.storage.paths import SCRIPTS, SIZES_BY_STAGE, Combination

_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read(
    path: Path,
    gpu: str | None = None,
    known_gpus: Collection[str] = (),
    flags: Sequence[str] = (),
    stand: Path | None = None,
) -> list[Combination]:
    """Return the combinations of a file, each once, in order.

    Args:
        gpu: stands in where a line names none.
        flags: as `run_profile.py` gets them with each line.
        stand: the folder that relative files of models are in; None is the current one.

    Raises:
        InputError: the file cannot be read, a line is no combination, its GPU is none of `known_gpus`, or two lines
            have the same folder and other settings.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--matrix {path} cannot be read ({error})") from None
    return _combinations(_placed(lines, stand), path, gpu, known_gpus, flags)


def read_study(
    path: Path,
    gpu: str | None = None,
    known_gpus: Collection[str] = (),
    flags: Sequence[str] = (),
    stand: Path | None = None,
) -> list[Combination]:
    """Return the combinations of a study file that no rule excludes, as `read` does; the others are counted aloud.

    Raises:
        InputError: as `read`; the file is no study.
    """
    command = [*programs.command("run_profile"), "--study", str(path), "--list-combinations"]
    command += ["--gpu", gpu] if gpu else []
    own = programs.environment()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=stand, env=own)
    if done.returncode:
        message = (
            done.stderr.strip().splitlines() or [f"{programs.called('run_profile')} ended with {done.returncode}"]
        )[-1]
        raise InputError(message.removeprefix("run_profile.py: "))
    lines = done.stdout.splitlines()
    if excluded := [line for line in lines if line.startswith("#")]:
        print(f"{len(excluded)} of {len(lines)} combinations are excluded by rules, and left out:", file=sys.stderr)
        print(*excluded, sep="\n", file=sys.stderr)
    return _combinations(_placed(lines, stand), path, gpu, known_gpus, flags)


def _placed(lines: Sequence[str], stand: Path | None) -> Sequence[str]:
    """Return lines with the files of their models as the current folder leads to them."""
    if stand is None:
        return lines
    parts = (line.partition("\t") for line in lines)
    return [names.placed(model.strip(), stand) + tab + others for model, tab, others in parts]


def _combinations(
    lines: Sequence[str], path: Path, gpu: str | None, known_gpus: Collection[str], flags: Sequence[str]
) -> list[Combination]:
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    combinations = dict.fromkeys(
        _combination(line, f"{path}, line {number}", gpu, known_gpus, flags) for number, line in entries
    )
    if not combinations:
        raise InputError(f"{path} has no combination: a line is model, algorithm, GPU, separated by tabs")
    folders: dict[str, Combination] = {}
    for each in combinations:
        other = folders.setdefault(each.folder_name, each)
        if other != each:
            raise InputError(f"{path}: {each} is listed twice, with different settings: a folder holds one run")
    return list(combinations)


def _combination(
    line: str, where: str, gpu: str | None, known_gpus: Collection[str], flags: Sequence[str]
) -> Combination:
    cells = [cell.strip() for cell in line.split("\t")]
    first = next((at for at, cell in enumerate(cells) if at > 1 and "=" in cell), len(cells))
    named, settings = cells[:first], cells[first:]
    if len(named) == 2 and gpu:
        named.append(gpu)
    if len(named) == 2:
        raise InputError(f"{where} names no GPU: add it as a third column, or say it after the file")
    if len(named) != 3 or not _GPU.fullmatch(named[2]):
        raise InputError(f"{where}: {line!r} is not model, algorithm, GPU, separated by tabs")
    try:
        return submission.find(named[0], named[1], named[2], known_gpus, flags, settings)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def requested_sizes(stage: str, flags: Sequence[str]) -> int:
    """Return the number of sizes that `run_profile.py` measures in a stage with these flags."""
    parser = OneLineParser(prog="run_profile.py", add_help=False)
    parser.add_argument("--num-sizes", type=int)
    parser.add_argument("--input-size", type=whole_numbers, default=())
    parser.add_argument("--input-shape")
    given = parser.parse_known_args(list(flags))[0]
    named = 1 if given.input_shape else len(given.input_size)
    return named or given.num_sizes or SIZES_BY_STAGE[stage]


def plan(planner: submission.Planner, combinations: Sequence[Combination]) -> submission.Plan:
    """Return what is left of a matrix, and say on the standard error what is left out.

    Raises:
        InputError: as `Planner.plan`; --output-dir.
    """
    if planner.requests.output_dir:
        raise InputError("--output-dir does not go with --matrix: every combination needs its own folder")
    found, every = planner.plan(combinations), len(combinations)
    if found.finished:
        print(f"{found.finished} of {every} combinations are finished and left out", file=sys.stderr)
    if found.queued:
        some = next(iter(found.queued.items()))
        line = f"{len(found.queued)} of {every} combinations are in the queue and left out ({some[0]}: job {some[1]})"
        print(line, file=sys.stderr)
    if again := sum(work.retry for work in found.works):
        print(f"{again} of {every} combinations have sizes that failed, measured again by --retry", file=sys.stderr)
    return found


def slices(works: Sequence[Work], most: int) -> list[list[Work]]:
    """Return works in parts of at most `most`, each of one GPU and the same stages."""
    alike: dict[tuple[object, ...], list[Work]] = {}
    for work in works:
        alike.setdefault((work.combination.gpu, work.stages, work.retry), []).append(work)
    return [same[at : at + most] for same in alike.values() for at in range(0, len(same), most)]


def save(part: Sequence[Work], folder: Path, dry_run: bool = False) -> Path:
    """Write the combinations of a part into a new file, whole under its name or not there; return its path."""
    lines = (submission.line_of(work.combination) for work in part)
    name = f"{part[0].combination.gpu}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.tsv"
    path = folder / name
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with open(descriptor, "w") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    return path


def main(arguments: Sequence[str]) -> int:
    """Write the files for job arrays; print path, GPU, number of lines, stages and --retry (or -) of each."""
    own, flags = split_flags(arguments)
    options = _parser().parse_args(own)
    try:
        reader = read_study if options.study else read
        every = reader(options.file, options.gpu, options.known_gpus, flags, options.relative_to)
        found = submission.requests(every, options.stages, flags)
        planner = submission.Planner(found, options.stages, options.first or options.stages[0])
        left = plan(planner, every).works
    except InputError as error:
        print(f"{SCRIPTS[options.first or options.stages[0]]}: {one_line(error)}", file=sys.stderr)
        return 2
    for part in slices(left, options.most):
        path = save(part, options.into, options.dry_run)
        retry = "--retry" if part[0].retry else "-"
        print(path, part[0].combination.gpu, len(part), " ".join(part[0].stages), retry, sep="\t")
    return 0


def add_relative_to(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where the user stands."""
    what = "the folder that relative files of models are in (the current one)"
    parser.add_argument("--relative-to", type=Path, metavar="DIR", help=what)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: a number of lines, at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    options = f"Behind -- stand options for {programs.called('run_profile')}."
    description = f"Cut a matrix into the files of job arrays. {options}"
    examples = (
        "combinations.tsv --stages 3_full --into parts",
        "study.toml --study --stages 2_quick 3_full --into parts --dry-run -- --no-energy",
    )
    parser = OneLineParser(prog="convscope matrix", description=description, examples=examples)
    parser.add_argument("file", type=Path, metavar="FILE", help="file of combinations, one per line")
    submission.add_stages(parser)
    parser.add_argument("--study", action="store_true", help="FILE is a study file")
    parser.add_argument("--gpu", metavar="NAME", help="for lines that name none")
    add_relative_to(parser)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder to write the files to")
    parser.add_argument("--most", type=_count, default=1000, metavar="N", help="most lines in a file (default 1000)")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    return parser
