"""The inference study with engines that are handed in: agreement, rows, load, what is tried again."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes.inference import ASKED, run, study
from triton.runtime.errors import OutOfResources

from convscope.distributed import Ranks
from convscope.errors import InputError, MissingError, WorkerError
from convscope.failures import Failure
from convscope.inference.engines import catalogue
from convscope.inference.engines.catalogue import Recipe
from convscope.inference.engines.runners import LocalRunner
from convscope.inference.engines.workload import BuildCost, Engine, Workload
from convscope.inference.request import METRICS, build_model, check
from convscope.inference.rows import TABLE, InferenceRow


def test_a_cell_has_its_figures(tmp_path: Path):
    rows = run(tmp_path)
    assert rows["batch_size"].tolist() == [1, 2]
    row = rows.iloc[1]
    assert row["status"] == "ok"
    assert row["samples"] == 5
    assert row["latency_p50_ms"] <= row["latency_p90_ms"] <= row["latency_p99_ms"]
    assert row["images_per_s"] * row["window_s"] >= 2
    assert row["energy_per_image_j"] == pytest.approx(100 / row["images_per_s"])
    assert row["energy_uncertainty_j"] == pytest.approx(2 / row["images_per_s"])
    assert row["image_error"] == 0 < row["image_tolerance"] < 1e-2
    assert row["model"] == "resnet18"


def test_an_engine_that_disagrees_has_no_latency(tmp_path: Path, engine: Any):
    engine("wrong", wrong_by=0.01)
    row = run(tmp_path, engines=("wrong",), batch_sizes=(1,)).iloc[0]
    assert row["status"] == "wrong"
    found = re.match(r"the output for an image differs from eager float32 by ([\d.]+) of the distance", row["reason"])
    assert 0 < float(found[1]) < 1
    assert pd.isna(row["latency_mean_ms"])
    assert pd.isna(row["images_per_s"])


def test_an_engine_that_computes_no_number_disagrees(tmp_path: Path, engine: Any):
    engine("nan", wrong_by=float("nan"))
    row = run(tmp_path, engines=("nan",), batch_sizes=(1,)).iloc[0]
    assert row["status"] == "wrong"
    assert row["reason"].startswith("the output for an image differs from eager float32 by nan")


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
def test_matrix_products_may_use_tf32_where_convolutions_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
):
    seen: list[tuple[bool, bool]] = []

    def make(workload: Workload) -> Engine:
        seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
        raise MissingError("seen")

    monkeypatch.setitem(catalogue.ENGINES, "seen", Recipe(make))
    run(tmp_path, engines=("seen",), batch_sizes=(1,), math=mode)
    assert seen == [(mode == "tf32",) * 2]
    assert not torch.backends.cuda.matmul.allow_tf32


def test_what_failed_is_tried_again_and_what_is_there_is_not(tmp_path: Path, engine: Any):
    engine("late", error=MissingError("not yet"))
    before = run(tmp_path, engines=("eager", "late"), batch_sizes=(1,))
    assert before["status"].tolist() == ["ok", "unsupported"]
    engine("late")
    after = run(tmp_path, engines=("eager", "late"), batch_sizes=(1,))
    assert after["status"].tolist() == ["ok", "ok"]
    assert after["started_utc"][0] == before["started_utc"][0]
    assert after["latency_mean_ms"][0] == before["latency_mean_ms"][0]


def test_a_process_that_is_gone_at_the_last_question_is_a_row_too(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
):
    def gone(runner: LocalRunner) -> int | None:
        raise WorkerError("its process was ended")

    monkeypatch.setattr(LocalRunner, "peak_memory_bytes", gone)
    row = run(tmp_path, engines=("eager",), batch_sizes=(1,)).iloc[0]
    assert (row["status"], row["reason"]) == ("failed", "its process was ended")


def test_a_compiler_that_an_engine_calls_outlives_the_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(workload: Workload) -> Engine:
        signalled = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2)"
        subprocess.run([sys.executable, "-c", signalled], check=True)
        return catalogue.make(catalogue.BASELINE, workload)

    monkeypatch.setitem(catalogue.ENGINES, "compiled", Recipe(make))
    assert run(tmp_path, engines=("compiled",), batch_sizes=(1,)).iloc[0]["status"] == "ok"


def test_a_failure_once_the_run_is_to_end_is_no_row(tmp_path: Path, engine: Any):
    engine("ended", error=WorkerError("its process was ended by SIGTERM"))
    asked = study(tmp_path, engines=("ended",), batch_sizes=(1,))
    signals = iter([False, True])  # it comes while the cell is measured
    asked.stop = lambda: next(signals)
    asked.run()
    assert asked.stopped
    assert not asked.failed
    assert not asked.store.measured()


def test_a_kernel_that_does_not_fit_the_card_is_a_row(tmp_path: Path, engine: Any):
    refusal = OutOfResources(300_000, 232_448, "shared memory")
    engine("large", error=refusal)
    row = run(tmp_path, engines=("large",), batch_sizes=(1,)).iloc[0]
    assert (row["status"], row["reason"]) == ("unsupported", str(refusal))


def test_an_error_that_is_nobodys_own_is_not_hidden(tmp_path: Path, engine: Any):
    engine("broken", error=RuntimeError("a mistake in the program"))
    with pytest.raises(RuntimeError, match="a mistake in the program"):
        run(tmp_path, engines=("broken",), batch_sizes=(1,))


def test_a_stop_ends_before_the_next_cell(tmp_path: Path):
    begun = study(tmp_path)
    begun.stop = iter([False, True]).__next__
    begun.run()
    assert begun.stopped
    assert len(begun.store.read(TABLE)) == 1


@pytest.mark.parametrize(
    ("scenario", "has", "lacks", "sizes"),
    [
        ("single-stream", "latency_p90_ms", "images_per_s", [1]),
        ("multi-stream", "latency_p99_ms", "images_per_s", [8]),
        ("offline", "images_per_s", "within_slo", [1, 2]),
    ],
)
def test_a_scenario_measures_what_its_name_means(tmp_path: Path, scenario: str, has: str, lacks: str, sizes: list[int]):
    asked = check(dataclasses.replace(ASKED, scenario=scenario))
    rows = run(tmp_path, scenario=scenario, batch_sizes=asked.batch_sizes, min_seconds=0.2, seeds=2)
    assert rows["batch_size"].tolist() == sizes
    assert (rows["status"] == "ok").all(), rows["reason"].tolist()
    assert rows[has].notna().all()
    assert rows[lacks].isna().all()
    assert METRICS[scenario] == has
    assert rows["valid"].all(), rows["reason"].tolist()
    assert (rows["runs"] == 2).all()
    assert rows["load_generator"].str.startswith("MLPerf LoadGen").all()
    assert (rows["inputs"] == "host").all()
    low, high = (
        ("images_per_s_low", "images_per_s_high") if scenario == "offline" else ("latency_low_ms", "latency_high_ms")
    )
    assert (rows[low] <= rows[has]).all()
    assert (rows[has] <= rows[high]).all()


def test_an_engine_that_goes_wrong_while_it_is_timed_has_no_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def make(workload: Workload) -> Engine:
        calls, given = iter(range(10**9)), workload.input()

        def step() -> torch.Tensor:
            with torch.no_grad():
                output: torch.Tensor = workload.model(given) * (1.0 if next(calls) < 4 else float("nan"))
            return output

        return workload.local(step, given), BuildCost()

    monkeypatch.setitem(catalogue.ENGINES, "drifting", Recipe(make))
    row = run(tmp_path, engines=("drifting",), batch_sizes=(1,)).iloc[0]
    assert row["status"] == "wrong"
    assert row["reason"].startswith("the output for an image differs from eager float32 by nan")
    assert pd.isna(row["latency_mean_ms"])


def test_a_folder_of_version_2_goes_on_without_the_columns_that_meant_something_else(tmp_path: Path):
    before = run(tmp_path, batch_sizes=(1,))
    file, document = tmp_path / "inference.csv", tmp_path / "run.json"
    new = [name for name in before if name.startswith(("image_", "top1", "weak", "strong", "inputs", "runs", "valid"))]
    old = before.drop(columns=new).assign(relative_error=0.02, tolerance=0.05, scaling_efficiency_pct=86.0)
    file.write_text(old.to_csv(index=False))
    text = json.loads(document.read_text())
    document.write_text(json.dumps(text | {"schema_version": 2}))
    after = run(tmp_path, batch_sizes=(1, 2))
    assert after["batch_size"].tolist() == [1, 2]
    assert after["latency_mean_ms"][0] == before["latency_mean_ms"][0]
    assert after["image_tolerance"].isna().tolist() == [True, False]
    assert "relative_error" not in file.read_text()
    assert json.loads(document.read_text())["schema_version"] == 3


def test_calls_with_copies_are_cells_of_their_own(tmp_path: Path):
    run(tmp_path, batch_sizes=(2,))
    rows = run(tmp_path, batch_sizes=(2,), with_copies=True)
    assert rows["status"].tolist() == ["ok", "ok"]
    assert rows["inputs"].fillna("").tolist() == ["", "host"]
    assert rows["timing_method"][1].endswith(", images copied from host memory, output copied back")


def test_only_what_fails_this_time_counts_as_failed(tmp_path: Path, engine: Any):
    engine("full", error=torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    before = study(tmp_path, engines=("full",), batch_sizes=(1,))
    before.run()
    assert before.failed
    after = study(tmp_path, batch_sizes=(2,))
    after.run()
    assert not after.failed


class Twins(Ranks):
    """Two processes that find the same."""

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


def test_processes_share_a_batch_and_their_images_add_up(tmp_path: Path):
    begun = study(tmp_path, processes=2, batch_sizes=(3, 4))
    begun.ranks = Twins(rank=0, world=2)
    begun.run()
    rows = begun.store.read(TABLE)
    assert rows["status"].tolist() == ["unsupported", "ok"]
    assert rows["reason"][0] == "a batch of 3 cannot be shared evenly among 2 processes"
    one, two = map(float, rows["images_per_s_per_process"][1].split("|"))
    assert one == two
    assert one + two == pytest.approx(rows["images_per_s"][1], rel=0.01)


def test_what_fails_in_another_process_fails_here_too(tmp_path: Path):
    class OtherFails(Ranks):
        def gather(self, value: Any) -> list[Any]:
            return [value, Failure("oom", "too much")] if value is None else [value, value]

    begun = study(tmp_path, processes=2, batch_sizes=(4,))
    begun.ranks = OtherFails(rank=0, world=2)
    begun.run()
    rows = begun.store.read(TABLE)
    assert rows[["status", "reason"]].to_numpy().tolist() == [["oom", "too much"]]


def scaled(folder: Path, *cells: tuple[int, int, float]) -> dict[tuple[int, int], tuple[float | None, float | None]]:
    """Return weak and strong scaling by processes and batch size, of cells with these images/s."""
    begun = study(folder)
    for processes, size, rate in cells:
        begun._add(InferenceRow("resnet18", "eager", size, processes, "batch", images_per_s=rate))
    rows = begun.store.objects(TABLE)[TABLE]
    return {(row.processes, row.batch_size): (row.weak_scaling_pct, row.strong_scaling_pct) for row in rows}


def test_weak_scaling_keeps_the_batch_of_a_gpu_and_strong_scaling_the_batch_of_all(tmp_path: Path):
    found = scaled(tmp_path, (1, 2, 100.0), (1, 4, 160.0), (2, 4, 180.0))
    assert found == {(1, 2): (None, None), (1, 4): (None, None), (2, 4): (90.0, 56.25)}


def test_one_gpu_may_be_measured_after_several(tmp_path: Path):
    found = scaled(tmp_path, (2, 4, 180.0), (2, 8, 200.0), (1, 4, 160.0))
    assert found == {(2, 4): (None, 56.25), (2, 8): (62.5, None), (1, 4): (None, None)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engines": ("eager", "none")}, "--engines none: choose from eager,graph"),
        ({"scenario": "stream"}, "--scenario stream: choose one of batch"),
        ({"batch_sizes": (0,)}, "--batch-sizes 0: it must be at least 1"),
        ({"processes": 0}, "--gpus 0: it must be at least 1"),
        ({"min_seconds": 0.0}, "--min-seconds 0.0: a number above 0"),
        ({"slo_ms": float("nan")}, "--slo-ms nan: a number above 0"),
        ({"batch_sizes": (10**10,)}, "--batch-sizes 10000000000: a batch of 32×32 images has more than 1e+12 pixels"),
        ({"qps": (1e13,), "scenario": "server"}, "--qps 10000000000000: it must be at most 100000"),
        (
            {"qps": (1e4,), "scenario": "server", "min_seconds": 1e4 + 1},
            "--qps 10000: more than 1e+08 requests",
        ),
        ({"with_copies": True, "scenario": "offline"}, "--scenario offline copies images unless --resident"),
        ({"resident": True}, "--scenario batch copies nothing unless --with-copies: leave out --resident"),
        ({"seeds": 0}, "--seeds 0: it must be at least 1"),
        ({"max_delay_ms": 15, "scenario": "server"}, "--max-delay-ms 15: it must be less than --slo-ms 15"),
        ({"qps": (10.0,)}, "--qps is the rate of a server's requests: say --scenario server"),
        ({"qps": (-1.0,), "scenario": "server"}, "--qps -1.0: a number above 0"),
        ({"scenario": "server", "processes": 2}, "--scenario server is measured by one process"),
        ({"model": "resnet51"}, "unknown model 'resnet51'"),
        ({"max_delay_ms": -1.0}, "--max-delay-ms -1.0: it must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str):
    with pytest.raises(InputError, match=re.escape(said)):
        check(dataclasses.replace(ASKED, **changes))


def test_an_image_that_is_too_small_is_bad_input():
    with pytest.raises(InputError, match="alexnet cannot take 8×8 images"):
        build_model(dataclasses.replace(ASKED, model="alexnet", image_size_px=8))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
