"""The inference benchmark on a GPU: engines that agree, launches by a graph, the floor, energy, a server, two GPUs."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torchvision
from torch import nn

import run_inference
from convscope.convolution.fusion import branches
from convscope.convolution.fusion import graphs as fusion
from convscope.convolution.reference import relative_distance
from convscope.inference import weights
from convscope.inference.engines.fused import own, rows, steps, tails
from convscope.inference.engines.runners import LocalRunner
from convscope.kernels.channels_last import activations, convolution, depthwise, heads, normalisation, pooling
from convscope.kernels.channels_last.windows import Window
from convscope.timing import graphs

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


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b0"])
def test_kernels_that_start_early_compute_the_same_at_each_replay(name: str, batch: int, side_by_side: bool):
    """A kernel that read before the one ahead of it had written would see an earlier replay's numbers."""
    network = torchvision.models.get_model(name).eval()
    weights.draw(network, torch.randn(8, 3, 224, 224), seed=0)  # else some numbers leave the range of float16
    model, _ = fusion.fused(fusion.folded(network)[0], steps.step_of)
    model = model.half().cuda().to(memory_format=torch.channels_last)
    plain = copy.deepcopy(model)
    steps.with_maxima(model)
    rows.with_rows(model)
    tails.with_tails(model)
    assert steps.with_heads(model) > 0
    assert own.with_first(model) == 1
    assert own.with_chosen(model, {}) > 50
    if side_by_side:
        branches.with_branches(model)
    given = torch.zeros(batch, 3, 224, 224, device="cuda", dtype=torch.half).contiguous(
        memory_format=torch.channels_last
    )
    outputs: list[torch.Tensor] = []
    with torch.inference_mode():
        model(given)  # blocks are chosen
        assert int(own.count(model).split()[0]) > 5
        with graphs.capture(lambda: outputs.append(model(given))) as captured:
            for _ in range(50):
                expected = plain(given.normal_()).double()
                captured.replay()
                assert relative_distance(outputs[-1], expected) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "filters", "options"),
    [
        (3, 64, {"kernel_size": 7, "stride": 2, "padding": 3}),
        (3, 32, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (3, 96, {"kernel_size": 4, "stride": 4}),
        (1, 8, {"kernel_size": (5, 3), "stride": (1, 2), "padding": (2, 0)}),
        (4, 24, {"kernel_size": 3, "padding": 1}),
    ],
)
@pytest.mark.parametrize("size", [112, 75])
def test_first_layers_by_the_kernel_are_right(
    channels: int, filters: int, options: dict[str, Any], size: int, dtype: torch.dtype
):
    conv = nn.Conv2d(channels, filters, **options).cuda().to(dtype)
    parts = own.parts_of(conv)
    assert parts is not None
    assert_right(own.FirstConvolution(nn.Identity(), parts), conv, (2, channels, size, size - 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    ("channels", "filters", "options"),
    [
        (512, 512, {"kernel_size": 3, "padding": 1}),
        (256, 64, {"kernel_size": 1}),
        (40, 240, {"kernel_size": 1, "stride": 2}),
        (24, 72, {"kernel_size": (3, 5), "padding": (1, 2), "dilation": (1, 2)}),
    ],
)
def test_whole_convolutions_by_the_kernel_are_right(
    channels: int, filters: int, options: dict[str, Any], adds: bool, dtype: torch.dtype
):
    conv = nn.Conv2d(channels, filters, **options).cuda().to(dtype).requires_grad_(False)
    x = drawn((2, channels, 9, 7), dtype)
    exact = copy.deepcopy(conv).double()(x.double())
    added = drawn(tuple(exact.shape), dtype) if adds else None
    exact = torch.relu(exact if added is None else exact + added.double())
    height, width = exact.shape[2:]
    window: Any = Window(conv.kernel_size, conv.stride, conv.padding, conv.dilation)  # type: ignore[arg-type]
    assert conv.bias is not None
    kernel = convolution.Convolution(conv.weight.detach(), conv.bias.detach(), window, "relu")
    for blocks in convolution.candidates(channels, filters, conv.weight[0, 0].numel(), 2 * height * width, 132):
        for _ in range(3):
            assert_near(kernel(x, added, (height, width), blocks), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_means_products_of_rows_and_factors_by_the_kernels_are_right(dtype: torch.dtype):
    mean = heads.Mean()
    for size in ((1, 40, 112, 113), (3, 2048, 7, 7), (1, 96, 1, 1)):
        x = drawn(size, dtype)
        assert heads.takes_images(x)
        for _ in range(3):
            assert_near(mean(x), x.double().mean((2, 3), keepdim=True))
        factors = drawn((*size[:2], 1, 1), dtype)
        assert activations.takes_factors(x, factors)
        assert_near(activations.scaled(x, factors), x.double() * factors.double())
    for count, depth, outputs in ((1, 2048, 1000), (4, 20, 480), (2, 1030, 7)):
        row, linear = drawn((count, depth), dtype), nn.Linear(depth, outputs).cuda().to(dtype).requires_grad_(False)
        assert heads.takes_rows(row, linear.weight)
        assert_near(rows.Rows(rows.RowProduct(linear, ""), False)(row), copy.deepcopy(linear).double()(row.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(8, 56, 56, 96), (197, 384), (2, 7, 7, 768), (3, 5000)])
def test_rows_are_normalised_by_the_kernel(size: tuple[int, ...], dtype: torch.dtype):
    x, weight, bias = drawn(size, dtype).contiguous(), drawn(size[-1:], dtype), drawn(size[-1:], dtype)
    assert normalisation.takes(x, size[-1:], weight, bias)
    exact = nn.functional.layer_norm(x.double(), size[-1:], weight.double(), bias.double(), 1e-6)
    assert_near(rows.normalised(x, size[-1:], weight, bias, 1e-6), exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gelu", ""])
@pytest.mark.parametrize(("pixels", "depth", "outputs"), [(56 * 56, 96, 384), (197, 1536, 384), (3, 40, 24)])
def test_products_of_rows_with_what_follows_them_are_right(
    pixels: int, depth: int, outputs: int, kind: str, dtype: torch.dtype
):
    linear = nn.Linear(depth, outputs).cuda().to(dtype).requires_grad_(False)
    x, exactly = drawn((2, pixels, depth), dtype), copy.deepcopy(linear).double()
    added = None if kind else drawn((2, pixels, outputs), dtype)
    exact = tails.BY_PYTORCH[kind](exactly(x.double()) + (0 if added is None else added.double()))
    product = rows.RowProduct(linear, kind)
    parts = own.parts_of(product)
    assert parts is not None
    chosen: Any = own.ChosenConvolution(product, parts, {})
    with torch.inference_mode():
        for inner in (product, chosen):
            for _ in range(2):
                assert_near(rows.Rows(inner, False)(x, added), exact)


@pytest.mark.parametrize("adds", [False, True])
def test_a_convolution_and_what_is_added_to_it_are_right(adds: bool):
    conv = nn.Conv2d(32, 48, 3, padding=1, groups=2).cuda().half().requires_grad_(False)
    x, added = drawn((4, 32, 15, 17), torch.half), drawn((4, 48, 15, 17) if adds else (4, 48, 1, 1), torch.half)
    exact = copy.deepcopy(conv).double()(x.double()) + added.double()
    assert_near(tails.TailedConvolution(conv, "")(x, added), exact)


def test_a_depthwise_convolution_is_done_by_the_faster_of_two():
    conv = nn.Conv2d(64, 64, 3, padding=1, groups=64).cuda().half().requires_grad_(False)
    module, choices = tails.DepthwiseConvolution(conv, "silu"), own.Choices()
    x, exactly = drawn((4, 64, 28, 28), torch.half), copy.deepcopy(conv).double()
    exact = nn.functional.silu(exactly(x.double()))
    for _ in range(2):
        assert_near(own.ChosenDepthwise(module, choices)(x), exact)
    (key,) = choices
    for is_own in (True, False):
        choices[key] = is_own
        chosen = own.ChosenDepthwise(module, choices)
        assert_near(chosen(x), exact)
        assert chosen.is_own is is_own


def drawn(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(size, device="cuda").to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def assert_right(module: nn.Module, conv: nn.Conv2d, size: tuple[int, ...]) -> None:
    """Check a module in place of a convolution against float64."""
    x = drawn(size, conv.weight.dtype)
    with torch.inference_mode():
        found, exact = module(x), copy.deepcopy(conv).double()(x.double())
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_near(found, exact)


def assert_near(found: torch.Tensor, exact: torch.Tensor) -> None:
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[found.dtype]
    assert float((found.double() - exact).abs().max()) <= limit * float(exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((4, 64, 112, 112), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 192, 27, 29), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
        ((3, 5, 17, 8), {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)}),
    ],
)
def test_maxima_by_the_kernel_are_pytorchs(size: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype):
    pool = nn.MaxPool2d(**options)
    x = torch.randn(size, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    x[0, 0, 3, 3] = float("nan")
    expected, found = pool(x), steps.MaximumPooling(pool)(x)
    assert pooling.takes(x, (3, 3))
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0.5), expected.nan_to_num(0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "size", "options"),
    [
        (96, 112, {"kernel_size": 3, "stride": 2, "padding": 1}),
        (240, 29, {"kernel_size": 5, "padding": 2}),
        (384, 14, {"kernel_size": 7, "padding": 3}),
        (5, 17, {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0), "dilation": (2, 1)}),
    ],
)
@pytest.mark.parametrize("kind", ["", "relu6", "silu", "hardswish", "gelu"])
def test_depthwise_convolutions_by_the_kernel_are_right(
    channels: int, size: int, options: dict[str, Any], kind: str, dtype: torch.dtype
):
    conv = nn.Conv2d(channels, channels, groups=channels, **options).cuda().to(dtype)
    x = torch.randn(4, channels, size, size, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    precise = copy.deepcopy(conv).double()
    with torch.inference_mode():
        found = tails.DepthwiseConvolution(conv, kind)(x)
        exact = tails.BY_PYTORCH[kind](precise(x.double()))
    assert depthwise.takes(x, (conv.kernel_size[0], conv.kernel_size[1]))
    assert found.is_contiguous(memory_format=torch.channels_last)
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert float((found.double() - exact).abs().max()) <= limit * float(exact.abs().max())


@pytest.mark.parametrize("kind", tails.BY_PYTORCH)
def test_bias_and_activation_by_the_kernel_are_right(kind: str):
    conv = nn.Conv2d(32, 48, 3, padding=1).cuda().half()
    x = torch.randn(4, 32, 15, 17, device="cuda").half().contiguous(memory_format=torch.channels_last)
    precise = copy.deepcopy(conv).double()
    with torch.inference_mode():
        found = tails.TailedConvolution(conv, kind)(x)
        exact = tails.BY_PYTORCH[kind](precise(x.double()))
    assert float((found.double() - exact).abs().max()) <= 3e-3 * float(exact.abs().max())


@pytest.mark.parametrize(
    "model", ["torchvision:efficientnet_b0", "torchvision:mobilenet_v3_large", "torchvision:convnext_tiny"]
)
def test_networks_with_other_activations_run_by_the_kernels(tmp_path: Path, model: str):
    table = measured(tmp_path, "--model", model, "--engines", "eager,graph,fused", "--batch-sizes", "8")
    assert (table["status"] == "ok").all()
    assert (table["image_error"] <= table["image_tolerance"]).all()
    remark = table.set_index("engine").loc["fused", "remark"]
    assert "best of 10" in remark or "best of 11" in remark  # none was refused


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


@pytest.mark.quiet
@pytest.mark.parametrize(("engine", "batch_sizes"), [("graph", "1,8"), ("aot", "1")])
def test_a_server_keeps_a_wide_limit_at_a_low_rate(tmp_path: Path, engine: str, batch_sizes: str):
    # A pause of the host makes a few requests late: the limit is far from it.
    model = ["--model", "torchvision:resnet18", "--engines", engine, "--batch-sizes", batch_sizes]
    row = supported(tmp_path, *model, "--scenario", "server", "--qps", "400", "--slo-ms", "100", "--min-seconds", "2")
    assert row["within_slo"], row["reason"]
    assert row["images_per_s"] == pytest.approx(400, rel=0.1)
    assert 0 < row["image_error"] < row["image_tolerance"]


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
