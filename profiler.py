"""The measuring itself: power of a card, times of a model's convolutions, and the two together over input sizes.

`UnifiedProfiler` is what `run_profile.py` calls. Nothing under `convscope/` imports this file: what a study needs to
measure with is handed to it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from convscope import algorithms, energy, environment, graphs, models, nvml, request, swap, trace
from convscope.assignment import Assignment, assign
from convscope.bench import Bench, SteadyLoad, status_of
from convscope.energy import EnergyWindow, LoadEnergy
from convscope.errors import InputError
from convscope.folder import Folder
from convscope.measurement import failed_row, layer_rows, overall_row
from convscope.nvml import SensorError
from convscope.rapl import RaplPackages
from convscope.records import Environment, Layer, Run
from convscope.sampling import PowerWindow, Sampler, Sensor

RESULTS = Path(__file__).parent / "results"


class PowerMonitor:
    """Power and energy of one or more devices over windows of time, each with an uncertainty.

    Enter it, and its sensors are sampled. Windows may nest and overlap, each has its own samples. Without a sensor it
    still is an object: `reason` says why there is none, and windows have no energy.

    Args:
        sensors: the devices; `PowerMonitor.of` opens cards by UUID, `of_device` what belongs to a device of PyTorch.
        reason: why there are no sensors.
        period_s: time between two looks at the sensors; None leaves the looking to the monitor's own calls.
    """

    CHECK_S = 0.02
    PAUSE_S = 0.0005

    def __init__(
        self,
        sensors: Sequence[Sensor] = (),
        reason: str | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        period_s: float | None = 0.002,
    ) -> None:
        self._missing = None if sensors else reason or "nothing to ask"
        self._clock, self._sleep = clock, sleep
        self._sampler = Sampler(sensors, clock, period_s)

    @classmethod
    def of(cls, uuids: Sequence[str], nvml_module: Any = None) -> PowerMonitor:
        """Return a monitor of these cards ("GPU-…", "MIG-…"), or one that says why there is none."""
        cards: list[Sensor] = []
        try:
            cards.extend(nvml.NvmlCard(uuid, nvml_module) for uuid in uuids)
        except SensorError as error:
            for card in cards:
                card.close()
            return cls(reason=str(error))
        return cls(cards)

    @classmethod
    def of_visible(cls, nvml_module: Any = None) -> PowerMonitor:
        """Return a monitor of all cards that `CUDA_VISIBLE_DEVICES` shows this process, in its order."""
        try:
            module = nvml_module or nvml.load()
            return cls.of(nvml.visible_uuids(module, os.environ.get("CUDA_VISIBLE_DEVICES")), module)
        except SensorError as error:
            return cls(reason=str(error))

    @classmethod
    def of_device(cls, device: torch.device) -> PowerMonitor:
        """Return a monitor of one of PyTorch's devices: the card by its UUID, or the CPU packages."""
        if device.type == "cuda":
            uuid = torch.cuda.get_device_properties(device).uuid
            card = cls.of([f"GPU-{uuid}"])
            part = cls.of([f"MIG-{uuid}"]) if card.reason else card
            return card if part.reason else part
        try:
            return cls([RaplPackages()])
        except SensorError as error:
            return cls(reason=str(error))

    @property
    def reason(self) -> str | None:
        """Why there is no power and energy, None while there is."""
        return self._missing or self._sampler.failure

    def __enter__(self) -> PowerMonitor:
        self._sampler.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._sampler.__exit__(kind, value, at)
        for sensor in self._sampler.sensors:
            sensor.close()

    def begin(self) -> PowerWindow:
        """Open a window now."""
        self._sampler.poll()
        return PowerWindow(self._clock())

    def end(self, window: PowerWindow) -> PowerWindow:
        """Close a window now and fill in its energies."""
        window.end_s = self._clock()
        self._sampler.poll()
        for index in range(len(self._sampler.sensors)):
            found, reason = self._energy(index, window.start_s, window.end_s)
            window.energies.append(found)
            window.reasons.append(reason)
        return window

    @contextlib.contextmanager
    def window(self) -> Iterator[PowerWindow]:
        """Measure what runs in the `with` block; the window is filled in when it ends."""
        opened = self.begin()
        try:
            yield opened
        finally:
            self.end(opened)

    def _energy(self, index: int, start_s: float, end_s: float) -> tuple[EnergyWindow | None, str | None]:
        if self.reason:
            return None, f"no energy: {self.reason}"
        try:
            return self._sampler.energy(index, start_s, end_s), None
        except energy.WindowError as error:
            return None, f"no energy: {error}"

    def steady(
        self,
        load: SteadyLoad,
        *,
        warmup_s: float = 0.2,
        minimum_s: float = 1.0,
        precision: float = 0.01,
        budget_s: float = 5.0,
    ) -> tuple[LoadEnergy | None, str | None]:
        """Measure the first device under a steady load: the energy, or None and the reason why not.

        The first `warmup_s` seconds are the ramp and do not count. The window then begins and ends on a tick, lasts at
        least `minimum_s`, and is made longer until its relative uncertainty is `precision`, up to `budget_s` seconds.
        """
        if self.reason:
            return None, f"no energy: {self.reason}"
        self._sampler.forget()
        self._drive(load, warmup_s)
        sensor = self._sampler.sensors[0]
        before, start_s = sensor.state(), self._clock()
        limit_s = max(budget_s, minimum_s)
        found, reason = None, "no energy: nothing read"
        while (spent_s := self._clock() - start_s) < limit_s and not self.reason:
            self._drive(load, max(self.CHECK_S, min(minimum_s, limit_s) - spent_s))
            end_s = self._clock()
            self._sampler.poll()
            found, why = self._energy(0, start_s, end_s)
            if found and found.duration_s >= minimum_s and found.relative_uncertainty <= precision:
                count = load.inferences(found.end_s) - load.inferences(found.start_s)
                return LoadEnergy(found, count, before, sensor.state()), None
            reason = why or _too_short(found, precision, minimum_s, limit_s)
        return None, reason

    def _drive(self, load: SteadyLoad, seconds: float) -> None:
        until_s = self._clock() + seconds
        while self._clock() < until_s and not self.reason:
            load.step()
            self._sampler.pause(self._sleep, self.PAUSE_S)

    def idle_power_w(self, seconds: float = 1.2) -> float | None:
        """Return the first device's mean power over some seconds in which the caller has given it nothing to do."""
        if self.reason:
            return None
        opened = self.begin()
        while self._clock() < opened.start_s + seconds:
            self._sampler.pause(self._sleep, self.CHECK_S)
        found = self.end(opened).energies[0]
        return found.power_mean_w if found else None

    def settings(self) -> dict[str, object]:
        """Return the first device's driver, clocks, power limit and ECC by the names of `Environment`'s fields."""
        return self._sampler.sensors[0].settings() if self._sampler.sensors else {}


