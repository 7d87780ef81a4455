"""File of combinations, one a line: model, algorithm and GPU, separated by tabs; `#` begins a comment.

`run_profile.py --list-combinations` writes it. `python -m convscope matrix FILE --stage 3_full --into DIR` cuts it into
the files that the stages submit: for each GPU, files of at most as many lines as one job array may have tasks, without
the combinations that are finished.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convscope.cli.parser import OneLineParser, split_flags
from convscope.cluster import progress
from convscope.convolution import algorithms
from convscope.errors import InputError
from convscope.storage.paths import RESULTS, RETRIED, SIZES_BY_STAGE, STAGES, Combination, spread

_NAME = re.compile(r"(torchvision:)?[A-Za-z0-9][A-Za-z0-9._-]*")
_DEFAULT_RANGE = (224, 512)


@dataclass(frozen=True)
class RequestedSizes:
    """Sizes that a run measures: their number, the smallest, the largest.

    `overwrite` measures all of them again, `retry` those that failed or ran out of memory.
    """

    count: int
    low: int
    high: int
    overwrite: bool = False
    retry: bool = False

    def met_by(self, folder: progress.Progress | None) -> bool:
        """Tell whether a folder has all of these sizes."""
        if folder is None or self.overwrite:
            return False
        again = RETRIED if self.retry else ()
        there = {size for size, status in folder.measured.items() if status not in again}
        return there >= set(spread(self.count, self.low, self.high))


def read(path: Path, gpu: str | None = None) -> list[Combination]:
    """Return the combinations of a file, each once, in order; `gpu` stands in where a line names none.

    Raises:
        InputError: the file cannot be read, or a line is no combination.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--matrix {path} cannot be read ({error})") from None
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    combinations = dict.fromkeys(_combination(line, f"{path}, line {number}", gpu) for number, line in entries)
    if not combinations:
        raise InputError(f"--matrix {path} has no combination: a line is model, algorithm, GPU, separated by tabs")
    return list(combinations)


def _combination(line: str, where: str, gpu: str | None) -> Combination:
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) == 2 and gpu:
        fields.append(gpu)
    if len(fields) == 2:
        raise InputError(f"{where} names no GPU: add it as a third column, or say it after the file")
    if len(fields) != 3 or not all(_NAME.fullmatch(field) for field in (fields[0], fields[2])):
        raise InputError(f"{where}: {line!r} is not model, algorithm, GPU, separated by tabs")
    return Combination(fields[0], algorithms.find(fields[1]).name, fields[2])


def requested_sizes(stage: str, flags: Sequence[str]) -> RequestedSizes:
    """Return the sizes that `run_profile.py` measures in a stage with these flags; InputError for --output-dir."""
    parser = OneLineParser(prog="run_profile.py", add_help=False)
    parser.add_argument("--num-sizes", type=int)
    parser.add_argument("--input-range", type=int, nargs=2, default=_DEFAULT_RANGE)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--output-dir")
    options, _ = parser.parse_known_args(list(flags))
    if options.output_dir:
        raise InputError("--output-dir does not go with --matrix: every combination needs a folder of its own")
    low, high = options.input_range
    return RequestedSizes(options.num_sizes or SIZES_BY_STAGE[stage], low, high, options.overwrite, options.retry)


def unfinished(
    combinations: Sequence[Combination], stage: str, sizes: RequestedSizes, results: Path
) -> list[Combination]:
    """Return the combinations that lack some of the sizes."""
    folders = ((each, progress.read(results / stage / each.folder_name, stage)) for each in combinations)
    return [each for each, folder in folders if not sizes.met_by(folder)]


def slices(combinations: Sequence[Combination], most: int) -> list[list[Combination]]:
    """Return the combinations in parts of one GPU each, and of at most `most`."""
    by_gpu: dict[str, list[Combination]] = {}
    for each in combinations:
        by_gpu.setdefault(each.gpu, []).append(each)
    return [same[at : at + most] for same in by_gpu.values() for at in range(0, len(same), most)]


def save(part: Sequence[Combination], folder: Path, dry_run: bool = False) -> Path:
    """Write combinations of one GPU into a file named after GPU and content, so that a job's file never changes."""
    content = "".join(f"{each.model}\t{each.algorithm}\t{each.gpu}\n" for each in part)
    path = folder / f"{part[0].gpu}-{hashlib.sha256(content.encode()).hexdigest()[:8]}.tsv"
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return path


def main(arguments: Sequence[str]) -> int:
    """Write the files for job arrays; print path, GPU and number of lines of each."""
    own, flags = split_flags(arguments)
    options = _parser().parse_args(own)
    every = read(options.file, options.gpu)
    left = unfinished(every, options.stage, requested_sizes(options.stage, flags), RESULTS)
    if len(left) < len(every):
        print(f"{len(every) - len(left)} of {len(every)} combinations are finished and left out", file=sys.stderr)
    for part in slices(left, options.most):
        print(save(part, options.into, options.dry_run), part[0].gpu, len(part), sep="\t")
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Cut a matrix into the files of job arrays. After -- stands what run_profile.py is given."
    parser = OneLineParser(prog="python -m convscope matrix", description=description)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--gpu", metavar="NAME", help="for lines that name none")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    parser.add_argument("--most", type=int, default=1000, metavar="N", help="lines in a file")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    return parser
