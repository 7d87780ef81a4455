"""Tables of profiles as data frames: all runs below a folder, with their cards; damaged folders are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fakes import reports

import convscope
from convscope.errors import InputError
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.report.reading import ReadWarning
from convscope.storage.table import columns


def test_rows_of_several_cards_are_told_apart(tmp_path: Path):
    for gpu in ("h200", "a100"):
        reports.profile(tmp_path, "alexnet", "gemm", gpu=gpu)
    overall, layers, work = convscope.read(tmp_path)
    assert overall.groupby("gpu", sort=False)["run"].unique().map(list).to_dict() == {
        gpu: [str(tmp_path / "2_quick" / f"alexnet_gemm_{gpu}")] for gpu in ("a100", "h200")
    }
    assert len(overall) == 6
    assert layers["gpu"].value_counts().to_dict() == {"a100": 6, "h200": 6}
    assert {*columns(LayerRow)} <= {*layers}
    assert not len(work)


def test_the_time_of_a_pass_has_a_name_with_its_unit_too(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    overall = convscope.read(tmp_path).overall
    assert overall["mean_ms"].tolist() == overall["mean"].tolist() == [1.0, 2.0, 3.0]
    assert [*overall] == ["run", "gpu", *columns(OverallRow), "mean_ms"]


def test_what_an_overwrite_moved_aside_is_left_out(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    reports.profile(path / "before-2026-01-01T00-00-00", "alexnet", "fft")
    assert convscope.read(tmp_path).overall["algorithm"].unique().tolist() == ["gemm"]


def test_a_damaged_folder_is_a_warning_and_the_others_are_read(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    (reports.profile(tmp_path, "alexnet", "fft") / "run.json").write_text("{")
    with pytest.warns(ReadWarning, match=r"alexnet_fft_h200: .*run.json, line 1"):
        overall = convscope.read(tmp_path).overall
    assert overall["algorithm"].unique().tolist() == ["gemm"]


def test_faults_of_other_studies_are_no_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    reports.studies(tmp_path)
    others = [path.parent for path in tmp_path.rglob("run.json") if not [*path.parent.glob("*_overall.csv")]]
    assert len(others) > 5
    for number, path in enumerate(sorted(others)):
        if number % 2:
            (path / "run.json").write_text("{")
        for table in path.glob("*.csv"):
            table.write_text("")
    reports.profile(tmp_path, "alexnet", "gemm")
    assert convscope.read(tmp_path).overall["algorithm"].unique().tolist() == ["gemm"]
    assert [str(each.message) for each in recwarn] == []


def test_a_folder_without_profiles_is_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match=r"no profile below .*: give a folder of results"), pytest.warns(ReadWarning):
        convscope.read(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        convscope.read(tmp_path / "missing")


def test_reading_needs_no_pytorch(tmp_path: Path):
    reports.profile(tmp_path, "alexnet", "gemm")
    code = f"import sys, convscope; convscope.read({str(tmp_path)!r}); print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
