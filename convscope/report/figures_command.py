"""`convscope figures`: its options; what it draws is in `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from convscope.cli.parser import OneLineParser, one_line, uncollected
from convscope.errors import InputError
from convscope.report import command
from convscope.report.labels import VIEWS, several

NAME = "convscope figures"


def main(arguments: Sequence[str]) -> int:
    """Write the figures; return 0, or 1 where there is nothing to draw.

    Raises:
        InputError: a folder does not exist, or the figures cannot be written.
    """
    options = _parser().parse_args(arguments)
    from convscope.report import figures  # Altair and its converter: what is asked for may be help

    try:
        options.directory.mkdir(parents=True, exist_ok=True)
        with uncollected():
            paths = figures.write(command.read(options), options.directory, options.view or tuple(VIEWS), options.log)
    except OSError as error:
        advice = "choose another folder"
        raise InputError(f"cannot write figures to {options.directory} ({error.strerror}): {advice}") from None
    print(one_line(f"{options.directory}: {several(len(paths), 'file')}" if paths else "nothing to draw"))
    return 0 if paths else 1


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=NAME,
        examples=("figures results --view scaling", "figures results/3_full --public"),
        description="The report's charts for a paper: PDF, SVG and PNG, one column (85 mm) and two (178 mm) wide.",
        epilog="Each is titled with model, card, batch, data type and layout. At most eight series are drawn.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the files go")
    command.add_folders(parser)
    shown = ", ".join(VIEWS)
    parser.add_argument("--view", nargs="+", choices=list(VIEWS), metavar="VIEW", help=f"only these views: {shown}")
    parser.add_argument("--log", action="store_true", help="logarithmic axes, where the page offers them")
    return parser
