"""The page: one HTML file with its tables, its data, its scripts and nothing from outside.

Whatever comes from a disk is escaped. The browser runs the two scripts of the page and no other (their digests stand in
the Content-Security-Policy), and loads nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from convscope.errors import InputError
from convscope.report import charts
from convscope.report.catalogue import MEASURED_BY, SETTINGS, Exhibit
from convscope.report.exhibits import Content, has_rows
from convscope.report.labels import DIMENSIONS, DOUBTS, TITLES, VIEWS, number, several, title
from convscope.report.tables.method import EXPLAINED
from convscope.storage.paths import now_utc

ROWS_STATIC = 25
"""Rows of each table that stand in the page itself, for readers without scripts; the others are in the data."""
LONG = 160
"""Characters of a cell that stands on several lines; a shorter one would make its row high for nothing."""
PLAIN_MOST_BYTES = 1_000_000
"""Data larger than this are compressed."""
DIGITS = 6


def visible(exhibit: Exhibit, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of an exhibit as it opens: at the reference size, in order."""
    rows = tables[exhibit.table]
    if not has_rows(exhibit, tables):
        return rows.iloc[:0]
    if exhibit.at_reference:
        rows = rows[rows["is_reference"] == True]  # noqa: E712  # a column of objects
    column = exhibit.order.removeprefix("-")
    if column not in rows:
        return rows
    keys = pd.to_numeric(rows[column], errors="coerce") if _is_number(rows[column]) else rows[column].astype(str)
    return rows.loc[keys.sort_values(ascending=column == exhibit.order, kind="stable", na_position="last").index]


class Bundle:
    """Script of the charts, put together in a process of its own while results are read: it takes a second."""

    def __init__(self) -> None:
        program = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
        self._process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._process:
            self._process.kill()

    def text(self) -> str:
        """Return the script, as soon as it is there."""
        script, _ = self._process.communicate()
        if self._process.returncode or not script:
            raise InputError("vl-convert-python made no script for the charts: install it again")
        return script.decode()


def html(content: Content, name: str, bundle: str) -> str:
    """Return the page; `name` is what its title says the results are of, `bundle` the script of the charts."""
    own, style = (files("convscope.report").joinpath(f"assets/page.{kind}").read_text() for kind in ("js", "css"))
    scripts = [_script_safe(bundle), _script_safe(own)]
    digests = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    shown = [view for view in VIEWS if view in content.views]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(name)}</title>",
        f"<style>{style}</style></head><body>",
        _header(content, name),
        _bar(shown),
        "<main>",
        *(_view(view, content) for view in shown),
        "</main>",
        f"<footer>Made by convscope on {escape(now_utc())}. The file holds everything that it shows.</footer>",
        _data_block(content),
        *(f"<script>{text}</script>" for text in scripts),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _script_safe(text: str) -> str:
    """Return a script in which nothing ends its element."""
    return re.sub(r"</(?=script)|<(?=!--)", lambda found: found[0].replace("<", "\\x3c"), text, flags=re.IGNORECASE)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(content: Content, name: str) -> str:
    said = "".join(f'<p class="found">{escape(sentence)}</p>' for sentence in content.sentences)
    tables = content.tables
    runs, passes = tables["runs"], tables["passes"]
    flags = tables["flags"]
    counts = {
        "runs": len(runs),
        "models": runs["model"].replace("", None).nunique() if len(runs) else 0,
        "algorithms": passes["algorithm"].nunique() if len(passes) else 0,
        "devices": runs["card"].nunique() if len(runs) else 0,
        "passes": len(passes) + len(tables["choice_passes"]),
        "layer rows": len(tables["layers"]),
        "candidates of layers": len(tables["candidates"]),
        "flags": int(flags[flags["flag"] != "remark"]["rows"].sum()) if len(flags) else 0,
    }
    cards = "".join(
        f"<li><b>{count:,}</b>{escape(what)}</li>" for what, count in counts.items() if count or what == "flags"
    )
    warning = f"Scripts are off: each table shows its first {ROWS_STATIC} rows; filters and pictures need scripts."
    return (
        f'<header><h1>{escape(name)}</h1>{said}<ul class="cards">{cards}</ul>'
        f'<noscript><p class="no-script">{warning}</p></noscript></header>'
    )


def _bar(views: Sequence[str]) -> str:
    links = "".join(f'<a href="#view-{view}" data-view="{view}">{escape(VIEWS[view])}</a>' for view in views)
    return f'<div class="bar"><nav aria-label="Views">{links}</nav>{_filters()}</div>'


def _filters() -> str:
    names = [*DIMENSIONS, "layer"]
    selects = "".join(f'<label>{escape(title(name))}<select name="{name}"></select></label>' for name in names)
    return (
        '<details class="filters" data-script hidden open><summary>Filters <output id="said"></output></summary>'
        f'<form aria-label="Filters of all views">{selects}'
        '<label class="tick"><input type="checkbox" id="log"> logarithmic axes</label>'
        '<button type="button" id="reset">show all</button></form></details>'
    )


def _view(view: str, content: Content) -> str:
    own = [each for each in content.exhibits if each.view == view]
    filled_first = sorted(own, key=lambda each: not has_rows(each, content.tables))
    shown = [_exhibit(each, content) for each in filled_first]
    words = _explained() if view == "method" else _absent(content) if view == "overview" else ""
    return f'<section id="view-{view}"><h2>{escape(VIEWS[view])}</h2>{words}{"".join(shown)}</section>'


def _absent(content: Content) -> str:
    names = ", ".join(f"{VIEWS[view]} ({MEASURED_BY[view]})" for view in content.views_without_rows)
    return (
        f'<p class="soft">Views that are left out, for no run has measured them: {escape(names)}.</p>' if names else ""
    )


def _explained() -> str:
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in EXPLAINED)
    return f"<dl>{terms}</dl>"


def _exhibit(exhibit: Exhibit, content: Content) -> str:
    head = f'<h3 id="title-{exhibit.name}">{escape(exhibit.title)}</h3>'
    section = f'<section class="exhibit" id="{exhibit.name}" aria-labelledby="title-{exhibit.name}">'
    if not has_rows(exhibit, content.tables):
        return f'{section}{head}<p class="none">{escape(exhibit.without)}</p></section>'
    rows = visible(exhibit, content.tables)
    columns = columns_of(exhibit, content.tables)
    count = several(len(rows), "row") if len(rows) <= ROWS_STATIC else f"{ROWS_STATIC} of {len(rows):,} rows"
    tools = (
        f'<div class="tools"><span class="count">{count}</span>'
        '<button type="button" class="more" data-script hidden>more rows</button>'
        '<button type="button" class="csv" data-script hidden '
        f'aria-label="{escape(exhibit.title)}: save as CSV">CSV</button></div>'
    )
    pictures = ""
    if exhibit.name in content.specs:
        pictures = (
            '<div class="charts"></div><button type="button" class="more-charts" hidden>show all pictures</button>'
        )
    return (
        f'{section}<div class="head">{head}{tools}</div><p class="soft">{escape(exhibit.text)}</p>'
        f"{_table(exhibit, rows.head(ROWS_STATIC), columns)}{pictures}</section>"
    )


