"""The examples that read results: a script, a notebook, a study file for three GPUs."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import ROOT, reports

from convscope.planning import study

EXAMPLES = ROOT / "examples"


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Results of two models by two algorithms, and what an --overwrite has kept beside them."""
    for model in ("alexnet", "resnet50"):
        for algorithm in ("gemm", "torch"):
            path = reports.profile(tmp_path / "results", model, algorithm)
    kept = path / "before-2026-01-01T00-00-00"
    kept.mkdir()
    (kept / "old_overall.csv").write_text("model,algorithm\nold,old\n")
    return tmp_path


def script(name: str, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_the_analysis_prints_times_layers_and_energy(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    script("analysis.py", [str(measured / "results")], monkeypatch)
    times, slowest, energy = capsys.readouterr().out.split("\n\n")
    assert times.splitlines()[-1].split() == ["320", "3.0", "2.4"]
    assert slowest.splitlines()[2].split() == ["h200", "alexnet", "gemm", "features.0", "1.50", "gemm"]
    assert len(slowest.splitlines()) == 10
    assert energy.splitlines()[2].split() == ["h200", "alexnet", "gemm", "128", "0.60", "0.00", "400.0"]
    assert "old" not in times


def test_the_notebook_draws_a_figure(measured: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(measured)
    names: dict[str, object] = {}
    for cell in json.loads((EXAMPLES / "figure.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert (measured / "time.pdf").read_bytes().startswith(b"%PDF")


def test_the_study_of_three_gpus_is_one():
    found = study.read(EXAMPLES / "slurm" / "study.toml")
    assert found.lists["gpus"] == ("v100", "a100", "h200")
    assert len(found.lines()) == 4 * 6 * 3 * 2


@pytest.mark.parametrize("path", [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")], ids=lambda path: path.name)
def test_an_example_imports_no_module_that_only_a_checkout_has(path: Path):
    assert re.findall(r"\b(?:from|import) (?:profiler|run_\w+)", path.read_text()) == []


def test_scripts_are_short():
    assert max(len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")) < 40
