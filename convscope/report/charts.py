"""Charts of the page and of figures, as Vega-Lite specifications without data: Altair builds and checks them.

A layer of a chart whose name is `…_of_<column>` is left out where no row has a value in that column.

A chart is of one panel: one model on one card. Its data are the rows of its table; every axis has its unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from convscope.report.labels import OTHERS, title

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c98a00", "#3f9fd8", "#7f7f7f", "#8b5e3c")
"""Colours that the colour-blind tell apart, after Okabe and Ito, seen on white and on black."""
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2])
SIGNS = ("circle", "diamond", "square", "triangle-up")
MOST_SERIES = 8
ROWS = alt.NamedData("rows")
INK = "#333"
HEIGHT_PX, ROW_PX = 240, 24
LINE_CHARACTERS = 26
CELL_PX, EDGES_PX = 30, 240
PADDING_PX = {"left": 5, "top": 5, "bottom": 5, "right": 14}
"""Around a chart; the last figure of its axis goes on to the right."""
SLANTED_PX = 24
"""Right of cells; the last of the slanted names above them goes on there."""
CELL_WORDS = "figures"
PHASES = ("data_ms", "forward_ms", "backward_ms", "optimizer_ms")
REGRETS = ("torch_regret_us", "benchmark_regret_us", "guess_regret_us")
NAMES = (
    *("model", "model_at", "algorithm", "series", "layer", "candidate", "convolutions_by", "category", "ceiling"),
    *("engine", "bar", "implementation", "verdict"),
)
"""Columns of texts that charts show; the others are numbers."""
VERDICT_COLOURS = {
    "slower": PALETTE[1], "faster": PALETTE[2], "same": PALETTE[0], "ambiguous": PALETTE[6], "not compared": "#aaa",
}  # fmt: skip

Spec = dict[str, Any]


def config() -> Spec:
    """Return the look that all charts share."""
    axis = {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": 500, "labelColor": INK, "titleColor": INK}
    axis |= {"gridColor": "#d9d9d9", "domainColor": "#888", "tickColor": "#888", "labelLimit": 210, "titlePadding": 9}
    legend = {"orient": "top", "direction": "horizontal", "columns": 3, "labelFontSize": 11, "titleFontSize": 11}
    legend |= {"labelColor": INK, "titleColor": INK, "symbolSize": 90, "labelLimit": 170, "columnPadding": 8}
    return {
        "axis": axis,
        "axisY": {"labelLineHeight": 11},
        "axisQuantitative": {"tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 4, "format": ",.6~r"},
        "legend": legend | {"layout": {"top": {"anchor": "start", "direction": "vertical"}}},
        "text": {"fontSize": 11},
        "title": {
            "fontSize": 13,
            "subtitleFontSize": 11.5,
            "color": INK,
            "subtitleColor": "#555",
            "offset": 8,
            "anchor": "start",
            "frame": "bounds",
        },
        "view": {"stroke": None},
        "font": "system-ui, Arial, sans-serif",
    }


def names(column: str, **more: Any) -> alt.Y:
    """Return an axis of names; a long one stands on two lines, and of a longer one both ends are shown."""
    line = LINE_CHARACTERS
    is_long, whole = f"length(datum.label) > {line + 1}", _ends("datum.label", line)
    whole = f"length(datum.label) > {2 * line} ? {whole} : datum.label"
    first = f"^(.{{6,{line}}}[.,: ]|.{{{line}}})(.+)$"
    expression = f"{is_long} ? split(replace({whole}, regexp('{first}'), '$1\\n$2'), '\\n') : datum.label"
    above: Any = {"condition": {"test": is_long, "value": "bottom"}, "value": "middle"}  # the first line of two
    axis = alt.Axis(labelExpr=expression, labelBaseline=above)
    return alt.Y(column, type="nominal", title=None, axis=axis, **more)


def _ends(text: str, count: int) -> str:
    """Return the expression for both ends of a text."""
    return f"slice({text}, 0, {count - 2}) + '…' + slice({text}, -{count - 2})"


def finished(chart: Any, height_px: float = HEIGHT_PX) -> Spec:
    """Return a chart as a specification that fills the width of its box."""
    spec: Spec = chart.properties(width="container", height=height_px).to_dict()
    for name in ("$schema", "config", "data", "datasets"):
        spec.pop(name, None)
    return spec | {"autosize": {"type": "fit-x", "contains": "padding"}, "padding": PADDING_PX}


def by_row(chart: Any, y: str, x: str | None = None) -> Spec:
    """Return a chart that is as high as there are names in a column; `rows` in its metadata says which column.

    `columns` there is the column whose names stand side by side; each needs `CELL_PX`, and all `EDGES_PX` for titles.
    """
    side_by_side = {"columns": x, "cell_px": CELL_PX, "edges_px": EDGES_PX} if x else {}
    spec = finished(chart) | {"usermeta": {"rows": y, "row_px": ROW_PX, **side_by_side}}
    return spec | {"padding": PADDING_PX | {"right": SLANTED_PX}} if x else spec


def words(base: Any, value: str, format: str, ink: Any, star: str = "") -> Any:
    """Return the layer with the figures of cells, whose name says that narrow cells are without it.

    Args:
        star: the column with what stands behind each figure, "" for nothing.
    """
    behind = f" + datum.{star}" if star else ""
    written = base.transform_calculate(figure=f"format(datum.{value}, '{format}'){behind}")
    return written.mark_text().encode(text=alt.Text("figure", type="nominal"), color=ink).properties(name=CELL_WORDS)


def needing(spec: Spec, *columns: str) -> Spec:
    """Return a specification whose first layers are left out where no row has a value in these columns, "" for none."""
    for number, (layer, column) in enumerate(zip(spec["layer"], columns, strict=False)):
        if column:
            layer["name"] = f"layer_{number}_of_{column}"
    return spec


def places(domain: Sequence[str]) -> list[tuple[int, bool]]:
    """Return for each name the place of its algorithm among all, and whether others ran some layers."""
    alone = list(dict.fromkeys(name.removesuffix(OTHERS) for name in domain))
    return [(alone.index(name.removesuffix(OTHERS)), name.endswith(OTHERS)) for name in domain]


def colour(series: str, domain: Sequence[str], shows_legend: bool = True) -> alt.Color:
    """Return the colours of a series; a name has the same one in every chart, with others or without."""
    colours = [PALETTE[place % len(PALETTE)] for place, _ in places(domain)]
    scale = alt.Scale(domain=list(domain), range=colours) if domain else alt.Scale(range=list(PALETTE))
    legend = alt.Legend(title=None, symbolOpacity=1) if shows_legend else None
    return alt.Color(series, type="nominal", scale=scale, legend=legend)


def sign(series: str, domain: Sequence[str]) -> alt.Shape:
    """Return the marks of a series: neighbours differ, and so do names of one colour."""
    signs = [SIGNS[(place + place // len(PALETTE) + 2 * mixed) % len(SIGNS)] for place, mixed in places(domain)]
    return alt.Shape(
        series, type="nominal", scale=alt.Scale(domain=list(domain), range=signs), legend=alt.Legend(title=None)
    )


def dash(series: str, domain: Sequence[str]) -> alt.StrokeDash:
    """Return the dashes of a series, which tell names of one colour apart."""
    dashes = [DASHES[(place // len(PALETTE) + 2 * mixed) % len(DASHES)] for place, mixed in places(domain)]
    scale = alt.Scale(domain=list(domain), range=dashes)
    return alt.StrokeDash(series, type="nominal", scale=scale, legend=alt.Legend(title=None))


def quantity(channel: Any, column: str, **more: Any) -> Any:
    """Return a channel of numbers whose axis has the column's title and unit."""
    return channel(column, type="quantitative", title=title(column), **more)


