"""`python -m convscope dataset`: samples of one or several runs as a data set to publish, and its calls."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.display import several
from convscope.cli.parser import OneLineParser, one_line, report_error
from convscope.errors import InputError
from convscope.storage.paths import now_utc

if TYPE_CHECKING:
    from convscope.dataset.package import folder
    from convscope.dataset.samples import SampleRow

_SHOWN = 20


def main(arguments: Sequence[str]) -> int:
    """Write a data set, or the calls of its models; return the exit code, 1 where rows of a run contradict each other.

    Raises:
        InputError: a file is no table of samples, or what is asked for cannot be written.
    """
    options = _parser().parse_args(arguments)
    return _calls(options) if options.command == "calls" else _package(options)


def _calls(options: argparse.Namespace) -> int:
    from convscope.cli.options import apart_from_inputs
    from convscope.dataset import calls, samples
    from convscope.dataset.collect import traced  # PyTorch

    apart_from_inputs(options.output, *options.samples)
    files = ", ".join(map(str, options.samples))
    passes = calls.passes(row for path in options.samples for row in samples.rows(path))
    trusted = [(model, size) for model, size in passes if traced.is_of_a_library(model)]
    for model in sorted({model for model, _ in passes} - {model for model, _ in trusted}):
        print(one_line(f"left out: {model}: no code is run, and no file read, because a file of samples names it"))
    found = traced.calls(trusted)
    for model in sorted({model for model, _ in trusted} - {row.model for row in found}):
        print(one_line(f"left out: {model}: there is no such model here, or it takes none of the sizes"))
    if not found:
        raise InputError(f"{files}: no sample names a model that is here and a size that it takes")
    calls.write(options.output, found)
    count = len({(row.model, row.input_size) for row in found})
    print(f"{several(len(found), 'call')} in {several(count, 'pass')}: {options.output}")
    return 0


def _package(options: argparse.Namespace) -> int:
    from convscope.dataset import calls, ranked_plans
    from convscope.dataset.package import folder, merging  # pandas: what is asked for may be help
    from convscope.dataset.package.facts import Release

    day = options.date or now_utc()[:10]
    if not _is_day(day):
        raise InputError(f"--date {day}: write a day as 2026-01-31")
    folder.check_place(options.output)
    try:
        rows, again = merging.merged(options.samples)
    except merging.ContradictionError as error:
        return report_error("convscope dataset package", error)
    rows, outdated = merging.without_outdated(rows)
    rows = ranked_plans.filled(rows)
    known = calls.read(path for each in options.samples for path in calls.beside(each))
    made = folder.package(rows, Release(options.release, day, options.url, options.creator), known)
    folder.write(options.output, made)
    if lacking := len({*calls.passes(rows)} - {(row.model, row.input_size) for row in known}):
        what = f"no calls of {several(lacking, 'pass')} of models, or these do not take the size"
        print(f"{what}: convscope dataset calls writes a file of them, which belongs beside the samples")
    for line in [*_said(made, again, outdated, options.url), *_without_plans(rows)]:
        print(one_line(line))
    counts = f"{several(len(rows), 'sample')}, {several(len(made.files), 'file')}"
    print(f"{counts}, {made.bytes / folder.MEGABYTE:.2f} MB: {options.output}")
    return 0


def _without_plans(rows: Sequence[SampleRow]) -> Iterator[str]:
    """Yield a line for each card of whose samples none has plans, with the reason."""
    from convscope.dataset import ranked_plans

    for name in sorted({row.gpu_name for row in rows} - {row.gpu_name for row in rows if row.ranked_plans}):
        versions = {row.cudnn for row in rows if row.gpu_name == name and row.cudnn}
        if reason := ranked_plans.why_not(name, versions):
            yield f"no ranked plans of {name}: {reason}"


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _said(made: folder.Package, again: int, outdated: int, url: str) -> list[str]:
    """Return what is to be known of a merge: rows in several files, outdated ones, conflicts, splits of which none."""
    from convscope.dataset.package import merging

    lines = [f"kept once although in several files: {several(again, 'row')}"] if again else []
    if outdated:
        lines.append(f"left out, of earlier versions, their shapes timed anew: {several(outdated, 'sample')}")
    for each in made.conflicts[:_SHOWN]:
        what = f"{each.status} and {each.other_status}"
        if each.kind == merging.TIMES:
            what = f"{each.mean_ms:.4g} and {each.other_mean_ms:.4g} ms, {each.apart_ms:.2g} apart"
            what += f" where their intervals allow {each.allowed_ms:.2g}"
        title = merging.title(made.rows[each.sample])
        lines.append(f"conflict: samples {each.sample} and {each.other_sample} ({title}): {what}")
    if len(made.conflicts) > _SHOWN:
        lines.append(f"conflict: {len(made.conflicts) - _SHOWN} more, in conflicts.csv")
    if not url:
        lines.append("no --url: croissant.json needs the address of the data set's page before it is published")
    return lines + [f"no split by {kind}: {reason}" for kind, reason in made.refused.items()]


def _parser() -> argparse.ArgumentParser:
    examples = "collect --budget-minutes 60", "package results/dataset/h200/samples.csv -o data/h200"
    parser = OneLineParser(
        prog="convscope dataset",
        description="Collect samples, package those of one or several runs to publish, or list the calls of models.",
        allow_abbrev=False,
        examples=examples,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="collect|package|calls")
    commands.add_parser("collect", help="measure the samples, as convscope dataset does with options alone")
    package = commands.add_parser("package", help="Parquet, splits, documents, a card", allow_abbrev=False)
    what = "every convolution in a pass of the models in samples, for sums over whole models"
    calls = commands.add_parser("calls", help=what, allow_abbrev=False)
    for each in (package, calls):
        each.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES", help="files of samples, CSV or Parquet")
    calls.add_argument("-o", "--output", type=Path, default=Path("calls.csv"), help="default %(default)s")
    text = "folder to write, data/<gpu>"
    package.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=text)
    package.add_argument("--release", default="1.0.0", metavar="VERSION", help="version; default %(default)s")
    package.add_argument("--date", metavar="YYYY-MM-DD", help="day of publication; default today")
    package.add_argument("--url", default="", help="address of its page")
    text = "who made it; default %(default)s"
    package.add_argument("--creator", default="the contributors of convscope", metavar="NAME", help=text)
    return parser
