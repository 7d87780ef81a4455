"""Load by MLPerf's LoadGen: it draws the requests, takes the times and judges the run by its rules.

LoadGen runs in a thread beside the caller's, which runs the batches: an engine stays in the thread that built it.
Nothing here imports PyTorch: it runs in the worker processes of engines too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import itertools
import json
import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convscope.errors import WorkerError

SINGLE_STREAM, MULTI_STREAM, SERVER, OFFLINE = "single-stream", "multi-stream", "server", "offline"
MULTI_STREAM_SAMPLES = 8  # of one query, as MLPerf Inference has it since version 2.0
HIGHEST_QPS = 100_000
"""Requests a second that LoadGen's Python interface was seen to issue (two cores of a server, 0.14 ms at the p99)."""

LEAST_QUERIES = {SINGLE_STREAM: 64, MULTI_STREAM: 662, SERVER: 459, OFFLINE: 1}
"""Queries below which LoadGen's early stopping shows nothing: of the 90th, of the 99th percentile."""

CHECKED = 16  # images whose answers are kept
_LOG, _ANSWERS = "mlperf_log_detail.txt", "answers.npz"
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Load:
    """One run of LoadGen.

    Attributes:
        expected_qps: the server's rate; of other scenarios the rate by which LoadGen sizes its queries: at least what
            the engine reaches.
        images: number of images in memory, which requests name.
        give_up_s: a request that has waited longer ends the run.
        warm_s: batches of all sizes are run for so long before.
        folder: takes LoadGen's logs, and the last answers for some images.
    """

    scenario: str
    expected_qps: float
    seconds: float
    images: int
    seed: int
    folder: str
    slo_ms: float = 15.0
    max_delay_ms: float = 0.0
    give_up_s: float = math.inf
    warm_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """Result of one run by LoadGen's log: latencies of queries, rates, and its verdict.

    Attributes:
        scheduled_qps: requests a second by LoadGen's schedule, of a server alone.
        verdict: LoadGen's words where the run is not valid by its rules, else "".
        gave_up: requests waited so long that the rest was not computed. There are no latencies then, and `queries`,
            `seconds` and `images_per_s` are of what was computed.
        is_short: LoadGen had prepared too few queries for the time: the expected rate was too low.
    """

    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p99_ms: float | None
    queries: int
    seconds: float
    images_per_s: float | None
    scheduled_qps: float | None
    mean_batch: float
    verdict: str
    gave_up: bool
    is_short: bool = False


class Endpoint(Protocol):
    """An engine that answers requests for images in memory.

    Attributes:
        sizes: the batch sizes it was built for, in rising order.
        overlaps: `begin` returns before the work is done.
    """

    sizes: Sequence[int]
    overlaps: bool

    def begin(self, images: Sequence[int]) -> Any:
        """Begin a batch of these images, in the smallest size that holds it."""

    def is_done(self, begun: Any) -> bool:
        """Tell whether `finish` would not wait."""

    def finish(self, begun: Any) -> NDArray[Any]:
        """Wait for a batch and return its outputs in host memory, an image a row; more rows may follow."""

    def numbers(self, row: NDArray[Any]) -> NDArray[np.float32]:
        """Return a row of `finish` as numbers."""


def fitting(sizes: Sequence[int], count: int) -> int:
    """Return the smallest of these sizes, in rising order, that holds this many requests."""
    return sizes[bisect_left(sizes, count)]


def version() -> str:
    """Return LoadGen's name and version; raise ImportError where it cannot be imported."""
    import mlperf_loadgen  # noqa: F401 - asked for

    try:
        return f"MLPerf LoadGen {importlib.metadata.version('mlcommons-loadgen')}"
    except importlib.metadata.PackageNotFoundError:  # built from source
        return "MLPerf LoadGen"