def tooltip(*columns: str) -> list[alt.Tooltip]:
    """Return what is shown of a row under the pointer."""
    return [hint(name, title(name), name in NAMES) for name in columns]


def hint(column: str, words: str, is_text: bool) -> alt.Tooltip:
    """Return one line of what is shown under the pointer."""
    if is_text:
        return alt.Tooltip(column, type="nominal", title=words)
    return alt.Tooltip(column, type="quantitative", title=words, format=",.4~r")


def lines(x: str, y: str, error: str | None, series: str, domain: Sequence[str], detail: str = "run") -> Spec:
    """Return a line for each name of a series, with the band of its interval."""
    shade, over = colour(series, domain), quantity(alt.X, x, scale=alt.Scale(zero=False, nice=False, padding=8))
    base = alt.Chart(ROWS).encode(x=over, detail=alt.Detail(detail, type="nominal"))
    dashes = {"strokeDash": dash(series, domain)} if domain else {}
    signs = {"shape": sign(series, domain)} if domain else {}
    line = base.mark_line(strokeWidth=2).encode(y=quantity(alt.Y, y), color=shade, **dashes)
    shown = tooltip(series, x, y, *([error] if error else ()))
    points = base.mark_point(filled=True, size=36, opacity=1).encode(
        y=quantity(alt.Y, y), color=shade, tooltip=shown, **signs
    )
    if error is None:
        return labelled(finished(alt.layer(line, points)), x, y, series)
    ends = base.transform_calculate(
        low=f"max(datum.{y} - datum.{error}, datum.{y} / 1000)", high=f"datum.{y} + datum.{error}"
    ).transform_filter(f"isValid(datum.{error})")
    band = ends.mark_area(opacity=0.18).encode(
        y=alt.Y("low", type="quantitative", title=title(y)), y2="high", color=shade
    )
    rule = ends.mark_rule(strokeWidth=1.5).encode(
        y=alt.Y("low", type="quantitative", title=title(y)), y2="high", color=shade
    )
    spec = needing(finished(alt.layer(band, rule, line, points)), error, error)
    return labelled(spec, x, y, series)


