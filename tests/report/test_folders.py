"""Folders of all studies are found and read; what is damaged or half-finished is a fault, not an end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import reports

from convscope.errors import InputError
from convscope.report import folders
from convscope.report.exhibits import content
from convscope.report.page import html


def test_every_study_is_found(results: Path):
    found = folders.read([results])
    studies = {folder.study for folder in found.folders}
    assert studies == {"profile", "plans", "support", "first_call", "training", "inference", "conv3d"}


def test_a_folder_that_is_named_twice_is_read_once(results: Path):
    once, twice = folders.read([results]), folders.read([results, results / "2_quick"])
    assert len(once.folders) == len(twice.folders)


def test_a_cut_table_is_a_fault_and_the_other_tables_are_shown(results: Path):
    found = folders.read([results / "2_quick" / "vgg16_gemm_h200"])
    assert [fault.what for fault in found.faults] == [
        "vgg16_gemm_layers.csv, line 7: the line was cut off: the run's own command mends that, "
        "or move it away, or --overwrite"
    ]
    assert len(found.folders[0].tables["overall"]) == 3


def test_a_damaged_description_is_a_fault(results: Path):
    found = folders.read([results / "2_quick" / "odd"])
    assert found.folders == []
    assert found.faults[0].what.startswith("run.json, line 1: Expecting property name")


def test_a_run_that_has_measured_nothing_is_a_fault_and_a_run(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    for table in path.glob("*.csv"):
        table.unlink()
    found = folders.read([tmp_path])
    assert [folder.study for folder in found.folders] == ["profile"]
    assert found.faults[0].what.startswith("no row in overall yet")


def test_a_verification_without_a_table_is_a_fault(tmp_path: Path):
    path = reports.atlas(tmp_path)
    for table in path.glob("*.csv"):
        table.unlink()
    assert [fault.what for fault in folders.read([tmp_path]).faults] == ["no table yet"]


def test_tables_without_a_description_are_a_fault(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    (path / "run.json").unlink()
    assert folders.read([tmp_path]).faults[0].what.startswith("tables without a run.json")


@pytest.mark.parametrize("name", ["run.json", "alexnet_gemm_layers.csv"])
def test_a_named_pipe_in_the_place_of_a_file_is_a_fault_and_nobody_waits_for_it(tmp_path: Path, name: str):
    path = reports.profile(tmp_path, "alexnet", "gemm") / name
    path.unlink()
    os.mkfifo(path)
    found = folders.read([tmp_path])
    assert [fault.what for fault in found.faults] == [f"{name} is no file: nothing of this folder is read"]
    assert found.folders == []


def test_a_newer_version_is_a_fault(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    document = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(document | {"schema_version": 99}))
    assert "has schema version 99" in folders.read([tmp_path]).faults[0].what


def test_kept_results_are_not_read(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    (path / "before-2026").mkdir()
    (path / "before-2026" / "run.json").write_text("{")
    found = folders.read([tmp_path])
    assert (len(found.folders), found.faults) == (1, [])


def test_a_model_whose_name_is_longer_than_a_file_name_is_a_fault(tmp_path: Path):
    path = reports.profile(tmp_path, "alexnet", "gemm")
    document = json.loads((path / "run.json").read_text())
    document["run"]["model"] = "m" * 10_000
    (path / "run.json").write_text(json.dumps(document))
    assert folders.read([tmp_path]).faults[0].what == "File name too long"


@pytest.mark.parametrize("odd", [None, [], {}, -5, True, [None], 10**400, "\u202e<b>"], ids=lambda odd: repr(odd)[:9])
def test_odd_settings_of_a_run_break_no_page(tmp_path: Path, odd: object):
    path = reports.atlas(tmp_path)
    document = json.loads((path / "run.json").read_text())
    for name in ("model", "gpu", "batch_size", "dtype", "math", "layout", "fused", "energy_precision"):
        document["verification"][name] = odd
    document["verification"]["input_sizes"] = [odd]
    document["environment"] |= {"gpu_name": odd, "cudnn": odd}
    document["starts"][0] |= {"command": odd, "utc": odd}
    (path / "run.json").write_text(json.dumps(document))
    found = content(folders.read([tmp_path]))
    text = html(found, "page", "")
    assert len(found.tables["candidates"]) == 8
    assert "\u202e" not in text


def test_an_empty_folder_is_a_fault(tmp_path: Path):
    assert folders.read([tmp_path]).faults[0].what.startswith("no results below this folder")


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path):
    with pytest.raises(InputError, match=r"absent is no folder: give folders of results"):
        folders.read([tmp_path / "absent"])
