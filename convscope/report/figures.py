"""Charts of the report for a paper, as PDF, SVG and PNG: what `convscope figures` draws."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import vl_convert

from convscope.report import charts
from convscope.report.catalogue import Exhibit
from convscope.report.charts import Spec
from convscope.report.exhibits import Content
from convscope.report.labels import VIEWS, several, title
from convscope.report.page import visible
from convscope.report.tables.frames import records
from convscope.storage.paths import slug
from convscope.storage.table import write_atomically

MM_PX = 72 / 25.4
"""A pixel of a specification is a point of a PDF."""
WIDTHS_MM = {"1column": 85.0, "2column": 178.0}
FORMATS = ("pdf", "svg", "png")
FONT = "Liberation Sans"
LABEL_PX, LABEL_GAP_PX, TITLE_PX = 4.9, 9.0, 5.2
HEIGHT_PX = 150
NAMES_PX, CELL_PX = 150, 19
"""Room for names beside a heat map, and for a figure in a cell: narrower cells have colours alone."""
ROW_SHARE = 0.75
"""A row's height in a figure over that in the page."""
PNG_SCALE = 4.0


@dataclass(frozen=True)
class Picture:
    """One panel of an exhibit: its rows as they are drawn, and a remark about those left out."""

    exhibit: Exhibit
    panel: str
    rows: list[dict[str, Any]]
    remark: str = ""


@dataclass(frozen=True)
class Axis:
    """Vertical axis of lines that have their names at their ends."""

    least: float
    most: float
    is_log: bool

    @classmethod
    def around(cls, values: Sequence[float], is_log: bool) -> Axis:
        """Return the axis of some values: from 0, or from a little below the least where it is logarithmic."""
        positive = [value for value in values if value > 0]
        if is_log and positive:
            room = max((max(positive) / min(positive)) ** 0.05, 1.05)
            return cls(min(positive) / room, max(positive) * room, True)
        return cls(0.0, 1.05 * max(values) or 1.0, False)

    def from_top_px(self, value: float) -> float:
        """Return the place of a value, in pixels from the top."""
        if not self.is_log:
            return HEIGHT_PX * (1 - value / self.most)
        whole = math.log(self.most / self.least)
        return HEIGHT_PX * math.log(self.most / max(value, self.least)) / whole


def pictures(content: Content, views: Sequence[str] = tuple(VIEWS)) -> Iterator[Picture]:
    """Yield every picture of some views."""
    for exhibit in content.exhibits:
        if exhibit.name in content.specs and exhibit.view in views:
            rows = visible(exhibit, content.tables)
            rows = rows[_drawn(rows, exhibit.only)] if exhibit.only else rows
            for panel, own in rows.groupby(exhibit.panel, sort=False):
                if not exhibit.several or own[exhibit.several].nunique() > 1:
                    yield _reduced(exhibit, str(panel), own)


def _drawn(rows: pd.DataFrame, column: str) -> Any:
    """Tell which rows have a value to draw."""
    numbers = pd.to_numeric(rows[column], errors="coerce")
    return np.isfinite(numbers.to_numpy(dtype=float, na_value=np.nan))


def _reduced(exhibit: Exhibit, panel: str, rows: pd.DataFrame) -> Picture:
    """Return a picture of one value of `one`, and of the first values of `top`."""
    if exhibit.one:
        chosen = rows[exhibit.one].drop_duplicates().iloc[-1]
        rows, panel = rows[rows[exhibit.one] == chosen], f"{panel} · {chosen}"
    remarks = []
    for column, most, rank in exhibit.top:
        by = rank.removeprefix("-")
        ranked = rows.sort_values(by, ascending=by == rank, kind="stable") if by else rows
        names = list(dict.fromkeys(ranked[column].dropna()))
        if len(names) > most:
            rows = rows[rows[column].isin(names[:most]) | rows[column].isna()]
            remarks.append(f"the first {most} of {several(len(names), title(column))}")
    return Picture(exhibit, panel, records(rows), "; ".join(remarks))


