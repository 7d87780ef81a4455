"""Small pictures in a terminal: lines with colours, sparklines, bars, and a table that is drawn again in place.

rich draws where the standard output is a terminal, and is imported there alone; elsewhere the same text has no colours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from convscope.cli.parser import one_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STEPS = "▁▂▃▄▅▆▇█"
EIGHTHS = "▏▎▍▌▋▊▉█"
LONGEST_SPARK = 50
EDGE_LINES = 5
"""Lines of the screen that a table's edges and head need, and the number of the rows that it has no room for."""


class Piece(NamedTuple):
    """Text on one line, and its style as rich names it: "red", "dim"."""

    text: str
    style: str = ""


Line = Sequence[Piece]


def spark(values: Sequence[float | None]) -> str:
    """Return a sign a value, as high as that lies between the least and the largest; a blank for None and NaN.

    More than `LONGEST_SPARK` values are put together: a sign stands for the mean of several.
    """
    per_sign = -(-len(values) // LONGEST_SPARK)
    groups = [values[at : at + per_sign] for at in range(0, len(values), per_sign)] if values else []
    known = [[value for value in group if value is not None and math.isfinite(value)] for group in groups]
    means = [sum(group) / len(group) if group else None for group in known]
    finite = [mean for mean in means if mean is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    step = (high - low) / (len(STEPS) - 1) or 1.0
    return "".join(" " if mean is None else STEPS[round((mean - low) / step)] for mean in means)


def bar(share: float, width: int) -> str:
    """Return a bar that fills this share of a width in signs, to an eighth of one."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (EIGHTHS[rest - 1] if rest else "")


def is_terminal() -> bool:
    """Tell whether the standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def write(lines: Iterable[Line]) -> None:
    """Print lines, with their colours on a terminal; names from a disk send nothing to it but themselves."""
    if not is_terminal():
        for line in lines:
            print("".join(one_line(text) for text, _ in line).rstrip())
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(_text(line))


def _text(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((one_line(text), style) for text, style in line))


class LiveTable:
    """Table that is drawn again in place, on a screen of the terminal that is gone when the block ends."""

    def __enter__(self) -> LiveTable:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, header: Sequence[str], rows: Sequence[Line], below: Sequence[Line]) -> None:
        """Draw the table, as many rows as the screen has room for, with the number of the others; lines below it."""
        from rich.console import Group

        room = max(1, self._console.size.height - len(below) - EDGE_LINES)
        more = [(Piece(f"and {len(rows) - room} more", "dim"),)] if len(rows) > room else []
        texts = [_text(line) for line in (*more, *below)]
        for text in texts:
            text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(Group(_table(header, rows[:room]), *texts), refresh=True)


def _table(header: Sequence[str], rows: Sequence[Line]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for row in rows:
        table.add_row(*(_text([piece]) for piece in row))
    return table
