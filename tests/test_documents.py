"""The documents: every column, option, file and link in them exists; the README is short, and its code runs."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import markdown
import pytest
import yaml
from fakes import ROOT, reports
from pymdownx.slugs import slugify

import convscope
from convscope import errors
from convscope.__main__ import COMMANDS
from convscope.cli import signals
from convscope.dataset import columns, importers
from convscope.dataset.package import words
from convscope.dataset.samples import SPLITS
from convscope.inference.engines import catalogue

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = ROOT / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text()
README, DATA = (ROOT / "README.md").read_text(), (DOCS / "data.md").read_text()
INFERENCE, LIBRARY = (DOCS / "inference.md").read_text(), (DOCS / "library.md").read_text()


def script(path: Path) -> ModuleType:
    """Return a program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


generate, hooks = script(DOCS / "generate.py"), script(DOCS / "hooks.py")
ENTRIES = {(each.table, each.column): each for each in generate.catalogue()}
COLUMNS = [(table.key, column) for table in generate.tables() for column in table.types]
UNITS = {
    "_per_s": "1/s", "_qps": "1/s", "_ms": "ms", "_us": "µs", "_s": "s", "_j": "J", "_w": "W", "_bytes": "bytes",
    "_pct": "%", "_c": "°C", "_mhz": "MHz", "_px": "pixels",
}  # fmt: skip


def test_the_catalogue_has_each_column_of_each_table_and_no_other():
    used = {generate.meaning(ENTRIES, *column) for column in COLUMNS}
    assert [each for each in generate.catalogue() if each not in used] == []


def test_the_catalogue_has_each_column_once():
    assert [column for column, count in Counter((each.table, each.column) for each in generate.catalogue()).items()
            if count > 1] == []  # fmt: skip


def test_what_means_the_same_everywhere_is_in_several_tables():
    used = Counter(generate.meaning(ENTRIES, *column) for column in COLUMNS)
    assert [each.column for each, count in used.items() if each.table == "*" and count == 1] == []


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: f"{entry.table} {entry.column}")
def test_a_column_has_a_meaning_and_the_unit_of_its_name(entry):
    assert entry.text
    assert "|" not in entry.text
    unit = next((unit for suffix, unit in UNITS.items() if entry.column.endswith(suffix)), entry.unit)
    assert entry.unit == unit


def test_a_column_that_the_catalogue_lacks_is_named():
    with pytest.raises(KeyError, match="no entry for cost of profile/overall"):
        generate.meaning(ENTRIES, "profile/overall", "cost")


def test_the_columns_of_a_published_data_set_are_described_as_in_the_catalogue():
    published = {column.name: (column.unit, column.description) for column in columns.COLUMNS}
    listed = [each for each in generate.catalogue() if each.table == "dataset/samples"]
    assert {each.column: (each.unit, each.text) for each in listed} == published
    conflicts = {each.column: each.text for each in generate.catalogue() if each.table == "dataset/conflicts"}
    assert conflicts == words.OF_CONFLICTS


def test_the_generated_pages_are_current():
    assert [*generate.stale()] == []


def test_the_check_names_pages_that_are_not_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(generate.PAGES, "columns.md", lambda: "other text")
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/columns.md: not current: python docs/generate.py writes it\n"


def test_every_option_has_a_help_text_in_its_parser():
    silent = {
        f"{name} {action.option_strings[-1] if action.option_strings else action.dest}"
        for name, parser in generate.parsers().items()
        for action in parser._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    }
    assert silent == set()


def test_the_parsers_of_all_commands_are_looked_through():
    assert {name.split()[0] for name in generate.parsers()} == {*COMMANDS} - {"choice"}
    assert {"plans diff", "dataset collect", "select evaluate"} <= generate.parsers().keys()


def test_every_exit_code_is_in_the_table():
    of_errors = [each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")]
    named = {int(code) for code, *_ in generate.EXIT_CODES}
    assert named >= {0, 3, signals.STOPPED, signals.ENDED, *of_errors}


def test_the_example_of_the_library_is_the_script():
    code = LIBRARY.split("```python\n")[1].split("```")[0]
    assert (ROOT / "examples" / "library.py").read_text().endswith(code)


def test_the_library_page_has_every_name_that_the_package_exports():
    assert sorted(re.findall(r"^\| `convscope\.(\w+)` \|", LIBRARY, re.MULTILINE)) == sorted(convscope.EXPORTS)
    assert sorted(re.findall(r"^::: [\w.]+?(\w+)$", LIBRARY, re.MULTILINE)) == sorted(convscope.EXPORTS)


def test_every_page_is_in_the_navigation_once():
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1].split("\nvalidation:")[0]
    assert sorted(re.findall(r"[\w-]+\.md", navigation)) == sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize(
    ("link", "on_the_site"),
    [
        ("[plans](plans.md#pin)", "[plans](plans.md#pin)"),
        ("[benchmarks/README.md](../benchmarks/README.md)", "benchmarks/README.md"),
        ("[the table](../benchmarks/README.md#fidelitypy)", "the table (`benchmarks/README.md`)"),
        ("[a site](https://example.org)", "[a site](https://example.org)"),
    ],
)
def test_a_link_out_of_the_documents_is_text_on_the_site(link: str, on_the_site: str):
    assert hooks.on_page_markdown(link) == on_the_site


def test_a_link_to_a_folder_is_links_to_its_files_on_the_site():
    found = hooks.on_page_markdown("[tables](support_h200/)")
    assert "[vgg16.csv](support_h200/vgg16.csv)" in found