def labelled(spec: Spec, x: str, y: str, series: str) -> Spec:
    """Return a specification that says what a label at the end of a line is made of."""
    return spec | {"usermeta": {"labels": {"x": x, "y": y, "series": series}}}


def heat(x: str, y: str, ratio: str, value: str, order: str | None = None, star: str = "") -> Spec:
    """Return cells coloured by a ratio to the best, which stands in each of them; `star` as `words` takes it."""
    scale = alt.Scale(type="log", domain=[1, 10], clamp=True, scheme="blues")
    legend = alt.Legend(title=title(ratio), orient="top", gradientLength=120, format="~g", values=[1, 2, 5, 10])
    sort: Any = alt.EncodingSortField(order, op="min") if order else None
    base = alt.Chart(ROWS).encode(
        x=alt.X(x, type="nominal", title=None, axis=alt.Axis(labelAngle=-35, orient="top")),
        y=names(y, sort=sort),
        tooltip=tooltip(y, x, value, ratio),
    )
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color(ratio, type="quantitative", scale=scale, legend=legend)
    )
    ink = alt.ColorValue("#111", condition={"test": f"datum.{ratio} > 5.5", "value": "#fff"})
    return by_row(alt.layer(cells, words(base, ratio, ".3~g", ink, star)), y, x)


def share(x: str, y: str, value: str) -> Spec:
    """Return cells coloured by a percentage, which stands in each of them."""
    scale = alt.Scale(domain=[0, 100], scheme="greens")
    base = alt.Chart(ROWS).encode(
        x=alt.X(x, type="nominal", title=None, axis=alt.Axis(labelAngle=-35, orient="top")),
        y=names(y),
        tooltip=tooltip(y, x, value),
    )
    legend = alt.Legend(title=title(value), orient="top", gradientLength=120)
    cells = base.mark_rect(stroke="white").encode(
        color=alt.Color(value, type="quantitative", scale=scale, legend=legend)
    )
    ink = alt.ColorValue("#111", condition={"test": f"datum.{value} > 60", "value": "#fff"})
    return by_row(alt.layer(cells, words(base, value, ".0f", ink)), y, x)


def bars(value: str, y: str, error: str | None, series: str | None, domain: Sequence[str]) -> Spec:
    """Return a bar a row, in the order of rows, with its interval."""
    shade = colour(series, domain) if series else alt.ColorValue(PALETTE[0])
    place = names(y, sort=None)
    shown = tooltip(*dict.fromkeys([y, *([series] if series else ()), value, *([error] if error else ())]))
    base = alt.Chart(ROWS).encode(y=place)
    layers = [base.mark_bar(height=14).encode(x=quantity(alt.X, value, stack=None), color=shade, tooltip=shown)]
    if error:
        ends = base.transform_calculate(low=f"datum.{value} - datum.{error}", high=f"datum.{value} + datum.{error}")
        low = alt.X("low", type="quantitative", title=title(value))
        layers.append(
            ends.transform_filter(f"isValid(datum.{error})")
            .mark_rule(strokeWidth=1.5, color="#888")
            .encode(x=low, x2="high")
        )
    return needing(by_row(alt.layer(*layers), y), "", *([error] if error else ()))


