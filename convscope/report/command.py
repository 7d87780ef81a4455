"""Results as one HTML page: `python -m convscope report [FOLDER…] [-o report.html]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convscope.cli.options import apart_from_inputs
from convscope.cli.parser import OneLineParser, one_line, uncollected
from convscope.errors import InputError
from convscope.report.labels import several
from convscope.storage.paths import RESULTS
from convscope.storage.table import write_atomically

if TYPE_CHECKING:
    from convscope.report.exhibits import Content

NAME = "convscope report"


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every command that reads folders of all studies."""
    text = "folders of results, or folders that hold some (default: results/)"
    parser.add_argument("folders", nargs="*", metavar="FOLDER", type=Path, help=text)
    private = "leave out hosts, UUIDs of cards, job numbers, and the folders of absolute paths"
    parser.add_argument("--public", action="store_true", help=private)
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), type=Path, help="two runs to set side by side")


def read(options: argparse.Namespace) -> Content:
    """Return everything to show of the folders that a command line names.

    Raises:
        InputError: one does not exist.
    """
    from convscope.report import folders  # what is asked for may be help, and pandas and Altair take a second
    from convscope.report.exhibits import content
    from convscope.report.public import without_origin

    found = folders.read(options.folders or [RESULTS])
    for path in options.compare or ():
        if not path.is_dir():
            raise InputError(f"--compare {path} is no folder: give two folders of runs")
    return content(without_origin(found) if options.public else found, options.compare)


def main(arguments: Sequence[str]) -> int:
    """Write the page; return 0.

    Raises:
        InputError: a folder does not exist, or the page cannot be written.
    """
    options = _parser().parse_args(arguments)
    apart_from_inputs(options.output, *(options.folders or [RESULTS]))
    from convscope.report.page import Bundle, html

    with uncollected(), Bundle() as bundle:
        found = read(options)
        text = html(found, options.title, bundle.text())
    try:
        write_atomically(options.output, text)
    except OSError as error:
        raise InputError(f"cannot write {options.output} ({error.strerror}): choose another file with -o") from None
    for fault in found.found.faults:
        print(one_line(f"{fault.path}: {fault.what}"))
    print(one_line(f"{options.output}: {several(len(found.found.folders), 'run')}, {len(text.encode()) / 1e6:.1f} MB"))
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=NAME,
        examples=(
            "results -o report.html",
            "results --compare results/2_quick/alexnet_direct_cpu results/2_quick/alexnet_smm_cpu",
        ),
        description="One HTML file that shows what runs found: tables and charts, with nothing from outside.",
        epilog="Reads runs of all studies. Folders that cannot be read are named in the page, and here.",
    )
    add_folders(parser)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="default report.html"
    )
    parser.add_argument("--title", default="What convolutions cost", help="title of the page")
    return parser
