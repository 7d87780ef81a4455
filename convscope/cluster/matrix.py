"""File of combinations, one a line: model, algorithm and GPU, separated by tabs; `#` begins a comment.

A fourth column may name a data type and a fifth a layout; without one, the flags or the defaults decide.

`run_profile.py --list-combinations` writes it. `python -m convscope matrix FILE --stages 3_full --into DIR` cuts it
into the files that the stages submit: for each GPU, files of at most as many lines as one job array may have tasks,
without the combinations that are finished or queued.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from convscope.cli.parser import OneLineParser, one_line, split_flags
from convscope.cluster import submission
from convscope.cluster.flags import OF_RUNS, of_line
from convscope.cluster.submission import Work
from convscope.errors import InputError
from convscope.storage.paths import LAYOUTS, SCRIPTS, SIZES_BY_STAGE, Combination

_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COLUMNS = 5


def read(
    path: Path, gpu: str | None = None, known_gpus: Collection[str] = (), flags: Sequence[str] = ()
) -> list[Combination]:
    """Return the combinations of a file, each once, in order; `gpu` stands in where a line names none.

    A line's own data type and layout come before those of the flags.

    Raises:
        InputError: the file cannot be read, a line is no combination, or its GPU is none of `known_gpus`.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--matrix {path} cannot be read ({error})") from None
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    combinations = dict.fromkeys(
        _combination(line, f"{path}, line {number}", gpu, known_gpus, flags) for number, line in entries
    )
    if not combinations:
        raise InputError(f"--matrix {path} has no combination: a line is model, algorithm, GPU, separated by tabs")
    return list(combinations)


def _combination(
    line: str, where: str, gpu: str | None, known_gpus: Collection[str], flags: Sequence[str]
) -> Combination:
    fields = [field.strip() for field in line.split("\t")]
    count = len(fields)
    fields += [""] * (_COLUMNS - count)
    if 2 <= count <= _COLUMNS and not fields[2]:
        if not gpu:
            raise InputError(f"{where} names no GPU: add it as a third column, or say it after the file")
        fields[2] = gpu
    if not 2 <= count <= _COLUMNS or not _GPU.fullmatch(fields[2]):
        raise InputError(f"{where}: {line!r} is not model, algorithm, GPU, separated by tabs")
    try:
        found = submission.find(fields[0], fields[1], fields[2], known_gpus, flags)
        return _in_precision(found, *fields[3:])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _in_precision(found: Combination, dtype: str, layout: str) -> Combination:
    """Return a combination in the data type and layout that a line names, "" for none."""
    for column, word, valid in (("dtype", dtype, OF_RUNS), ("layout", layout, tuple(LAYOUTS))):
        if word and word not in valid:
            raise InputError(f"{column} {word!r}: choose one of {', '.join(valid)}")
    return dataclasses.replace(found, dtype=dtype or found.dtype, layout=layout or found.layout)


def requested_sizes(stage: str, flags: Sequence[str]) -> int:
    """Return the number of sizes that `run_profile.py` measures in a stage with these flags."""
    parser = OneLineParser(prog="run_profile.py", add_help=False)
    parser.add_argument("--num-sizes", type=int)
    return parser.parse_known_args(list(flags))[0].num_sizes or SIZES_BY_STAGE[stage]


def plan(planner: submission.Planner, combinations: Sequence[Combination]) -> submission.Plan:
    """Return what is left of a matrix, and say on the standard error what is left out.

    Raises:
        InputError: as `Planner.plan`; --output-dir.
    """
    if planner.requests.output_dir:
        raise InputError("--output-dir does not go with --matrix: every combination needs a folder of its own")
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


def save(part: Sequence[Work], folder: Path, dry_run: bool = False, flags: Sequence[str] = ()) -> Path:
    """Write the combinations of a part into a new file, whole under its name or not there; return its path.

    A line names data type and layout where they are not those of the flags.
    """
    lines = (_line(work.combination, flags) for work in part)
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


def _line(each: Combination, flags: Sequence[str]) -> str:
    precision = (each.dtype, each.layout) if of_line(each, flags) else ()
    return "\t".join((each.model, each.algorithm, each.gpu, *precision))


def main(arguments: Sequence[str]) -> int:
    """Write the files for job arrays; print path, GPU, number of lines, stages and --retry (or -) of each."""
    own, flags = split_flags(arguments)
    options = _parser().parse_args(own)
    try:
        every = read(options.file, options.gpu, options.known_gpus, flags)
        found = submission.requests(every, options.stages, flags)
        planner = submission.Planner(found, options.stages, options.first or options.stages[0])
        left = plan(planner, every).works
    except InputError as error:
        print(f"{SCRIPTS[options.first or options.stages[0]]}: {one_line(error)}", file=sys.stderr)
        return 2
    for part in slices(left, options.most):
        path = save(part, options.into, options.dry_run, flags)
        retry = "--retry" if part[0].retry else "-"
        print(path, part[0].combination.gpu, len(part), " ".join(part[0].stages), retry, sep="\t")
    return 0


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: a number of lines, at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    description = "Cut a matrix into the files of job arrays. After -- stands what run_profile.py is given."
    parser = OneLineParser(prog="python -m convscope matrix", description=description)
    parser.add_argument("file", type=Path, metavar="FILE")
    submission.add_stages(parser)
    parser.add_argument("--gpu", metavar="NAME", help="for lines that name none")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    parser.add_argument("--most", type=_count, default=1000, metavar="N", help="lines in a file")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    return parser
