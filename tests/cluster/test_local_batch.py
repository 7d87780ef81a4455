"""A matrix without SLURM: one process a device, a failure stops only itself, signals reach the runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes.killing import wait_for

from convscope.cluster import local_batch, progress
from convscope.cluster.submission import Plan, Work
from convscope.errors import InputError
from convscope.storage.paths import Combination

UUIDS = ("GPU-a", "GPU-b", "GPU-c")
SCRIPT = """#!/usr/bin/env bash
echo "$CUDA_VISIBLE_DEVICES ${0##*/} $*" >>calls
trap 'exit 85' USR2
[[ $3 != gemm ]] || { echo "gemm is not here" >&2 && exit 2; }
[[ $3 != winograd ]] || while :; do sleep 0.05; done
[[ $3 != smm ]] || { trap '' TERM; sleep 60 & echo $! >deaf; wait; }
[[ $3 != "implicit gemm" ]] || exit 75
"""


class NoDriverError(Exception):
    """A stand-in for NVML's error."""


def library(names: tuple[str, ...] = ("NVIDIA H200",) * 3) -> SimpleNamespace:
    return SimpleNamespace(
        NVMLError=NoDriverError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda index: UUIDS[index],
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: names[UUIDS.index(handle)],
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder whose stages only note how they were called, fail on gemm, and never end on winograd."""
    for name in local_batch.SCRIPTS.values():
        (tmp_path / name).write_text(SCRIPT)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def batch(root: Path, *names: str, stages: tuple[str, ...] = ("1_sanity",), count: int = 1) -> local_batch.LocalBatch:
    found = [local_batch.Device(f"GPU {at}", uuid) for at, uuid in enumerate(UUIDS[:count])]
    return local_batch.LocalBatch(
        [Combination("alexnet", name, "h200") for name in names], stages, found, ["--seed", "1"], root
    )


def calls(root: Path) -> list[str]:
    return (root / "calls").read_text().splitlines()


def test_gpus_are_those_that_cuda_shows():
    assert [each.uuid for each in local_batch.devices("", None, library())] == list(UUIDS)
    assert [each.uuid for each in local_batch.devices("1", "2,0", library())] == ["GPU-a"]
    assert [each.uuid for each in local_batch.devices("cpu,cpu", None)] == [None, None]


@pytest.mark.parametrize("wanted", ["3", "0,0", "0,cpu", "x"])
def test_gpus_that_are_not_here_are_refused_in_one_line(wanted: str):
    with pytest.raises(InputError, match=f"--gpus {wanted}: this machine has 3 GPUs: name each once, 0 to 2"):
        local_batch.devices(wanted, None, library())


def test_cards_of_different_kinds_have_no_common_label():
    found = local_batch.devices("", None, library(("NVIDIA H200", "NVIDIA H200", "NVIDIA L40S")))
    assert local_batch.label(found[:2], library()) == "h200"
    with pytest.raises(InputError, match=r"different cards \(h200, l40s\)"):
        local_batch.label(found, library(("NVIDIA H200", "NVIDIA H200", "NVIDIA L40S")))


def test_a_combination_that_fails_stops_only_itself(root: Path, capsys: pytest.CaptureFixture[str]):
    assert batch(root, "fft", "gemm", "guess", stages=("1_sanity", "2_quick")).run(local_batch.Stop()) == 1
    assert calls(root) == [
        "GPU-a 1_sanity_check.sh --local alexnet fft h200 --seed 1 --any-card",
        "GPU-a 2_quick_sweep.sh --local alexnet fft h200 --seed 1 --any-card",
        "GPU-a 1_sanity_check.sh --local alexnet gemm h200 --seed 1 --any-card",
        "GPU-a 1_sanity_check.sh --local alexnet guess h200 --seed 1 --any-card",
        "GPU-a 2_quick_sweep.sh --local alexnet guess h200 --seed 1 --any-card",
    ]
    said = capsys.readouterr().out
    assert "2 done, 1 failed" in said
    assert "failed: 1_sanity alexnet, gemm, h200: gemm is not here" in said


def test_each_gpu_has_a_process_of_its_own(root: Path):
    assert batch(root, "fft", "guess", count=2).run(local_batch.Stop()) == 0
    assert sorted(line.split()[0] for line in calls(root)) == ["GPU-a", "GPU-b"]


@contextlib.contextmanager
def sent(number: signal.Signals, after: Path) -> Iterator[local_batch.Stop]:
    """Send this process a signal once a file is there, within the block."""

    def send() -> None:
        while not after.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    with local_batch.Stop() as stop:
        sender = threading.Thread(target=send)
        sender.start()
        yield stop
        sender.join()


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_runs_and_starts_no_more(
    root: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
):
    with sent(number, after=root / "calls") as stop:
        assert batch(root, "winograd", "fft").run(stop) == 85
    assert len(calls(root)) == 1
    assert "1 stopped, 1 not started" in capsys.readouterr().out


def test_a_run_that_does_not_end_in_its_time_is_killed_with_its_children(
    root: Path, capsys: pytest.CaptureFixture[str]
):
    deaf = batch(root, "smm")
    deaf.kill_after_s = 0.5
    with sent(signal.SIGTERM, after=root / "deaf") as stop:
        assert deaf.run(stop) == 85
    assert "1 stopped" in capsys.readouterr().out
    child = Path("/proc", (root / "deaf").read_text().strip(), "stat")
    wait_for(lambda: state_of(child) in ("", "Z", "X"), seconds=10)  # a signal has come before its process has gone


def state_of(process: Path) -> str:
    try:
        return process.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_run_that_somebody_else_ended_is_stopped_and_not_failed(root: Path, capsys: pytest.CaptureFixture[str]):
    assert batch(root, "implicit gemm", "fft").run(local_batch.Stop()) == 85
    assert capsys.readouterr().out.splitlines()[-1] == "1 done, 1 stopped"


def test_a_second_interrupt_is_more_urgent_than_the_first():
    with local_batch.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.level == 1
        os.kill(os.getpid(), signal.SIGUSR2)
        assert stop.level == 1
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.level == 2


def test_finished_combinations_are_left_out_and_a_dry_run_prints_the_commands(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (root / "matrix").write_text("alexnet\tdirect\nalexnet\ttorch\n")
    left = [Work(Combination("alexnet", "torch", "cpu"), ("1_sanity",))]
    monkeypatch.setattr(local_batch.matrix, "plan", lambda planner, every: Plan(left, len(every) - 1, {}))
    arguments = [str(root / "matrix"), "--stages", "1_sanity", "--gpu", "cpu", "--dry-run", "--", "--seed", "2"]
    assert local_batch.main(arguments, root) == 0
    assert capsys.readouterr().out == "./1_sanity_check.sh --local alexnet torch cpu --seed 2\n"
    assert progress.read(root / "results/1_sanity/alexnet_torch_cpu", "1_sanity") is None
