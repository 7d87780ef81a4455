"""`python -m convscope import`: other people's measurements to a file of samples, or of totals of whole models."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from convscope.cli.display import several
from convscope.cli.options import apart_from_inputs
from convscope.cli.parser import OneLineParser
from convscope.dataset import importers, samples, totals
from convscope.dataset.samples import SampleRow
from convscope.errors import InputError

GIVEN = ("gpu_name", "algorithm", "model")


def main(arguments: Sequence[str]) -> int:
    """Import files; return 0.

    Raises:
        InputError: a file is not in that form, or the samples cannot be written.
    """
    options = _parser().parse_args(arguments)
    given = {name: value for name in GIVEN if (value := getattr(options, name))}
    overall = [importers.is_overall(path, options.format) for path in options.files]
    if any(overall):
        return _totals(options, given, all(overall))
    rows = [row for path in options.files for row in importers.samples(path, options.format, **given)]
    out = options.output or Path("samples.csv")
    apart_from_inputs(out, *options.files)
    _check_once(rows, options.files)
    count = samples.write(out, rows)
    print(f"{several(count, 'sample')} of {_cards(row.gpu_name for row in rows)}: {out}")
    return 0


def _totals(options: argparse.Namespace, given: Mapping[str, str], alone: bool) -> int:
    if not alone:
        raise InputError("overall tables and layer tables become different files: import each kind by itself")
    rows = [row for path in options.files for row in importers.measured_totals(path, **given)]
    out = options.output or Path("totals.csv")
    apart_from_inputs(out, *options.files)
    count = totals.write(out, rows)
    print(f"{several(count, 'total')} of whole models on {_cards(row.gpu_name for row in rows)}: {out}")
    return 0


def _check_once(rows: Iterable[SampleRow], files: Sequence[Path]) -> None:
    """Raise InputError where a sample stands there twice, by its key."""
    counted = Counter(tuple(getattr(row, name) for name in samples.SAMPLES.unique) for row in rows)
    if twice := sum(count - 1 for count in counted.values()):
        what = f"{', '.join(map(str, files))}: {several(twice, 'sample')} more than once"
        raise InputError(f"{what}: name each file once, and leave repeats out")


def _cards(names: Iterable[str]) -> str:
    return ", ".join(sorted({*names})) or "no card"


def _parser() -> argparse.ArgumentParser:
    examples = (
        "--format neusight Tesla_P4.csv.gz Tesla_T4.csv.gz -o samples.csv",
        '--format klab layers.csv --gpu "NVIDIA L4" --algorithm gemm --model vgg16',
    )
    parser = OneLineParser(
        prog="convscope import",
        description="Convert other people's measurements to a file of samples, or of totals of whole models.",
        allow_abbrev=False,
        examples=examples,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files to import, all of one form")
    parser.add_argument("--format", required=True, choices=importers.FORMATS, help="form of the files")
    parser.add_argument("-o", "--output", type=Path, help="default samples.csv, of totals totals.csv")
    text = "of a klab table, which does not say it"
    parser.add_argument("--gpu", dest="gpu_name", metavar="NAME", help=f"GPU, as the driver names it, {text}")
    parser.add_argument("--algorithm", metavar="NAME", help=f"algorithm {text}")
    parser.add_argument("--model", metavar="NAME", help=f"model {text}")
    return parser
