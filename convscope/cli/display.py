"""Text tables, numbers or a dash, and figures: what commands print and draw with."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convscope.cli.parser import one_line
from convscope.storage.table import write_atomically

if TYPE_CHECKING:
    import pandas as pd

DPI = 120


def table(header: Sequence[str], rows: Sequence[Sequence[str]], all_left: bool = False) -> str:
    """Return rows of text in columns: the first and last, or all, begin at the left, the others end at the right.

    Escape sequences and line ends, which names from a disk may hold, are shown and not sent to the terminal.
    """
    columns: list[Sequence[str]] = list(zip(header, *(map(one_line, row) for row in rows), strict=True))
    for number, column in enumerate(columns):
        width, left = max(map(len, column)), all_left or number in (0, len(columns) - 1)
        columns[number] = [cell.ljust(width) if left else cell.rjust(width) for cell in column]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def several(count: float, noun: str, spec: str = "") -> str:
    """Return a number, by a format, with its noun: "1 run", "3 runs", "3 passes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:{spec}} {noun}" + ("" if count == 1 else ending)


def or_dash(value: float | None, spec: str, unit: str = "") -> str:
    """Return a number by a format, with its unit behind it; "-" for None and NaN."""
    return "-" if value is None or value != value else format(value, spec) + unit


def interval_or_dash(low: float | None, high: float | None, spec: str) -> str:
    """Return both ends of an interval by a format; "-" where there is none."""
    ends = or_dash(low, spec), or_dash(high, spec)
    return "-" if "-" in ends else " … ".join(ends)


class Figures:
    """Figures drawn into one folder, `paths` the files so far; without matplotlib none, which is noted once."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        try:
            from matplotlib.figure import Figure
        except ImportError:
            note("no plots: pip install 'convscope[study]'")
            self._new: Any = None
        else:
            self._new = Figure

    def save(self, name: str, size_in: tuple[float, float], draw: Callable[[Any], None]) -> None:
        """Draw a figure of this width and height in inches, and save it as `<folder>/<name>.png`."""
        if self._new is None:
            return
        figure = self._new(size_in, layout="constrained")
        draw(figure)
        path, picture = self._folder / f"{name}.png", io.BytesIO()
        figure.savefig(picture, dpi=DPI)
        write_atomically(path, picture.getvalue())
        self.paths.append(path)


def grid(axes: Any, axis: str = "both", which: str = "major") -> None:
    """Draw a faint grid behind a panel; arguments as matplotlib takes them."""
    axes.grid(alpha=0.3, axis=axis, which=which)


def size_axis(axes: Any, sizes: pd.Series[int]) -> None:
    """Give the horizontal axis the batch sizes that were measured, evenly apart by powers of two."""
    ticks = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
