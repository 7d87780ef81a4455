"""The inference study: every engine at every batch size, or under the load of a server, from the request to the rows.

With several processes each takes its share of the batch on its own GPU (`stand`); they begin each step together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from convscope import failures, gpus
from convscope.convolution import backends, roofline
from convscope.convolution.backends import PlanThread
from convscope.convolution.operator import release
from convscope.distributed import Ranks
from convscope.failures import Failure
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import Runner
from convscope.inference.loadgen import ServerLoad, is_found, rates_around, search
from convscope.inference.request import BATCH, OFFLINE, SERVER, Inference
from convscope.inference.rows import TABLE, InferenceKey, InferenceRow, energy_figures, latency_figures, load_figures
from convscope.inference.trial import BrokenError, EngineTrial, Measured
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.paths import now_utc, slug
from convscope.storage.store import Store

T = TypeVar("T")
SERVER_METHOD = "time.perf_counter, from arrival to answer"


def key_of(request: Inference, engine: str, batch_size: int, qps: float | None = None) -> InferenceKey:
    """Return the key of a cell of a request; under a server's load also of one of its rates."""
    key = InferenceKey(slug(request.model), engine, batch_size, request.processes, request.scenario)
    if request.scenario != SERVER:
        return key
    sizes = "|".join(map(str, sorted(request.batch_sizes)))
    delay_ms = float(request.max_delay_ms)
    return dataclasses.replace(key, target_qps=qps, slo_ms=request.slo_ms, max_delay_ms=delay_ms, sizes=sizes)


def cells_of(request: Inference) -> list[InferenceKey]:
    """Return the keys of all cells of a request that are known before it is measured: not a server's unstated rates."""
    if request.scenario != SERVER:
        return [key_of(request, engine, size) for size in request.batch_sizes for engine in request.engines]
    largest = request.batch_sizes[-1]
    return [key_of(request, engine, largest, rate) for engine in request.engines for rate in request.qps]


def covers(request: Inference, key: InferenceKey) -> bool:
    """Tell whether a cell is one of a server's rates that a request without rates asks for."""
    if request.scenario != SERVER or request.qps:
        return False
    own = [key_of(request, engine, request.batch_sizes[-1]) for engine in request.engines]
    return dataclasses.replace(key, target_qps=None) in own


@dataclass
class InferenceStudy:
    """Measures the cells that a ledger does not have yet; what could not be measured is tried again.

    `open_meter`, `make_bench` and `note` are a `Stand`'s.

    Attributes:
        stop: asked before each cell; where it says True the study ends there, and `stopped` is True.
        failed: a cell could not be measured this time, though its engine is there.
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

    def __post_init__(self) -> None:
        self._stand = EngineTrial(
            self.inference, self.model, self.device, self.ranks.rank, self.open_meter, self.make_bench, self.note
        )

    def run(self) -> None:
        """Measure engine after engine at batch size after batch size.

        Raises:
            DeviceFaultError: the GPU was lost on the way; the cells before are in the ledger.
        """
        try:
            self._run()
        except RuntimeError:  # leaving what a lost device was used by may raise once more
            failures.raise_if_lost(self.device)
            raise

    def _run(self) -> None:
        asked = self.inference
        with backends.math(asked.math):
            for size in asked.batch_sizes if asked.scenario != SERVER else asked.batch_sizes[-1:]:
                for engine in asked.engines:
                    if self._is_there(self.key(engine, size)):
                        continue
                    self.stopped = any(self.ranks.gather(self.stop()))
                    if self.stopped:
                        return
                    self._guarded(engine, size)

    def key(self, engine: str, batch_size: int, qps: float | None = None) -> InferenceKey:
        """Return what names a cell of this study."""
        return key_of(self.inference, engine, batch_size, qps)

    def _is_there(self, key: InferenceKey) -> bool:
        """Tell whether a cell was measured: one that could not be is tried again."""
        found = self.ranks.is_first and key in self.store.measured()
        return bool(self.ranks.gather(found)[0])

    def _guarded(self, engine: str, batch_size: int) -> None:
        """Measure a cell; one that cannot be is a row with a reason."""
        started_utc, started_s = now_utc(), time.perf_counter()
        try:
            with backends.searching(engine != catalogue.BASELINE):
                if self.inference.scenario == SERVER:
                    self._serve(engine, batch_size)
                    return
                everyone = self.ranks.gather(self._measure(engine, batch_size))
            figures = self._figures(everyone, batch_size)
        except BrokenError as error:
            failure = error.failure
            self.note(f"{engine}, batch {batch_size}: {failure.status}: {failure.reason}")
            figures = {"status": failure.status, "reason": failure.reason}
        finally:
            self._release()
        told = {"started_utc": started_utc, "wall_s": time.perf_counter() - started_s}
        self._add(self._row(self.key(engine, batch_size), **figures, **told))

    def _add(self, row: InferenceRow, instead_of: Collection[InferenceKey] = ()) -> None:
        self.failed = self.failed or row.status in ("failed", "oom")
        if self.ranks.is_first:
            self.store.append([self._with_efficiency(row)], instead_of)

    def _together(self, work: Callable[[], T]) -> T:
        """Do a step in every process; where one fails, all give the cell up. They leave it together.

        Raises:
            BrokenError: it failed somewhere.
        """
        value, failure = self._tried(work)
        failed = [found for found in self.ranks.gather(failure) if found is not None]
        if failed or value is None:
            raise BrokenError(failed[0])
        return value

    def _tried(self, work: Callable[[], T]) -> tuple[T | None, Failure | None]:
        try:
            return work(), None
        except BrokenError as error:
            return None, error.failure
        except (RuntimeError, ValueError, OSError, subprocess.CalledProcessError) as error:
            return None, failures.of_cell(error, self.device)

    def _measure(self, engine: str, batch_size: int) -> Measured:
        """Set an engine up in every process, see that it computes the same as eager, and time it."""
        asked = self.inference
        with contextlib.ExitStack() as stack:
            aside = stack.enter_context(PlanThread(self.device))
            share = self._share(batch_size)
            runner, found = self._together(lambda: self._stand.set_up(engine, share, aside, stack))
            self._together(lambda: aside.run(lambda: self._stand.warm(runner)))
            if asked.scenario != OFFLINE:
                times_ms = self._together(lambda: aside.run(lambda: runner.latencies_ms(asked.measure_iters)))
                found = dataclasses.replace(found, latencies_ms=times_ms)
            if asked.scenario in (BATCH, OFFLINE):
                found = self._together(lambda: self._stand.window(runner, aside, found))
            # Once more: what was timed still computes the same.
            found = self._together(lambda: self._stand.agreeing(runner, share, aside, found))
            (peak_bytes,) = self._together(lambda: (aside.run(runner.peak_memory_bytes),))
            return dataclasses.replace(found, peak_memory_bytes=peak_bytes)

    def _share(self, batch_size: int) -> int:
        """Return how much of a batch is this process's.

        Raises:
            BrokenError: it cannot be shared evenly.
        """
        share, rest = divmod(batch_size, self.inference.processes)
        if rest:
            reason = f"a batch of {batch_size} cannot be shared evenly among {self.inference.processes} GPUs"
            raise BrokenError(Failure("unsupported", reason))
        return share

    def _figures(self, everyone: Sequence[Measured], batch_size: int) -> dict[str, object]:
        """Return what all processes found as columns."""
        first, share = everyone[0], batch_size // len(everyone)
        figures = self._setup_figures(first) | {
            "relative_error": max(found.relative_error or 0.0 for found in everyone),
            "tolerance": max(found.tolerance for found in everyone),
            "setup_s": max(found.setup_s for found in everyone),
            "timing_method": first.method,
            "peak_memory_bytes": first.peak_memory_bytes,
        }
        samples = [found.latencies_ms for found in everyone if found.latencies_ms is not None]
        if samples:
            figures |= latency_figures(max(samples, key=statistics.fmean))
        rates = [found.calls * share / found.window_s for found in everyone if found.calls and found.window_s]
        if rates:
            figures |= {
                "images_per_s": sum(rates),
                "images_per_s_per_process": "|".join(f"{rate:.1f}" for rate in rates),
                "window_s": first.window_s,
            }
            metered = everyone if self.device.type == "cuda" else everyone[:1]  # processes on a CPU share its counter
            energies = [found.energy for found in metered]
            figures |= energy_figures(energies, [found.energy_reason for found in metered], sum(rates))
        return figures | self._floor(share, batch_size, sum(rates))

    def _setup_figures(self, found: Measured) -> dict[str, object]:
        """Return what an engine's set-up came to as columns."""
        return dataclasses.asdict(found.setup) | {
            "layout": found.setup.layout or self.inference.layout,
            "relative_error": found.relative_error,
            "tolerance": found.tolerance,
        }

    def _floor(self, share: int, batch_size: int, images_per_s: float) -> dict[str, object]:
        """Return the least time of one process's share on its card, and how many times that a batch took."""
        gpu = gpus.identify(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
        if gpu is None:
            return {}
        least = roofline.hardware_limit(self._stand.layers(share), gpu, self.inference.dtype, self.inference.math)
        return {
            "floor_ms": least.time_ms,
            "floor_memory_ms": least.memory_ms,
            "floor_compute_ms": least.compute_ms,
            "times_floor": batch_size / images_per_s * 1e3 / least.time_ms if images_per_s else None,
            "flops": least.flops,
            "minimum_bytes": least.minimum_bytes,
        }

    def _with_efficiency(self, row: InferenceRow) -> InferenceRow:
        """Return a row of several processes with its images/s over that many times those of one with this batch."""
        table = self.store.read(TABLE)
        same = [table[name] == getattr(row, name) for name in ("model", "engine", "batch_size", "scenario")]
        alone = table[np.logical_and.reduce(same) & (table["processes"] == 1)]["images_per_s"].dropna()
        if row.processes == 1 or alone.empty or row.images_per_s is None:
            return row
        ideal = row.processes * float(alone.iloc[0])
        return dataclasses.replace(row, scaling_efficiency_pct=100 * row.images_per_s / ideal)

    def _row(self, key: InferenceKey, **figures: object) -> InferenceRow:
        asked = self.inference
        named = ("dtype", "layout", "math", "image_size_px", "warmup_iters", "device")
        same = {name: getattr(asked, name) for name in named} | figures
        return InferenceRow(**dataclasses.asdict(key), **same)

    def _serve(self, engine: str, max_batch: int) -> None:
        """Put an engine under load: requests by a Poisson process, batches up to the limit, rate after rate.

        The engine is set up at each of the batch sizes; a batch runs in the smallest that holds it.
        """
        asked, within = self.inference, self._within(self.key(engine, max_batch))
        wanted = [rate for rate in asked.qps if rate not in within]
        if not wanted if asked.qps else is_found(within):
            return
        with contextlib.ExitStack() as stack:
            aside = stack.enter_context(PlanThread(self.device))
            made = {
                size: self._together(lambda size=size: self._stand.set_up(engine, size, aside, stack))  # type: ignore[misc]
                for size in sorted(asked.batch_sizes)
            }
            runners = {size: runner for size, (runner, _) in made.items()}
            for runner in runners.values():
                self._together(lambda runner=runner: aside.run(lambda: self._stand.warm(runner)))  # type: ignore[misc]
            load = ServerLoad(asked, runners, aside)
            figures = self._setup_figures(made[max_batch][1]) | {
                "setup_s": sum(found.setup_s for _, found in made.values()),
                "timing_method": SERVER_METHOD,
            }
            for rate in wanted or search(within, lambda: self._first_rates(load)):
                self.stopped = self.stop()
                if self.stopped:
                    return
                row = self._under(load, self.key(engine, max_batch, rate), figures)
                self._together(lambda: self._still_agreeing(made, aside))
                within[rate] = bool(row.within_slo)
                self._add(row, instead_of=[self.key(engine, max_batch)])  # no rate: it could not be set up then

    def _still_agreeing(self, made: Mapping[int, tuple[Runner, Measured]], aside: PlanThread) -> bool:
        """See that what was timed still computes the same, at each batch size."""
        for size, (runner, found) in made.items():
            self._stand.agreeing(runner, size, aside, found)
        return True

    def _first_rates(self, load: ServerLoad) -> list[float]:
        batch_s = self._together(load.batch_seconds)
        return rates_around(batch_s, load.batcher, self.inference.slo_ms, self.inference.seed)

    def _under(self, load: ServerLoad, key: InferenceKey, figures: Mapping[str, object]) -> InferenceRow:
        """Measure one rate."""
        rate = key.target_qps or 0.0
        started_utc, started_s = now_utc(), time.perf_counter()
        found = load_figures(self._together(lambda: load.served(rate)), self.inference.slo_ms)
        told = {"started_utc": started_utc, "wall_s": time.perf_counter() - started_s}
        row = self._row(key, **figures, **found, **told)
        p99_ms = math.nan if row.latency_p99_ms is None else row.latency_p99_ms
        self.note(f"{key.engine}: {rate:g} requests/s: p99 {p99_ms:.2f} ms, batches of {row.mean_batch or 0:.1f}")
        return row

    def _within(self, key: InferenceKey) -> dict[float, bool]:
        """Return for each rate that an earlier call measured whether it kept the limit."""
        found = {each: row["within_slo"] == "True" for each, row in self.store.measured().items()}
        same = {each: kept for each, kept in found.items() if dataclasses.replace(each, target_qps=None) == key}
        return {each.target_qps: kept for each, kept in same.items() if each.target_qps is not None}

    def _release(self) -> None:
        """Give back what a cell held; compiled models go with the cycles they are in."""
        if "torch._inductor.compile_fx" in sys.modules:  # else nothing was compiled, and resetting would import it
            torch._dynamo.reset()
            torch._inductor.codecache.PyCodeCache.cache_clear()  # modules that hold frozen weights
        gc.collect()
        release(self.device)
