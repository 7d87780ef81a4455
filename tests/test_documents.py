"""The README names every column, option and file that there is."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
from fakes import ROOT

from convscope.inference.engines import catalogue
from convscope.inference.rows import InferenceRow
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.storage.table import columns
from convscope.training.rows import TABLES

README, TRAINING = (ROOT / "README.md").read_text(), (ROOT / "docs" / "training.md").read_text()
INFERENCE = (ROOT / "docs" / "inference.md").read_text()


@pytest.mark.parametrize("column", sorted({*columns(OverallRow), *columns(LayerRow)}))
def test_every_column_is_explained(column: str):
    assert re.search(rf"\b{column}\b", README.split("## Columns")[1])


@pytest.mark.parametrize("column", sorted({column for form in TABLES.values() for column in form.columns}))
def test_every_column_of_a_training_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", TRAINING.split("## Columns")[1])


@pytest.mark.parametrize("column", columns(InferenceRow))
def test_every_column_of_an_inference_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", INFERENCE.split("## Columns")[1])


@pytest.mark.parametrize("engine", catalogue.ENGINES)
def test_every_engine_is_explained(engine: str):
    assert f"| `{engine}` |" in INFERENCE


PACKAGE = ROOT / "convscope"


def folder_map() -> list[str]:
    """Return the modules in the order of the README's map, `kernels` as one."""
    lines = README.split("## Folders")[1].split("convscope/")[1].splitlines()[1:]
    names = itertools.takewhile(lambda line: line.startswith("  "), lines)
    return [name.rstrip("/") for line in names for name in re.split(r" {2,}", line.strip())[0].split()]


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports when it is imported itself."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("convscope"):
            _, _, module = (node.module or "").partition(".")
            found |= {module.split(".")[0]} if module else {name.name for name in node.names}
    return found


def test_every_module_stands_once_in_the_folder_map():
    modules = [*(path.stem for path in PACKAGE.glob("[a-z]*.py")), "kernels"]
    assert sorted(folder_map()) == sorted(modules)


@pytest.mark.parametrize("module", folder_map())
def test_a_module_imports_only_those_above_it_in_the_folder_map(module: str):
    above = folder_map()[: folder_map().index(module)]
    files = PACKAGE.joinpath("kernels").glob("*.py") if module == "kernels" else [PACKAGE / f"{module}.py"]
    assert set().union(*map(imported, files)) - {*above, module} == set()


def test_every_target_of_a_link_is_there():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)
