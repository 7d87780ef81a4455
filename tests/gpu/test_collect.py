"""Algorithms by name beside plans, a collection, and a document of algorithms, on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

import convscope
import run_dataset
import run_verify
from convscope.convolution import models
from convscope.convolution.reference import relative_distance
from convscope.dataset import samples
from convscope.pinning import document
from convscope.timing import trace
from convscope.verification import kernel_families
from profiler import UnifiedProfiler

SHAPES = """layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups
square,2,64,64,28,28,3,1,1,1,1
pointwise,2,64,128,28,28,1,1,0,1,1
strided,2,3,32,64,64,7,2,3,1,1
depthwise,2,64,64,28,28,3,1,1,1,64
"""
TABLE = """layer,batch,channels,filters,height,width,kernel,stride,padding,dilation,groups
pointwise,1,512,128,28,28,1,1,0,1,1
large,1,64,512,224,224,1,1,0,1,1
wide,1,64,512,225,225,1,1,0,1,1
"""
EIGHT = {"gemm", "implicit gemm", "implicit precomp gemm", "fft", "fft tiling", "winograd", "winograd nonfused"}


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("float16", "nhwc")])
def test_algorithms_by_name_race_beside_the_plans(dtype: str, layout: str, tmp_path: Path):
    (tmp_path / "shapes.csv").write_text(SHAPES)
    asked = ["--plans", "--with-algorithms", "--first", "2", "--rounds", "2", "--batch-size", "2"]
    how = ["--dtype", dtype, "--layout", layout, "--output-dir", str(tmp_path)]
    assert run_verify.main(["--model", str(tmp_path / "shapes.csv"), *asked, *how]) == 0
    rows = pd.read_csv(next(tmp_path.glob("*_named")) / "plans.csv")
    named = rows[rows["engine"].isna() & ~rows["candidate"].isin(["guess", "torch", "torch benchmark"])]
    assert set(named["candidate"]) == EIGHT | {"direct"}
    assert named.groupby("layer")["candidate"].nunique().eq(8).all()
    timed = named[named["outcome"] == "ok"]
    assert set(timed["provider"]) <= {"cudnn", "triton"}
    assert {"direct", "implicit precomp gemm"} <= set(timed["candidate"])
    assert (timed["mean_ms"] > 0).all()
    assert timed.loc[timed["provider"] == "cudnn", "workspace_bytes"].notna().all()
    assert named.loc[named["outcome"] == "refused", "reason"].notna().all()
    assert not set(rows["outcome"]) & {"wrong"}
    families = {kernel_families.family(name) for cell in timed["kernels"].dropna() for name in json.loads(cell)}
    assert kernel_families.PRECOMPUTED in families or kernel_families.IMPLICIT in families
    own = rows[(rows["candidate"] == "torch") & (rows["layer"] != "depthwise")]
    assert own["same_kernels_as"].str.startswith("plan:").all()  # never packed, and no algorithm by name


@pytest.mark.quiet
def test_a_convolution_takes_as_long_alone_in_a_table_as_among_others(tmp_path: Path):
    header, *rows = TABLE.splitlines()
    alone, among = tmp_path / "alone.csv", tmp_path / "among.csv"
    alone.write_text("\n".join([header, rows[0]]))
    among.write_text("\n".join([header, *rows]))
    times = {}
    for table in (alone, among):
        done = UnifiedProfiler(str(table), "torch", num_sizes=1, measure_energy=False).run(tmp_path / table.stem)
        first = done[1].iloc[0]
        assert first["timing_method"].startswith("first kernel to last in a traced replay")
        times[table.stem] = first["mean_ms"], first["span_ms"]
    assert times["alone"] == pytest.approx(times["among"], rel=0.1)  # 0.66 of it with its data still in the cache


@pytest.mark.quiet
def test_a_collection_has_samples_of_each_kind_and_joules(tmp_path: Path):
    what = ["--models", "torchvision:squeezenet1_1", "--sizes", "64", "--batch-sizes", "1", "--settings", "tf32"]
    how = ["--rounds", "2", "--first", "2", "--group-shapes", "4", "--energy-every", "3", "--output-dir", str(tmp_path)]
    assert run_dataset.main([*what, *how]) == 0
    found = samples.read([tmp_path / "samples.csv"])
    assert found["gpu_name"].eq(torch.cuda.get_device_name()).all()
    measured = found[found["status"] == "ok"]
    assert measured["algorithm"].str.startswith("plan:").any()
    assert {"torch", "implicit precomp gemm", "direct"} <= set(measured["algorithm"])
    assert measured["energy_j"].dropna().between(1e-6, 1e-1).all()
    assert measured["energy_j"].notna().any()
    assert measured["kernels"].notna().mean() > 0.9


def test_a_model_pinned_to_algorithms_by_name_runs_them(tmp_path: Path):
    asked = ["--plans", "--with-algorithms", "--first", "2", "--rounds", "2", "--output-dir", str(tmp_path)]
    assert run_verify.main(["--model", "alexnet", *asked]) == 0
    folder = next(tmp_path.glob("*_named"))
    rows = pd.read_csv(folder / "plans.csv")
    wanted = {"features.3": "direct", "features.8": "implicit precomp gemm"}
    rows["is_fastest"] = [wanted.get(layer) == name for layer, name in zip(rows.layer, rows.candidate, strict=True)]
    rows.to_csv(folder / "plans.csv", index=False)
    pins = document.from_atlas(folder)
    assert {pin.layer: pin.algorithm for pin in pins.layers} == wanted
    model, x = models.build("alexnet").cuda().eval(), torch.randn(1, 3, 224, 224, device="cuda")
    with torch.inference_mode():
        expected = model(x)
        before = trace.record_each([lambda: model(x)])[0].kernels
        convscope.pin(model, pins, strict=True)
        assert relative_distance(model(x).double(), expected.double()) < 1e-2
        assert trace.record_each([lambda: model(x)])[0].kernels != before