class _Requests:
    """Requests that wait for the engine; LoadGen's threads add to them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Any, float]] = deque()
        self._closed = False

    def put(self, samples: Sequence[Any]) -> None:
        now_s = time.perf_counter()
        with self._changed:
            self._waiting.extend((sample, now_s) for sample in samples)
            self._changed.notify()

    def close(self) -> None:
        """No more requests will come."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take_full(self, most: int) -> list[Any]:
        """Return a full batch, or nothing."""
        with self._changed:
            return self._taken(most) if len(self._waiting) >= most else []

    def take(self, most: int, delay_s: float) -> list[Any]:
        """Wait for requests, and until the batch is full or the oldest has waited long enough; nothing at the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while self._waiting and len(self._waiting) < most and not self._closed:
                left_s = self._waiting[0][1] + delay_s - time.perf_counter()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._taken(most)

    def oldest_s(self) -> float:
        """Return how long the oldest request has waited."""
        with self._changed:
            return time.perf_counter() - self._waiting[0][1] if self._waiting else 0.0

    def _taken(self, most: int) -> list[Any]:
        return [self._waiting.popleft()[0] for _ in range(min(most, len(self._waiting)))]


@dataclass
class _Batches:
    """Sizes of the batches that were run, the requests of those under way, and the answers that are kept by image.

    Attributes:
        computed_s: from the first batch to the end of the last one.
    """

    sizes: list[int] = field(default_factory=list)
    under_way: list[list[Any]] = field(default_factory=list)
    kept: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    gave_up: bool = False
    computed_s: float = 0.0


def run(load: Load, endpoint: Endpoint) -> Outcome:
    """Answer LoadGen's requests until it has enough, and return what it found.

    Raises:
        Exception: the engine's own; LoadGen has ended by then.
    """
    import mlperf_loadgen as loadgen

    requests, batches, errors = _Requests(), _Batches(), list[Exception]()
    folder = Path(load.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _LOG).unlink(missing_ok=True)
    _warm(endpoint, load.warm_s)
    with _constructed(loadgen, requests, load.images) as (sut, library), undisturbed():

        def start() -> None:
            try:
                loadgen.StartTestWithLogSettings(sut, library, _settings(loadgen, load), _logs(loadgen, folder))
            except Exception as error:
                errors.append(error)
            finally:
                requests.close()

        thread = threading.Thread(target=start, name="LoadGen")
        thread.start()
        try:
            _answer(loadgen, requests, endpoint, load, batches)
        finally:
            for batch in batches.under_way:  # after an error; LoadGen waits for an answer to each request
                _complete(loadgen, batch, np.zeros((len(batch), 1)))
            while batch := requests.take(endpoint.sizes[-1], 0.0):  # or where it gave up
                _complete(loadgen, batch, np.zeros((len(batch), 1)))
            thread.join()
    if errors:
        raise WorkerError(f"MLPerf's LoadGen failed: {errors[0]}")
    order = sorted(batches.kept)
    answers = np.stack([batches.kept[image] for image in order]) if order else np.empty(0, np.float32)
    np.savez(folder / _ANSWERS, images=order, outputs=answers)
    return _outcome(load, folder / _LOG, batches)


def _warm(endpoint: Endpoint, seconds: float) -> None:
    """Run batches of all sizes, each once at least: the first ones take longer, and so they do on a card at rest."""
    until_s = time.perf_counter() + seconds
    for number, size in enumerate(itertools.cycle(endpoint.sizes)):
        if number >= len(endpoint.sizes) and time.perf_counter() >= until_s:
            return
        endpoint.finish(endpoint.begin([0] * size))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Python's garbage collector from stepping in for the length of the block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def answers(folder: str) -> tuple[list[int], NDArray[np.float32]]:
    """Return the images whose answers a run kept, and these."""
    with np.load(Path(folder) / _ANSWERS) as kept:
        return kept["images"].tolist(), kept["outputs"]


def _answer(loadgen: Any, requests: _Requests, endpoint: Endpoint, load: Load, batches: _Batches) -> None:
    """Run batch after batch; on a GPU the next full one is begun before the last one is done."""
    most, pending = endpoint.sizes[-1], None

    def finish(begun: Any, samples: list[Any]) -> None:
        outputs = endpoint.finish(begun)
        _complete(loadgen, samples, outputs)
        batches.under_way.remove(samples)
        for row, sample in enumerate(samples):
            if sample.index in batches.kept or len(batches.kept) < CHECKED:
                batches.kept[sample.index] = endpoint.numbers(outputs[row]).copy()

    began_s = time.perf_counter()
    while True:
        if pending and endpoint.is_done(pending[0]):
            finish(*pending)
            pending = None
        samples = requests.take_full(most) if pending else requests.take(most, load.max_delay_ms / 1e3)
        if samples:
            began_s = began_s if batches.sizes else time.perf_counter()
            batches.sizes.append(len(samples))
            batches.under_way.append(samples)
            begun = endpoint.begin([sample.index for sample in samples])
        elif not pending:
            return
        if pending:
            finish(*pending)
        pending = (begun, samples) if samples else None
        if pending and not endpoint.overlaps:
            finish(*pending)
            pending = None
        batches.gave_up = requests.oldest_s() > load.give_up_s
        if batches.gave_up:
            if pending:
                finish(*pending)
            batches.computed_s = time.perf_counter() - began_s
            return


def _complete(loadgen: Any, samples: Sequence[Any], outputs: NDArray[Any]) -> None:
    """Deliver the outputs of requests."""
    first, row_bytes = outputs.ctypes.data, outputs.strides[0]
    loadgen.QuerySamplesComplete(
        [loadgen.QuerySampleResponse(each.id, first + row * row_bytes, row_bytes) for row, each in enumerate(samples)]
    )


@contextlib.contextmanager
def _constructed(loadgen: Any, requests: _Requests, images: int) -> Iterator[tuple[int, int]]:
    sut = loadgen.ConstructSUT(requests.put, lambda: None)
    library = loadgen.ConstructQSL(images, images, lambda indices: None, lambda indices: None)
    try:
        yield sut, library
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(sut)


def _settings(loadgen: Any, load: Load) -> Any:
    """Return a run's settings in LoadGen's terms."""
    scenarios = loadgen.TestScenario
    names = {
        SINGLE_STREAM: scenarios.SingleStream,
        MULTI_STREAM: scenarios.MultiStream,
        SERVER: scenarios.Server,
        OFFLINE: scenarios.Offline,
    }
    settings = loadgen.TestSettings()
    settings.mode, settings.scenario = loadgen.TestMode.PerformanceOnly, names[load.scenario]
    settings.min_duration_ms, settings.min_query_count = math.ceil(load.seconds * 1e3), LEAST_QUERIES[load.scenario]
    settings.server_target_qps = settings.offline_expected_qps = load.expected_qps
    settings.server_target_latency_ns = round(load.slo_ms * _NS_PER_MS)
    settings.server_target_latency_percentile = 0.99
    settings.single_stream_expected_latency_ns = max(1, round(1e9 / load.expected_qps))
    settings.multi_stream_expected_latency_ns = max(1, round(1e9 * MULTI_STREAM_SAMPLES / load.expected_qps))
    settings.multi_stream_samples_per_query = MULTI_STREAM_SAMPLES
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = load.seed
    return settings


def _logs(loadgen: Any, folder: Path) -> Any:
    output, settings = loadgen.LogOutputSettings(), loadgen.LogSettings()
    output.outdir, output.copy_summary_to_stdout = str(folder), False
    settings.log_output, settings.enable_trace = output, False
    return settings


def _outcome(load: Load, log: Path, batches: _Batches) -> Outcome:
    """Read LoadGen's log of a run."""
    found, images = _entries(log), sum(batches.sizes)
    if batches.gave_up:  # LoadGen counts what was not computed too
        seconds, batch = batches.computed_s, images / max(1, len(batches.sizes))
        scheduled_qps = found.get("result_scheduled_samples_per_sec")
        return Outcome(
            None, None, None, None, images, seconds, images / seconds, scheduled_qps, batch, "", gave_up=True
        )
    of_query = "per_query_" if load.scenario == MULTI_STREAM else ""
    mean = "result_mean_query_latency_ns" if load.scenario == MULTI_STREAM else "result_mean_latency_ns"
    percentiles = {
        f"latency_p{name}_ms": found[f"result_{name}.00_percentile_{of_query}latency_ns"] / _NS_PER_MS
        for name in (50, 90, 99)
    }
    rates = {SERVER: "result_completed_samples_per_sec", OFFLINE: "result_samples_per_second"}
    images_per_s = found[rates[load.scenario]] if load.scenario in rates else None
    return Outcome(
        latency_mean_ms=found[mean] / _NS_PER_MS,
        **percentiles,
        queries=found["result_query_count"],
        seconds=images / images_per_s if images_per_s else found[mean] / 1e9 * found["result_query_count"],
        images_per_s=images_per_s,
        scheduled_qps=found.get("result_scheduled_samples_per_sec"),
        mean_batch=images / max(1, len(batches.sizes)),
        verdict=_verdict(found),
        gave_up=False,
        is_short=found.get("result_min_duration_met") is False,
    )


def _entries(log: Path) -> dict[str, Any]:
    """Return the entries of LoadGen's log; of several with one name the last."""
    lines = log.read_text().splitlines()
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines if line.startswith(":::MLLOG ")]
    return {entry["key"]: entry["value"] for entry in entries}


def _verdict(found: dict[str, Any]) -> str:
    """Return why LoadGen takes a run for invalid, "" where it does not."""
    if found["result_validity"] == "VALID":
        return ""
    why = []
    if found.get("result_perf_constraints_met") is False:
        why.append("more than 1 % of the requests took longer than the limit")
    if found.get("early_stopping_met") is False:
        words = " ".join(found.get("early_stopping_result", "").replace(" * ", " ").split())
        why.append(f"early stopping: {words}")
    if found.get("result_min_duration_met") is False:
        why.append("the run was too short")
    return "; ".join(why) or found.get("result_invalid_reason", "") or "invalid"
