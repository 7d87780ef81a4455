"""The command line that trains, on a CPU: from the command to tables, traces, curves, plots and words."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes import ROOT, tiny
from fakes.killing import Victims, wait_for

import run_training
from convscope.training import datasets
from convscope.training import study as training_study

TINY = ["--device", "cpu", "--stem", "imagenet", "--max-steps", "4", "--skip-steps", "2"]
QUICK = [*TINY, "--model", "torchvision:squeezenet1_1", "--dataset", "synthetic"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: where the machine is busy, threads that wait for each other are far slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batch sizes of ResNet-18 on digits, traced."""
    made = tmp_path_factory.mktemp("training")
    traced = ["--enable-pytorch-profiler", "--profile-memory"]
    assert run_training.main([*TINY, "--batch-sizes", "4,8", *traced, "--output-dir", str(made)]) == 0
    return made


@pytest.mark.long
def test_a_sweep_leaves_its_tables_plots_and_summaries(folder: Path):
    table = pd.read_csv(folder / "training.csv")
    assert table[["batch_size", "status", "steps"]].to_numpy().tolist() == [[4, "ok", 2], [8, "ok", 2]]
    assert table["dataset"].tolist() == ["digits"] * 2
    assert json.loads((folder / "run.json").read_text())["training"]["batch_sizes"] == [4, 8]
    assert {path.name for path in folder.glob("*.png")} == {"batch_size.png", "memory.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    assert (folder / "summary.txt").read_text().count("top operations") == 2


@pytest.mark.long
def test_the_operators_of_a_cell_have_all_of_its_time(folder: Path):
    operators = pd.read_csv(folder / "operators.csv")
    shares = operators.groupby("batch_size")["share_pct"].sum()
    assert shares.tolist() == pytest.approx([100, 100])
    kinds = operators[operators["batch_size"] == 8].groupby("category")["share_pct"].sum()
    assert kinds.idxmax() == "convolution"


def test_the_curves_are_read_back_by_tensorboard(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(folder / "profiles" / "resnet18_batch8"))
    curves.Reload()
    row = pd.read_csv(folder / "training.csv").iloc[1]
    assert len(curves.Scalars("loss/step")) == 4
    assert [event.step for event in curves.Scalars("time_ms/forward")] == [2, 3]
    assert curves.Scalars("throughput_samples_per_s")[0].value == pytest.approx(row["throughput_samples_per_s"])
    assert curves.Scalars("accuracy_pct")[0].value == pytest.approx(row["accuracy_pct"])


def test_the_trace_is_opened_by_tensorboards_loader(folder: Path, tmp_path: Path):
    from torch_tb_profiler.profiler.data import RunProfileData

    trace = folder / "profiles" / "resnet18_batch8" / "rank0.pt.trace.json"
    opened = RunProfileData.parse("rank0", None, str(trace), str(tmp_path))
    opened.process()
    calls = {operator.name: operator.calls for operator in opened.op_list_groupby_name}
    assert calls["aten::conv2d"] == 3 * 20


def test_one_cell_is_told_in_words(folder: Path, capsys: pytest.CaptureFixture[str]):
    traced = ["--enable-pytorch-profiler", "--profile-memory"]
    assert run_training.main([*TINY, "--batch-size", "4", *traced, "--output-dir", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "all 1 cells are in" in printed.err
    lines = printed.out.splitlines()
    assert lines[0] == "resnet18 on digits, batch 4, cpu (torch, float32, fp32)"
    for begin in ("- throughput: ", "- step time: ", "- data time: ", "- forward time: ", "- backward time: ",
                  "- optimizer time: ", "top operations", " 1. aten::", "opportunities", "model "):  # fmt: skip
        assert sum(line.startswith(begin) for line in lines) == 1, begin
    assert "the first 2 left out; time.perf_counter" in printed.out


@pytest.mark.parametrize(
    ("model", "count", "least_pct"), [(tiny.NAME, 3, 40), pytest.param("resnet18", 2, 90, marks=pytest.mark.long)]
)
def test_epochs_on_digits_teach_a_model_to_tell_held_out_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, count: int, least_pct: float
):
    tiny.register(monkeypatch)
    options = ["--device", "cpu", "--stem", "imagenet", "--epochs", str(count), "--model", model]
    assert run_training.main([*options, "--output-dir", str(tmp_path)]) == 0
    epochs = pd.read_csv(tmp_path / "epochs.csv")
    assert epochs["steps"].tolist() == count * [44]
    assert epochs["accuracy_pct"].iloc[-1] >= least_pct
    assert epochs["accuracy_pct"].iloc[-1] > epochs["accuracy_pct"].iloc[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "resnet19"], "unknown model 'resnet19'"),
        (["--batch-sizes", "4,x"], "'4,x': say different numbers with commas between"),
        (["--batch-sizes", "4,4"], "'4,4': say different numbers with commas between"),
        (["--batch-size", "0"], "--batch-size 0: it must be at least 1"),
        (["--dataset", "cifar10", "--data-dir", "nowhere"], "CIFAR-10 is not in nowhere"),
        (["--algorithm", "gemm"], "gemm needs a CUDA device"),
        (["--math", "tf32"], "--math tf32 needs a CUDA device"),
        (["--device", "cuda:7"], "--device cuda:7"),
        (["--output-dir", "/proc/none"], "cannot write results to /proc/none"),
        (["--weight-decay", "-1"], "--weight-decay -1.0: a number of at least 0"),
        (["--capture", "--fused-optimizer"], "--capture needs a CUDA device, this is cpu: leave --capture out"),
        (["--cudnn-benchmark", "--deterministic"], "--cudnn-benchmark picks another algorithm each time"),
        (["--algorithm", "direct", "--layout", "nhwc"], "--algorithm direct trains in float32, in nchw and without"),
        (["--image-size", "100000"], "--input-size 100000: 1,797 images of that size need "),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = run_training.main([*TINY, *arguments])
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("run_training.py: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_cell_that_cannot_be_trained_is_told_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = [*TINY, "--dataset", "digits", "--batch-size", "2000"]
    assert run_training.main([*options, "--output-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "unsupported: 1437 training images make no batch of 2000 for 1 processes" in printed.err
    assert pd.read_csv(tmp_path / "training.csv")["status"].tolist() == ["unsupported"]


def test_a_folder_of_curves_that_cannot_be_written_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(training_study, "Trainer", lambda *arguments: pytest.fail("it trains"))
    (tmp_path / "file").write_text("")
    asked = [*QUICK, "--profile-dir", str(tmp_path / "file" / "profiles"), "--output-dir", str(tmp_path / "run")]
    assert run_training.main(asked) == 2
    said = capsys.readouterr().err
    assert f"--profile-dir: cannot write to {tmp_path}/file/profiles (Not a directory)" in said
    assert said.count("\n") == 1


def test_too_many_workers_are_refused_before_the_first_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(datasets, "DataLoader", lambda *arguments, **options: pytest.fail("it starts workers"))
    assert run_training.main([*TINY, "--num-workers", "100000"]) == 2
    assert "--num-workers 100000: at most " in capsys.readouterr().err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGUSR2, 85)])
def test_a_run_that_is_killed_or_asked_to_stop_goes_on_where_it_was(
    victims: Victims, tmp_path: Path, sent: signal.Signals, code: int
):
    sizes, folder = [str(size) for size in range(2, 200)], tmp_path / "run"
    asked = [*QUICK, "--batch-sizes", ",".join(sizes)]
    running = victims.run(folder, *asked, program="run_training", environment={"PATH": os.environ["PATH"]})  # for git
    wait_for((folder / "training.csv").exists, seconds=180)  # the first cell is on the disk
    os.kill(running, sent)
    assert victims.end() == code
    before = pd.read_csv(folder / "training.csv")
    count = len(before)
    assert 1 <= count < len(sizes)
    options = ["--batch-sizes", ",".join(sizes[: count + 1]), "--output-dir", str(folder)]
    assert run_training.main([*QUICK, *options]) == 0
    after = pd.read_csv(folder / "training.csv")
    assert after["batch_size"].tolist() == list(range(2, count + 3))
    pd.testing.assert_frame_equal(after[:count], before)


def by_torchrun(victims: Victims, folder: Path, options: list[str]) -> list[str]:
    """Train in two processes that torchrun starts; return what they printed."""
    together = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*together, str(ROOT / "run_training.py"), *options, "--output-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return [done.stdout.decode()]


def by_forks(victims: Victims, folder: Path, options: list[str]) -> list[str]:
    """Train in two processes with the variables that torchrun sets; return what each printed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    logs = [Path(f"{folder}.{rank}") for rank in range(2)]
    for rank, log in enumerate(logs):
        place = meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        victims.run(folder, *options, program="run_training", environment=place, log=str(log))
    codes = [victims.end() for _ in logs]
    printed = [log.read_text() for log in logs]
    assert codes == [0, 0], printed
    return printed


@pytest.mark.parametrize("start", [by_forks, pytest.param(by_torchrun, marks=pytest.mark.long)])
def test_two_processes_train_together_and_efficiency_is_told(
    victims: Victims, tmp_path: Path, start: Callable[[Victims, Path, list[str]], list[str]]
):
    options, folder = [*QUICK, "--batch-size", "4"], tmp_path / "run"
    assert run_training.main([*options, "--output-dir", str(folder)]) == 0
    printed = start(victims, folder, options)
    table = pd.read_csv(folder / "training.csv")
    assert table["processes"].tolist() == [1, 2]
    one, two = table.to_dict("records")
    ideal = 2 * one["throughput_samples_per_s"]
    assert two["scaling_efficiency_pct"] == pytest.approx(100 * two["throughput_samples_per_s"] / ideal)
    assert "".join(printed).count("results: ") == 1
