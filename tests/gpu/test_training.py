"""The training study on a GPU: the clock against the wall and against CUPTI, memory, energy, algorithms, two GPUs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch

import run_training
from convscope.convolution import models
from convscope.training.step import StepClock, Stepper

QUICK = ["--dataset", "synthetic", "--max-steps", "60"]


def trained(folder: Path, *arguments: str, code: int = 0) -> pd.DataFrame:
    assert run_training.main([*QUICK, *arguments, "--output-dir", str(folder)]) == code
    return pd.read_csv(folder / "training.csv")


def test_the_phases_add_up_to_what_the_wall_clock_gives_a_step(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "32").iloc[0]
    parts_ms = sum(row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer"))
    assert parts_ms == pytest.approx(1e3 * row["window_s"] / row["steps"], rel=0.03)
    assert row["timing_method"] == "cuda events between phases"


def test_no_step_waits_for_the_gpu():
    device = torch.device("cuda")
    model = models.classifier("torchvision:resnet18", 10, "cifar", 0).to(device)
    stepper, clock = Stepper(model, device, 0.1, 0.0, 0.0, 4), StepClock(on_gpu=True)
    batch = torch.randn(8, 3, 32, 32).pin_memory(), torch.zeros(8, dtype=torch.long).pin_memory()
    stepper.step(iter([batch]), lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        clock.start()
        for _ in range(3):
            stepper.step(iter([batch]), clock.mark)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert len(clock.read_ms()) == 3


def test_memory_and_energy_are_measured(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "256", "--max-steps", "300").iloc[0]
    assert 0 < row["mean_memory_bytes"] < row["peak_memory_bytes"]
    assert row["energy_source"] == "nvml energy counter"
    assert row["energy_per_sample_j"] == pytest.approx(row["power_mean_w"] / row["throughput_samples_per_s"])
    assert row["energy_uncertainty_j"] < 0.2 * row["energy_per_sample_j"]


def test_operators_take_as_long_as_forward_and_backward_where_the_gpu_is_kept_busy(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "1024", "--math", "fp32", "--enable-pytorch-profiler").iloc[0]
    operators = pd.read_csv(tmp_path / "operators.csv")
    in_them_ms = operators[operators["phase"].isin(["forward", "backward"])]["device_ms"].sum()
    assert row["launch_ms"] < row["step_ms"]
    assert in_them_ms == pytest.approx(row["forward_ms"] + row["backward_ms"], rel=0.05)
    kernels = pd.read_csv(tmp_path / "kernels.csv")
    assert kernels["kernel_ms"].sum() == pytest.approx(operators["device_ms"].sum(), rel=0.02)
    assert row["gpu_busy_ms"] == pytest.approx(row["step_ms"], rel=0.05)


def test_out_of_memory_is_a_row_and_the_next_batch_size_is_trained(tmp_path: Path):
    large = ["--model", "resnet50", "--stem", "imagenet", "--image-size", "224", "--batch-sizes", "6144,8"]
    table = trained(tmp_path, *large, "--max-steps", "12", code=1)
    assert table["status"].tolist() == ["oom", "ok"]
    assert table["reason"][0].startswith("CUDA out of memory")


def test_one_seed_gives_one_sequence_of_losses_when_deterministic(tmp_path: Path):
    options = ["--deterministic", "--dataset", "digits", "--max-steps", "20"]
    for name in ("one", "two"):
        trained(tmp_path / name, *options)
    one, two = (pd.read_csv(tmp_path / name / "epochs.csv") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)


@pytest.mark.parametrize("algorithm", ["implicit precomp gemm", "gemm"])
def test_an_algorithm_of_cudnn_trains_like_pytorch(tmp_path: Path, algorithm: str):
    options = ["--math", "fp32", "--dataset", "digits", "--max-steps", "12", "--learning-rate", "0.01"]
    losses = {}
    for name in ("torch", algorithm):
        row = trained(tmp_path / name, *options, "--algorithm", name).iloc[0]
        losses[name] = row["loss"]
    assert losses[algorithm] == pytest.approx(losses["torch"], rel=0.02)


def test_what_cudnn_refuses_is_a_row(tmp_path: Path):
    row = trained(tmp_path, "--algorithm", "winograd nonfused", code=1).iloc[0]
    assert row["status"] == "unsupported"
    assert "winograd nonfused" in row["reason"]


@pytest.mark.filterwarnings("default")  # what PyTorch's compiler warns of changes with its version
def test_a_compiled_model_stands_beside_the_eager_one(tmp_path: Path):
    trained(tmp_path, "--batch-size", "32")
    table = trained(tmp_path, "--batch-size", "32", "--compile")
    assert table["compiled"].tolist() == [False, True]
    assert (table["status"] == "ok").all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_have_a_scaling_efficiency(tmp_path: Path):
    trained(tmp_path, "--batch-size", "256")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = [*QUICK, "--batch-size", "256", "--output-dir", str(tmp_path)]
    subprocess.run([*command, run_training.__file__, *options], check=True, timeout=300)
    two = pd.read_csv(tmp_path / "training.csv").iloc[1]
    assert two["processes"] == 2
    assert 50 < two["scaling_efficiency_pct"] < 105
