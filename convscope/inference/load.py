"""Load test of one engine by MLPerf's LoadGen, in the process that has the engine."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from convscope.convolution.backends import PlanThread
from convscope.inference.engines.endpoint import endpoint
from convscope.inference.engines.runners import LocalRunner, RemoteRunner, Runner
from convscope.inference.request import Inference
from convscope.inference.serving import mlperf, search
from convscope.inference.serving.mlperf import OFFLINE, SERVER, Load, Outcome
from convscope.inference.serving.search import Range
from convscope.inference.serving.simulation import Batcher

SERVICE_SAMPLES = 20
# A request that has waited this long ends a run: a share of its length, and many times the limit. After a host's pause
# of a second the queue empties again; a queue that only grows makes requests wait longer.
GIVE_UP_SHARE, GIVE_UP_SLOS = 0.25, 20.0
_HEADROOM = {OFFLINE: 1.5}  # LoadGen prepares queries for a rate; an engine that is faster would run out of them
_LEAST_HEADROOM, _REPEATS = 2.0, 4
_LONGEST_RUNS = 10  # times --min-seconds: a search tries no rate at which LoadGen's least queries take longer
WARM_S = {"cuda": 0.2, "cpu": 0.02}  # of load before the first request: the clocks of an idle card are down


class LoadTest:
    """Engine built for some batch sizes, under loads.

    Args:
        runners: by batch size, built in `thread`.
        images: in host memory, for requests to name (N × 3 × H × W, float32); they are copied for each request. None
            leaves the images where they are, in the engine's inputs.
        folder: takes the images for an engine in a process of its own, and LoadGen's logs.
        stack: closes what is started here.
    """

    def __init__(
        self,
        inference: Inference,
        runners: Mapping[int, Runner],
        thread: PlanThread,
        images: torch.Tensor | None,
        folder: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self._inference, self.thread, self._folder = inference, thread, folder
        self._runners = dict(sorted(runners.items()))
        self._faster = 1.0
        self._images, self._library = 1 if images is None else len(images), None
        found = list(self._runners.values())
        self._remote = None
        if isinstance(found[0], RemoteRunner):
            if images is not None:
                self._library = folder / "images.npy"
                np.save(self._library, images.numpy())
            self._remote = found[0].together(cast(Sequence[RemoteRunner], found[1:]), folder)
            stack.callback(self._remote.close)
        else:
            local = cast(Mapping[int, LocalRunner], self._runners)
            self._endpoint = thread.run(lambda: endpoint(local, images))

    def run(self, rate_qps: float, seed: int) -> Outcome:
        """Put the engine under load: of a server's rate, else of a rate that the engine does not reach.

        Where it does reach it, the run was too short, and is repeated with twice the rate.
        """
        for _ in range(_REPEATS):
            outcome = self._once(rate_qps * self._faster, seed)
            if not outcome.is_short or self._inference.scenario == SERVER:
                break
            self._faster *= 2
        return outcome

    def _once(self, rate_qps: float, seed: int) -> Outcome:
        request = self._inference
        give_up_s = max(1.0, GIVE_UP_SHARE * request.min_seconds, GIVE_UP_SLOS * request.slo_ms / 1e3)
        load = Load(
            scenario=request.scenario, expected_qps=rate_qps, seconds=request.min_seconds, images=self._images,
            seed=seed, folder=str(self._folder), slo_ms=request.slo_ms, max_delay_ms=request.max_delay_ms,
            give_up_s=give_up_s if request.scenario == SERVER else np.inf, warm_s=WARM_S[request.device_type],
        )  # fmt: skip
        if self._remote is not None:
            return self._remote.load(load, self._library)
        return self.thread.run(lambda: mlperf.run(load, self._endpoint))

    def output(self, size: int, images: torch.Tensor) -> torch.Tensor:
        """Return the output for a batch of the engine that is put under load."""
        if self._remote is not None:
            return self._remote.output(images, list(self._runners).index(size))
        return self.thread.run(lambda: self._runners[size].output(images))

    def answers(self) -> tuple[list[int], torch.Tensor]:
        """Return images that requests of the last run named, and the outputs that were delivered for them."""
        images, outputs = mlperf.answers(str(self._folder))
        return images, torch.from_numpy(outputs)

    def batch_s(self) -> dict[int, float]:
        """Return the time of a batch of each size: the median of some calls."""

        def call_s(runner: Runner) -> float:
            started_s = time.perf_counter()
            runner.call()
            return time.perf_counter() - started_s

        def measured(runner: Runner) -> float:
            return statistics.median(call_s(runner) for _ in range(SERVICE_SAMPLES))

        return self.thread.run(lambda: {size: measured(runner) for size, runner in self._runners.items()})

    def first_rates(self) -> list[float]:
        """Return `rates_around` for the times of the batches."""
        request = self._inference
        batcher = Batcher(max(self._runners), request.max_delay_ms / 1e3)
        return search.rates_around(self.batch_s(), batcher, request.slo_ms, request.seed)

    @staticmethod
    def limits(inference: Inference) -> Range:
        """Return the rates between which a server's limit is searched."""
        least = mlperf.LEAST_QUERIES[SERVER] / (_LONGEST_RUNS * inference.min_seconds)
        return Range(search.rounded(least), mlperf.HIGHEST_QPS)

    def unreached_qps(self) -> float:
        """Return a rate that the engine does not reach."""
        most = max(size / seconds for size, seconds in self.batch_s().items())
        return _HEADROOM.get(self._inference.scenario, _LEAST_HEADROOM) * most