@pytest.mark.parametrize("kind", SPLITS)
def test_every_split_is_explained(kind: str):
    assert f"| `{kind}` |" in DATA


@pytest.mark.parametrize("form", importers.FORMATS)
def test_every_form_of_import_is_explained(form: str):
    assert f"| `{form}` |" in DATA


@pytest.mark.parametrize("engine", catalogue.ENGINES)
def test_every_engine_is_explained(engine: str):
    assert f"| `{engine}` |" in INFERENCE


PACKAGES = sorted(path.parent.name for path in (ROOT / "convscope").glob("*/__init__.py"))
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])


def test_every_package_stands_once_in_the_folder_map():
    folders = ARCHITECTURE.split("## Folders")[1].split("```")[1]
    named = [word for line in folders.splitlines()[3:-1] for word in re.findall(r"(\w+)/ ", line[:30])]
    assert sorted(named) == PACKAGES


def test_every_package_stands_once_in_the_order_of_imports():
    table = ARCHITECTURE.split("## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)/`", table, re.MULTILINE)) == PACKAGES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_project_that_a_document_names_is_there(document: Path):
    names = re.findall(r"(?<![\w/.~])(?:convscope|tests|benchmarks|docs|slurm)/[\w/]+\.\w+", document.read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []


def prose(path: Path) -> str:
    """Return a document without its code."""
    return re.sub(r"`[^`\n]*`", "`code`", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL))


@functools.cache
def anchors(path: Path) -> Counter[str]:
    """Return the anchors of a document's headings by GitHub's rule."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return Counter(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


@functools.cache
def anchors_of_the_site(path: Path) -> set[str]:
    """Return the anchors of a page's headings as MkDocs gives them."""
    settings = {"toc": {"slugify": slugify(case="lower")}}  # as in mkdocs.yml
    page = markdown.markdown(
        path.read_text(), extensions=["tables", "pymdownx.superfences", "toc"], extension_configs=settings
    )
    return {*re.findall(r'<h\d id="([^"]*)"', page)}


LINKING = sorted([*DOCUMENTS, *ROOT.glob("*.md"), *ROOT.glob("examples/*.*")])


@pytest.mark.parametrize("document", dict.fromkeys(LINKING), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_has_its_target(document: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if anchor:
            assert anchors(path)[anchor] == 1, f"{target}: no such heading, or several"
            assert path.parent != DOCS or anchor in anchors_of_the_site(path), f"{target}: another anchor on the site"


def test_the_anchors_of_the_site_are_made_by_the_rule_that_is_tested():
    assert "pymdownx.slugs.slugify {kwds: {case: lower}}" in (ROOT / "mkdocs.yml").read_text()


AMERICAN = re.compile(
    r"\b(?:behaviors?|centers?|colors?|colored|gray|neighbors?|neighboring|labeled|canceled|modeled|license[sd]"
    r"|(?:analy|organi|recogni|normali|synchroni|summari|initiali|minimi|maximi|visuali|speciali|quanti)z\w+"
    r"|optimiz(?!er)\w+)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("document", [*DOCUMENTS, *ROOT.glob("*.md")], ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_in_british_spelling(document: Path):
    assert AMERICAN.findall(prose(document)) == []


def test_american_words_are_found():
    assert AMERICAN.findall("Optimized colors of a normalized optimizer") == ["Optimized", "colors", "normalized"]


def test_every_guide_is_reached_from_the_readme():
    linked = {(ROOT / name).resolve() for name in re.findall(r"\]\(([^)#]+)", README)}
    for page in [page for page in linked if page.suffix == ".md"]:
        linked |= {(page.parent / name).resolve() for name in re.findall(r"\]\(([^)#]+)", page.read_text())}
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.resolve() not in linked] == []


def test_the_readme_has_at_most_130_lines_beside_comments():
    assert len([line for line in README.splitlines() if not line.startswith("<!--")]) <= 130


def test_one_version_stands_in_the_package_its_metadata_and_the_citation():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert metadata["version"] == citation["version"] == convscope.__version__
    assert (citation["license"], metadata["license"]["text"]) == ("MIT", "MIT")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_of_issues_is_a_form_and_its_commands_exist(path: Path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "labels", "body"} == form.keys()
    names = [field["id"] for field in form["body"]]
    assert len({*names}) == len(names)
    assert all(field["attributes"]["label"] for field in form["body"])
    assert set(re.findall(r"convscope (\w+)", path.read_text())) <= set(COMMANDS)


COMMAND = re.compile(r"^(?:\$ )?convscope (\w+)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_shows_is_one(document: Path):
    assert set(COMMAND.findall("\n".join(blocks(document, "")))) <= set(COMMANDS)


def blocks(document: Path, language: str) -> list[str]:
    """Return the fenced blocks of a document in a language, "" for those without one."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_reads_results_in_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for algorithm in ("gemm", "torch"):
        reports.profile(tmp_path / "results", "alexnet", algorithm)
    monkeypatch.chdir(tmp_path)
    exec(blocks(ROOT / "README.md", "python")[0], {})
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("mean_ms", "energy_j", "features.0", "gemm", "torch"))


def test_the_readme_measures_a_module(capsys: pytest.CaptureFixture[str]):
    code = blocks(ROOT / "README.md", "python")[1]
    assert '["torch", "gemm"]' in code
    exec(code.replace('["torch", "gemm"]', '["torch", "direct"]'), {})
    assert "direct" in capsys.readouterr().out