def specification(picture: Picture, spec: Spec, width_px: float, is_log: bool = False) -> Spec:
    """Return a chart with its data, as wide as a column, titled with its model and setting.

    Args:
        is_log: logarithmic axes where the page offers them.
    """
    rows = picture.rows
    drawn = json.loads(json.dumps(spec))
    is_log = is_log and picture.exhibit.has_log
    if is_log:
        drawn = _logarithmic(drawn)
    if "layer" in drawn:
        drawn["layer"] = [layer for layer in drawn["layer"] if _has_data(layer, rows)]
    drawn, meta = _present(drawn, rows), drawn.get("usermeta", {})
    _small_points(drawn)
    if "columns" in meta and (width_px - NAMES_PX) / len({row[meta["columns"]] for row in rows}) < CELL_PX:
        drawn["layer"] = [layer for layer in drawn["layer"] if layer.get("name") != charts.CELL_WORDS]
        for layer in drawn["layer"]:
            layer["encoding"]["x"]["axis"]["labelAngle"] = -90  # slanted names would cover each other
    if "rows" in meta:
        drawn["height"] = ROW_SHARE * meta["row_px"] * len({row[meta["rows"]] for row in rows})
    else:
        drawn["height"] = HEIGHT_PX
    padding = {"left": 4, "top": 4, "bottom": 4, "right": 6}
    if labels := meta.get("labels"):
        axis = Axis.around([float(row[labels["y"]]) for row in rows], is_log)
        _label_lines(drawn, _end_labels(rows, labels, axis), labels["series"], axis)
    subtitle = picture.panel + (f" ({picture.remark})" if picture.remark else "")
    titled = {
        "text": textwrap.wrap(picture.exhibit.title, int(width_px / TITLE_PX)),
        "subtitle": _broken(subtitle, width_px),
    }
    data = {"name": "rows", "values": rows}
    look = _config(width_px, _longest(drawn))
    if "rows" in meta and "columns" not in meta:
        look["legend"]["layout"] = {"top": {"anchor": "end", "direction": "vertical"}}
    found: Spec = drawn | {"data": data, "width": width_px, "config": look, "title": titled, "padding": padding}
    return found


