"""Algorithms by name as candidates beside plans: on a CPU they are all there is, and are really run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import run_verify
from convscope.atlas.rows import PLANS
from convscope.atlas.study import plans_text
from convscope.pinning import document
from convscope.storage.store import Store

SHAPES = """layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups
wide,1,3,16,32,32,3,1,1,1,1
again,1,3,16,32,32,3,1,1,1,1
grouped,1,16,32,16,16,3,2,1,1,2
"""


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_name")
    (folder / "shapes.csv").write_text(SHAPES)
    asked = ["--plans", "--with-algorithms", "--device", "cpu", "--rounds", "2", "--output-dir", str(folder)]
    assert run_verify.main(["--model", str(folder / "shapes.csv"), *asked]) == 0
    return next(each for each in folder.iterdir() if each.is_dir())


def test_each_algorithm_has_a_row_with_its_time_error_and_library(atlas: Path):
    assert atlas.name.endswith("_named")
    rows = pd.read_csv(atlas / "plans.csv").set_index(["layer", "candidate"])
    assert [*rows.loc["wide"].index.sort_values()] == ["direct", "smm", "torch"]
    for name in ("direct", "smm"):
        row = rows.loc["wide", name]
        assert (row["outcome"], row["provider"], row["layers"]) == ("ok", "ai3", 2)
        assert row["mean_ms"] > 0
        assert 0 < row["relative_error"] < 1e-5
    assert pd.isna(rows.loc["wide", "torch"]["provider"])
    assert rows["engine"].isna().all()


def test_what_is_refused_has_its_reason(atlas: Path):
    rows = pd.read_csv(atlas / "plans.csv").set_index(["layer", "candidate"])
    for name in ("direct", "smm"):
        row = rows.loc["grouped", name]
        assert (row["outcome"], row["reason"]) == ("refused", "ai3 has no grouped convolution on a CPU")
        assert pd.isna(row["mean_ms"])


def test_a_table_of_convolutions_has_no_passes_and_no_advice(atlas: Path):
    assert not (atlas / "passes.csv").exists() or pd.read_csv(atlas / "passes.csv").empty
    text, agrees = plans_text(Store(atlas, PLANS))
    assert agrees
    assert [line.split()[0] for line in text.splitlines()] == ["layer", "wide", "grouped"]


def test_a_document_may_name_algorithms(atlas: Path):
    rows = pd.read_csv(atlas / "plans.csv")
    rows["is_fastest"] = (rows["candidate"] == "direct") & (rows["layer"] == "wide")
    rows.to_csv(atlas / "plans.csv", index=False)
    pins = document.from_atlas(atlas)
    assert [(pin.layer, pin.algorithm) for pin in pins.layers] == [("wide", "direct"), ("again", "direct")]
    assert json.loads(pins.text())["layers"][0]["algorithm"] == "direct"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--plans", "--device", "cpu"], "--with-algorithms times those of a CPU"),
        (["--plans", "--with-algorithms", "--fused", "--device", "cpu"], "nothing is fused into algorithms by name"),
        (["--choice", "--with-algorithms", "--device", "cpu"], "--with-algorithms"),
    ],
)
def test_what_cannot_be_says_so(flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(run_verify.main(["--model", "alexnet", *flags]))
    assert stop.value.code == 2
    assert reason in capsys.readouterr().err
