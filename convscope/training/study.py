"""Order of work of the training study: every model at every batch size, a cell at a time, from request to rows.

One process or several (torchrun): each trains and measures its share, the first gathers and writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from convscope import failures
from convscope.convolution import backends
from convscope.convolution.operator import release
from convscope.distributed import Ranks
from convscope.errors import CONTINUE
from convscope.power.meter import Meter
from convscope.storage.paths import now_utc, slug
from convscope.storage.store import Store
from convscope.storage.table import fill
from convscope.timing.summary import summarize
from convscope.training import report
from convscope.training.captured import CAPTURED_METHOD
from convscope.training.datasets import Images
from convscope.training.operators import StepProfile
from convscope.training.request import Training
from convscope.training.rows import EpochRow, KernelRow, MemoryRow, OperatorRow, Row, TrainingKey, TrainingRow
from convscope.training.step import CPU_METHOD, CUDA_METHOD, PHASES
from convscope.training.trainer import Trained, Trainer, phase_times

T = TypeVar("T")


@dataclasses.dataclass
class TrainingStudy:
    """Trains the cells that a store lacks, and traces those that it has no trace of.

    Attributes:
        profile_dir: folder of traces and TensorBoard's curves, a folder a cell.
        stop: asked before each cell; where it says True the study ends there, and `stopped` is True.
            `broken` is True where a cell failed in one of several processes.
        note: called with one line of text for the user.
    """

    training: Training
    images: Images
    device: torch.device
    ranks: Ranks
    meter: Meter
    store: Store
    profile_dir: Path
    stop: Callable[[], bool]
    note: Callable[[str], None]
    stopped: bool = False
    broken: bool = False

    def run(self) -> None:
        """Train cell after cell, then trace them; a cell that cannot be trained is a row with a reason.

        Nothing is timed after the first trace: CUPTI makes later steps of its process longer. Where one of several
        processes fails, all end: they may no longer be at the same step.
        """
        searched = backends.searching(self.training.cudnn_benchmark)
        with backends.math(self.training.math), searched, deterministic(self.training.deterministic):
            cells = cells_of(self.training)
            done = self._everywhere(lambda: set(self.store.cells()))
            whole = self._each([key for key in cells if key not in done], lambda key: self._cell(key, cells[key]))
            if whole and self.training.profiler:
                untraced = self._everywhere(lambda: self.store.measured().keys() - self._traced_cells())
                self._each([key for key in cells if key in untraced], lambda key: self._trace(key, cells[key]))

    def _everywhere(self, ask: Callable[[], T]) -> T:
        """Return the answer of the first process, which has the store, in all of them."""
        answer: T = self.ranks.gather(ask() if self.ranks.is_first else None)[0]
        return answer

    def _each(self, keys: Sequence[TrainingKey], work: Callable[[TrainingKey], None]) -> bool:
        """Do a cell after the other; return False where the study is to end before the last."""
        for key in keys:
            self.stopped = any(self.ranks.gather(self.stop()))
            if self.stopped:
                return False
            try:
                work(key)
            finally:
                self._release()
            if self.broken:
                return False
        return True

    def _traced_cells(self) -> set[TrainingKey]:
        """Return the cells that have all of the trace that is asked for."""
        return self._cells_in("memory" if self.training.profile_memory else "operators")

    def _cells_in(self, table: str) -> set[TrainingKey]:
        rows = self.store.objects(table)[table]
        return {self.store.schema.part_of(table).key_of_row(row) for row in rows}

    def _trace(self, key: TrainingKey, model: str) -> None:
        """Trace some steps of a cell that is measured, and add what they show to its rows."""
        path = self.profile_dir / cell_name(key) / f"rank{self.ranks.rank}.pt.trace.json"
        try:
            trainer = Trainer(self.training, model, key.batch_size, self.images, self.device, self.ranks)
            profile = trainer.trace(path)
        except OSError as error:
            self._no_trace(key, f"{path.parent} cannot be written ({error.strerror or error})")
            return
        except Exception as error:
            self._no_trace(key, failures.of_cell(error, self.device, cell_name(key)).reason)
            return
        if self.ranks.is_first:
            rows = self.store.objects("training")["training"]
            row = next(row for row in rows if self.store.schema.parts[0].key_of_row(row) == key)
            if profile.kernels:
                by_phase: dict[str, Any] = {f"{phase}_gpu_ms": profile.total_ms([phase]) for phase in PHASES}
                self.store.update([dataclasses.replace(row, gpu_busy_ms=profile.busy_ms, **by_phase)])
            is_traced = key in self._cells_in("operators")  # without the memory that is asked for now
            found = _trace_rows(key, profile)
            self.store.extend([each for each in found if isinstance(each, MemoryRow)] if is_traced else found)

    def _no_trace(self, key: TrainingKey, reason: str) -> None:
        self.note(f"{cell_name(key)}: no trace: {reason}")
        self.broken = self.ranks.world > 1

    def _cell(self, key: TrainingKey, model: str) -> None:
        started_utc, started_s = now_utc(), time.perf_counter()
        try:
            trainer = Trainer(self.training, model, key.batch_size, self.images, self.device, self.ranks)
            trained = trainer.train(self.meter)
            trainer.look_closer()
        except Exception as error:
            failure = failures.of_cell(error, self.device, cell_name(key))
            wall_s = time.perf_counter() - started_s
            self._fail(self._row(key, failure, started_utc=started_utc, wall_s=wall_s))
            return
        everyone = self.ranks.gather(trained)
        if self.ranks.is_first:
            figures = _figures(everyone, key.batch_size, self.device.type == "cuda")
            wall_s = time.perf_counter() - started_s
            row = self._with_efficiency(self._row(key, trained, started_utc=started_utc, wall_s=wall_s, **figures))
            self.store.append([row, *_epoch_rows(key, trained)])
            if trained.skipped_steps < self.training.skipped_steps:
                self.note(f"{cell_name(key)}: of few steps only the first {trained.skipped_steps} are not counted")
            self._write_curves(key, row, trained)

    def _write_curves(self, key: TrainingKey, row: TrainingRow, trained: Trained) -> None:
        folder = self.profile_dir / cell_name(key)
        try:
            report.write_scalars(folder, row, trained, self.note)
        except OSError as error:  # the figures are in the tables by now
            self.note(f"{cell_name(key)}: no curves: {folder} cannot be written ({error.strerror or error})")

    def _fail(self, row: TrainingRow) -> None:
        self.note(f"{cell_name(row)}: {row.status}: {row.reason}")
        self.broken = self.ranks.world > 1
        if self.broken:
            self.note(f"the processes end together: {CONTINUE} with the other cells")
        if self.ranks.is_first:
            self.store.append([row])

    def _row(self, key: TrainingKey, *sources: object, **figures: object) -> TrainingRow:
        on_gpu = CAPTURED_METHOD if self.training.captured else CUDA_METHOD
        method = on_gpu if self.device.type == "cuda" else CPU_METHOD
        return fill(TrainingRow, key, self.training, *sources, timing_method=method, **figures)

    def _with_efficiency(self, row: TrainingRow) -> TrainingRow:
        """Return a row of several processes with its scaling efficiency: its throughput over that of as many alone."""
        table = self.store.read("training")
        same = (table["model"] == row.model) & (table["batch_size"] == row.batch_size)
        same &= (table["compiled"] == row.compiled) & (table["captured"] == row.captured)
        alone = table[same & (table["processes"] == 1)]
        throughput = row.throughput_samples_per_s
        if row.processes == 1 or alone["throughput_samples_per_s"].isna().all() or throughput is None:
            return row
        ideal = row.processes * float(alone["throughput_samples_per_s"].iloc[0])
        return dataclasses.replace(row, scaling_efficiency_pct=100 * throughput / ideal)

    def _release(self) -> None:
        """Free a cell's memory on the GPU; a compiled or distributed model is freed with its reference cycles."""
        gc.collect()
        if self.training.compiled:
            torch._dynamo.reset()
        release(self.device)


