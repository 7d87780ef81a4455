"""Writer of docs/commands.md and docs/columns.md: options from the commands' parsers, columns from the schemas.

python docs/generate.py            # write both
python docs/generate.py --check    # write nothing; exit code 1 and the names of files that are not current
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convscope.__main__ import COMMANDS, FLAGS, MEASURED
from convscope.atlas import rows as atlas
from convscope.cli import completion, programs
from convscope.conv3d import rows as conv3d
from convscope.dataset.calls import CallRow
from convscope.dataset.package.merging import Conflict
from convscope.dataset.samples import WORK, SampleRow
from convscope.dataset.totals import TotalRow
from convscope.inference import rows as inference
from convscope.prediction.evaluation import Score, WorkspaceScore
from convscope.profiling import rows as profiling
from convscope.selection import command as selection
from convscope.selection.evaluation import Regret
from convscope.storage.schema import Schema
from convscope.training import rows as training
from convscope.verification import rows as verification

DOCS = Path(__file__).resolve().parent
GENERATED = "<!-- Written by docs/generate.py: do not edit. -->"
CATALOGUE = DOCS / "columns.csv"


@dataclass(frozen=True)
class Listed:
    """One table of the reference.

    Attributes:
        key: its name in the catalogue: "profile/overall".
        file: its file on disk.
        text: what a row is.
        types: the type of each column by its name, in the order of the table: "int | None".
    """

    key: str
    file: str
    text: str
    types: Mapping[str, str]

    @property
    def title(self) -> str:
        """Heading of the table; no two are the same."""
        study, _, name = self.key.partition("/")
        return f"{study.capitalize()}: {name.replace('_', ' ')}"


@dataclass(frozen=True)
class Meaning:
    """Entry of the catalogue."""

    table: str
    column: str
    unit: str
    text: str


def _read(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of docs/."""
    with (DOCS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


STUDIES = {row["study"]: row for row in _read("studies.csv")}
"""Title of each study, and what lies beside its tables."""
ROWS = {row["table"]: (row["file"], row["row"]) for row in _read("tables.csv")}
"""File of each table, and what a row is."""
EXIT_CODES = [(row["code"], row["commands"], row["meaning"]) for row in _read("exit_codes.csv")]


def tables() -> list[Listed]:
    """Return every table of every study, in the order of the page."""
    found = {key: _types(row_type) for key, row_type in _row_types().items()}
    types = found["dataset/samples"]
    asked = {name: types[name] for name in ("gpu_name", *WORK, "model", "layer", "input_size")}
    predicted = dict.fromkeys(("predicted_ms", "low90_ms", "high90_ms"), "float")
    found["predict/predictions"] = asked | predicted | {"outside": "str"}
    return [Listed(key, *about, found[key]) for key, about in ROWS.items()]


def _row_types() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    schemas: dict[str, Sequence[Schema]] = {
        "profile": [profiling.SCHEMA],
        "training": [training.SCHEMA],
        "inference": [inference.SCHEMA],
        "conv3d": [conv3d.SCHEMA],
        "verify": [verification.SUPPORT, verification.CHOICE, verification.FIRST_CALL],
        "plans": [atlas.PLANS],
    }
    for study, several in schemas.items():
        every = [part.tables.items() for schema in several for part in schema.parts]
        found |= {f"{study}/{name}": form.row_type for items in every for name, form in items}
    if {*found} != {key for key in ROWS if key.split("/")[0] in schemas}:
        raise SystemExit(f"docs/generate.py: ROWS has other tables than the schemas: {sorted({*found} ^ {*ROWS})}")
    others = {"dataset/samples": SampleRow, "dataset/calls": CallRow, "dataset/totals": TotalRow}
    others |= {"dataset/conflicts": Conflict}
    return found | others | {"predict/scores": Score, "predict/workspace": WorkspaceScore, "select/regret": Regret}


def _types(row_type: type[Any]) -> dict[str, str]:
    return {field.name: str(field.type) for field in dataclasses.fields(row_type)}


def catalogue(path: Path = CATALOGUE) -> list[Meaning]:
    """Read the catalogue of columns; `*` stands for all tables, `profile/*` for those of a study."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    for number, row in enumerate(rows, 1):
        if len(row) != 4:
            raise SystemExit(f"{path}, row {number}: {len(row)} cells where 4 belong: quote a meaning that has commas")
    return [Meaning(*row) for row in rows[1:]]


def meaning(entries: Mapping[tuple[str, str], Meaning], table: str, column: str) -> Meaning:
    """Return the entry for a column: that of its table, else of its study, else of all.

    Raises:
        KeyError: the catalogue has none.
    """
    for key in (table, f"{table.partition('/')[0]}/*", "*"):
        if (key, column) in entries:
            return entries[key, column]
    raise KeyError(f"docs/columns.csv has no entry for {column} of {table}")


TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "True, False"}


def columns_page() -> str:
    """Return docs/columns.md."""
    entries = {(each.table, each.column): each for each in catalogue()}
    lines = [
        GENERATED, "", "# Columns", "",
        "Every column of every table, with its type, unit and meaning. A value that is absent is an empty cell, never "
        "0. Counts have the unit `count`, ratios and relative errors the unit `1`. Tables of results are CSV files in "
        "the folder of their run. [numbers.md](numbers.md) explains how the main figures are measured.", "",
    ]  # fmt: skip
    study = ""
    for table in tables():
        if table.key.partition("/")[0] != study:
            study = table.key.partition("/")[0]
            lines += [f"## {STUDIES[study]['title']}", "", STUDIES[study]["beside"], ""]
        names = " or ".join(f"`{each}`" for each in table.file.split(", "))
        lines += [f"### {table.title}", "", f"{names}: {table.text}.", ""]
        lines += ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
        for column, kind in table.types.items():
            found = meaning(entries, table.key, column)
            shown = TYPES[kind.removesuffix(" | None")]
            lines.append(f"| `{column}` | {shown} | {found.unit} | {found.text} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def commands_page() -> str:
    """Return docs/commands.md."""
    lines = [
        GENERATED, "", "# Commands", "",
        "`convscope COMMAND`, or `python -m convscope COMMAND`. `convscope COMMAND --help` prints the options of one, "
        "`convscope --version` the version. In a checkout `run_profile.py`, `run_verify.py`, `run_training.py`, "
        "`run_inference.py`, `run_conv3d.py` and `run_dataset.py` are `profile`, `verify`, `train`, `infer`, `conv3d` "
        "and `dataset collect`, with the same options.", "",
        "| command | purpose |", "| --- | --- |",
        *(f"| [`{name}`](#{name}) | {_cell(what)} |" for name, (_, what) in COMMANDS.items()), "",
    ]  # fmt: skip
    every = parsers()
    for name in COMMANDS:
        lines += [f"## {name}", "", *_command(name, every)]
    lines += ["## Exit codes", "", "| code | command | meaning |", "| ---: | --- | --- |"]
    lines += [f"| {code} | {of} | {text} |" for code, of, text in EXIT_CODES]
    lines += ["", "After 70, 74, 75 and 85 the same command continues with the sizes that are missing. Of several runs "
              "(`--batch-sizes`, `--study`) the highest exit code counts; bad input of one leaves the others, a signal "
              "ends all after the size at hand. [reliability.md](reliability.md) has the details."]  # fmt: skip
    return "\n".join(lines) + "\n"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command and subcommand by its name: "plans", "plans diff".

    A command that is nothing but `verify` with a flag has none.
    """
    found = {name: completion._of(module) for name, (module, _) in COMMANDS.items() if not _is_verify(name)}
    for name, parser in [*found.items()]:
        found |= {f"{name} {below}": own for action in _subparsers(parser) for below, own in action.choices.items()}
    found["dataset collect"] = programs.module(MEASURED["dataset"]).parser()
    return found | {"select evaluate": selection._evaluation_parser()}


def _is_verify(name: str) -> bool:
    return name in FLAGS and COMMANDS[name][0] == COMMANDS["verify"][0]


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[Any]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _command(name: str, every: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    """Yield the section of a command, with those of its subcommands; `every` as `parsers` returns them."""
    what = COMMANDS[name][1]
    same = ""
    if name in FLAGS:
        same = f"`convscope verify {FLAGS[name][0]}`, with the options of [`verify`](#verify)."
    if _is_verify(name):
        yield from (_sentence(what), "", f"`convscope {name} --model M …` is {same}", "")
        return
    parser = every[name]
    yield from (_sentence(re.sub(r"^`[^:]*`: ", "", parser.description or what)), "")
    if same:
        yield from (f"With options alone, `convscope {name} --model M …` is {same}", "")
    elif parser.epilog:
        yield from (_sentence(parser.epilog), "")
    yield from _options(name, parser)
    texts = {f"{name} {each.dest}": each.help for action in _subparsers(parser) for each in action._choices_actions}
    for below in [key for key in every if key.startswith(f"{name} ")]:
        text = texts.get(below) or "Regret of a selection on layers that were not learned, beside simple choices."
        yield from (f"### {below}", "", _sentence(text), "", *_options(below, every[below]))


def _options(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield usage and options of a command's parser; the last line is empty."""
    shown = [each for each in parser._actions if each.dest != "help" and each.help != argparse.SUPPRESS]
    below = _subparsers(parser)
    plain = [each for each in shown if each not in below]
    words = [_invocation(each) for each in plain if each.required and each.option_strings]
    needed = [group._group_actions for group in parser._mutually_exclusive_groups if group.required]
    words += [f"({' | '.join(map(_invocation, group))})" for group in needed]
    words += ["[options]"] if any(each.option_strings and not each.required for each in plain) else []
    words += [_invocation(each) for each in plain if not each.option_strings]
    words += ["|".join(each.choices) + " …" for each in below]
    yield from ("```", *_wrapped([f"convscope {name}", *words]), "```", "")
    if plain:
        yield from ("| option | default | meaning |", "| --- | --- | --- |")
        yield from (f"| {_names(each)} | {_default(each)} | {_help(parser, each)} |" for each in plain)
        yield ""
    for group in parser._mutually_exclusive_groups:
        several = ", ".join(f"`{each.option_strings[0]}`" for each in group._group_actions)
        yield from (f"{'Exactly' if group.required else 'At most'} one of {several}.", "")


def _wrapped(words: Sequence[str]) -> Iterator[str]:
    """Yield words as lines of at most 100 signs, those behind the first indented."""
    line = ""
    for word in words:
        if line and len(line) + len(word) > 99:
            yield line + " \\"
            line = "   "
        line += f" {word}" if line else word
    yield line


def _invocation(action: argparse.Action) -> str:
    """Return an option with its argument: "--model NAME"."""
    return " ".join(filter(None, [*action.option_strings[:1], _argument(action)]))


def _argument(action: argparse.Action) -> str:
    """Return the placeholder of an argument, "" for a flag."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    plain = "CHOICE" if action.choices is not None and action.option_strings else action.dest.upper()
    name = action.metavar or ("N" if action.type is int else plain)
    forms = {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}
    return forms.get(str(action.nargs), name)


def _names(action: argparse.Action) -> str:
    """Return the names of an option as a cell, with its argument behind the last."""
    given = _argument(action)
    if not action.option_strings:
        return f"`{given}`"
    *others, last = action.option_strings
    return ", ".join(f"`{each}`" for each in (*others, f"{last} {given}".rstrip()))


def _default(action: argparse.Action) -> str:
    if action.required and action.option_strings:
        return "required"
    value = action.default
    if action.nargs == 0 or value in (None, (), [], "", argparse.SUPPRESS):
        return ""
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`"
    if isinstance(value, list):
        listed = ", ".join(f"`{each}`" for each in value)
        return listed if len(value) < 10 else ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return what an option does, without the default that has its own column, then its choices."""
    text = _cell(str(action.help) % (vars(action) | {"prog": parser.prog}))
    text = re.sub(r" \(default [^)]*\)", "", text) if _default(action) else text
    if action.choices is None:
        return text
    return "; ".join(filter(None, [text, f"one of {', '.join(f'`{each}`' for each in action.choices)}"]))


def _sentence(text: str) -> str:
    """Return a description as a sentence."""
    plain = _cell(text)
    return f"{plain[:1].upper()}{plain[1:]}{'' if plain.endswith('.') else '.'}"


def _cell(text: str) -> str:
    """Return text as a cell of a table: on one line, options and paths as code, long lists with spaces."""
    words = [word.replace(",", ", ") if word.count(",") > 3 else word for word in text.split()]
    parts = " ".join(words).split("`")  # every second one is code already
    parts[::2] = [_CODE.sub(r"`\g<0>`", part).replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


_CODE = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*|[^\s<`]*(?:<[^>`]*>[^\s;,)<`]*)+")
"""An option, or a path with a placeholder: "results/<stage>/<model>_…"."""

PAGES = {"commands.md": commands_page, "columns.md": columns_page}


def stale(folder: Path = DOCS) -> dict[str, str]:
    """Return the pages of a folder that are not as they would be written, with their new text."""
    found = {name: page() for name, page in PAGES.items()}
    return {
        name: text
        for name, text in found.items()
        if not (folder / name).exists() or (folder / name).read_text() != text
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages; return 1 where `--check` finds one that is not current."""
    parser = argparse.ArgumentParser(description="Write docs/commands.md and docs/columns.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is not current")
    check = parser.parse_args(arguments).check
    old = stale()
    for name, text in old.items():
        if not check:
            (DOCS / name).write_text(text)
        print(f"docs/{name}: {'not current: python docs/generate.py writes it' if check else 'written'}")
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
