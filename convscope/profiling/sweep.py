"""Order of work of a profile: input size after input size, from the request to the rows."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from convscope import failures
from convscope.convolution import algorithms, backends, models, swap
from convscope.convolution.assignment import Assignment, assign
from convscope.convolution.layer import Layer
from convscope.convolution.operator import card_check, cuda_operator
from convscope.errors import DeviceFaultError, InputError
from convscope.failures import Failure
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.profiling.measurement import failed_row, layer_rows, overall_row
from convscope.profiling.request import Run
from convscope.profiling.rows import LayerRow, OverallRow, SizeKey, profile_store
from convscope.storage.environment import Environment
from convscope.storage.paths import RESULTS, now_utc
from convscope.storage.store import Store
from convscope.timing import trace
from convscope.timing.layer_times import LayerTimer

Tables = tuple[pd.DataFrame, pd.DataFrame]
Rows = tuple[OverallRow, list[LayerRow]]


@dataclass
class Sweep:
    """Measures the sizes of a request that a folder does not have yet.

    Attributes:
        open_meter: opens the power sensors of a device for the length of a block.
        make_timer: makes the timer of a model's layers on a kind of device.
        stop: asked before each size; where it says True the sweep ends there, and `stopped` is True.
        note: called with one line where something is worth knowing.
    """

    run: Run
    open_meter: Callable[[torch.device], contextlib.AbstractContextManager[Meter]]
    make_timer: Callable[[nn.Module, str], LayerTimer]
    stop: Callable[[], bool]
    note: Callable[[str], None]
    stopped: bool = False
    _assignments: dict[int, Assignment] = field(default_factory=dict)
    _fault: str | None = None

    @property
    def device(self) -> torch.device:
        """The device to measure on."""
        return torch.device(self.run.device)

    def measure(self, path: Path, overwrite: bool) -> Tables:
        """Measure into a folder; return its overall table and its table of layers.

        Raises:
            InputError, WriteError: as `Store` does; layers that cannot use the algorithm.
            DeviceFaultError: the GPU was lost on the way; the sizes before are in the folder.
        """
        run = self.run
        try:
            with torch.inference_mode(), backends.math(run.math), backends.settings(provider=run.provider):
                return self._measure_into(path, overwrite)
        except RuntimeError as error:  # leaving what a lost device was used by may raise once more
            fault = self._fault or failures.device_fault(self.device)
            if fault is None:
                raise
            raise DeviceFaultError(f"{self.device} is lost: {fault}; the same command goes on") from error

    def _measure_into(self, path: Path, overwrite: bool) -> Tables:
        run = self.run
        with contextlib.ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            # Checked before anything is measured: all sizes where the algorithm's rule goes by size, else the ends.
            all_sizes = algorithms.find(run.algorithm).rule_depends_on_size
            checked = run.input_sizes if all_sizes else (run.input_sizes[0], run.input_sizes[-1])
            self._assignments = {size: self._assign(size) for size in sorted(set(checked))}
            store = stack.enter_context(profile_store(path, run.stem, self.note))
            meter = stack.enter_context(self.open_meter(self.device))
            environment = backends.environment_on(self.device, meter.settings())
            anew = overwrite and not _requeued(store, environment)
            missing = store.missing(run, environment, [SizeKey(size) for size in run.input_sizes], anew)
            if missing:
                self._sweep(store, environment, meter, [cell.input_size for cell in missing])
            tables = store.read_all("overall", "layers")
            return tables["overall"], tables["layers"]

    def _layers(self, size: int) -> tuple[Layer, ...]:
        return models.convolutions(self.run.model, size, self.run.batch_size)

    def _assign(self, size: int) -> Assignment:
        try:
            return assign(self.run, self._layers(size), card_check(self.device, self.run.max_workspace_bytes))
        finally:
            if self.device.type == "cuda":
                cuda_operator().release()

    def _sweep(self, store: Store, environment: Environment, meter: Meter, sizes: Sequence[int]) -> None:
        if self.device.type == "cuda":
            trace.start_cupti()
        model = self._model()
        sensor_report = RESULTS / f"sensor_{self.run.gpu}.json"  # of the last self-test of this GPU
        found = sensor_report.name if sensor_report.exists() else None
        store.begin(self.run, environment, sys.argv, sensor_report=found)
        timer = self.make_timer(model, self.device.type)
        bench = Bench(self.run, model, self.device, timer, meter, self.note)
        try:
            self._measure_each(store, bench, swap.Swap(model), sizes)
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
            return models.build(run.model, run.pretrained, run.seed).to(self.device)
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"the weights of {run.model} do not fit into the memory of {self.device} ({str(error).splitlines()[0]})"
            ) from None

    def _measure_each(self, store: Store, bench: Bench, swapped: swap.Swap, sizes: Sequence[int]) -> None:
        run = self.run
        tuned = cuda_operator().tuned if self.device.type == "cuda" else {}
        tuned.clear()
        bench.calibrate(run.input_sizes[0])
        overall = store.read("overall")
        full_px = min(overall[overall["status"] == "oom"]["input_size"], default=None)
        with tqdm(sizes, desc=f"{run.model}, {run.algorithm}", unit="size", disable=None) as bar:
            for size in bar:
                self.stopped = self.stop()
                if self.stopped:
                    break
                bar.set_postfix_str(f"{size} px")
                row, layers = self._size(bench, swapped, size, full_px)
                if tuned:
                    store.note_in_run(kernels=(store.read_run() or {}).get("kernels", {}) | tuned)
                    tuned.clear()
                store.append([row, *layers])
                if row.status == "oom" and full_px is None:
                    full_px = size
        swapped.restore()

    def _size(self, bench: Bench, swapped: swap.Swap, size: int, full_px: int | None) -> Rows:
        """Measure a size; one as large as one that was out of memory is not tried."""
        if full_px is not None and size >= full_px:
            failure = Failure("oom", f"not tried: out of memory at {full_px} px already")
            return failed_row(self.run, size, failure, now_utc(), 0.0), []
        row, layers = self._measure(bench, swapped, size)
        if row.status != "ok":  # what failed may still hold memory in cycles
            gc.collect()
            bench.release()
        return row, layers

    def _measure(self, bench: Bench, swapped: swap.Swap, size: int) -> Rows:
        run = self.run
        started_utc, started_s = now_utc(), time.perf_counter()
        try:
            assigned = self._assignments.get(size) or self._assign(size)
            swapped.apply(assigned.algorithms)
            found = bench.measure(size, self._layers(size), check_errors=size == run.input_sizes[0])
            row = overall_row(run, size, found, assigned, started_utc, time.perf_counter() - started_s)
            return row, layer_rows(run, size, self._layers(size), found, assigned)
        except Exception as error:  # Triton's refusals are no RuntimeError
            failure = failures.classify(error)
            if failure is None or failures.device_fault(self.device):
                raise
            self.note(f"{size} px: {failure.status}: {failure.reason}")
            return failed_row(run, size, failure, started_utc, time.perf_counter() - started_s), []
        finally:
            bench.release()


def _requeued(store: Store, environment: Environment) -> bool:
    """Tell whether the folder's run is this SLURM job's own, from before it was put into the queue again."""
    if environment.slurm_job_id is None or not int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return False
    earlier: dict[str, Any] | None = store.read_run()
    return earlier is not None and earlier["environment"].get("slurm_job_id") == environment.slurm_job_id
