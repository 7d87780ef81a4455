"""The inference benchmark on a GPU: engines that agree, launches by a graph, the floor, energy, a server, two GPUs."""

from __future__ import annotations

import copy
import gc
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
import torchvision

import run_inference
from convscope.convolution.fusion import branches
from convscope.convolution.fusion import graphs as fusion
from convscope.convolution.reference import relative_distance
from convscope.inference.engines.fused import steps
from convscope.inference.engines.runners import LocalRunner
from convscope.timing import graphs

NEEDS_LOADGEN = pytest.mark.skipif(find_spec("mlperf_loadgen") is None, reason="needs mlcommons-loadgen")
QUICK = ["--min-seconds", "0.5"]


def measured(folder: Path, *arguments: str, code: int = 0) -> pd.DataFrame:
    assert run_inference.main([*QUICK, *arguments, "--output-dir", str(folder)]) == code
    return pd.read_csv(folder / "inference.csv")


def supported(folder: Path, *arguments: str) -> pd.Series:
    """Return the row of an engine; skip the test, with the reason, where the engine cannot run here."""
    code = run_inference.main([*QUICK, *arguments, "--output-dir", str(folder)])
    table = pd.read_csv(folder / "inference.csv")
    assert len(table) == 1
    row = table.iloc[0]
    if row["status"] == "unsupported":
        pytest.skip(row["reason"])
    assert (code, row["status"]) == (0, "ok"), row["reason"]
    return row


@pytest.mark.quiet
def test_graphs_and_fused_convolutions_agree_and_are_faster_than_eager(tmp_path: Path):
    table = measured(tmp_path, "--engines", "eager,graph,graph-unfolded,fused", "--batch-sizes", "1,8")
    assert (table["status"] == "ok").all()
    assert (table["image_error"] <= table["image_tolerance"]).all()
    assert (table["image_error"] > 0).all()
    latency_ms = table.pivot(index="batch_size", columns="engine", values="latency_mean_ms")
    assert (latency_ms["graph"] < latency_ms["eager"]).all()
    assert (latency_ms["fused"] < latency_ms["graph"]).all()


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_branches_side_by_side_compute_the_same_at_each_replay(name: str):
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    model, _ = fusion.fused(fusion.folded(torchvision.models.get_model(name, **options).eval())[0], steps.step_of)
    model = model.half().cuda().to(memory_format=torch.channels_last)
    in_a_row = copy.deepcopy(model)
    assert branches.with_branches(model) > 2
    given = torch.zeros(4, 3, 96, 96, device="cuda", dtype=torch.half).contiguous(memory_format=torch.channels_last)
    outputs: list[torch.Tensor] = []
    with torch.inference_mode(), graphs.capture(lambda: outputs.append(model(given))) as captured:
        for _ in range(50):
            expected = in_a_row(given.normal_())
            captured.replay()
            assert relative_distance(outputs[-1], expected.double()) < 1e-2


@pytest.mark.parametrize(
    "model", ["torchvision:efficientnet_b0", "torchvision:mobilenet_v3_large", "torchvision:convnext_tiny"]
)
def test_networks_with_other_activations_run_by_the_kernels(tmp_path: Path, model: str):
    table = measured(tmp_path, "--model", model, "--engines", "eager,graph,fused", "--batch-sizes", "8")
    assert (table["status"] == "ok").all()
    assert (table["image_error"] <= table["image_tolerance"]).all()
    remark = str(table.set_index("engine").loc["fused", "remark"])
    assert re.search(r"best of 1[012]:", remark)  # none was refused


def test_a_graph_keeps_what_it_reads_alive():
    def engine() -> LocalRunner:
        weight, given = torch.full((1 << 20,), 2.0, device="cuda"), torch.full((1 << 20,), 3.0, device="cuda")
        return LocalRunner(lambda: weight * given, given, captured=True, counted=True)

    runner = engine()
    gc.collect()
    overwritten = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]
    assert len(overwritten) == 64
    assert (runner.output(torch.full((1 << 20,), 3.0)) == 6.0).all()
    assert (runner.output(torch.full((1 << 20,), 4.0)) == 8.0).all()
    runner.close()


@pytest.mark.quiet
def test_nothing_is_faster_than_the_floor_at_a_large_batch(tmp_path: Path):
    row = measured(tmp_path, "--engines", "fused", "--batch-sizes", "256").iloc[0]
    assert row["floor_ms"] > max(row["floor_memory_ms"], row["floor_compute_ms"]) * 0.999
    assert row["times_floor"] > 1
    assert row["latency_p50_ms"] == pytest.approx(256e3 / row["images_per_s"], rel=0.1)
    assert row["energy_source"] == "nvml energy counter"
    assert row["peak_memory_bytes"] > 51e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types_agree_too(tmp_path: Path, dtype: str):
    table = measured(tmp_path, "--engines", "graph,fused", "--batch-sizes", "2", "--dtype", dtype)
    assert (table["status"] == "ok").all()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_fastest_plans_of_cudnn_are_put_together(tmp_path: Path, layout: str):
    row = measured(tmp_path, "--engines", "cudnn-best", "--batch-sizes", "1", "--layout", layout).iloc[0]
    assert row["status"] == "ok"
    assert row["layout"] == layout
    chosen = [each.split(" ") for each in row["remark"].split("; ")[1].split(", ")]
    assert sum(int(count) for count, _ in chosen) == 53
    names = {name for _, name in chosen}
    assert any(name.startswith("plan") for name in names)
    kinds = {name.split(":")[0] for name in names}
    assert kinds <= ({"plan", "torch"} if layout == "nhwc" else {"plan", "plan+packed", "torch"})