def gains(value: str, error: str, y: str, series: str, domain: Sequence[str]) -> Spec:
    """Return for each name a point with its interval for each of a series but PyTorch's, beside a line at zero."""
    others = [name for name in domain if name != "torch"]
    base = alt.Chart(ROWS).transform_filter(f"datum.{series} !== 'torch'")
    place = names(y, sort=None)
    row = alt.YOffset(series, type="nominal", scale=alt.Scale(domain=others))
    zero = alt.Chart(ROWS).mark_rule(color="#888").encode(x=alt.XDatum(0, type="quantitative"))
    ends = base.transform_calculate(low=f"datum.{value} - datum.{error}", high=f"datum.{value} + datum.{error}")
    low = alt.X("low", type="quantitative", title=title(value))
    shade = colour(series, others)
    rule = ends.transform_filter(f"isValid(datum.{error})").mark_rule(strokeWidth=1.5).encode(
        x=low, x2="high", y=place, yOffset=row, color=shade,
    )  # fmt: skip
    shown = tooltip(y, series, value, error, "saved_us", "mean_ms")
    points = base.mark_point(filled=True, size=50, opacity=1).encode(
        x=quantity(alt.X, value), y=place, yOffset=row, color=shade, shape=sign(series, others), tooltip=shown,
    )  # fmt: skip
    spec = needing(by_row(alt.layer(zero, rule, points), y), "", error)
    return spec | {"usermeta": spec["usermeta"] | {"row_px": ROW_PX + 6 * len(others)}}


def stacked(columns: Sequence[str], y: str, unit: str) -> Spec:
    """Return bars whose pieces are columns of the table."""
    named = {name: title(name).rpartition(", ")[0] for name in columns}
    phrase = " : ".join(f"datum.key == '{name}' ? \"{text}\"" for name, text in named.items()) + " : ''"
    base = alt.Chart(ROWS).transform_fold(list(columns), as_=["key", "value"]).transform_calculate(piece=phrase)
    piece = colour("piece", list(named.values()))
    value = alt.X("value", type="quantitative", title=unit, stack="zero")
    place = names(y, sort=None)
    shown = [hint(y, title(y), True), hint("piece", "phase", True), hint("value", unit, False)]
    chart = base.mark_bar(height=14).encode(x=value, y=place, color=piece, tooltip=shown)
    return by_row(chart, y)


def pieces(value: str, y: str, series: str, domain: Sequence[str], share: str, order: str | None = "ascending") -> Spec:
    """Return bars whose pieces are rows of the table, by name or, without an order, as the rows come."""
    chart = alt.Chart(ROWS).mark_bar(height=14).encode(
        x=quantity(alt.X, value, stack="zero"), y=names(y, sort=order), color=colour(series, domain),
        tooltip=tooltip(y, series, value, share),
    )  # fmt: skip
    return by_row(chart, y)


def regrets(y: str) -> Spec:
    """Return for each layer a mark for the regret of each chooser."""
    named = {"torch_regret_us": "PyTorch", "benchmark_regret_us": "benchmark", "guess_regret_us": "guess"}
    phrase = " : ".join(f"datum.key == '{name}' ? \"{text}\"" for name, text in named.items()) + " : ''"
    base = alt.Chart(ROWS).transform_fold(list(named), as_=["key", "value"]).transform_calculate(piece=phrase)
    shade = colour("piece", list(named.values()))
    scale = alt.Scale(domain=list(named.values()))
    shape = alt.Shape("piece", type="nominal", scale=scale, legend=alt.Legend(title=None))
    value = alt.X("value", type="quantitative", title="regret, µs")
    place = names(y, sort=None)
    known = base.transform_filter("isValid(datum.value)")
    chart = known.mark_point(filled=False, size=70, strokeWidth=1.8, opacity=1).encode(
        x=value, y=place, color=shade, shape=shape,
        tooltip=[hint(y, title(y), True), hint("piece", "chosen by", True), hint("value", "regret, µs", False)],
    )  # fmt: skip
    return by_row(chart, y)


