"""Order of work of the training study: every model at every batch size, a cell at a time, from request to rows.

One process or several (torchrun): each trains and measures its share, the first gathers and writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from convscope import failures
from convscope.convolution import backends
from convscope.convolution.operator import release
from convscope.distributed import Ranks
from convscope.power.meter import Meter
from convscope.storage.paths import now_utc, slug
from convscope.storage.store import Store
from convscope.timing.summary import summarize
from convscope.training import report
from convscope.training.datasets import Images
from convscope.training.request import Training
from convscope.training.rows import EpochRow, KernelRow, MemoryRow, OperatorRow, Row, TrainingKey, TrainingRow
from convscope.training.step import CPU_METHOD, CUDA_METHOD, PHASES
from convscope.training.trainer import Trained, Trainer, phase_times


@dataclasses.dataclass
class TrainingStudy:
    """Trains the cells that a store lacks.

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
        """Train cell after cell; a cell that cannot be trained is a row with a reason.

        Where one of several processes fails, all end: they may no longer be at the same step.
        """
        with backends.math(self.training.math), deterministic(self.training.deterministic):
            for model, batch_size in self._missing():
                self.stopped = any(self.ranks.gather(self.stop()))
                if self.stopped:
                    return
                try:
                    self._cell(model, batch_size)
                finally:
                    self._release()
                if self.broken:
                    return

    def _missing(self) -> list[tuple[str, int]]:
        every = [(model, size) for model in self.training.models for size in dict.fromkeys(self.training.batch_sizes)]
        done = self.ranks.gather(set(self.store.cells()) if self.ranks.is_first else None)[0]
        return [cell for cell in every if self.key(*cell) not in done]

    def key(self, model: str, batch_size: int) -> TrainingKey:
        """Return the key of a cell of this study."""
        return key_of(self.training, model, batch_size)

    def _cell(self, model: str, batch_size: int) -> None:
        key, started_utc, started_s = self.key(model, batch_size), now_utc(), time.perf_counter()
        trace_dir = self.profile_dir / cell_name(key)
        run: dict[str, object] = {"started_utc": started_utc}
        try:
            trainer = Trainer(self.training, model, batch_size, self.images, self.device, self.ranks)
            trained = trainer.train(self.meter)
            trainer.look_closer(trace_dir / f"rank{self.ranks.rank}.pt.trace.json")
        except (RuntimeError, ValueError) as error:
            failure = failures.of_cell(error, self.device, cell_name(key))
            run |= {"status": failure.status, "reason": failure.reason, "wall_s": time.perf_counter() - started_s}
            self._fail(self._row(key, **run))
            return
        everyone = self.ranks.gather(trained)
        if self.ranks.is_first:
            figures = _figures(everyone, batch_size, self.device.type == "cuda")
            row = self._with_efficiency(self._row(key, **figures, **run, wall_s=time.perf_counter() - started_s))
            self.store.append([row, *_detail_rows(key, trained)])
            report.write_scalars(trace_dir, row, trained, self.note)

    def _fail(self, row: TrainingRow) -> None:
        self.note(f"{cell_name(row)}: {row.status}: {row.reason}")
        self.broken = self.ranks.world > 1
        if self.broken:
            self.note("the processes end together: the same command goes on with the other cells")
        if self.ranks.is_first:
            self.store.append([row])

    def _row(self, key: TrainingKey, **figures: object) -> TrainingRow:
        training = self.training
        named = ("dataset", "stem", "algorithm", "dtype", "math", "device", "skipped_steps")
        same = {name: getattr(training, name) for name in named}
        method = CUDA_METHOD if self.device.type == "cuda" else CPU_METHOD
        return TrainingRow(**dataclasses.asdict(key), **same, timing_method=method, **figures)  # type: ignore[arg-type]

    def _with_efficiency(self, row: TrainingRow) -> TrainingRow:
        """Return a row of several processes with its scaling efficiency: its throughput over that of as many alone."""
        table = self.store.read("training")
        same = (table["model"] == row.model) & (table["batch_size"] == row.batch_size)
        alone = table[same & (table["processes"] == 1) & (table["compiled"] == row.compiled)]
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


def key_of(request: Training, model: str, batch_size: int) -> TrainingKey:
    """Return the key of a cell of a request."""
    return TrainingKey(slug(model), batch_size, request.processes, request.compiled)


def cells_of(request: Training) -> list[TrainingKey]:
    """Return the keys of all cells of a request."""
    return [key_of(request, model, size) for model in request.models for size in dict.fromkeys(request.batch_sizes)]


def cell_name(key: TrainingKey) -> str:
    """Return the name of a cell's folder: resnet18_batch32, with _x2 for two processes and _compiled."""
    several = f"_x{key.processes}" if key.processes > 1 else ""
    return f"{key.model}_batch{key.batch_size}{several}{'_compiled' if key.compiled else ''}"


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
    """Return the measurements of all processes as columns: throughput and energy of all, the rest of the first.

    Processes on a CPU share its energy counter: there the first one's windows count.
    """
    first = everyone[0]
    samples = sum(len(trained.phases_ms) for trained in everyone) * batch_size
    throughput = samples / max(trained.window_s for trained in everyone)
    figures: dict[str, object] = {
        "throughput_samples_per_s": throughput,
        "throughput_per_process_samples_per_s": throughput / len(everyone),
        "steps": len(first.phases_ms),
        "window_s": first.window_s,
        "launch_ms": first.launch_ms,
        "peak_memory_bytes": first.peak_memory_bytes,
        "mean_memory_bytes": first.mean_memory_bytes,
        "parameters": first.parameters,
        "loss": first.epochs[-1].losses and math.fsum(first.epochs[-1].losses) / len(first.epochs[-1].losses),
        "accuracy_pct": first.epochs[-1].accuracy_pct,
        "gpu_busy_ms": first.profile.busy_ms if first.profile and first.profile.kernels else None,
    }
    for name, times_ms in phase_times(first).items():
        times = summarize(times_ms)
        figures |= {f"{name}_ms": times.mean_ms, f"{name}_std_ms": times.std_ms, f"{name}_p95_ms": times.p95_ms}
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


def _detail_rows(key: TrainingKey, trained: Trained) -> list[Row]:
    """Return the rows of the tables beside `training.csv`: epochs, and operators, kernels and memory of the trace."""
    name = dataclasses.asdict(key)
    rows: list[Row] = [
        EpochRow(
            **name,
            epoch=number,
            steps=len(epoch.losses),
            train_loss=math.fsum(epoch.losses) / len(epoch.losses),
            test_loss=epoch.test_loss,
            accuracy_pct=epoch.accuracy_pct,
        )
        for number, epoch in enumerate(trained.epochs, 1)
    ]
    if (profile := trained.profile) is None:
        return rows
    whole_ms = profile.total_ms(PHASES)
    rows += [
        OperatorRow(
            **name,
            operator=operator.name,
            phase=operator.phase,
            category=operator.category,
            share_pct=100 * profile.own_ms(operator) / whole_ms if whole_ms else 0.0,
            calls=operator.calls,
            cpu_ms=operator.cpu_ms,
            device_ms=operator.device_ms,
        )
        for operator in profile.operators
    ]
    rows += [KernelRow(**name, kernel=k.name, launches=k.launches, kernel_ms=k.kernel_ms) for k in profile.kernels]
    return rows + [MemoryRow(**name, **dataclasses.asdict(mark)) for mark in profile.memory]
