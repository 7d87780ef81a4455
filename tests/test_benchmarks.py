"""Benchmarks on a machine without a GPU: those that need one say so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from fakes import ROOT


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["branches", "channels_last", "fidelity", "kernels", "second_context"])
def test_a_benchmark_that_needs_a_gpu_says_so(name: str, monkeypatch: pytest.MonkeyPatch):
    main = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))["main"]
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(Exception, match=f"PyTorch sees 0 CUDA devices here; {name}.py times a GPU$"):
        main()


def test_tables_of_3d_convolutions_in_the_documents_are_those_of_the_published_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    published = sorted((ROOT / "docs").glob("conv3d_*/*.csv"))
    printed = tables(published, [], monkeypatch, capsys) + tables(
        [ROOT / "docs/conv3d_h200/cosmoflow_batch4_tf32.csv"], ["--every"], monkeypatch, capsys
    )
    document = (ROOT / "docs/conv3d.md").read_text().splitlines()
    rows = {row.partition(" | ")[2] if "_batch" in row.split("|")[1] else row for row in printed}  # names of files
    missing = [row for row in rows if not any(line.endswith(row) for line in document)]
    assert len(rows) > 80
    assert missing == []


def tables(
    files: list[Path], options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the rows of the tables that `conv3d_tables.py` prints of files."""
    main = runpy.run_path(str(ROOT / "benchmarks/conv3d_tables.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["conv3d_tables.py", *map(str, files), *options])
    assert main() == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]


def test_the_tables_of_3d_convolutions_name_a_folder_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    with pytest.raises(SystemExit) as ended:
        tables([tmp_path / "away"], [], monkeypatch, capsys)
    assert ended.value.code == 2
    assert f"error: {tmp_path / 'away' / 'conv3d.csv'}: No such file" in capsys.readouterr().err
