"""The file: nothing from outside, nothing that a name can break, numbers as they are, sizes that stay small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fakes import reports

from convscope.__main__ import main
from convscope.report import labels, page
from convscope.report.catalogue import EXHIBITS
from convscope.report.exhibits import Content
from convscope.report.labels import VIEWS


def test_the_page_names_no_outside_address_but_in_the_charts_own_script(page_file: Path):
    text = page_file.read_text()
    scripts = [found["text"] for found in reports.SCRIPT.finditer(text)]
    bundle = max(scripts, key=len)
    rest = text.replace(bundle, "")
    assert re.findall(r"https?://|//[a-z]+\.[a-z]+/", rest) == []
    assert re.findall(r"<(?:link|img|iframe|object|embed|base)\b", rest) == []
    assert re.findall(r"\b(?:src|href)=\"(?!#)", rest) == []


def test_only_the_two_scripts_of_the_page_may_run(page_file: Path):
    text = page_file.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    scripts = [found["text"] for found in reports.SCRIPT.finditer(text) if "json" not in found["of"]]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {allowed};" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe-eval" not in policy[1]


def test_every_view_has_a_section_and_a_link(page_file: Path):
    text = page_file.read_text()
    assert re.findall(r'<section id="view-(\w+)"', text) == list(VIEWS)
    assert re.findall(r'<a href="#view-(\w+)"', text) == list(VIEWS)


def test_a_view_of_a_study_without_folders_is_left_out_and_named(tmp_path: Path, measured: Path):
    assert main(["report", str(measured), "-o", str(tmp_path / "page.html")]) == 0
    views = re.findall(r'<section id="view-(\w+)"', (tmp_path / "page.html").read_text())
    assert views == ["overview", "scaling", "heat", "layers", "roofline", "method"]
    left_out = re.search(r"for no run has measured them: (.*?)\.</p>", (tmp_path / "page.html").read_text())
    assert left_out is not None
    assert re.sub(r" \(.*?\)", "", left_out[1]) == "Energy, Choice, Training, Inference, 3-D, Compare"
    assert "3-D (run_conv3d.py)" in left_out[1]
    assert "No run has measured energy" in (tmp_path / "page.html").read_text()


def test_a_run_is_named_by_its_path_below_the_folder_of_all(found: Content, results: Path):
    assert "2_quick/alexnet_gemm_h200" in set(found.tables["runs"]["run"])
    assert set(found.tables["faults"]["run"]) == {"2_quick/vgg16_gemm_h200", "2_quick/odd"}
    assert found.tables["pairs"]["a"].tolist() == ["2_quick/alexnet_gemm_a100"]
    assert not any(str(results) in str(row) for table in found.tables.values() for row in table.to_dict("records"))


def test_a_column_of_empty_texts_is_not_shown(found: Content):
    exhibit = next(each for each in EXHIBITS if each.name == "flags")
    rows = found.tables["flags"].assign(algorithm="")
    assert "algorithm" not in page.columns_of(exhibit, {"flags": rows})


def test_faults_stand_in_the_page_and_on_the_terminal(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["report", str(results), "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    for fault in ("the line was cut off", "Expecting property name"):
        assert fault in said
        assert fault in text


def test_every_column_that_is_shown_has_a_title_with_its_unit():
    shown = {name for exhibit in EXHIBITS for name in exhibit.columns}
    suffixes = ("_ms", "_us", "_mj", "_w", "_pct", "_mib", "_mj_ms")
    without = {name for name in shown if name.endswith(suffixes) and name not in labels.TITLES}
    assert without == set()
    units = ("ms", "µs", "mJ", "W", "%", "MiB", "mJ·ms", "best")
    for name in shown & {each for each in labels.TITLES if each.endswith(suffixes)}:
        assert labels.title(name).endswith(units), name


def test_a_hostile_name_ends_no_element(hostile_file: Path):
    text = hostile_file.read_text()
    assert len(reports.SCRIPT.findall(text)) == 3
    assert text.count("<script") == text.count("</script>") == 3 or "\\x3c" in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u2028" not in reports.SCRIPT.findall(text)[0][1]
    assert "x" * 1000 not in text


def test_a_hostile_name_is_in_the_data_as_it_is_shown(hostile_file: Path):
    names = reports.page_data(hostile_file.read_text())["tables"]["passes"]["model"]["of"]
    assert labels.plain(reports.HOSTILE) in names


def test_data_are_rounded_to_six_digits_and_absent_is_null():
    cells = np.array([1.23456789, 123456789.0, 0.000012345678, np.nan, np.inf, -np.inf, 0.0, -2.0])
    assert page._rounded(cells) == [1.23457, 123457000, 1.23457e-05, None, "∞", "−∞", 0, -2]


def test_texts_are_stored_once():
    assert page._column(pd.Series(["a", None, "b", "a"])) == {"of": ["a", "b"], "at": [0, -1, 1, 0]}
    assert page._column(pd.Series([True, None, False], dtype=object)) == {"of": [True, False], "at": [0, -1, 1]}


def test_json_in_the_page_ends_neither_the_script_nor_a_line():
    text = page.json_safe(json.dumps({"a": "</script><!-- & \u2028\u2029"}, ensure_ascii=False))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028\u2029"}


def test_large_data_are_compressed(found: Content, monkeypatch: pytest.MonkeyPatch):
    plain = page.html(found, "x", "")
    monkeypatch.setattr(page, "PLAIN_MOST_BYTES", 10)
    packed = page.html(found, "x", "")
    assert len(packed) < len(plain)
    assert reports.page_data(packed) == reports.page_data(plain)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (float("nan"), ""), (float("inf"), "∞"), (0.0, "0"), (1234.5, "1234"), (0.123456, "0.1235"),
     (0.00001234, "1.23e-05"), (0.0005, "0.0005"), (0.00031684, "0.000317"), (9999.0, "9999"), (19817.0, "19,817"),
     (19817.4, "19,817"), (123456.0, "123,456"), (224.0, "224"), (True, "yes")],
)  # fmt: skip
def test_a_number_is_shown_with_four_digits(value: Any, text: str):
    assert labels.number(value) == text


@pytest.mark.parametrize(
    ("value", "doubt", "text"),
    [(0.05056, 1.979, "0.1"), (-0.02, 1.979, "0.0"), (24.04, 2.038, "24.0"), (2.038, 2.038, "2.0"),
     (6.335, 61.7, "6"), (0.187, 0.00015, "0.1870"), (46.2, 0.0003, "46.20"), (2011.0, 10.0, "2011"),
     (3.5, None, "3.5"), (3.5, float("nan"), "3.5"), (3.5, float("inf"), "3.5"), (3.5, 0.0, "3.5"), (0.0, 0.1, "0")],
)  # fmt: skip
def test_a_number_is_shown_to_the_second_digit_of_its_interval(value: float, doubt: Any, text: str):
    assert labels.number(value, doubt) == text


def test_settings_that_all_rows_share_stand_last():
    exhibit = next(each for each in EXHIBITS if each.name == "time")
    rows = pd.DataFrame({"model": "alexnet", "gpu": "h200", "batch": [1, 2], "dtype": "float32", "mean_ms": 1.0})
    assert page.columns_of(exhibit, {"passes": rows}) == ["model", "batch", "mean_ms", "gpu", "dtype"]


def test_a_long_text_says_how_long_it_is():
    assert labels.plain("x" * 10_000) == "x" * 160 + "… (10,000 characters)"
    assert labels.plain("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"


def test_kernels_are_named_with_their_counts():
    assert labels.kernel_names('{"a": 1, "b": 2}') == "a, 2 × b"
    assert labels.kernel_names("not json") == "not json"
    assert labels.kernel_names(float("nan")) == ""


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").touch()
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "file" / "page.html")]) == 2
    assert "choose another file with -o" in capsys.readouterr().err