def _logarithmic(part: Any) -> Any:
    """Return a chart whose quantitative axes are logarithmic, as the page makes them."""
    if isinstance(part, list):
        return [_logarithmic(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {name: _logarithmic(value) for name, value in part.items()}
    for name in ("x", "y"):
        channel = found.get(name)
        if isinstance(channel, dict) and channel.get("type") == "quantitative":
            scale = {key: value for key, value in (channel.get("scale") or {}).items() if key != "zero"}
            channel["scale"] = scale | {"type": "log", "nice": False}
    return found


def _small_points(drawn: Spec) -> None:
    """Give points the size that goes with the small letters of a figure."""
    for layer in drawn.get("layer", [drawn]):
        if layer["mark"]["type"] == "point":
            layer["mark"]["size"] /= 2
            layer["mark"]["strokeWidth"] = 1


def _longest(part: Any) -> int:
    """Return the length of the longest name in a legend."""
    if isinstance(part, list):
        return max(map(_longest, part), default=1)
    if not isinstance(part, dict):
        return 1
    scale = part.get("scale")
    shown = scale.get("domain") if isinstance(scale, dict) and part.get("legend", True) else []
    own = [len(str(name)) for name in shown] if isinstance(shown, list) else []
    return max([1, *own, *map(_longest, part.values())])


def _config(width_px: float, longest: int) -> Spec:
    look: dict[str, Any] = charts.config()
    look["font"] = FONT
    for name in ("axis", "legend"):
        look[name] |= {"labelFontSize": 8, "titleFontSize": 8.5}
    look["legend"] |= {"symbolSize": 45, "columns": max(1, int((width_px - 40) / (LABEL_PX * longest + 20)))}
    look["text"], look["axisY"] = {"fontSize": 8}, {"labelLineHeight": 8}
    look["title"] |= {"fontSize": 9.5, "subtitleFontSize": 8, "offset": 6}
    return look


def _has_data(layer: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    needs = re.search(r"_of_(\w+)$", str(layer.get("name", "")))
    return not needs or any(row.get(needs[1]) is not None for row in rows)


def _present(part: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return scales with the names that are drawn; a name keeps its colour."""
    if isinstance(part, list):
        return [_present(each, rows) for each in part]
    if not isinstance(part, dict):
        return part
    found = {name: _present(value, rows) for name, value in part.items()}
    scale = found.get("scale")
    if scale and {"domain", "range"} <= scale.keys() and rows and found.get("field") in rows[0]:
        names = {row[found["field"]] for row in rows}
        kept = [pair for pair in zip(scale["domain"], scale["range"], strict=True) if pair[0] in names]
        found["scale"] = scale | {"domain": [name for name, _ in kept], "range": [value for _, value in kept]}
    return found


def _end_labels(rows: Sequence[Mapping[str, Any]], labels: Mapping[str, str], axis: Axis) -> list[dict[str, Any]]:
    """Return the name of each line with its place in pixels from the top, so far apart that none covers another."""
    ends: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: float(row[labels["x"]])):
        ends[str(row[labels["series"]])] = row
    down = sorted(ends.items(), key=lambda end: -float(end[1][labels["y"]]))
    places = spread([axis.from_top_px(float(row[labels["y"]])) for _, row in down], LABEL_GAP_PX, HEIGHT_PX)
    return [
        {"text": name, labels["series"]: name, "place": place} for (name, _), place in zip(down, places, strict=True)
    ]


def spread(places: Sequence[float], gap: float, end: float) -> list[float]:
    """Return places in ascending order, moved as little as two passes need to be `gap` apart and not beyond `end`."""
    found = list(places)
    for at in range(1, len(found)):
        found[at] = max(found[at], found[at - 1] + gap)
    if found:
        found[-1] = min(found[-1], end)
    for at in range(len(found) - 2, -1, -1):
        found[at] = min(found[at], found[at + 1] - gap)
    return found


def _label_lines(drawn: Spec, texts: Sequence[Mapping[str, Any]], series: str, axis: Axis) -> None:
    """Write the name of each line right of the plot, in the line's colour, in place of a legend."""
    for layer in drawn["layer"]:
        encoding = layer["encoding"]
        kind = {"type": "log"} if axis.is_log else {}
        if axis.is_log:
            layer["mark"]["clip"] = True  # an interval may reach far down
        encoding["y"]["scale"] = {"domain": [axis.least, axis.most], "nice": False} | kind
        for channel in ("color", "strokeDash", "shape"):
            if channel in encoding:
                encoding[channel]["legend"] = None
    place = {"field": "place", "type": "quantitative", "scale": None}
    text, shade = {"field": "text", "type": "nominal"}, drawn["layer"][-1]["encoding"]["color"]
    mark = {"type": "text", "align": "left", "dx": 4, "fontSize": 8, "baseline": "middle"}
    encoding = {"x": {"value": "width"}, "y": place, "text": text, "color": shade | {"field": series}}
    drawn["layer"].append({"data": {"values": list(texts)}, "mark": mark, "encoding": encoding})


def _broken(text: str, width_px: float) -> list[str]:
    """Return a panel's title on as many lines as it needs."""
    most, lines = int(width_px / 4.2), [""]
    for word in text.split(" · "):
        longer = f"{lines[-1]} · {word}" if lines[-1] else word
        if len(longer) > most and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def draw(spec: Spec, kind: str) -> bytes:
    """Return a picture in a format: "pdf", "svg" or "png"."""
    if kind == "pdf":
        return vl_convert.vegalite_to_pdf(spec)
    if kind == "png":
        return vl_convert.vegalite_to_png(spec, scale=PNG_SCALE)
    return vl_convert.vegalite_to_svg(spec).encode()


def write(content: Content, folder: Path, views: Sequence[str], is_log: bool = False) -> list[Path]:
    """Write every picture in each width and format; return the files.

    Args:
        is_log: logarithmic axes where the page offers them.
    """
    paths: list[Path] = []
    stems: dict[str, int] = {}
    for picture in pictures(content, views):
        stem = f"{picture.exhibit.name}_{slug(picture.panel.replace(' · ', '_'))}"[:120]
        stems[stem] = stems.get(stem, 0) + 1
        stem += f"_{stems[stem]}" if stems[stem] > 1 else ""
        for name, width_mm in WIDTHS_MM.items():
            spec = specification(picture, content.specs[picture.exhibit.name], width_mm * MM_PX, is_log)
            for kind in FORMATS:
                paths.append(folder / f"{stem}_{name}.{kind}")
                write_atomically(paths[-1], draw(spec, kind))
    return paths
