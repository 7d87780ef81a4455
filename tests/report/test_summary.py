"""The summary: Markdown that a name cannot break, JSON without invented figures."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from fakes import reports

from convscope.__main__ import main
from convscope.report import summary


def test_the_fastest_of_each_model_stand_first(results: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(results)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("alexnet · h200 · batch 1 · float32 (fp32) · nchw:")
    assert lines[first + 2].startswith("| algorithm | size, px | time, ms | ± 95 %, ms | time / best |")
    assert [line.split(" ")[1] for line in lines[first + 4 : first + 7]] == ["torch", "gemm", "fft"]
    assert any("the line was cut off" in line for line in lines)


def test_runs_with_different_versions_have_tables_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    reports.profile(tmp_path, "alexnet", "gemm")
    reports.profile(tmp_path, "alexnet", "torch", environment={"cudnn": "9.24.0"})
    assert main(["summary", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if line.endswith((" · cuDNN 9.19.0:", " · cuDNN 9.24.0:"))]
    assert len(titles) == 2
    assert all(line.split(" | ")[4] == "1" for line in lines if line.startswith(("| gemm", "| torch")))


def test_passes_of_choices_are_in_a_table_of_their_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    reports.atlas(tmp_path)
    assert main(["summary", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("Whole passes by choice of algorithms, h200 · batch 1 · float32 (tf32) · nchw:")
    assert lines[first + 4] == "| resnet50 at 224 px | fastest of each layer | 0.87 | 1.92 | 0.24 | 17.0 | 2.1 |"
    assert len(lines) == first + 5


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
    tables = [block.splitlines() for block in said.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 2  # the algorithms, and the flags
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


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


def test_runs_to_compare_that_are_no_folders_are_bad_input(
    tmp_path: Path, measured: Path, capsys: pytest.CaptureFixture[str]
):
    missing = tmp_path / "missing"
    for command in (["report", "-o", str(tmp_path / "page.html")], ["summary", "--json"]):
        assert main([*command, str(measured), "--compare", str(measured), str(missing)]) == 2
        expected = f"--compare {missing} is no folder: give two folders of runs"
        assert capsys.readouterr() == ("", f"convscope {command[0]}: {expected}\n")
    assert not (tmp_path / "page.html").exists()


def test_a_folder_that_is_named_twice_is_no_fault(measured: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["summary", str(measured), str(measured), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []


def test_a_page_is_not_written_over_a_table(tmp_path: Path, measured: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(measured, tmp_path / "results")
    table = next((tmp_path / "results").rglob("*_overall.csv"))
    before = table.read_bytes()
    assert main(["report", str(tmp_path / "results"), "-o", str(table)]) == 2
    assert capsys.readouterr().err == f"convscope report: -o {table}: this command reads it: name another file\n"
    assert table.read_bytes() == before
