"""The README names every column, option and file that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import run_profile
from convscope import deployment, engines, ledger
from convscope.records import LayerRow, OverallRow, columns

ROOT = Path(__file__).parents[1]
README, TRAINING = (ROOT / "README.md").read_text(), (ROOT / "docs" / "training.md").read_text()
INFERENCE = (ROOT / "docs" / "inference.md").read_text()


@pytest.mark.parametrize("column", sorted({*columns(OverallRow), *columns(LayerRow)}))
def test_every_column_is_explained(column: str):
    assert re.search(rf"\b{column}\b", README.split("## Columns")[1])


@pytest.mark.parametrize(
    "column", sorted({column for row_type in ledger.TABLES.values() for column in ledger.columns(row_type)})
)
def test_every_column_of_a_training_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", TRAINING.split("## Columns")[1])


@pytest.mark.parametrize("column", ledger.columns(deployment.InferenceRow))
def test_every_column_of_an_inference_study_is_explained(column: str):
    assert re.search(rf"\b{column}\b", INFERENCE.split("## Columns")[1])


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_every_engine_is_explained(engine: str):
    assert f"| `{engine}` |" in INFERENCE


@pytest.mark.parametrize(
    "module", sorted(path.stem for path in (Path(__file__).parents[1] / "convscope").glob("[a-z]*.py"))
)
def test_every_module_stands_in_the_folder_map(module: str):
    assert re.search(rf"\b{module}\b", README.split("## Folders")[1])


def test_every_target_of_a_link_is_there():
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    assert all((Path(run_profile.__file__).parent / link).exists() for link in links)