def _too_short(found: EnergyWindow | None, precision: float, minimum_s: float, limit_s: float) -> str:
    if found is None:
        return "no energy: nothing read"
    needed_s = max(minimum_s, energy.needed_s(found, precision))
    return f"no energy: {100 * precision:g} % needs a window of {needed_s:.1f} s, {limit_s:g} s are allowed"


class CUDALayerTimer:
    """Times every convolution of a model, swapped or not, inside the whole model.

    On a GPU it lays a pair of CUDA events around each: enter it while a graph is captured, and each replay of that
    graph writes the times anew. On a CPU it reads the host's clock. The hooks are there only inside the `with` block.
    """

    def __init__(self, model: nn.Module, device_type: str) -> None:
        self._model = model
        self._on_gpu = device_type == "cuda"
        self._marks: list[tuple[Any, Any]] = []
        self._open: list[Any] = []
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> CUDALayerTimer:
        self._marks.clear()
        self._hooks.enter_context(models.hooked(self._model, self._before, self._after))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._hooks.close()

    def _before(self, name: str, module: nn.Module, given: torch.Tensor) -> None:
        self._open.append(self._mark())

    def _after(self, name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        self._marks.append((self._open.pop(), self._mark()))

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = graphs.timing_event()
        event.record()
        return event

    def read_ms(self) -> list[float]:
        """Return the times of the last pass, one for each call of a convolution, in order, in milliseconds.

        On a GPU the events' own overhead is still in them (`graphs.layer_times` takes it off).
        """
        if self._on_gpu:
            return [start.elapsed_time(end) for start, end in self._marks]
        return [(end - start) * 1e3 for start, end in self._marks]


class UnifiedProfiler:
    """Profiles one model with one convolution algorithm over many input sizes.

    Args:
        model_name: one of `models.MODELS`, or `torchvision:NAME`.
        algorithm: a name of `algorithms.ALGORITHMS`, with spaces or underscores.
        num_sizes: how many sizes, spread evenly over `input_size_range` (pixels, both ends included).
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        math: "tf32" or "fp32"; None is tf32 on a GPU and fp32 on a CPU.
        unsupported: "error", "fallback" (implicit precomp gemm, on a CPU PyTorch) or "skip" (PyTorch, no layer time).
        gpu: the GPU's name in the folder; it must be the card that is there.
        stage: a name of `records.STAGES`; None goes by the number of sizes (1, 10, else full).
        measure_energy: open a window of a second or more on the energy counter at each size.
        energy_warmup_s, energy_precision, energy_budget_s: as `PowerMonitor.steady` takes them.
        layer_energy: replay each distinct layer alone, and measure its energy (`layer_energy.measure`).
        provider: "cudnn" or "triton" for an algorithm that both have; None is cuDNN where it can.
        stop: asked before each size; where it says True the sweep ends there, and `stopped` is True.
        note: called with one line where something is worth knowing.

    Raises:
        InputError: anything of this that cannot be.
    """

    def __init__(
        self,
        model_name: str,
        algorithm: str,
        batch_size: int = 1,
        num_sizes: int = 100,
        warmup_iters: int = 10,
        measure_iters: int = 20,
        input_size_range: tuple[int, int] = (224, 512),
        *,
        device: str = "auto",
        math: str | None = None,
        unsupported: str = "error",
        pretrained: bool = False,
        seed: int = 0,
        gpu: str | None = None,
        stage: str | None = None,
        measure_energy: bool = True,
        energy_warmup_s: float = Run.energy_warmup_s,
        energy_precision: float = Run.energy_precision,
        energy_budget_s: float = Run.energy_budget_s,
        layer_energy: bool = False,
        provider: str | None = None,
        stop: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self.device = request.find_device(device)
        self.note = note
        self.stop = stop
        self.stopped = False
        self.request = request.make_run(
            model_name,
            algorithm,
            num_sizes=num_sizes,
            input_size_range=input_size_range,
            device=self.device,
            gpu=gpu,
            stage=stage,
            math=math,
            unsupported=unsupported,
            batch_size=batch_size,
            warmup_iters=warmup_iters,
            measure_iters=measure_iters,
            pretrained=pretrained,
            seed=seed,
            energy=measure_energy,
            energy_warmup_s=energy_warmup_s,
            energy_precision=energy_precision,
            energy_budget_s=energy_budget_s,
            layer_energy=layer_energy,
            provider=provider,
        )

    @property
    def folder(self) -> Path:
        """Where results go unless `run` is told otherwise: `results/<stage>/<model>_<algorithm>_<gpu>/`."""
        return RESULTS / self.request.stage / self.request.folder_name

    def run(self, output_dir: Path | str | None = None, overwrite: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Measure the sizes that the folder does not have yet; return the overall table and the table of layers.

        Raises:
            InputError: layers that cannot use the algorithm, a folder that cannot be written, or one that holds
                sizes measured under other settings.
        """
        run = self.request
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(swap.math(run.math))
            stack.enter_context(swap.provider(run.provider))
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            assignments = {size: self._assign(size) for size in self._sizes_to_check()}
            folder = Folder(Path(output_dir or self.folder), run.stem)
            folder.prepare()
            monitor = stack.enter_context(PowerMonitor.of_device(self.device))
            here = environment.read(self.device, monitor.settings())
            missing = list(run.input_sizes) if overwrite else folder.missing_sizes(run, here, self.note)
            if missing:
                self._sweep(folder, here, monitor, missing, assignments, overwrite)
        return folder.read_overall(), folder.read_layers()

    def _sensor_report(self) -> str | None:
        """Return the name of the last sensor self-test of this GPU, None where there was none."""
        path = RESULTS / f"sensor_{self.request.gpu}.json"
        return path.name if path.exists() else None

    def _sizes_to_check(self) -> Sequence[int]:
        """Return the sizes to check before anything is measured: all where the algorithm's rule goes by size."""
        sizes = self.request.input_sizes
        return sizes if algorithms.find(self.request.algorithm).rule_depends_on_size else sorted({sizes[0], sizes[-1]})

    def _layers(self, size: int) -> tuple[Layer, ...]:
        return models.convolutions(self.request.model, size, self.request.batch_size)

    def _assign(self, size: int) -> Assignment:
        try:
            return assign(self.request, self._layers(size), swap.asker(self.device))
        finally:
            if self.device.type == "cuda":
                swap.engine().release()

    def _sweep(
        self,
        folder: Folder,
        here: Environment,
        monitor: PowerMonitor,
        sizes: Sequence[int],
        assignments: dict[int, Assignment],
        overwrite: bool,
    ) -> None:
        run = self.request
        if self.device.type == "cuda":
            trace.prepare()
        model = models.build(run.model, run.pretrained, run.seed).to(self.device)
        swapped = swap.Swap(model)
        times = {
            "command": sys.argv,
            "started_utc": _now_utc(),
            "ended_utc": None,
            "sensor_report": self._sensor_report(),
        }
        if overwrite:
            folder.clear()
        earlier = (folder.read_run() or {}).get("kernels", {})
        folder.write_run(run, here, times | {"kernels": earlier})
        timer = CUDALayerTimer(model, self.device.type)
        bench = Bench(run, model, self.device, timer, monitor, self.note)
        bench.calibrate(run.input_sizes[0])
        with tqdm(sizes, desc=f"{run.model}, {run.algorithm}", unit="size", disable=None) as bar:
            for size in bar:
                self.stopped = self.stop()
                if self.stopped:
                    break
                bar.set_postfix_str(f"{size} px")
                started_utc, started_s = _now_utc(), time.perf_counter()
                try:
                    assigned = assignments.get(size) or self._assign(size)
                    swapped.apply(assigned.algorithms)
                    found = bench.measure(size, self._layers(size), check_errors=size == run.input_sizes[0])
                    wall_s = time.perf_counter() - started_s
                    row = overall_row(run, size, found, assigned, started_utc, wall_s)
                    folder.append(row, layer_rows(run, size, self._layers(size), found, assigned))
                except (RuntimeError, InputError) as error:
                    status = status_of(error)
                    if status is None:
                        raise
                    reason = str(error).splitlines()[0]
                    self.note(f"{size} px: {status}: {reason}")
                    wall_s = time.perf_counter() - started_s
                    folder.append(failed_row(run, size, status, reason, started_utc, wall_s), [])
                finally:
                    bench.release()
        swapped.restore()
        times["ended_utc"] = None if self.stopped else _now_utc()
        chosen = swap.engine().tuned if self.device.type == "cuda" else {}
        folder.write_run(run, here, times | {"kernels": earlier | chosen})


def _now_utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
