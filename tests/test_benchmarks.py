"""Benchmarks on a machine without a GPU: those that need one say so."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fakes import ROOT
from fakes.drawn_samples import CARDS, drawn, frame_of

from convscope.dataset import splits
from convscope.dataset.splits import Split
from convscope.prediction.features import features


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["branches", "channels_last", "eviction", "fidelity", "kernels", "second_context"])
def test_a_benchmark_that_needs_a_gpu_says_so(name: str, monkeypatch: pytest.MonkeyPatch):
    main = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))["main"]
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(Exception, match=f"PyTorch sees 0 CUDA devices here; {name}.py times a GPU$"):
        main()


CALLED = {  # published files: how conv3d.md calls them
    "conv3d_h200/cosmoflow_batch4_tf32": "CosmoFlow, TF32, batch 4",
    "conv3d_h200/cosmoflow_batch16_tf32": "CosmoFlow, TF32, batch 16",
    "conv3d_h200/cosmoflow_batch4_float16": "CosmoFlow, float16, batch 4",
    "conv3d_h200/cosmoflow_batch4_fp32": "CosmoFlow, float32 (FMA), batch 4",
    "conv3d_h200/cosmoflow7_batch4_tf32": "`cosmoflow7`, batch 4",
    "conv3d_h200/unet3d_batch1_tf32": "`unet3d`, batch 1",
    "conv3d_h200/c3d_batch8_tf32": "`c3d`, batch 8",
    "conv3d_h200/r3d_18_batch8_tf32": "`r3d_18`, batch 8",
    "conv3d_h200/mc3_18_batch1_tf32": "`mc3_18`, batch 1",
}


def test_tables_of_3d_convolutions_in_the_documents_are_those_of_the_published_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files = [ROOT / "docs" / f"{name}.csv" for name in CALLED]
    assert sorted(files) == sorted((ROOT / "docs").glob("conv3d_*/*.csv"))
    printed = tables(files, [], monkeypatch, capsys)
    for file, called in zip(files, CALLED.values(), strict=True):
        printed = [table.replace(f"| {file.stem} |", f"| {called} |") for table in printed]
    in_full = tables(files[:1], ["--every"], monkeypatch, capsys)
    document = (ROOT / "docs/conv3d.md").read_text()
    assert [table for table in printed + in_full[1:] if f"{table}\n\n" not in document] == []
    assert document.count("speed | roof | roof, PyTorch | NDHWC") == len(files)


def tables(
    files: list[Path], options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return the tables that `conv3d_tables.py` prints of files."""
    main = runpy.run_path(str(ROOT / "benchmarks/conv3d_tables.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["conv3d_tables.py", *map(str, files), *options])
    assert main() == 0
    return [block.strip("\n") for block in capsys.readouterr().out.split("\n\n") if block.lstrip("\n").startswith("|")]


def test_the_tables_of_3d_convolutions_name_a_folder_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    with pytest.raises(SystemExit) as ended:
        tables([tmp_path / "away"], [], monkeypatch, capsys)
    assert ended.value.code == 2
    assert f"error: {tmp_path / 'away' / 'conv3d.csv'}: No such file" in capsys.readouterr().err


def test_the_tables_of_3d_convolutions_of_one_layout_have_that_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    rows = pd.read_csv(ROOT / "docs/conv3d_h200/c3d_batch8_tf32.csv")
    for folder in ("here", "there"):
        (tmp_path / folder / "c3d").mkdir(parents=True)
        rows[rows["layout"] == "ndhwc"].to_csv(tmp_path / folder / "c3d" / "conv3d.csv")
    means, *layers = tables([tmp_path / "here/c3d", tmp_path / "there/c3d"], [], monkeypatch, capsys)
    assert means.count("| c3d | - | - | ") == 2
    assert [("NCDHW" in table, table.count("\n")) for table in layers] == [(False, 8), (False, 8)]


def test_kinds_that_were_judged_are_read_from_where_they_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    judged = runpy.run_path(str(ROOT / "benchmarks/whole_models.py"))["judged"]
    frame, asked = frame_of(drawn(20, tuple(CARDS))), list[str]()
    none, every = np.zeros(len(frame), bool), np.ones(len(frame), bool)
    sums = pd.DataFrame({"kind": ["vgg"], "error": [0.25]}, index=pd.Index(["a pass"], name="key"))

    def missed(_: pd.DataFrame, __: list[object], split: Split) -> tuple[pd.DataFrame, pd.DataFrame]:
        asked.append(split.name)
        return sums, sums.assign(covered=True)

    monkeypatch.setitem(judged.__globals__, "missed", missed)
    vgg, resnet = (Split(f"family {kind}", none, every) for kind in ("vgg", "resnet"))
    for each in (vgg, resnet, vgg):
        found, layers = judged(frame, [], tmp_path, each)
        pd.testing.assert_frame_equal(found, sums)
        pd.testing.assert_frame_equal(layers, sums.assign(covered=True))
    assert asked == ["family vgg", "family resnet"]
    judged(frame.iloc[:19], [], tmp_path, vgg)
    assert asked == ["family vgg", "family resnet", "family vgg"]
    assert not [*tmp_path.glob("*.part")]


def test_weights_of_features_are_learned_from_what_smooth_costs_leave_over():
    data = object.__new__(runpy.run_path(str(ROOT / "benchmarks/feature_weights.py"))["Data"])
    data.frame = frame_of(drawn(200, tuple(CARDS)))
    data.frame.loc[::2, "algorithm"] = "direct"
    data.learned, data.shapes = np.arange(len(data.frame)) % 7 > 0, splits.labels(data.frame, "layer")
    given = features(data.frame, {})
    left = data._left_over(given)
    assert left.shape == (len(data.frame),)
    assert np.isfinite(left).all()
    took = np.log(data.frame["mean_ms"].to_numpy() / given.roofline_ms)
    assert np.abs(left).mean() < np.abs(took - took.mean()).mean()
