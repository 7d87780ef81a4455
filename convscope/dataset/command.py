"""`python -m convscope import`: other people's measurements to a file of samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from convscope.cli.parser import OneLineParser
from convscope.dataset import importers, samples

GIVEN = ("gpu_name", "algorithm", "model")


def main(arguments: Sequence[str]) -> int:
    """Import files; return 0.

    Raises:
        InputError: a file is not in that form, or the samples cannot be written.
    """
    options = _parser().parse_args(arguments)
    given = {name: value for name in GIVEN if (value := getattr(options, name))}
    rows = [row for path in options.files for row in importers.samples(path, options.format, **given)]
    count = samples.write(options.output, rows)
    cards = sorted({row.gpu_name for row in rows})
    print(f"{count} samples of {', '.join(cards) or 'no card'}: {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="convscope import", description=__doc__, allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--format", required=True, choices=importers.FORMATS, help="form of the files")
    parser.add_argument("-o", "--output", type=Path, default=Path("samples.csv"), help="default %(default)s")
    text = "of a klab table, which does not say it"
    parser.add_argument("--gpu", dest="gpu_name", metavar="NAME", help=f"GPU, as the driver names it, {text}")
    parser.add_argument("--algorithm", metavar="NAME", help=f"algorithm {text}")
    parser.add_argument("--model", metavar="NAME", help=f"model {text}")
    return parser
