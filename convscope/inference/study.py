"""Order of work of the inference study: every engine at every batch size, or under a server's load, to its rows.

Each of several processes takes its share of the batch on its own GPU (`trial`); they begin each step together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import nn

from convscope import failures, gpus
from convscope.convolution import backends, roofline, tolerance
from convscope.convolution.backends import PlanThread
from convscope.convolution.operator import release
from convscope.distributed import Ranks
from convscope.failures import Failure
from convscope.inference import agreement
from convscope.inference.cells import key_of
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import Runner
from convscope.inference.load import LoadTest
from convscope.inference.request import BATCH, Inference
from convscope.inference.rows import (
    TABLE,
    InferenceKey,
    InferenceRow,
    energy_figures,
    is_current,
    latency_figures,
    load_figures,
    with_scaling,
)
from convscope.inference.serving import mlperf, search
from convscope.inference.serving.mlperf import SERVER, Outcome
from convscope.inference.trial import BrokenError, Built, EngineTrial, Measured
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.paths import now_utc
from convscope.storage.store import Store
from convscope.storage.table import fill

T = TypeVar("T")


class StoppedError(Exception):
    """The study is to end, in the middle of a cell."""


@dataclass
class InferenceStudy:
    """Measures the cells that a store lacks; a cell that failed before is tried again.

    `open_meter`, `make_bench` and `note` are passed to `EngineTrial`.

    Attributes:
        stop: asked before each cell; where it says True the study ends there, and `stopped` is True.
        failed: a cell could not be measured this time, though its engine is there.
        measured: number of cells that were measured this time.
    """

    inference: Inference
    model: nn.Module
    device: torch.device
    ranks: Ranks
    open_meter: Callable[[], contextlib.AbstractContextManager[Meter]]
    make_bench: Callable[[Run, nn.Module], Bench]
    store: Store
    stop: Callable[[], bool]
    note: Callable[[str], None]
    stopped: bool = False
    failed: bool = False
    measured: int = 0

    def __post_init__(self) -> None:
        keep = self.store.save_folder if self.inference.keep and self.ranks.is_first else None
        self._trial = EngineTrial(
            self.inference,
            self.model,
            self.device,
            self.ranks.rank,
            self.open_meter,
            self.make_bench,
            self.note,
            keep,
        )

    def run(self) -> None:
        """Measure engine after engine at batch size after batch size.

        Raises:
            DeviceFaultError: the GPU was lost on the way; the cells before are in the store.
        """
        request = self.inference
        sizes = request.batch_sizes if request.scenario != SERVER else request.batch_sizes[-1:]
        try:
            with backends.math(request.math, products=True):
                for size, engine in itertools.product(sizes, request.engines):
                    is_there = self.ranks.is_first and is_current(self.store.measured().get(self.key(engine, size)))
                    if self.ranks.gather(is_there)[0]:
                        continue
                    self.stopped = any(self.ranks.gather(self.stop()))
                    if self.stopped:
                        return
                    self._guarded(engine, size)
                    if self.stopped:
                        return
        except RuntimeError:  # leaving what a lost device was used by may raise once more
            failures.raise_if_lost(self.device)
            raise

    def key(self, engine: str, batch_size: int, qps: float | None = None) -> InferenceKey:
        """Return the key of a cell of this study."""
        return key_of(self.inference, engine, batch_size, qps)

    def _guarded(self, engine: str, batch_size: int) -> None:
        """Measure a cell; a cell that cannot be measured is a row with a reason."""
        started_utc, started_s = now_utc(), time.perf_counter()
        try:
            with backends.searching(engine != catalogue.BASELINE, every=True):
                if self.inference.scenario == SERVER:
                    self._serve(engine, batch_size)
                    return
                figures = self._measured(engine, batch_size)
        except StoppedError:
            self.stopped = True
            return
        except BrokenError as error:
            failure = error.failure
            self.note(f"{engine}, batch {batch_size}: {failure.status}: {failure.reason}")
            figures = {"status": failure.status, "reason": failure.reason}
        finally:
            self._release()
        run = {"started_utc": started_utc, "wall_s": time.perf_counter() - started_s}
        self._add(self._row(self.key(engine, batch_size), **figures, **run))

    def _add(self, row: InferenceRow, instead_of: Collection[InferenceKey] = ()) -> None:
        self.measured += row.status == "ok"
        self.failed = self.failed or row.status in ("failed", "oom", tolerance.WRONG)
        if self.ranks.is_first:
            self.store.append([row], instead_of)
            self._scale()

    def _scale(self) -> None:
        """Bring the scaling of all rows of several processes up to date."""
        rows = self.store.objects(TABLE)[TABLE]
        changed = [new for new, old in zip(with_scaling(rows), rows, strict=True) if new != old]
        if changed:
            self.store.update(changed)

    def _together(self, work: Callable[[], T]) -> T:
        """Do a step in every process; where one fails, all leave the cell together with its `BrokenError`.

        Raises:
            StoppedError: the run is to end: the signal has reached a worker or a compiler, too, perhaps, whose end says
                nothing of the engine.
        """
        value, failure = None, None
        try:
            value = work()
        except BrokenError as error:
            failure = error.failure
        except Exception as error:
            failure = failures.of_cell(error, self.device)
        found = [each for each in self.ranks.gather(failure) if each is not None]
        if found and any(self.ranks.gather(self.stop())):
            raise StoppedError
        if found:
            raise BrokenError(found[0])
        return cast(T, value)

    def _measured(self, engine: str, batch_size: int) -> dict[str, object]:
        """Return the figures of a cell of any scenario but the server's."""
        if self.inference.scenario == BATCH:
            return self._figures(self.ranks.gather(self._measure(engine, batch_size)), batch_size)
        return self._streamed(engine, batch_size)

    def _measure(self, engine: str, batch_size: int) -> Measured:
        """Build an engine in every process, check its output, time it, and check its output again."""
        request = self.inference
        with contextlib.ExitStack() as stack:
            thread = stack.enter_context(PlanThread(self.device))
            share = self._share(batch_size)
            runner, measured = self._together(lambda: self._trial.set_up(engine, share, thread, stack))
            if request.with_copies:
                self._together(lambda: thread.run(runner.copy_images))
                measured = dataclasses.replace(measured, timing_method=runner.timing_method)
            self._together(lambda: thread.run(lambda: self._trial.warm(runner)))
            times_ms = self._together(lambda: thread.run(lambda: runner.latencies_ms(request.measure_iters)))
            measured = dataclasses.replace(measured, latencies_ms=times_ms)
            measured = self._together(lambda: self._trial.window(runner, thread, measured))
            peak_bytes = self._together(lambda: thread.run(runner.peak_memory_bytes))
            measured = dataclasses.replace(measured, peak_memory_bytes=peak_bytes)
            run = functools.partial(self._output, runner, thread)
            return self._together(lambda: self._trial.check_output(run, share, measured))

    @staticmethod
    def _output(runner: Runner, thread: PlanThread, images: torch.Tensor) -> torch.Tensor:
        return thread.run(lambda: runner.output(images))

    def _streamed(self, engine: str, batch_size: int) -> dict[str, object]:
        """Return the figures of LoadGen's runs of an engine at one batch size."""
        request = self.inference
        with contextlib.ExitStack() as stack:
            engines, test = self._under_test(engine, [batch_size], stack)
            rate = self._together(test.unreached_qps)
            outcomes = self._runs(test, engines, rate)
            figures = load_figures(outcomes, request.scenario, request.slo_ms, request.min_seconds)
            _, measured = engines[batch_size]
            floor = self._floor(batch_size, batch_size, figures["images_per_s"] or 0.0, measured.rounding)
            return self._load_setup(engines) | figures | floor

    def _share(self, batch_size: int) -> int:
        """Return the number of a batch's images that one process takes."""
        share, rest = divmod(batch_size, self.inference.processes)
        if rest:
            reason = f"a batch of {batch_size} cannot be shared evenly among {self.inference.processes} processes"
            raise BrokenError(Failure("unsupported", reason))
        return share

    def _figures(self, everyone: Sequence[Measured], batch_size: int) -> dict[str, object]:
        """Return the measurements of all processes as columns."""
        share, figures = batch_size // len(everyone), self._setup_figures(*everyone)
        samples = [each.latencies_ms for each in everyone if each.latencies_ms is not None]
        if samples:
            figures |= latency_figures(max(samples, key=statistics.fmean))
        rates = [each.calls * share / each.window_s for each in everyone if each.calls and each.window_s]
        if rates:
            figures |= {
                "images_per_s": sum(rates),
                "images_per_s_per_process": "|".join(f"{rate:.1f}" for rate in rates),
                "window_s": everyone[0].window_s,
            }
            metered = everyone if self.device.type == "cuda" else everyone[:1]  # processes on a CPU share its counter
            figures |= energy_figures([(each.energy, each.energy_reason) for each in metered], sum(rates))
        return figures | self._floor(share, batch_size, sum(rates), everyone[0].rounding)

    def _setup_figures(self, first: Measured, *others: Measured) -> dict[str, object]:
        """Return the cost of building an engine, and the largest error of its output, as columns."""
        cost = {name: value for name, value in dataclasses.asdict(first.cost).items() if name != "files"}
        return cost | {
            "layout": first.cost.layout or self.inference.layout,
            "image_error": max(each.image_error for each in (first, *others)),
            "image_tolerance": max(each.image_tolerance for each in (first, *others)),
            "top1_agreement_pct": agreement.least(*(each.top1_agreement_pct for each in (first, *others))),
            "setup_s": max(each.setup_s for each in (first, *others)),
            "timing_method": first.timing_method,
            "peak_memory_bytes": max((each.peak_memory_bytes or 0 for each in (first, *others)), default=0) or None,
        }

    def _floor(self, share: int, batch_size: int, images_per_s: float, dtype: str) -> dict[str, object]:
        """Return the roofline lower bound of one process's share on its card, and a batch's time over it."""
        gpu = gpus.identify(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
        if gpu is None:
            return {}
        limit = roofline.hardware_limit(self._trial.layers(share), gpu, dtype, self.inference.math)
        return {
            "floor_ms": limit.time_ms,
            "floor_memory_ms": limit.memory_ms,
            "floor_compute_ms": limit.compute_ms,
            "times_floor": batch_size / images_per_s * 1e3 / limit.time_ms if images_per_s else None,
            "flops": limit.flops,
            "minimum_bytes": limit.minimum_bytes,
        }

    def _row(self, key: InferenceKey, **figures: object) -> InferenceRow:
        return fill(InferenceRow, key, self.inference, **figures)

    def _serve(self, engine: str, max_batch: int) -> None:
        """Put an engine under load: requests by a Poisson process, batches up to the limit, rate after rate.

        The engine is built for each of the batch sizes; a batch runs in the smallest that holds it.
        """
        request, within = self.inference, self._within(self.key(engine, max_batch))
        rates = [rate for rate in request.qps if rate not in within]
        if not rates if request.qps else search.is_complete(within, LoadTest.limits(request)):
            return
        with contextlib.ExitStack() as stack:
            engines, test = self._under_test(engine, sorted(request.batch_sizes), stack)
            first = functools.partial(self._together, test.first_rates)
            for rate in rates or search.search(within, first, LoadTest.limits(request)):
                self.stopped = self.stop()
                if self.stopped:
                    return
                row = self._under(test, engines, self.key(engine, max_batch, rate))
                within[rate] = bool(row.within_slo)
                self._add(row, instead_of=[self.key(engine, max_batch)])  # no rate: it could not be built then

    def _under_test(
        self, engine: str, sizes: Sequence[int], stack: contextlib.ExitStack
    ) -> tuple[dict[int, Built], LoadTest]:
        """Build an engine for some batch sizes, and put images for requests into host memory."""
        thread = stack.enter_context(PlanThread(self.device))
        engines = {
            size: self._together(lambda size=size: self._trial.set_up(engine, size, thread, stack))  # type: ignore[misc]
            for size in sizes
        }
        for size, (runner, measured) in engines.items():
            peak_bytes = self._together(lambda runner=runner: thread.run(runner.peak_memory_bytes))  # type: ignore[misc]
            engines[size] = runner, dataclasses.replace(measured, peak_memory_bytes=peak_bytes)
        runners = {size: runner for size, (runner, _) in engines.items()}
        images = None if self.inference.resident else self._trial.library()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="convscope-")))
        return engines, self._together(lambda: LoadTest(self.inference, runners, thread, images, folder, stack))

    def _runs(self, test: LoadTest, engines: dict[int, Built], rate: float) -> list[Outcome]:
        """Put an engine under the same load with each seed, and check what it delivered."""
        outcomes, largest = [], max(engines)
        for seed in range(self.inference.seed, self.inference.seed + self.inference.seeds):
            if self.stop():
                raise StoppedError
            outcomes.append(self._together(lambda seed=seed: test.run(rate, seed)))  # type: ignore[misc]
            if self.inference.resident:
                self._together(lambda: self._check_outputs(engines, test))
                continue
            runner, measured = engines[largest]
            checked = self._together(lambda measured=measured: self._trial.check_answers(test, measured))  # type: ignore[misc]
            engines[largest] = runner, checked
        return outcomes

    def _check_outputs(self, engines: dict[int, Built], test: LoadTest) -> None:
        """Check the output of an engine that was put under load, at each batch size."""
        for size, (runner, measured) in engines.items():
            run = functools.partial(test.output, size)
            engines[size] = runner, self._trial.check_output(run, size, measured)

    def _load_setup(self, engines: Mapping[int, Built]) -> dict[str, object]:
        """Return the columns of setting up an engine for some batch sizes."""
        every = [measured for _, measured in engines.values()]
        return self._setup_figures(*every) | {
            "setup_s": sum(each.setup_s for each in every),
            "timing_method": "LoadGen, from a request to its response",
            "load_generator": mlperf.version(),
        }

    def _under(self, test: LoadTest, engines: dict[int, Built], key: InferenceKey) -> InferenceRow:
        """Measure one rate."""
        request, rate = self.inference, key.target_qps or 0.0
        started_utc, started_s = now_utc(), time.perf_counter()
        outcomes = self._runs(test, engines, rate)
        figures = load_figures(outcomes, request.scenario, request.slo_ms, request.min_seconds)
        run = {"started_utc": started_utc, "wall_s": time.perf_counter() - started_s}
        row = self._row(key, **self._load_setup(engines), **figures, **run)
        p99_ms = math.nan if row.latency_p99_ms is None else row.latency_p99_ms
        self.note(f"{key.engine}: {rate:g} requests/s: p99 {p99_ms:.2f} ms, batches of {row.mean_batch or 0:.1f}")
        return row

    def _within(self, key: InferenceKey) -> dict[float, bool]:
        """Return for each rate that an earlier call measured whether it kept the limit."""
        there = {each: row for each, row in self.store.measured().items() if is_current(row)}
        rates = {each: row["within_slo"] == "True" for each, row in there.items()}
        same = {each: kept for each, kept in rates.items() if dataclasses.replace(each, target_qps=None) == key}
        return {each.target_qps: kept for each, kept in same.items() if each.target_qps is not None}

    def _release(self) -> None:
        """Free a cell's memory; compiled models are freed with their reference cycles."""
        if "torch._inductor.compile_fx" in sys.modules:  # else nothing was compiled, and resetting would import it
            torch._dynamo.reset()
            torch._inductor.codecache.PyCodeCache.cache_clear()  # modules that hold frozen weights
        gc.collect()
        release(self.device)
