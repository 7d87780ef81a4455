"""Cells of MLPerf's scenarios: rates, what is delivered under load, what another command adds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes.inference import run, study

from convscope.errors import MissingError, WorkerError
from convscope.inference.engines import catalogue
from convscope.inference.engines.catalogue import Recipe
from convscope.inference.engines.workload import BuildCost, Engine, Workload
from convscope.inference.load import LoadTest
from convscope.inference.rows import TABLE
from convscope.inference.serving.mlperf import Outcome

SERVER: dict[str, Any] = {"scenario": "server", "min_seconds": 0.1, "seeds": 1, "slo_ms": 200.0}


def test_a_servers_p99_is_measured_at_each_rate(tmp_path: Path, engine: Any):
    engine("slow", batch_s=0.001)
    rows = run(tmp_path, engines=("slow",), qps=(400.0, 20_000.0), batch_sizes=(1, 2), **SERVER)
    assert rows["target_qps"].tolist() == [400, 20_000]
    assert rows["within_slo"].tolist() == [True, False]
    assert rows["reason"].isna().tolist() == [True, False]
    assert 1 < rows["latency_p50_ms"][0] < 200 < rows["latency_p99_ms"][1]
    assert rows["images_per_s"][1] < 3000
    assert re.fullmatch(r"[\d,]+ of [\d,]+ requests/s were answered", rows["reason"][1])
    assert rows["mean_batch"][0] < rows["mean_batch"][1] <= 2
    assert rows["batch_size"].tolist() == [2, 2]
    assert rows["scheduled_qps"][0] == pytest.approx(400, rel=0.2)


def test_without_rates_the_knee_is_looked_for_from_both_sides(tmp_path: Path, engine: Any):
    engine("slow", batch_s=0.004)
    rows = run(tmp_path, engines=("slow",), batch_sizes=(8,), **(SERVER | {"slo_ms": 100.0}))
    kept, lost = (rows[rows["within_slo"] == is_kept]["target_qps"] for is_kept in (True, False))
    assert 100 < kept.max() < lost.max() < 5000


def test_an_engine_that_cannot_serve_is_a_row(tmp_path: Path, engine: Any):
    engine("missing", error=MissingError("none: get one"))
    rows = run(tmp_path, engines=("missing",), qps=(1000.0,), **SERVER)
    assert rows[["status", "reason"]].to_numpy().tolist() == [["unsupported", "none: get one"]]
    engine("missing")
    rows = run(tmp_path, engines=("missing",), qps=(1000.0,), **SERVER)
    assert rows[["status", "target_qps"]].to_numpy().tolist() == [["ok", 1000.0]]


def test_a_second_call_goes_on_between_the_rates_of_the_first(tmp_path: Path, engine: Any):
    engine("slow", batch_s=0.001)
    options = {**SERVER, "batch_sizes": (1,), "engines": ("slow",)}
    run(tmp_path, qps=(300.0, 5_000.0), **options)
    begun = study(tmp_path, **options)
    assert begun._within(begun.key("slow", 1)) == {300.0: True, 5_000.0: False}
    assert begun._within(begun.key("eager", 1)) == {}
    for changed in ({"slo_ms": 60.0}, {"resident": True}):
        other = study(tmp_path, **(options | changed))
        assert other._within(other.key("slow", 1)) == {}


@pytest.mark.parametrize("resident", [False, True])
def test_what_is_delivered_under_load_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: bool):
    """An engine that is right when it is asked alone, and answers wrongly under load."""

    def make(workload: Workload) -> Engine:
        given, calls = workload.input(), iter(range(10**9))

        def step() -> torch.Tensor:
            with torch.no_grad():
                output: torch.Tensor = workload.model(given)
            return output if next(calls) < 60 else output.flip(1)

        return workload.local(step, given), BuildCost()

    monkeypatch.setitem(catalogue.ENGINES, "drifting", Recipe(make))
    options = {**SERVER, "batch_sizes": (1,), "qps": (1000.0,), "resident": resident}
    rows = run(tmp_path, engines=("drifting",), **options)
    assert rows["status"].tolist() == ["wrong"]
    assert run(tmp_path, engines=("eager",), **options)["status"].tolist() == ["wrong", "ok"]


@pytest.mark.long
def test_onnxruntime_serves_from_a_process_with_all_its_batch_sizes(tmp_path: Path):
    rows = run(tmp_path, engines=("onnxruntime",), batch_sizes=(1, 4), qps=(1000.0,), **SERVER)
    assert rows["status"].tolist() == ["ok"], rows["reason"].tolist()
    assert rows["within_slo"].tolist() == [True]
    assert 0 < rows["image_error"][0] < rows["image_tolerance"][0]


@pytest.mark.long
def test_a_server_command_that_has_run_measures_nothing_and_other_settings_do(tmp_path: Path, engine: Any):
    engine("slow")
    options = {**SERVER, "engines": ("slow",), "batch_sizes": (1, 2), "slo_ms": 60e3}
    first = run(tmp_path, qps=(1000.0, 2000.0), **options)
    assert len(first) == 2
    assert first["started_utc"].notna().all()
    engine("slow", error=RuntimeError("set up again"))
    pd.testing.assert_frame_equal(run(tmp_path, qps=(2000.0, 1000.0), **options), first)
    engine("slow")
    changes = {"slo_ms": 0.01}, {"max_delay_ms": 9}, {"batch_sizes": (2,)}, {"resident": True}
    for count, changed in enumerate(changes, 3):
        rows = run(tmp_path, qps=(1000.0,), **(options | changed))
        assert len(rows) == count
    assert rows["within_slo"].tolist() == [True, True, False, True, True, True]


def test_an_engine_that_ends_under_load_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def ended(self: LoadTest, rate_qps: float, seed: int) -> None:
        raise WorkerError("onnxruntime: the process ended without a word")

    monkeypatch.setattr(LoadTest, "run", ended)
    begun = study(tmp_path, qps=(20.0,), batch_sizes=(1,), **SERVER)
    begun.run()
    assert begun.failed
    row = begun.store.read(TABLE).iloc[0]
    assert (row["status"], row["reason"]) == ("failed", "onnxruntime: the process ended without a word")


def test_loads_of_an_earlier_generator_are_measured_again(tmp_path: Path):
    options = {**SERVER, "qps": (1000.0,), "batch_sizes": (1,), "resident": True}
    before = run(tmp_path, **options)
    assert before["inputs"].isna().all()
    file = tmp_path / "inference.csv"
    file.write_text(before.assign(load_generator="").to_csv(index=False))
    asked = study(tmp_path, **options)
    assert asked._within(asked.key("eager", 1)) == {}


def test_a_stop_between_two_seeds_ends_the_study_without_a_row(tmp_path: Path):
    begun = study(tmp_path, qps=(1000.0,), batch_sizes=(1,), **(SERVER | {"seeds": 2}))
    begun.stop = iter([False, False, False, True]).__next__
    begun.run()
    assert begun.stopped
    assert begun.store.read(TABLE).empty


@pytest.mark.long
@pytest.mark.parametrize("resident", [False, True])
def test_a_process_with_all_sizes_is_judged_too(tmp_path: Path, resident: bool):
    options = {**SERVER, "qps": (1000.0,), "batch_sizes": (1, 2), "resident": resident}
    rows = run(tmp_path, engines=("onnxruntime",), **options)
    assert rows["status"].tolist() == ["ok"], rows["reason"].tolist()


def test_an_engine_that_reaches_the_expected_rate_is_run_again_for_as_long_as_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LoadTest, "unreached_qps", lambda test: 200.0)
    options = {"scenario": "offline", "min_seconds": 0.2, "seeds": 2, "batch_sizes": (4,)}
    rates: list[float] = []

    def once(test: LoadTest, rate_qps: float, seed: int) -> Outcome:
        rates.append(rate_qps)
        return Outcome(1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0, None, 1.0, "short", gave_up=False, is_short=rate_qps < 700)

    monkeypatch.setattr(LoadTest, "_once", once)
    monkeypatch.setattr(LoadTest, "answers", lambda test: ([], torch.empty(0)))
    run(tmp_path, **options)
    assert rates == [200, 400, 800, 800]
