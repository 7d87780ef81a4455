"""Texts that the command lines print."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torchvision
from fakes import LAYER_ROW, OVERALL

from convscope.cli.display import table
from convscope.convolution import algorithms, models, names
from convscope.cudnn import library
from convscope.errors import CudnnMissingError, InputError
from convscope.profiling import listing, report
from convscope.profiling.request import make_run
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.storage.environment import Environment
from convscope.storage.table import columns

ONE = [("features.0", 0.5, 33.0)]


def results(rows: list[dict[str, object]], layers: list[tuple[str, float, float]]) -> list[str]:
    """Return the lines of the table for overall rows and layers (name, ms, share), all at 64 px."""
    overall = pd.DataFrame([vars(OVERALL) | row for row in rows], columns=columns(OverallRow))
    for name in ("mean", "std", "power_mean_w", "energy_per_inference_j"):
        overall[name] = overall[name].astype(float)
    given = [vars(LAYER_ROW) | {"layer": name, "mean_ms": ms, "percentage": share} for name, ms, share in layers]
    return report.results_table(overall, pd.DataFrame(given, columns=columns(LayerRow))).splitlines()


def test_columns_stand_below_each_other():
    lines = table(("a", "number", "text"), [("long", "1", "x"), ("b", "100", "longer text")])
    assert lines.splitlines() == ["a     number  text", "long       1  x", "b        100  longer text"]


def test_a_size_has_its_mean_and_deviation_power_and_energy():
    (_, line) = results([{"mean": 1.5, "std": 0.25, "power_mean_w": 412.6, "energy_per_inference_j": 0.5163}], ONE)
    assert line.split()[:6] == ["64", "1.500", "±", "0.250", "413", "516.3"]


def test_what_was_not_measured_is_a_dash():
    (_, line) = results([{"mean": 1.5, "std": None}], ONE)
    assert line.split()[:6] == ["64", "1.500", "±", "-", "-", "-"]


def test_the_slowest_three_layers_come_slowest_first():
    layers = [("a", 0.1, 10.0), ("b", 0.4, 40.0), ("c", 0.2, 20.0), ("d", 0.3, 30.0)]
    (_, line) = results([{"mean": 1.0, "std": 0.1}], layers)
    assert line.endswith("b 0.400 (40 %), d 0.300 (30 %), c 0.200 (20 %)")


def test_layers_without_a_time_are_not_among_the_slowest():
    (_, line) = results([{"mean": 1.0, "std": 0.1}], [("skipped", float("nan"), float("nan")), ("a", 0.1, 10.0)])
    assert line.endswith("a 0.100 (10 %)")
    assert "skipped" not in line


def test_a_size_whose_layers_are_gone_is_shown_without_them():
    (_, line) = results([{"mean": 1.5, "std": 0.1}], [])
    assert line.split() == ["64", "1.500", "±", "0.100", "-", "-"]


def test_a_size_that_failed_shows_status_and_reason():
    (_, line) = results([{"mean": None, "status": "oom", "reason": "CUDA out of memory"}], [])
    assert line.split(maxsplit=4) == ["64", "oom", "-", "-", "CUDA out of memory"]


def test_sizes_come_in_order_whatever_the_order_of_the_file():
    lines = results([{"input_size": 96}, {"input_size": 64}], ONE)
    assert [line.split()[0] for line in lines[1:]] == ["64", "96"]


def test_a_log_begins_with_command_card_versions_and_sizes():
    here = Environment(
        "node1", "a CPU", "3.11", "2.11.0", "0.26", "0.1.0", gpu_name="NVIDIA H200", gpu_uuid="GPU-1",
        driver="580.1", cuda="12.8", cudnn="9.10", power_limit_w=700.0, git_commit="abc",
    )  # fmt: skip
    run = make_run("alexnet", "torch", num_sizes=3, input_size_range=(64, 96), device="cpu", batch_size=8)
    assert report.log_header(run, here, ["run_profile.py", "--model", "a b"]).splitlines() == [
        "command: run_profile.py --model 'a b'",
        "GPU: NVIDIA H200 (GPU-1), driver 580.1, power limit 700 W, on node1",
        "versions: torch 2.11.0, CUDA 12.8, cuDNN 9.10, ai3 0.1.0",
        "commit: abc",
        "sizes: 3, 64 to 96 px, batch 8, fp32",
    ]


def test_a_log_has_a_line_a_size():
    row = OverallRow("alexnet", "torch", 328, mean=2.911, power_mean_w=412.3)
    assert report.log_line(row, 37, 100) == " 37/100  328 px  2.91 ms  412 W"
    failed = OverallRow("alexnet", "torch", 328, status="oom", reason="asked for 2 GiB")
    assert report.log_line(failed, 100, 100) == "100/100  328 px  oom: asked for 2 GiB"


def test_the_list_of_models_begins_with_the_catalogue_and_goes_on_with_torchvision():
    every = names.listed()
    assert tuple(every[:6]) == models.MODELS
    assert "torchvision:mobilenet_v2" in every
    assert len(every) == len(torchvision.models.list_models(module=torchvision.models))


def test_every_listed_model_is_accepted():
    for name in names.listed():
        assert models.check_name(name) == name


def test_the_list_of_algorithms_names_who_runs_each():
    lines = listing.algorithm_list(None, 1, 224, "cpu").splitlines()
    assert len(lines) == 1 + len(algorithms.ALGORITHMS) + len(algorithms.HEURISTICS) + len(("autotune", "plan:"))
    assert lines[-1].startswith("plan:ENGINE[:kN=VALUE,…]")
    assert lines[1].split()[:3] == ["direct", "ai3", "triton"]
    assert "cudnn, triton  Winograd, fused" in lines[8]


@pytest.fixture(scope="module")
def resnet50_on_cpu() -> list[str]:
    return listing.algorithm_list("resnet50", 1, 224, "cpu").splitlines()


def test_the_list_for_a_model_says_that_rules_decided(resnet50_on_cpu: list[str]):
    assert resnet50_on_cpu[0] == "resnet50 at 224 px, batch 1 (by rule, no GPU here to ask)"


@pytest.mark.parametrize(
    "line",
    [
        "direct CPU 53 of 53",
        "direct GPU 53 of 53",
        "gemm GPU 53 of 53",
        "winograd GPU 13 of 53 winograd needs 3×3 kernels with stride 1: 40 of 53 convolutions of resnet50 are not",
    ],
)
def test_the_list_for_a_model_counts_its_layers_and_says_why_not(resnet50_on_cpu: list[str], line: str):
    assert line in [" ".join(printed.split()) for printed in resnet50_on_cpu]


def test_the_list_for_an_unknown_model_is_refused():
    with pytest.raises(InputError, match="unknown model 'lenet'"):
        listing.algorithm_list("lenet", 1, 224, "cpu")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_report_says_what_can_be_measured_all_the_same():
    text, usable = listing.cuda_report()
    assert not usable
    assert f"cuDNN {library.version()}" in text
    assert "no CUDA device: direct, smm and torch can be measured here, on the CPU" in text


def test_with_gpus_the_report_names_each_with_its_label_and_peaks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ("NVIDIA H200", "Tesla T4")[index])
    text, usable = listing.cuda_report()
    assert usable
    assert "cuda:0 NVIDIA H200 (--gpu h200): 67 TFLOP/s fp32, 494.5 TFLOP/s tf32, 4800 GB/s by NVIDIA H200" in text
    assert "cuda:1 Tesla T4 (--gpu t4): 8.1 TFLOP/s fp32, 320 GB/s by NVIDIA T4 datasheet" in text


def test_without_cudnn_the_report_says_so(monkeypatch: pytest.MonkeyPatch):
    def missing() -> str:
        raise CudnnMissingError("cuDNN 9 cannot be loaded")

    monkeypatch.setattr(library, "version", missing)
    text, usable = listing.cuda_report()
    assert not usable
    assert text.endswith("cuDNN: cuDNN 9 cannot be loaded")