HOST_BOUND = 0.9
"""Share of a step without its data, from which on the host's time for it means that the GPU waits for the host."""


def cells_of(request: Training) -> dict[TrainingKey, str]:
    """Return the name of the model of each cell of a request."""
    return {
        TrainingKey(slug(model), size, request.processes, request.compiled, request.captured): model
        for model in request.models
        for size in request.batch_sizes
    }


def cell_name(key: TrainingKey) -> str:
    """Return the name of a cell's folder: resnet18_batch32, with _x2 for two processes, _compiled and _captured."""
    several = f"_x{key.processes}" if key.processes > 1 else ""
    execution = "_compiled" * key.compiled + "_captured" * key.captured
    return f"{key.model}_batch{key.batch_size}{several}{execution}"


@contextlib.contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Permit only operators with the same result each time, for the length of the block."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def _figures(everyone: Sequence[Trained], batch_size: int, on_gpu: bool) -> dict[str, object]:
    """Return the columns that `Trained` has not by name: throughput and energy of all processes, the first's times.

    Processes on a CPU share its energy counter: there the first one's windows count.
    """
    first = everyone[0]
    samples = sum(len(trained.phases_ms) for trained in everyone) * batch_size
    throughput = samples / max(trained.window_s for trained in everyone)
    figures: dict[str, object] = {
        "throughput_samples_per_s": throughput,
        "throughput_per_process_samples_per_s": throughput / len(everyone),
        "steps": len(first.phases_ms),
        "skipped_steps": first.skipped_steps,
        "loss": statistics.fmean(first.epochs[-1].losses),
        "accuracy_pct": first.epochs[-1].accuracy_pct,
    }
    for name, times_ms in phase_times(first).items():
        times = summarize(times_ms)
        figures |= {f"{name}_ms": times.mean_ms, f"{name}_std_ms": times.std_ms, f"{name}_p95_ms": times.p95_ms}
    if first.launch_ms is not None:
        by_phase = phase_times(first)
        computing_ms = statistics.fmean(by_phase["step"]) - statistics.fmean(by_phase["data"])
        figures["host_bound"] = first.launch_ms >= HOST_BOUND * computing_ms
    return figures | _energy(everyone if on_gpu else everyone[:1], throughput)


