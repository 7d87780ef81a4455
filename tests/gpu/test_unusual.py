"""Convolutions outside `nn.Conv2d` modules, and models that cannot be captured, on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from fakes import unusual

import run_verify
from convscope.profiling.trace_process import recording
from convscope.timing import eager, graphs
from profiler import UnifiedProfiler

SYNCHRONIZING = ["Deciding", "Fetching", "Waiting"]


def profile(folder: Path, model: str, algorithm: str, **options: object):
    """Profile a model of `unusual`; return its tables of passes, layers and work."""
    settings: dict = {"num_sizes": 1, "input_size_range": (64, 64), "measure_iters": 5, "warmup_iters": 2}
    named = f"{unusual.__file__}:{model}"
    overall, layers = UnifiedProfiler(named, algorithm, **settings | {"measure_energy": False} | options).run(folder)
    assert [*overall["status"]] == ["ok"], [*overall["reason"]]
    return overall.iloc[0], layers, pd.read_csv(next(folder.glob("*_work.csv")))


@pytest.mark.parametrize(("model", "names"), [("Functional", unusual.FUNCTIONAL), ("Dimensions", unusual.DIMENSIONS)])
def test_calls_are_timed_and_listed_with_their_kernels(tmp_path: Path, model: str, names: tuple[str, ...]):
    row, layers, _ = profile(tmp_path, model, "torch")
    assert row["timing_method"].startswith(graphs.REPLAY_METHOD)
    assert tuple(layers["layer"]) == names
    assert set(layers["ran_algorithm"]) == {"torch"}
    assert layers["kernels"].map(lambda text: bool(json.loads(text))).all()
    assert (layers["mean_ms"] > 0).all()
    assert layers["span_ms"].notna().all()
    assert layers["relative_error"].lt(3e-3).all()


def test_the_convolutions_among_the_work_of_a_pass_are_the_kernels_of_its_layers(tmp_path: Path):
    _, layers, work = profile(tmp_path, "Functional", "torch")
    assert set(work["timing_method"]) == {recording.WORK_METHOD}
    assert work["share_pct"].sum() == pytest.approx(100)
    convolving = work[work["category"] == "convolution"]
    assert set(convolving["module"].fillna("")) == {"", "block", "last"}
    assert convolving["kernel_ms"].sum() == pytest.approx(layers["kernel_ms"].sum(), rel=0.1)
    assert convolving["calls"].sum() == sum(sum(json.loads(text).values()) for text in layers["kernels"])
    assert "elementwise" in set(work["category"])  # the weight that is computed in the pass


def test_a_model_without_convolutions_has_a_time_and_its_work(tmp_path: Path):
    row, layers, work = profile(tmp_path, "Perceptron", "torch")
    assert row["mean"] > 0
    assert layers.empty
    assert "matrix product" in set(work["category"])
    assert "convolution" not in set(work["category"])


def test_a_call_runs_the_algorithm_that_it_is_given_and_says_so(tmp_path: Path):
    row, layers, work = profile(tmp_path, "Functional", "implicit gemm", unsupported="fallback")
    ran = layers.set_index("layer")
    for name in ("conv2d", "block.conv2d", "last"):
        assert (ran.loc[name, "ran_algorithm"], ran.loc[name, "ran_provider"]) == ("implicit gemm", "cudnn")
    assert (ran.loc["block.conv2d#2", "ran_algorithm"], ran.loc["block.conv2d#2", "status"]) == ("torch", "fallback")
    assert layers["kernels"].map(lambda text: bool(json.loads(text))).all()
    assert layers["relative_error"].lt(3e-3).all()
    assert row["timing_method"].startswith(graphs.REPLAY_METHOD)
    assert work[work["category"] == "convolution"]["kernel_ms"].sum() == pytest.approx(
        layers["kernel_ms"].sum(), rel=0.1
    )


@pytest.mark.parametrize("model", SYNCHRONIZING)
def test_a_model_that_waits_for_the_gpu_is_timed_eagerly_and_its_method_says_so(tmp_path: Path, model: str):
    row, layers, work = profile(tmp_path, model, "implicit gemm")
    assert row["timing_method"] == eager.INCLUDED_METHOD
    assert "timed eagerly: " in row["reason"]
    assert row["mean"] > 0
    assert set(layers["timing_method"]) == {eager.INCLUDED_METHOD}
    assert set(layers["ran_algorithm"]) == {"implicit gemm"}
    assert layers["kernels"].map(lambda text: bool(json.loads(text))).all()
    assert set(work["timing_method"]) == {recording.EAGER_WORK_METHOD}
    assert {*work[work["category"] == "convolution"]["module"]} == {"one", "two"}


@pytest.mark.quiet
def test_a_model_that_waits_for_the_gpu_has_an_energy(tmp_path: Path):
    row, _, _ = profile(tmp_path, "Deciding", "torch", measure_energy=True)
    assert row["energy_per_inference_j"] > 0


def test_after_a_model_that_cannot_be_captured_another_one_is(tmp_path: Path):
    profile(tmp_path / "one", "Waiting", "torch")
    row, _, _ = profile(tmp_path / "two", "Functional", "torch")
    assert row["timing_method"].startswith(graphs.REPLAY_METHOD)


@pytest.mark.parametrize("model", ["Functional", "Deciding"])
def test_a_choice_ranks_calls_and_passes_that_cannot_be_captured(tmp_path: Path, model: str):
    arguments = ["--choice", "--model", f"{unusual.__file__}:{model}", "--input-size", "64", "--rounds", "2"]
    assert run_verify.main([*arguments, "--output-dir", str(tmp_path)]) == 0
    rows, passes = (pd.read_csv(next(tmp_path.glob(f"*/{name}.csv"))) for name in ("choice", "passes"))
    names = unusual.FUNCTIONAL if model == "Functional" else ("one", "two")
    assert {*rows["layer"]} == {*names}
    assert {"torch", "implicit gemm"} <= {*rows["candidate"]}
    assert (passes["mean_ms"] > 0).all()
