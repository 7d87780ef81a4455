"""The training study on a GPU: the clock against the wall and against CUPTI, memory, energy, algorithms, two GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
import torch

import run_training
from convscope.convolution import backends, models
from convscope.training.captured import CAPTURED_METHOD, WARM_UP_STEPS, CapturedStepper
from convscope.training.step import StepClock, Stepper
from convscope.training.study import deterministic

QUICK = ["--dataset", "synthetic", "--max-steps", "60"]
CAPTURED = ["--fused-optimizer", "--capture"]


def trained(folder: Path, *arguments: str, code: int = 0) -> pd.DataFrame:
    assert run_training.main([*QUICK, *arguments, "--output-dir", str(folder)]) == code
    return pd.read_csv(folder / "training.csv")


def test_the_phases_add_up_to_what_the_wall_clock_gives_a_step(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "32").iloc[0]
    parts_ms = sum(row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer"))
    assert parts_ms == pytest.approx(1e3 * row["window_s"] / row["steps"], rel=0.03)
    assert row["timing_method"] == "CUDA events between the phases"


@pytest.mark.parametrize(("kind", "fused"), [(Stepper, False), (CapturedStepper, True)])
def test_no_step_waits_for_the_gpu(kind: type[Stepper], fused: bool):
    device = torch.device("cuda")
    model = models.classifier("torchvision:resnet18", 10, "cifar", 0).to(device)
    stepper, clock = kind(model, device, 0.1, 0.0, 0.0, 8, fused=fused), StepClock(on_gpu=True, ahead=2)
    batch = torch.randn(8, 3, 32, 32).pin_memory(), torch.zeros(8, dtype=torch.long).pin_memory()
    for _ in range(WARM_UP_STEPS):
        stepper.step(iter([batch]))
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


def test_the_card_is_on_record_without_energy_too(tmp_path: Path):
    trained(tmp_path, "--batch-size", "8", "--no-energy")
    environment = json.loads((tmp_path / "run.json").read_text())["environment"]
    assert environment["driver"]
    assert environment["power_limit_w"] > 0


@pytest.mark.quiet
def test_memory_and_energy_are_measured(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "256", "--max-steps", "300").iloc[0]
    assert 0 < row["mean_memory_bytes"] < row["peak_memory_bytes"]
    assert row["energy_source"] == "nvml energy counter"
    assert row["energy_per_sample_j"] == pytest.approx(row["power_mean_w"] / row["throughput_samples_per_s"])
    assert row["energy_uncertainty_j"] < 0.2 * row["energy_per_sample_j"]


@pytest.mark.quiet
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


def train_by(kind: type[Stepper], sizes: list[int]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train ResNet-18 by steps of a kind on batches of these sizes; return their losses, and the model's state then."""
    device, generator = torch.device("cuda"), torch.Generator().manual_seed(1)
    model = models.classifier("torchvision:resnet18", 10, "cifar", 0).to(device)
    stepper = kind(model, device, 0.01, 0.9, 5e-4, len(sizes), fused=True)
    images = [torch.randn(size, 3, 32, 32, generator=generator) for size in sizes]
    given = iter([(each, torch.randint(10, (len(each),), generator=generator)) for each in images])
    with backends.math("fp32"), deterministic(True):
        losses = [stepper.step(given) for _ in sizes]
        return torch.stack(losses).tolist(), model.state_dict()


@pytest.mark.parametrize("sizes", [[16] * 12, [*[16] * 6, 5, *[16] * 3]])  # the second with a batch that is not whole
def test_captured_steps_train_as_eager_ones(sizes: list[int]):
    (eager, expected), (captured, state) = train_by(Stepper, sizes), train_by(CapturedStepper, sizes)
    assert captured == pytest.approx(eager, rel=1e-3)
    assert state["bn1.num_batches_tracked"] == len(sizes)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.quiet
