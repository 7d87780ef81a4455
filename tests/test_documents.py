"""The README names every column, option and file that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import ROOT

from convscope.dataset import importers, splits
from convscope.dataset.samples import SampleRow
from convscope.dataset.totals import TotalRow
from convscope.inference.engines import catalogue
from convscope.inference.rows import InferenceRow
from convscope.prediction.evaluation import Score, WorkspaceScore
from convscope.profiling.rows import LayerRow, OverallRow, WorkRow
from convscope.selection.evaluation import Regret
from convscope.storage.table import columns
from convscope.training.rows import TABLES

README, TRAINING = (ROOT / "README.md").read_text(), (ROOT / "docs" / "training.md").read_text()
INFERENCE = (ROOT / "docs" / "inference.md").read_text()
DATA, PREDICTION = (ROOT / "docs" / "data.md").read_text(), (ROOT / "docs" / "prediction.md").read_text()

SELECTION = (ROOT / "docs" / "selection.md").read_text()


@pytest.mark.parametrize("column", sorted({*columns(OverallRow), *columns(LayerRow), *columns(WorkRow)}))
def test_every_column_is_explained(column: str):
    assert re.search(rf"\b{column}\b", README.split("## Columns")[1])


@pytest.mark.parametrize("column", sorted({column for form in TABLES.values() for column in form.columns}))
def test_every_column_of_a_training_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", TRAINING.split("## Columns")[1])


@pytest.mark.parametrize("column", columns(InferenceRow))
def test_every_column_of_an_inference_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", INFERENCE.split("## Columns")[1])


@pytest.mark.parametrize("column", columns(SampleRow))
def test_every_column_of_samples_is_explained(column: str):
    assert re.search(rf"\b{column}\b", DATA.split("## Columns")[1])


@pytest.mark.parametrize("column", columns(TotalRow))
def test_every_column_of_totals_is_explained(column: str):
    assert re.search(rf"\b{column}\b", DATA.split("column of totals")[1].split("## Splits")[0])


PREDICTED = ("predicted_ms", "low90_ms", "high90_ms")


@pytest.mark.parametrize("column", sorted({*columns(Score), *columns(WorkspaceScore), *PREDICTED}))
def test_every_column_of_an_evaluation_and_of_predictions_is_explained(column: str):
    assert re.search(rf"\b{column}\b", PREDICTION.split("## Columns")[1])


@pytest.mark.parametrize("column", columns(Regret))
def test_every_column_of_regrets_is_explained(column: str):
    assert re.search(rf"\b{column}\b", SELECTION.split("column of `--json`")[1])


@pytest.mark.parametrize("kind", splits.KINDS)
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
    folders = README.split("## Folders")[1].split("```")[1]
    named = [word for line in folders.splitlines()[3:-1] for word in re.findall(r"(\w+)/ ", line[:30])]
    assert sorted(named) == PACKAGES


def test_every_package_stands_once_in_the_order_of_imports():
    table = (ROOT / "docs" / "architecture.md").read_text().split("## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)/`", table, re.MULTILINE)) == PACKAGES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_of_the_project_that_a_document_names_is_there(document: Path):
    names = re.findall(r"(?<![\w/.~])(?:convscope|tests|benchmarks|docs|slurm)/[\w/]+\.\w+", document.read_text())
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_target_of_a_link_is_there():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)