def _energy(metered: Sequence[Trained], throughput_samples_per_s: float) -> dict[str, object]:
    """Return the energy of a sample: mean power over the windows from tick to tick, over the samples in a second."""
    missing = [trained.energy_reason for trained in metered if not trained.energies]
    if missing:
        return {"reason": missing[0]}
    power_w = uncertainty_w = 0.0
    for trained in metered:
        duration_s = sum(energy.duration_s for energy in trained.energies)
        power_w += sum(energy.energy_j for energy in trained.energies) / duration_s
        uncertainty_w = math.hypot(uncertainty_w, *(energy.uncertainty_j / duration_s for energy in trained.energies))
    return {
        "energy_per_sample_j": power_w / throughput_samples_per_s,
        "energy_uncertainty_j": uncertainty_w / throughput_samples_per_s,
        "power_mean_w": power_w,
        "energy_window_s": sum(energy.duration_s for energy in metered[0].energies),
        "energy_source": metered[0].energies[0].source,
    }


def _epoch_rows(key: TrainingKey, trained: Trained) -> list[Row]:
    return [
        fill(EpochRow, key, epoch, epoch=number, steps=len(epoch.losses), train_loss=statistics.fmean(epoch.losses))
        for number, epoch in enumerate(trained.epochs, 1)
    ]


def _trace_rows(key: TrainingKey, profile: StepProfile) -> list[Row]:
    """Return the rows of the tables of a trace: operators, kernels and memory."""
    whole_ms, rows = profile.total_ms(PHASES), list[Row]()
    for each in profile.operators:
        share_pct = 100 * profile.own_ms(each) / whole_ms if whole_ms else 0.0
        rows.append(fill(OperatorRow, key, each, operator=each.name, share_pct=share_pct))
    rows += [fill(KernelRow, key, each, kernel=each.name) for each in profile.kernels]
    return rows + [fill(MemoryRow, key, each) for each in profile.memory]