def test_a_captured_cell_stands_beside_the_eager_one_with_the_same_losses(tmp_path: Path):
    options = ["--deterministic", "--dataset", "digits", "--max-steps", "40", "--math", "fp32"]
    trained(tmp_path, *options, "--fused-optimizer")
    table = trained(tmp_path, *options, *CAPTURED)
    assert table["captured"].tolist() == [False, True]
    assert table["timing_method"].tolist() == ["CUDA events between the phases", CAPTURED_METHOD]
    assert table["loss"][1] == pytest.approx(table["loss"][0], rel=0.01)
    assert table["launch_ms"][1] < 0.5 * table["launch_ms"][0]
    epochs = pd.read_csv(tmp_path / "epochs.csv")
    assert epochs["captured"].tolist() == [False, True]
    assert epochs["train_loss"][1] == pytest.approx(epochs["train_loss"][0], rel=0.01)


@pytest.mark.quiet
def test_the_phases_of_a_captured_step_are_timed_at_each_replay(tmp_path: Path):
    row = trained(tmp_path, "--batch-size", "256", *CAPTURED).iloc[0]
    phases_ms = [row[f"{phase}_ms"] for phase in ("data", "forward", "backward", "optimizer")]
    assert min(phases_ms) > 0
    assert sum(phases_ms) == pytest.approx(1e3 * row["window_s"] / row["steps"], rel=0.03)
    assert phases_ms[2] > phases_ms[3]  # the backward pass takes longer than the update
    assert not row["host_bound"]


def test_the_memory_of_a_captured_step_is_that_of_the_eager_one(tmp_path: Path):
    trained(tmp_path, "--batch-size", "256", "--fused-optimizer")
    table = trained(tmp_path, "--batch-size", "256", *CAPTURED)
    assert table["peak_memory_bytes"][1] == pytest.approx(table["peak_memory_bytes"][0], rel=0.3)
    assert table["mean_memory_bytes"].isna().tolist() == [False, True]


def test_a_step_is_captured_while_a_loader_pins_memory(tmp_path: Path):
    row = trained(tmp_path, "--dataset", "digits", "--num-workers", "2", *CAPTURED).iloc[0]
    assert (row["status"], row["captured"]) == ("ok", True)


@pytest.mark.parametrize("more", [["--dtype", "bfloat16"], ["--layout", "nhwc"], ["--momentum", "0"]])
def test_a_captured_step_goes_with_other_settings(tmp_path: Path, more: list[str]):
    row = trained(tmp_path, *CAPTURED, *more).iloc[0]
    assert (row["status"], row["captured"]) == ("ok", True)


def test_an_algorithm_of_cudnn_is_captured(tmp_path: Path):
    options = ["--math", "fp32", "--dataset", "digits", "--max-steps", "12", "--fused-optimizer"]
    options += ["--algorithm", "implicit precomp gemm"]
    trained(tmp_path, *options)
    table = trained(tmp_path, *options, "--capture")
    assert table["status"].tolist() == ["ok", "ok"]
    assert table["loss"][1] == pytest.approx(table["loss"][0], rel=0.02)


@pytest.mark.filterwarnings("default")  # what PyTorch's compiler warns of changes with its version
def test_a_compiled_step_is_captured(tmp_path: Path):
    trained(tmp_path, "--fused-optimizer", "--compile")
    table = trained(tmp_path, *CAPTURED, "--compile")
    assert table[["compiled", "captured", "status"]].to_numpy().tolist() == [[True, False, "ok"], [True, True, "ok"]]


@pytest.mark.quiet
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_have_a_scaling_efficiency(tmp_path: Path):
    trained(tmp_path, "--batch-size", "256")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = [*QUICK, "--batch-size", "256", "--output-dir", str(tmp_path)]
    subprocess.run([*command, run_training.__file__, *options], check=True, timeout=300)
    two = pd.read_csv(tmp_path / "training.csv").iloc[1]
    assert two["processes"] == 2
    assert 50 < two["scaling_efficiency_pct"] < 105
