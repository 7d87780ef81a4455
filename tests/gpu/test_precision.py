"""16 bits and channels last on a real GPU: profile, verdict, choice and support by cuDNN's legacy calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import run_verify
from convscope.verification import kernel_families, support
from profiler import UnifiedProfiler

NAME = "implicit precomp gemm"
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
BOTH = [("float16", "nhwc"), ("bfloat16", "nchw")]


def profile(folder: Path, dtype: str, layout: str, model: str = "alexnet", **options: Any):
    settings: dict[str, Any] = {"num_sizes": 2, "input_size_range": (64, 96), "measure_iters": 5, "warmup_iters": 2}
    asked = UnifiedProfiler(model, NAME, dtype=dtype, layout=layout, **settings | options)
    assert asked.folder.name.endswith({"float16": "_fp16_nhwc", "bfloat16": "_bf16"}[dtype])
    return asked.run(folder)


@pytest.mark.quiet
@pytest.mark.parametrize(("dtype", "layout"), BOTH)
def test_a_profile_in_16_bits_has_every_figure_and_errors_of_its_type(tmp_path: Path, dtype: str, layout: str):
    overall, layers = profile(tmp_path, dtype, layout)
    assert [*overall["status"]] == ["ok", "ok"], [*overall["reason"]]
    assert {*overall["dtype"], *layers["dtype"]} == {dtype}
    assert {*overall["layout"], *layers["layout"]} == {layout}
    assert overall[["mean", "eager_mean_ms", "power_mean_w", "energy_per_inference_j"]].notna().all(axis=None)
    assert {*layers["ran_algorithm"]} == {NAME}
    assert {*layers["ran_provider"]} == {"cudnn"}
    assert (layers["copied_input_bytes"] == 0).all()
    assert layers["span_ms"].notna().all()
    assert layers["relative_error"].between(ROUNDOFF[dtype] / 20, 2 * ROUNDOFF[dtype]).all(), [
        *layers["relative_error"]
    ]


@pytest.mark.parametrize(("dtype", "layout"), BOTH)
def test_cudnns_legacy_calls_use_the_matrix_unit_in_16_bits(tmp_path: Path, dtype: str, layout: str):
    _, layers = profile(tmp_path, dtype, layout, num_sizes=1, measure_energy=False)
    kernels = [[*json.loads(text)] for text in layers["kernels"]]
    few = layers["in_channels"] < 8  # that are too few for one load of the matrix unit
    assert few.sum() == 1
    quiet = [
        names
        for names, is_thin in zip(kernels, few, strict=True)
        if not is_thin and not any(map(kernel_families.uses_tensor_cores, names))
    ]
    assert not quiet, quiet
    odd = [names for names in kernels if kernel_families.stranger(NAME, names, pointwise=False) is not None]
    assert not odd, odd


def test_a_deep_untrained_model_stays_finite_in_float16(tmp_path: Path):
    overall, layers = profile(tmp_path, "float16", "nhwc", "resnet50", num_sizes=1, measure_energy=False)
    assert [*overall["status"]] == ["ok"], [*overall["reason"]]
    assert overall["reason"].isna().all()
    assert layers["relative_error"].lt(2 * ROUNDOFF["float16"]).all()


@pytest.mark.parametrize("model", ["alexnet", "vgg16", "googlenet", "resnet50"])
@pytest.mark.parametrize(("dtype", "layout"), BOTH)
def test_what_is_true_is_confirmed_in_16_bits(model: str, dtype: str, layout: str, capsys: pytest.CaptureFixture[str]):
    asked = ("--model", model, "--algorithm", NAME, "--dtype", dtype, "--layout", layout)
    code = run_verify.main([*asked])
    printed = capsys.readouterr().out.splitlines()
    assert not [line for line in printed if line.startswith("✗")], printed
    assert (code, printed[-1]) == (0, "CONFIRMED")
    assert any(line.startswith(f"· {dtype}: TF32 does not apply, ") for line in printed)


@pytest.mark.parametrize("algorithm", ["gemm", "implicit gemm", "fft tiling", "winograd nonfused", "guess"])
def test_every_algorithm_of_cudnn_is_exact_within_its_tolerance_in_float16(
    algorithm: str, capsys: pytest.CaptureFixture[str]
):
    asked = ("--model", "alexnet", "--algorithm", algorithm, "--dtype", "float16", "--unsupported", "fallback")
    run_verify.main([*asked])
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("✓ layers against float64") for line in printed), printed


@pytest.mark.parametrize(("dtype", "layout"), BOTH)
def test_the_choice_in_16_bits_ranks_what_the_card_takes(tmp_path: Path, dtype: str, layout: str):
    asked = ("--choice", "--model", "alexnet", "--input-size", "64", "--rounds", "3", "--dtype", dtype)
    assert run_verify.main([*asked, "--layout", layout, "--output-dir", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith({"float16": "_fp16_nhwc", "bfloat16": "_bf16"}[dtype])
    rows, passes = (pd.read_csv(folder / f"{name}.csv") for name in ("choice", "passes"))
    for table in (rows, passes):
        assert {(row.dtype, row.layout) for row in table.itertuples()} == {(dtype, layout)}
    assert {NAME, "implicit gemm", "torch", "torch benchmark"} <= {*rows["candidate"]}
    assert {*rows["candidate"]}.isdisjoint({"fft", "fft tiling"})


@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nchw"), ("bfloat16", "nchw"), ("float16", "nhwc")])
def test_rules_and_card_agree_in_16_bits(tmp_path: Path, dtype: str, layout: str, capsys: pytest.CaptureFixture[str]):
    asked = ("--support", "--model", "alexnet", "--dtype", dtype, "--layout", layout)
    code = run_verify.main([*asked, "--output-dir", str(tmp_path)])
    printed = capsys.readouterr().out
    rows = pd.read_csv(next(tmp_path.glob("*/support.csv")))
    seen = {(row.algorithm, row.status): row.reason for row in rows.itertuples()}
    assert code == 0, printed
    assert {(row.dtype, row.layout) for row in rows.itertuples()} == {(dtype, layout)}
    usable = {algorithm for algorithm, status in seen if status == support.OK}
    assert {NAME, "implicit gemm"} <= usable, seen