def columns_of(exhibit: Exhibit, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Return the columns of an exhibit in which some row has a value; settings that all rows share come last."""
    rows = tables[exhibit.table]
    known = [name for name in exhibit.columns if name in rows and bool((rows[name].notna() & (rows[name] != "")).any())]
    return sorted(known, key=lambda name: name in SETTINGS and rows[name].nunique(dropna=False) == 1)


def _table(exhibit: Exhibit, rows: pd.DataFrame, columns: Sequence[str]) -> str:
    numbers = {name: _is_number(rows[name]) for name in columns}
    heads = "".join(
        f'<th scope="col" data-column="{name}"{_class("n" if numbers[name] else "")}>{escape(title(name))}</th>'
        for name in columns
    )
    lines = []
    for row in rows[list(columns)].to_dict("records"):
        bad = any(
            row.get(name) not in (None, "ok") and row.get(name) == row.get(name) for name in ("status", "outcome")
        )
        cells = "".join(_cell(row[name], numbers[name], row.get(DOUBTS.get(name))) for name in columns)
        lines.append(f"<tr{_class('bad' if bad else '')}>{cells}</tr>")
    label = f'role="region" tabindex="0" aria-labelledby="title-{exhibit.name}"'
    return (
        f'<div class="scroll" {label}><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(value: Any, is_number: bool, doubt: Any = None) -> str:
    text = (
        number(value, doubt)
        if is_number or isinstance(value, bool)
        else ""
        if value is None or value != value
        else str(value)
    )
    return f"<td{_class('n' if is_number else 'long' if len(text) > LONG else '')}>{escape(text)}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _is_number(cells: pd.Series[Any]) -> bool:
    """Tell whether a column holds numbers and nothing else; truth values are none."""
    known = cells.dropna()
    if known.dtype != object:
        return known.dtype.kind in "iuf" and bool(len(known))
    return bool(len(known)) and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in known)


# ---- data


def _data_block(content: Content) -> str:
    """Return the element with all tables and specifications, compressed where they are large."""
    shown = [each for each in content.exhibits if has_rows(each, content.tables)]
    fields = {each.name: _fields(each, content) for each in shown}
    wanted: dict[str, set[str]] = {}
    for each in shown:
        wanted.setdefault(each.table, set()).update(fields[each.name])
    document = {
        "tables": {name: _columns(content.tables[name], names) for name, names in wanted.items()},
        "exhibits": [_described(each, fields[each.name], content) for each in shown],
        "dimensions": DIMENSIONS,
        "titles": TITLES,
        "doubts": DOUBTS,
        "config": charts.config(),
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if len(text) <= PLAIN_MOST_BYTES:
        return f'<script type="application/json" id="data">{json_safe(text)}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    return f'<script type="application/json" id="data" data-encoding="gzip">{packed}</script>'


def json_safe(text: str) -> str:
    """Return JSON in which nothing ends a script element or a line of a script."""
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _fields(exhibit: Exhibit, content: Content) -> list[str]:
    """Return the columns of its table that an exhibit shows, filters by or draws."""
    rows = content.tables[exhibit.table]
    drawn = set(re.findall(r"\w+", json.dumps(content.specs.get(exhibit.name, {}))))
    ruling = {*DIMENSIONS, "layer", "is_reference", exhibit.panel, exhibit.order.removeprefix("-"), exhibit.only}
    ruling |= {exhibit.one, exhibit.several, "status", "outcome"}
    ruling |= {each for column, _, rank in exhibit.top for each in (column, rank.removeprefix("-"))}
    return [name for name in rows.columns if name in drawn or name in ruling or name in exhibit.columns]


def _described(exhibit: Exhibit, fields: Sequence[str], content: Content) -> dict[str, Any]:
    spec = content.specs.get(exhibit.name)
    drawn = set(re.findall(r"\w+", json.dumps(spec)))
    names = ("name", "view", "title", "table", "panel", "order", "at_reference", "only", "top", "one", "several")
    return {name: getattr(exhibit, name) for name in (*names, "has_log")} | {
        "rows": len(content.tables[exhibit.table]),
        "columns": columns_of(exhibit, content.tables),
        "fields": [name for name in fields if name in drawn],
        "spec": spec,
    }


def _columns(rows: pd.DataFrame, names: set[str]) -> dict[str, Any]:
    return {name: _column(rows[name]) for name in rows.columns if name in names}


def _column(cells: pd.Series[Any]) -> dict[str, Any]:
    """Return a column for the page: numbers with six digits that count, or texts and which of them."""
    if _is_number(cells):
        return {"n": _rounded(cells.to_numpy(dtype=float, na_value=np.nan))}
    codes, found = pd.factorize(cells)
    return {"of": [_text(each) for each in found], "at": codes.tolist()}


def _text(value: Any) -> str | bool:
    return bool(value) if isinstance(value, (bool, np.bool_)) else str(value)


def _rounded(values: Any) -> list[float | int | str | None]:
    """Return numbers with six digits that count; None for NaN, signs for infinities."""
    finite = np.isfinite(values)
    safe = np.where(finite & (values != 0), np.abs(values), 1.0)
    power = np.floor(np.log10(safe)) + 1 - DIGITS
    scale = 10.0 ** np.abs(power)
    short = np.where(power < 0, np.round(values * scale) / scale, np.round(values / scale) * scale)
    found: list[Any] = [
        int(each) if each.is_integer() and abs(each) < 1e15 else each for each in np.where(finite, short, 0.0).tolist()
    ]
    for at in np.flatnonzero(~finite):
        found[at] = None if values[at] != values[at] else ("∞" if values[at] > 0 else "−∞")
    return found
