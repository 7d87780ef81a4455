"""`python -m convscope dataset`: samples of one or several runs as a data set that can be published, and its layers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.display import several
from convscope.cli.parser import OneLineParser, one_line, report_error
from convscope.errors import InputError
from convscope.storage.paths import now_utc

if TYPE_CHECKING:
    from convscope.dataset.package import folder

_SHOWN = 20


def main(arguments: Sequence[str]) -> int:
    """Write a data set, or the layers of its models; return the exit code, 1 where rows of a run contradict each other.

    Raises:
        InputError: a file is no table of samples, or what is asked for cannot be written.
    """
    options = _parser().parse_args(arguments)
    return _layers(options) if options.command == "layers" else _package(options)


def _layers(options: argparse.Namespace) -> int:
    from convscope.cli.options import apart_from_inputs
    from convscope.dataset import layers, samples
    from convscope.dataset.collect import traced  # PyTorch
    from convscope.dataset.samples import SAMPLES
    from convscope.storage import table

    apart_from_inputs(options.output, *options.samples)
    rows = [row for path in options.samples for row in table.objects(SAMPLES, samples.cells(path))]
    passes = layers.passes(rows)
    found = traced.layers(passes)
    if lacking := sorted({model for model, _ in passes} - {row.model for row in found}):
        print(one_line(f"no layers of {', '.join(lacking)}: no such model is here"))
    if not found:
        raise InputError(f"{', '.join(map(str, options.samples))}: no sample names a model that is here, and its size")
    layers.write(options.output, found)
    count = len({(row.model, row.input_size) for row in found})
    print(f"{several(len(found), 'layer')} of {several(count, 'pass')}: {options.output}")
    return 0


def _package(options: argparse.Namespace) -> int:
    from convscope.dataset import layers
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
    known = layers.read(filter(None, map(layers.beside, options.samples)))
    made = folder.package(rows, Release(options.release, day, options.url, options.creator), known)
    folder.write(options.output, made)
    lacking = layers.named(rows) - {(row.model, row.input_size) for row in known}
    if lacking:
        what = f"no layers of {several(len(lacking), 'pass')} of models"
        print(f"{what}: convscope dataset layers writes them, to a file that belongs beside the samples")
    for line in _said(made, again, options.url):
        print(one_line(line))
    counts = f"{several(len(rows), 'sample')}, {several(len(made.files), 'file')}"
    print(f"{counts}, {made.bytes / folder.MEGABYTE:.2f} MB: {options.output}")
    return 0


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _said(made: folder.Package, again: int, url: str) -> list[str]:
    """Return what is to be known of a merge: rows in several files, conflicts, splits that there are none of."""
    from convscope.dataset.package import merging

    lines = [f"kept once although in several files: {several(again, 'row')}"] if again else []
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
    examples = (
        "collect --budget-minutes 60",
        "package results/dataset/h200/samples.csv -o data/h200",
        "layers samples.csv -o layers.csv",
    )
    parser = OneLineParser(
        prog="convscope dataset",
        description="Collect samples, or package those of one or several runs as a data set to publish.",
        allow_abbrev=False,
        examples=examples,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="collect|package|layers")
    commands.add_parser("collect", help="measure the samples, as convscope dataset does with options alone")
    package = commands.add_parser("package", help="Parquet, splits, documents, a card", allow_abbrev=False)
    what = "the layers of the models in samples, for sums over whole models"
    layers = commands.add_parser("layers", help=what, allow_abbrev=False)
    for each in (package, layers):
        each.add_argument("samples", nargs="+", type=Path, metavar="SAMPLES", help="files of samples, CSV or Parquet")
    layers.add_argument("-o", "--output", type=Path, default=Path("layers.csv"), help="default %(default)s")
    text = "folder to write, data/<gpu>"
    package.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help=text)
    package.add_argument("--release", default="1.0.0", metavar="VERSION", help="version; default %(default)s")
    package.add_argument("--date", metavar="YYYY-MM-DD", help="day of publication; default today")
    package.add_argument("--url", default="", help="address of its page")
    text = "who made it; default %(default)s"
    package.add_argument("--creator", default="the contributors of convscope", metavar="NAME", help=text)
    return parser
