"""Results in a few lines: `python -m convscope summary [FOLDER…]`, Markdown for an issue, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from convscope.cli.parser import OneLineParser, uncollected
from convscope.report import command
from convscope.report.labels import DOUBTS, number, title

if TYPE_CHECKING:
    import pandas as pd

    from convscope.report.exhibits import Content

NAME = "convscope summary"
COLUMNS = (
    *("algorithm", "size", "mean_ms", "ci95_ms", "time_ratio", "energy_mj", "energy_ci_mj", "memory_mib"),
    "replaced_layers",
)
GAINS = ("model_at", "convolutions_by", "mean_ms", "gain_pct", "gain_ci99_pct", "saved_us", "saved_ci99_us")


def reference_rows(content: Content) -> pd.DataFrame:
    """Return the passes with a time at the reference size of each model, the fastest first."""
    passes = content.tables["passes"]
    if not len(passes):
        return passes
    rows = passes[passes["is_reference"] & passes["time_ratio"].notna()]
    return rows.sort_values(["panel", "mean_ms"], kind="stable")


def markdown(content: Content) -> str:
    """Return what was found as Markdown: sentences, a table of algorithms for each model and card, flags and faults."""
    parts = [*(escaped(sentence) for sentence in content.sentences)]
    if len(rows := reference_rows(content)):
        for panel, own in rows.groupby("panel", sort=False):
            parts += [f"{escaped(panel)}:", table(own, COLUMNS)]
    if len(gains := content.tables["choice_passes"]):
        for panel, own in gains[gains["convolutions_by"] != "torch"].groupby("panel_of_models", sort=False):
            parts += [f"Whole passes by choice of algorithms, {escaped(panel)}:", table(own, GAINS)]
    if len(flags := content.tables["flags"]):
        parts += ["Flags:", table(flags, ("model", "gpu", "algorithm", "size", "flag", "detail", "rows"))]
    if len(faults := content.tables["faults"]):
        parts += ["Folders with faults:", table(faults, ("run", "fault"))]
    return "\n\n".join(parts) + "\n"


def table(rows: pd.DataFrame, names: Sequence[str]) -> str:
    """Return those of the columns that have a value as a table in Markdown."""
    from pandas.api.types import is_numeric_dtype

    names = [name for name in names if name in rows and rows[name].notna().any()]
    numbers = {name: is_numeric_dtype(rows[name]) for name in names}
    head = [f"| {' | '.join(title(name) for name in names)} |"]
    head.append(f"|{'|'.join(' ---: ' if numbers[name] else ' --- ' for name in names)}|")

    def cell(row: dict[Any, Any], name: str) -> str:
        return number(row[name], row.get(DOUBTS.get(name))) if numbers[name] else escaped(row[name])

    lines = [f"| {' | '.join(cell(row, name) for name in names)} |" for row in rows.to_dict("records")]
    return "\n".join(head + lines)


def escaped(value: Any) -> str:
    """Return a text of a disk in which nothing is Markdown or HTML."""
    if value is None or value != value:
        return ""
    text = str(value).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{sign}" if sign in "\\|*_`[]!#~$" else sign for sign in text)


def document(content: Content) -> dict[str, Any]:
    """Return what was found for programs; absent figures are null."""
    from convscope.report.tables.frames import records  # pandas: the page of help does without

    named = {name: records(content.tables[name]) for name in ("runs", "choice_passes", "flags", "faults")}
    return {"found": list(content.sentences), "passes": records(reference_rows(content)), **named}


def main(arguments: Sequence[str]) -> int:
    """Print the summary; return 0.

    Raises:
        InputError: a folder does not exist.
    """
    options = _parser().parse_args(arguments)
    with uncollected():
        found = command.read(options)
    print(json.dumps(document(found), indent=2, allow_nan=False) if options.json else markdown(found), end="")
    return 0


def _parser() -> OneLineParser:
    text = "What runs found, in a few lines of Markdown for a README or an issue."
    examples = "results", "results/3_full --json"
    parser = OneLineParser(prog=NAME, description=text, examples=examples)
    command.add_folders(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser
