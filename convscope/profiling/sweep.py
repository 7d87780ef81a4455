"""Order of work of a profile: input size after input size, from the request to the rows.

Sizes are measured in an order drawn from the seed, so that a card that warms up, or is throttled, does not look like an
effect of the size. The tables are read by size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from convscope import failures
from convscope.convolution import algorithms, backends, swap
from convscope.convolution.assignment import Assignment, assign
from convscope.convolution.layer import Layer
from convscope.convolution.operator import card_check, cuda_operator
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs, Source
from convscope.errors import CONTINUE, DeviceFaultError, InputError
from convscope.failures import Failure
from convscope.power.meter import Meter
from convscope.profiling import report, tracing
from convscope.profiling.bench import Bench
from convscope.profiling.deadline import Deadline, read_end_s
from convscope.profiling.measurement import WRONG, failed_row, layer_rows, overall_row, work_rows
from convscope.profiling.request import Run
from convscope.profiling.rows import LayerRow, OverallRow, SizeKey, WorkRow, profile_store
from convscope.profiling.tracing import TraceProcess
from convscope.storage.environment import ORIGIN, Environment
from convscope.storage.paths import RESULTS, RETRIED, now_utc
from convscope.storage.store import Store
from convscope.timing import heap
from convscope.timing.layer_times import LayerTimer

Planned = Callable[[Run, Sequence[Layer]], Assignment]
"""Gives each layer the algorithm that a document has for it, or says why it has none."""
RaceOf = Callable[[Run, nn.Module, Inputs, Sequence[Layer], Bench, Callable[[str], None]], Assignment]
"""Gives each layer the algorithm that was the fastest in the model at these inputs, or says why it has none."""
Tables = tuple[pd.DataFrame, pd.DataFrame]
Rows = tuple[OverallRow, list[LayerRow | WorkRow]]


@dataclass(frozen=True)
class Reuse:
    """Use of the sizes that a folder has already.

    Attributes:
        overwrite: measure all sizes again; the folder's tables are kept in `before-<time>` inside it.
        retry: measure those again that failed or ran out of memory.
        any_card: sizes of another card of the same name may stand in the folder.
        take_over: the folder is taken over where nobody can tell whether its holder has ended.
    """

    overwrite: bool = False
    retry: bool = False
    any_card: bool = False
    take_over: bool = False


@dataclass
class Sweep:
    """Measures the sizes of a request that a folder does not have yet.

    Attributes:
        open_meter: opens the power sensors of a device for the length of a block.
        make_timer: makes the timer of a model's layers on a kind of device.
        source: of the model, where its name does not say it.
        planned, race: choose the algorithm of each layer where that is another from layer to layer
            (`algorithms.MIXTURES`): before anything is measured, and at each size.
        stop: asked before each size; where it says True the sweep ends there, and `stopped` is True.
        note: called with one line where something is worth knowing.
        log: called with a header, a line a size, and what is no fault, which otherwise goes to `note`.
    """

    run: Run
    open_meter: Callable[[torch.device], contextlib.AbstractContextManager[Meter]]
    make_timer: Callable[[nn.Module, str], LayerTimer]
    stop: Callable[[], bool]
    note: Callable[[str], None]
    log: Callable[[str], None] | None = None
    source: Source | None = None
    planned: Planned | None = None
    race: RaceOf | None = None
    stopped: bool = False
    _counts: Callable[[Mapping[str, str]], bool] = lambda row: True
    _assignments: dict[int, Assignment] = field(default_factory=dict)
    _fault: str | None = None

    @functools.cached_property
    def _network(self) -> Network:
        return Network.of(self.run, self.source)

    @property
    def device(self) -> torch.device:
        """The device to measure on."""
        return torch.device(self.run.device)

    def measure(self, path: Path, reuse: Reuse) -> Tables:
        """Measure into a folder; return its overall table and its table of layers.

        Raises:
            InputError, WriteError: as `Store` does; layers that cannot use the algorithm; a job too short for a size.
            DeviceFaultError: the GPU was lost on the way; the sizes before are in the folder.
        """
        run = self.run
        try:
            settings = backends.settings(run.provider, run.layout, run.max_workspace_bytes)
            with torch.inference_mode(), backends.math(run.math), settings:
                return self._measure_into(path, reuse)
        except RuntimeError as error:  # leaving what a lost device was used by may raise once more
            fault = self._fault or failures.device_fault(self.device)
            if fault is None:
                raise
            raise DeviceFaultError(f"{self.device} is lost: {fault}; {CONTINUE}") from error

    def _measure_into(self, path: Path, reuse: Reuse) -> Tables:
        run, end_s = self.run, read_end_s(os.environ)
        with contextlib.ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            # Checked before anything is measured: all sizes where the algorithm's rule goes by size, else the ends.
            all_sizes = algorithms.find(run.algorithm).rule_depends_on_size
            checked = run.input_sizes if all_sizes else (run.input_sizes[0], run.input_sizes[-1])
            self._assignments = {size: self._assign(size) for size in sorted(set(checked))}
            store = stack.enter_context(profile_store(path, run.stem, self.log or self.note, reuse.take_over))
            meter = stack.enter_context(self.open_meter(self.device))
            environment = backends.environment_on(self.device, meter.settings())
            if self.log:
                self.log(report.log_header(run, environment, sys.argv))
            own_job = environment.slurm_job_id if _requeued(store, environment) else None
            # What this job itself has measured before it was put into the queue again stays.
            self._counts = lambda row: (
                not (reuse.retry and row["status"] in RETRIED)
                or (own_job is not None and row["slurm_job_id"] == own_job)
            )
            overwrite = reuse.overwrite and own_job is None
            missing = store.missing(
                run,
                environment,
                [SizeKey(size) for size in run.input_sizes],
                overwrite=overwrite,
                counts=self._counts,
                any_card=reuse.any_card,
            )
            if missing:
                on_gpu = self.device.type == "cuda"
                tracer = stack.enter_context(tracing.begun(run, self.source)) if on_gpu else None
                deadline = Deadline(end_s, () if overwrite else store.cells().values())
                self._sweep(store, environment, meter, tracer, [cell.input_size for cell in missing], deadline)
            tables = store.read_all("overall", "layers")
            return tables["overall"], tables["layers"]

    def _layers(self, size: int) -> tuple[Layer, ...]:
        return self._network.layers(self.run.image_size(size))

    def _assign(self, size: int) -> Assignment:
        try:
            check = card_check(self.device, self.run.max_workspace_bytes, self.run.dtype)
            wanted = self.planned(self.run, self._layers(size)) if self.planned else None
            return assign(self.run, self._layers(size), check, wanted)
        finally:
            if self.device.type == "cuda":
                cuda_operator().release()

    def _raced(self, bench: Bench, swapped: swap.Swap, size: int, assigned: Assignment) -> Assignment:
        """Return an assignment with the plans that were the fastest at this size, where they are asked for."""
        if self.run.algorithm != algorithms.AUTOTUNE:
            return assigned
        assert self.race is not None, "a sweep without a race cannot tune"
        swapped.restore()
        layers = self._layers(size)
        try:
            inputs = self._network.inputs(self.run.image_size(size), self.device)
            found = self.race(self.run, swapped.model, inputs, layers, bench, self.note)
        except DeviceFaultError as fault:
            self._fault = str(fault)
            raise
        wanted = Assignment(found.algorithms, {**found.reasons, **assigned.reasons})
        return assign(self.run, layers, card_check(self.device, dtype=self.run.dtype), wanted)

    def _sweep(
        self,
        store: Store,
        environment: Environment,
        meter: Meter,
        tracer: TraceProcess | None,
        sizes: Sequence[int],
        deadline: Deadline,
    ) -> None:
        order = random.Random(self.run.seed).sample(sizes, len(sizes))
        if too_short := deadline.missed_by(order[0]):
            raise InputError(f"{too_short}: nothing is measured; submit it with a longer time limit")
        model = self._model()
        sensor_report = RESULTS / f"sensor_{self.run.gpu}.json"  # of the last self-test of this GPU
        found = sensor_report.name if sensor_report.exists() else None
        store.begin(self.run, environment, sys.argv, sensor_report=found)
        timer = self.make_timer(model, self.device.type)
        bench = Bench(self.run, model, self.device, timer, meter, self.note, tracer, self._network)
        if tracer:
            tracer.wait_until_ready()
        try:
            swapped = swap.Swap(model)
            with heap.frozen():
                self._measure_each(store, bench, swapped, order, self._full_px(store, environment), deadline)
            store.sort()
        except RuntimeError:
            self._fault = failures.device_fault(self.device)
            if self._fault:
                store.note_in_run(error=self._fault)
            raise
        if not self.stopped:
            store.note_in_run(ended_utc=now_utc())

    def _model(self) -> nn.Module:
        run = self.run
        try:
            return self._network.on(self.device)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"the weights of {run.model} do not fit into the memory of {self.device} ({str(error).splitlines()[0]})"
            ) from None

    def _full_px(self, store: Store, environment: Environment) -> int | None:
        """Return the smallest size that ran out of memory on this card, by this program; None without one."""
        origin = {name: str(getattr(environment, name) or "") for name in ORIGIN if name != "slurm_job_id"}
        full = [row for row in store.cells().values() if row["status"] == "oom" and self._counts(row)]
        same = [row for row in full if all(row[name] == value for name, value in origin.items())]
        return min((int(row["input_size"]) for row in same), default=None)

    def _measure_each(
        self,
        store: Store,
        bench: Bench,
        swapped: swap.Swap,
        sizes: Sequence[int],
        full_px: int | None,
        deadline: Deadline,
    ) -> None:
        """Measure sizes in this order; `full_px` is the smallest that is known to run out of memory."""
        run = self.run
        tuned = cuda_operator().tuned if self.device.type == "cuda" else {}
        tuned.clear()
        bench.calibrate(run.input_sizes[0])
        with tqdm(sizes, desc=f"{run.model}, {run.algorithm}", unit="size", disable=None) as bar:
            for order, size in enumerate(bar):
                missed = deadline.missed_by(size)
                self.stopped = self.stop() or missed is not None
                if self.stopped:
                    if missed:
                        (self.log or self.note)(f"not begun: {missed}")
                    break
                bar.set_postfix_str(f"{size} px")
                row, layers = self._size(bench, swapped, size, full_px)
                if tuned:
                    store.note_in_run(kernels=(store.read_run() or {}).get("kernels", {}) | tuned)
                    tuned.clear()
                store.append([dataclasses.replace(row, order=order), *layers])
                if self.log:
                    done = len(run.input_sizes) - len(sizes) + order + 1
                    self.log(report.log_line(row, done, len(run.input_sizes)))
                if row.status == "ok" and row.wall_s is not None:
                    deadline.learn(size, row.wall_s)
                if row.status == "oom":
                    full_px = min(size, full_px or size)
        swapped.restore()

    def _size(self, bench: Bench, swapped: swap.Swap, size: int, full_px: int | None) -> Rows:
        """Measure a size; one as large as one that was out of memory is not tried."""
        if full_px is not None and size >= full_px:
            failure = Failure("oom", f"not tried: out of memory at {full_px} px already")
            return failed_row(self.run, size, failure, now_utc(), 0.0), []
        row, layers = self._measure(bench, swapped, size)
        if row.status == WRONG:
            self.note(f"{size} px: {row.status}: {row.reason}")
        elif row.status != "ok":  # what failed may still hold memory in cycles
            gc.collect()
            bench.release()
        return row, layers

    def _measure(self, bench: Bench, swapped: swap.Swap, size: int) -> Rows:
        run = self.run
        started_utc, started_s = now_utc(), time.perf_counter()
        try:
            assigned = self._assignments.get(size) or self._assign(size)
            assigned = self._raced(bench, swapped, size, assigned)
            swapped.apply(assigned.algorithms)
            found = bench.measure(size, self._layers(size), check_errors=True, algorithms=assigned.algorithms)
            layers = layer_rows(run, size, self._layers(size), found, assigned)
            row = overall_row(run, size, found, assigned, layers, started_utc, time.perf_counter() - started_s)
        except Exception as error:  # Triton's refusals are no RuntimeError
            failure = failures.classify(error) or failures.of_model(error)
            if failure is None or failures.device_fault(self.device):
                raise
            self.note(f"{size} px: {failure.status}: {failure.reason}")
            return failed_row(run, size, failure, started_utc, time.perf_counter() - started_s), []
        else:
            return row, [*layers, *work_rows(run, size, found)]
        finally:
            bench.release()


def _requeued(store: Store, environment: Environment) -> bool:
    """Tell whether the folder's run is this SLURM job's own, from before it was put into the queue again."""
    if environment.slurm_job_id is None or not int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return False
    earlier: dict[str, Any] | None = store.read_run()
    return earlier is not None and earlier["environment"].get("slurm_job_id") == environment.slurm_job_id


AT_ONCE: Mapping[str, Any] = {"num_sizes": 1, "unsupported": "skip"}
"""Settings of one call, where it says nothing else: one size, 224, and PyTorch runs what an algorithm cannot."""
SIZED = frozenset({"input_sizes", "input_shape"})
"""Settings that name the sizes, in place of their number."""


class Profiled(NamedTuple):
    """Tables of one call: a row for each algorithm and size, and one for each call of a convolution in them."""

    overall: pd.DataFrame
    layers: pd.DataFrame


class Profiler(Protocol):
    """`profiler.UnifiedProfiler`: a sweep with its instruments."""

    @property
    def request(self) -> Run:
        """The request, every setting decided."""

    def run(self, output_dir: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Measure into a folder; return the overall table and the table of layers."""


def measure_each(
    make: Callable[..., Profiler], algorithms: Sequence[str], output_dir: Path | str | None, settings: Mapping[str, Any]
) -> Profiled:
    """Measure with one algorithm after another; all are checked before the first.

    Args:
        make: makes the profiler of an algorithm, with settings.
        output_dir: keeps the tables, in a folder for each algorithm; None keeps none.
        settings: in place of those of `AT_ONCE`, and beside them.
    """
    usual = {name: value for name, value in AT_ONCE.items() if name != "num_sizes" or not {*settings} & SIZED}
    made = [make(algorithm, **{**usual, **settings}) for algorithm in algorithms]
    with tempfile.TemporaryDirectory() as folder, tracing.kept():
        tables = [each.run(Path(output_dir or folder) / each.request.folder_name) for each in made]
    return Profiled(*(pd.concat(parts, ignore_index=True) for parts in zip(*tables, strict=True)))