def roofline(domain: Sequence[str]) -> Spec:
    """Return layers as points under their ceilings, both axes logarithmic."""
    log = alt.Scale(type="log", nice=False, padding=12)
    x, y = quantity(alt.X, "intensity", scale=log), quantity(alt.Y, "tflops", scale=log)
    base = alt.Chart(ROWS).encode(x=x, y=y)
    above = alt.StrokeDash(
        "ceiling", type="nominal", legend=alt.Legend(title=None, symbolType="stroke", columns=1, labelLimit=300)
    )
    roof = (
        base.transform_filter("isValid(datum.ceiling)").mark_line(color="#888", strokeWidth=2).encode(strokeDash=above)
    )
    layers = base.transform_filter("!isValid(datum.ceiling)")
    points = layers.mark_point(filled=False, size=40, strokeWidth=1.5, opacity=1).encode(
        color=colour("algorithm", domain), shape=sign("algorithm", domain),
        tooltip=tooltip("layer", "algorithm", "intensity", "tflops", "mean_ms"),
    )  # fmt: skip
    return needing(finished(alt.layer(roof, points), 300), "ceiling")


def scatter(
    x: str, y: str, error: str | None, series: str, domain: Sequence[str], joined: str | None = None,
    is_log: bool = False,
) -> Spec:  # fmt: skip
    """Return a point a row with its error bar; rows for which a column is true are joined by a line."""
    scale = alt.Scale(type="log", nice=False, padding=12) if is_log else alt.Scale(zero=False, padding=10)
    base = alt.Chart(ROWS).encode(x=quantity(alt.X, x, scale=scale))
    over = quantity(alt.Y, y, scale=scale)
    shown = tooltip(series, "size", x, y, *([error] if error else ()))
    layers = []
    if joined:
        front = base.transform_filter(f"datum.{joined} === true")
        layers.append(front.mark_line(color="#888", strokeDash=[4, 3], interpolate="step-after").encode(y=over))
    if error:
        least = f"max(datum.{y} - datum.{error}, datum.{y} / 1000)"
        ends = base.transform_calculate(low=least, high=f"datum.{y} + datum.{error}")
        low = alt.Y("low", type="quantitative", title=title(y))
        layers.append(
            ends.transform_filter(f"isValid(datum.{error})")
            .mark_rule(strokeWidth=1.5)
            .encode(y=low, y2="high", color=colour(series, domain))
        )
    layers.append(
        base.mark_point(filled=True, size=60, opacity=0.9).encode(
            y=over, color=colour(series, domain), shape=sign(series, domain), tooltip=shown
        )
    )
    return needing(finished(alt.layer(*layers)), *([joined] if joined else ()), *([error] if error else ()))


def dots(x: str, y: str, series: str, domain: Sequence[str]) -> Spec:
    """Return a row of points for each name, on a logarithmic axis; hollow ones leave those below in sight."""
    chart = alt.Chart(ROWS).mark_point(filled=False, size=55, strokeWidth=1.8, opacity=1).encode(
        x=quantity(alt.X, x, scale=alt.Scale(type="log", nice=False, padding=12)),
        y=names(y, sort=None), color=colour(series, domain), shape=sign(series, domain),
        tooltip=tooltip(y, series, x),
    )  # fmt: skip
    return by_row(chart, y)


def changes() -> Spec:
    """Return how much longer B took at each size, with the interval and the verdict."""
    scale = alt.Scale(domain=list(VERDICT_COLOURS), range=list(VERDICT_COLOURS.values()))
    shade = alt.Color(
        "verdict", type="nominal", scale=scale, legend=alt.Legend(title=None, symbolType="circle", symbolOpacity=1)
    )
    base = alt.Chart(ROWS).encode(y=alt.Y("size", type="ordinal", title=title("size")), color=shade)
    low = alt.X("low_pct", type="quantitative", title=title("change_pct"))
    ends = base.mark_rule(strokeWidth=2).encode(x=low, x2="high_pct")
    shown = tooltip("size", "change_pct", "low_pct", "high_pct", "verdict")
    points = base.mark_point(filled=True, size=70, opacity=1).encode(x=quantity(alt.X, "change_pct"), tooltip=shown)
    return by_row(alt.layer(ends, points), "size")