@NEEDS_LOADGEN
def test_plans_in_the_graph_of_one_batch_outlive_the_race_of_the_next(tmp_path: Path):
    model = ["--model", "torchvision:resnet18", "--layout", "nchw"]
    rates = ["--scenario", "server", "--batch-sizes", "1,4,8", "--qps", "400", "--min-seconds", "2"]
    row = measured(tmp_path, "--engines", "cudnn-best", *model, *rates).iloc[0]
    assert row["status"] == "ok", row["reason"]
    assert 0 < row["image_error"] < row["image_tolerance"]


@pytest.mark.parametrize("engine", ["compile", "compile-graph", "compile-overhead", "compile-max", "aot", "aot-graph"])
def test_compiled_engines_agree(engine: str, tmp_path: Path):
    command = [sys.executable, run_inference.__file__, *QUICK, "--model", "torchvision:resnet18", "--batch-sizes", "4"]
    done = subprocess.run([*command, "--engines", engine, "--output-dir", str(tmp_path)], timeout=500)  # may crash
    assert done.returncode >= 0, f"ended by signal {-done.returncode}"
    row = pd.read_csv(tmp_path / "inference.csv").iloc[0]
    if engine.startswith("aot") and row["status"] == "unsupported":
        pytest.skip(row["reason"])
    assert row["status"] == "ok"
    assert row["compile_s"] > 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_onnxruntime_runs_as_a_graph_in_pytorchs_stream(tmp_path: Path, dtype: str):
    row = supported(tmp_path, "--engines", "onnxruntime", "--batch-sizes", "4", "--dtype", dtype)
    assert 0 < row["image_error"] <= row["image_tolerance"]
    assert "its cuda graph" in row["remark"]
    assert row["timing_method"].endswith("replay of ONNX Runtime's CUDA graph")


@NEEDS_LOADGEN
def test_onnxruntime_waits_for_images_of_another_stream(tmp_path: Path):
    asked = ["--scenario", "offline", "--engines", "onnxruntime", "--batch-sizes", "8", "--min-seconds", "1"]
    row = supported(tmp_path, *asked, "--seeds", "1")
    assert 0 < row["image_error"] <= row["image_tolerance"]


def test_the_peak_of_memory_is_the_engines_own(tmp_path: Path):
    after = measured(tmp_path / "after", "--engines", "eager,fused,graph", "--batch-sizes", "8").set_index("engine")
    alone = measured(tmp_path / "alone", "--engines", "graph", "--batch-sizes", "8").set_index("engine")
    peaks_mb = [table.loc["graph", "peak_memory_bytes"] / 1e6 for table in (after, alone)]
    assert 51 < peaks_mb[0] == pytest.approx(peaks_mb[1], abs=5)


def test_out_of_memory_is_a_row(tmp_path: Path):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        row = measured(tmp_path, "--engines", "eager", "--batch-sizes", "256", code=1).iloc[0]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert row["status"] == "oom"


@NEEDS_LOADGEN
@pytest.mark.quiet
@pytest.mark.parametrize(("engine", "batch_sizes"), [("graph", "1,8"), ("aot", "1")])
def test_a_server_keeps_a_wide_limit_at_a_low_rate(tmp_path: Path, engine: str, batch_sizes: str):
    # A pause of the host makes a few requests late: the limit is far from it.
    model = ["--model", "torchvision:resnet18", "--engines", engine, "--batch-sizes", batch_sizes]
    row = supported(tmp_path, *model, "--scenario", "server", "--qps", "400", "--slo-ms", "100", "--min-seconds", "2")
    assert row["within_slo"], row["reason"]
    assert row["images_per_s"] == pytest.approx(400, rel=0.1)
    assert 0 < row["image_error"] < row["image_tolerance"]


@NEEDS_LOADGEN
@pytest.mark.quiet
def test_offline_copies_images_while_the_batch_before_computes(tmp_path: Path):
    asked = ["--scenario", "offline", "--engines", "fused", "--batch-sizes", "64", "--min-seconds", "2", "--seeds", "2"]
    for inputs in ([], ["--resident"]):
        measured(tmp_path, *asked, *inputs)
    host, resident = pd.read_csv(tmp_path / "inference.csv").to_dict("records")
    assert (host["inputs"], host["status"], resident["status"]) == ("host", "ok", "ok")
    assert host["valid"], host["reason"]
    assert 0.3 * resident["images_per_s"] < host["images_per_s"] < 1.1 * resident["images_per_s"]


@pytest.mark.quiet
def test_a_call_with_copies_takes_longer(tmp_path: Path):
    asked = ["--engines", "graph,fused", "--batch-sizes", "8"]
    for copies in ([], ["--with-copies"]):
        measured(tmp_path, *asked, *copies)
    table = pd.read_csv(tmp_path / "inference.csv").query("status == 'ok'")
    copied, alone = table[table["inputs"] == "host"], table[table["inputs"].isna()]
    assert len(copied) == len(alone) > 0
    assert (copied["latency_p50_ms"].to_numpy() > alone["latency_p50_ms"].to_numpy()).all()


@pytest.mark.quiet
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_share_a_batch(tmp_path: Path):
    asked = [*QUICK, "--engines", "fused", "--output-dir", str(tmp_path)]
    for count, sizes in (("1", "64,128"), ("2", "128")):
        command = [sys.executable, run_inference.__file__, *asked, "--gpus", count, "--batch-sizes", sizes]
        subprocess.run(command, check=True, timeout=300)
    half, one, two = pd.read_csv(tmp_path / "inference.csv").to_dict("records")
    assert two["processes"] == 2
    assert two["images_per_s"] > 1.5 * one["images_per_s"]
    assert two["weak_scaling_pct"] == pytest.approx(50 * two["images_per_s"] / half["images_per_s"])
    assert 75 < two["strong_scaling_pct"] < 110
