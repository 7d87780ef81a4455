"""Real LoadGen against engines that are handed in: it drives them, times them, and says what is not valid."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from convscope.errors import WorkerError
from convscope.inference.serving import mlperf
from convscope.inference.serving.mlperf import MULTI_STREAM, OFFLINE, SERVER, SINGLE_STREAM, Load, Outcome


class Doubler:
    """An engine that takes a time for each batch, and answers with twice the number of the image."""

    def __init__(self, batch_s: float = 1e-4, sizes: Sequence[int] = (1, 4), overlaps: bool = False) -> None:
        self.sizes, self.overlaps, self._batch_s = sizes, overlaps, batch_s
        self.batches: list[int] = []
        self.under_way = self.most_under_way = 0

    def begin(self, images: Sequence[int]) -> NDArray[Any]:
        size = mlperf.fitting(self.sizes, len(images))
        self.batches.append(len(images))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        time.sleep(self._batch_s)
        answers = np.zeros((size, 3), np.float16)
        answers[: len(images), 0] = 2 * np.array(images)
        return answers

    def is_done(self, begun: NDArray[Any]) -> bool:
        return not self.overlaps

    def finish(self, begun: NDArray[Any]) -> NDArray[Any]:
        self.under_way -= 1
        return begun

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        return row.astype(np.float32)


def loaded(folder: Path, engine: Doubler, scenario: str = SERVER, qps: float = 2000.0, **options: Any) -> Outcome:
    options = {"seconds": 0.3, "images": 64, "seed": 1, "slo_ms": 2000.0, **options}
    return mlperf.run(Load(scenario, qps, folder=str(folder), **options), engine)


def test_a_server_within_its_limit_is_valid_and_its_answers_are_delivered(tmp_path: Path):
    engine = Doubler()
    found = loaded(tmp_path, engine)
    assert found.verdict == ""
    assert not found.gave_up
    assert found.queries == sum(engine.batches) - 5 >= 459  # and 1 + 4 before
    assert 0.3 * found.scheduled_qps < found.images_per_s < 1.05 * found.scheduled_qps
    assert 0.1 < found.latency_p50_ms <= found.latency_p90_ms <= found.latency_p99_ms < 2000
    assert found.mean_batch == pytest.approx(np.mean(engine.batches[2:]))
    images, outputs = mlperf.answers(str(tmp_path))
    assert len(images) == mlperf.CHECKED
    assert outputs.tolist() == [[2.0 * image, 0, 0] for image in images]


def test_a_limit_that_is_not_kept_is_not_valid(tmp_path: Path):
    found = loaded(tmp_path, Doubler(0.01), qps=400.0, slo_ms=5.0)
    assert found.latency_p50_ms > 5
    assert found.verdict.startswith("more than 1 % of the requests took longer than the limit; early stopping: Run uns")


def test_a_queue_without_end_is_given_up_and_loadgen_ends(tmp_path: Path):
    engine = Doubler(0.02)
    started_s = time.perf_counter()
    found = loaded(tmp_path, engine, qps=4000.0, seconds=1.0, give_up_s=0.2)
    assert found.gave_up
    assert time.perf_counter() - started_s < 30
    assert found.queries == sum(engine.batches) - 5
    assert 10 < found.images_per_s < 1.1 * 4 / 0.02
    assert found.latency_p50_ms is None
    assert found.latency_p99_ms is None


@pytest.mark.parametrize(("scenario", "least"), [(SINGLE_STREAM, 64), (MULTI_STREAM, 662)])
def test_a_stream_asks_for_the_next_when_it_has_its_answer(tmp_path: Path, scenario: str, least: int):
    engine = Doubler(sizes=(8,))
    found = loaded(tmp_path, engine, scenario, qps=1e5)
    assert found.verdict == ""
    assert found.queries >= least
    assert set(engine.batches[1:]) == {8 if scenario == MULTI_STREAM else 1}
    assert found.images_per_s is None
    assert found.seconds >= 0.25


def test_offline_has_all_images_at_once_and_fills_its_batches(tmp_path: Path):
    engine = Doubler(0.001, sizes=(1, 4), overlaps=True)
    found = loaded(tmp_path, engine, OFFLINE, qps=5000.0)
    assert found.verdict == ""
    assert engine.batches.count(4) >= len(engine.batches) - 2
    assert 100 < found.images_per_s < 1.05 * 4 / 0.001
    assert engine.most_under_way == 2


def test_without_overlap_one_batch_is_under_way(tmp_path: Path):
    engine = Doubler(0.001)
    loaded(tmp_path, engine, OFFLINE, qps=5000.0)
    assert engine.most_under_way == 1


def test_a_run_that_is_too_short_to_show_anything_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(mlperf.LEAST_QUERIES, SERVER, 1)
    found = loaded(tmp_path, Doubler(), qps=200.0)
    assert found.verdict.startswith("early stopping: Run unsuccessful. Processed")
    assert "Would need to run at least" in found.verdict


def test_an_engine_that_fails_ends_the_run_with_its_error(tmp_path: Path):
    class Failing(Doubler):
        def begin(self, images: Sequence[int]) -> NDArray[Any]:
            if len(self.batches) == 20:
                raise RuntimeError("a mistake in the engine")
            return super().begin(images)

    with pytest.raises(RuntimeError, match="a mistake in the engine"):
        loaded(tmp_path, Failing())
    assert loaded(tmp_path, Doubler()).verdict == ""


def test_a_generator_that_fails_is_an_error_and_no_earlier_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded(tmp_path, Doubler())
    monkeypatch.setattr("mlperf_loadgen.StartTestWithLogSettings", lambda *_: 1 / 0)
    with pytest.raises(WorkerError, match="MLPerf's LoadGen failed: division by zero"):
        loaded(tmp_path, Doubler())


def test_all_sizes_are_warm_before_the_first_request(tmp_path: Path):
    engine = Doubler(sizes=(1, 4, 16))
    loaded(tmp_path, engine, warm_s=0.0)
    assert engine.batches[:3] == [1, 4, 16]


def test_a_batch_that_is_not_full_waits_for_more(tmp_path: Path):
    alone, waiting = Doubler(sizes=(1, 64)), Doubler(sizes=(1, 64))
    loaded(tmp_path, alone, qps=1000.0)
    found = loaded(tmp_path, waiting, qps=1000.0, max_delay_ms=30.0)
    assert found.mean_batch > np.mean(alone.batches[2:])
    assert found.latency_p90_ms > 20


def test_a_seed_draws_the_same_requests(tmp_path: Path):
    counts = [loaded(tmp_path, Doubler(), seed=seed).scheduled_qps for seed in (3, 3, 4)]
    assert counts[0] == counts[1] != counts[2]


def test_the_generator_has_a_name_and_a_version():
    assert mlperf.version().startswith("MLPerf LoadGen 6.")


def test_a_batch_runs_in_the_smallest_size_that_holds_it():
    assert [mlperf.fitting([1, 4, 16], count) for count in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]
