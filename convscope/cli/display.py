"""Text tables, numbers or a dash, and figures: what commands print and draw with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text in columns, the first column to the left, the others to the right where they are short."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    last = len(header) - 1

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in [header, *rows])


def or_dash(value: float | None, spec: str, unit: str = "") -> str:
    """Return a number by a format, with its unit behind it; "-" for None and NaN."""
    return "-" if value is None or value != value else format(value, spec) + unit


def figure_type(note: Callable[[str], None]) -> Any:
    """Return what makes a figure, None without matplotlib, which is noted."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        note("no plots: pip install 'convscope[study]'")
        return None
    return Figure


def size_axis(axes: Any, sizes: pd.Series[int]) -> None:
    """Give the horizontal axis the batch sizes that were measured, evenly apart by powers of two."""
    each = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(each, [str(size) for size in each])
    axes.minorticks_off()
