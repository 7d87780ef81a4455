"""The summary: Markdown that a name cannot break, JSON without invented figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import reports

from convscope.__main__ import main
from convscope.report import summary


def test_the_fastest_of_each_model_stand_first(results: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(results)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| alexnet | h200 ")]
    assert [row.split(" | ")[7] for row in rows] == ["torch", "gemm", "fft tiling"]
    assert any("the line was cut off" in line for line in lines)


def test_json_has_the_same_with_null_where_there_is_no_figure(results: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(results), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"found", "passes", "runs", "choice_passes", "flags", "faults"} == document.keys()
    assert {row["size"] for row in document["passes"]} == {320}
    assert document["passes"][0]["eager_ms"] is None


def test_a_hostile_name_breaks_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(reports.hostile(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert "<script" not in said
    assert "\x1b" not in said
    table = [line for line in said.splitlines() if line.startswith("| ") and "gemm" in line]
    assert all(line.replace("\\|", "").count("|") == table[0].replace("\\|", "").count("|") for line in table[:1])


def test_json_of_infinities_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", "--json", str(reports.hostile(tmp_path))]) == 0
    json.loads(capsys.readouterr().out)


def test_signs_of_markdown_are_escaped():
    assert summary.escaped("a|b*c_d`<e>&") == "a\\|b\\*c\\_d\\`&lt;e>&amp;"
    assert summary.escaped(None) == ""


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in ("report", "figures", "summary"))
