"""The measuring itself: power of a card, times of a model's convolutions, and the two together over input sizes.

`UnifiedProfiler` is what `run_profile.py` calls. Nothing under `convscope/` imports this file: what a study needs to
measure with is handed to it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from convscope import algorithms, cudnn, energy, environment, graphs, models, records, request, swap, trace
from convscope.assignment import Assignment, assign
from convscope.bench import Bench
from convscope.errors import InputError
from convscope.measurement import failed_row, layer_rows, overall_row
from convscope.records import Environment, Layer

RESULTS = Path(__file__).parent / "results"


class PowerMonitor:
    """One card's power and energy through NVML, found by its UUID (`CUDA_VISIBLE_DEVICES` renumbers, UUIDs stay).

    Without NVML, or where the card does not count energy, it still is an object: `reason` says why, `window` gives
    None, `state` gives what it can.
    """

    TICK_TIMEOUT_S = 5.0

    def __init__(self, gpu_uuid: str | None, nvml: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.reason: str | None = None
        self._clock = clock
        self._handle: Any = None
        try:
            self._nvml = nvml or _import_nvml()
        except ImportError:
            self.reason = "no power: nvidia-ml-py is not installed"
            return
        if gpu_uuid is None:
            self.reason = "no power: the device is not an NVIDIA GPU"
            return
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
            self.energy_j()
        except self._nvml.NVMLError as error:
            self.reason = f"no power: NVML says {error}"

    def energy_j(self) -> float:
        """Return the card's energy counter in joules since the driver was loaded (Volta and later).

        Raises:
            NVMLError: the card has no such counter, or is gone.
        """
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def window(self, load: graphs.SteadyLoad, minimum_s: float = 1.0) -> energy.EnergyWindow | None:
        """Measure a steady load over a window of at least `minimum_s` that begins and ends on a tick of the counter.

        The first tick only shows that the counter is alive; the window begins with the second. Returns None, and
        sets `reason`, where the counter does not tick.
        """
        if self._handle is None or self.reason:
            return None
        try:
            return energy.window(self._ticks(load, minimum_s)[1:])
        except (self._nvml.NVMLError, ValueError) as error:
            self.reason = f"no energy: {error}"
            return None

    def _ticks(self, load: graphs.SteadyLoad, minimum_s: float) -> list[energy.Reading]:
        readings = [self._read(load)]
        while len(readings) < 3 or readings[-1].time_s - readings[2].time_s < minimum_s:
            now = self._read(load)
            if now.energy_j != readings[-1].energy_j:
                readings.append(now)
            elif now.time_s - readings[-1].time_s > self.TICK_TIMEOUT_S:
                raise ValueError(f"the energy counter did not change in {self.TICK_TIMEOUT_S:.0f} s under load")
        return readings[1:]

    def _read(self, load: graphs.SteadyLoad) -> energy.Reading:
        load.step()
        energy_j, now_s = self.energy_j(), self._clock()
        return energy.Reading(now_s, energy_j, load.inferences(now_s))

    def state(self) -> dict[str, object]:
        """Return driver, clocks, power limit and ECC by the names of `Environment`'s fields, None where unknown."""
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        return {
            "driver": self._ask(nvml.nvmlSystemGetDriverVersion),
            "sm_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "sm_clock_max_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
            "ecc": self._ask(lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def close(self) -> None:
        """Let NVML go; twice is once."""
        if self._handle is not None:
            self._handle = None
            self._nvml.nvmlShutdown()


def _import_nvml() -> Any:
    import pynvml

    return pynvml


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
            if self.device.type == "cuda":
                stack.enter_context(torch.cuda.device(self.device))
            assignments = {size: self._assign(size) for size in self._sizes_to_check()}
            folder = records.Folder(Path(output_dir or self.folder), run.stem)
            folder.prepare()
            monitor = PowerMonitor(device_uuid(self.device))
            stack.callback(monitor.close)
            here = environment.read(self.device, monitor.state())
            missing = self._missing_sizes(folder, here, overwrite)
            if missing:
                self._sweep(folder, here, monitor, missing, assignments)
        return folder.read_overall(), folder.read_layers()

    def _sizes_to_check(self) -> Sequence[int]:
        """Return the sizes to check before anything is measured: all where the algorithm's rule goes by size."""
        sizes = self.request.input_sizes
        return sizes if algorithms.find(self.request.algorithm).rule_depends_on_size else sorted({sizes[0], sizes[-1]})

    def _layers(self, size: int) -> tuple[Layer, ...]:
        return models.convolutions(self.request.model, size, self.request.batch_size)

    def _assign(self, size: int) -> Assignment:
        ask = partial(swap.engine().why_refused, self.device) if self.device.type == "cuda" else None
        try:
            return assign(self.request, self._layers(size), ask)
        finally:
            if self.device.type == "cuda":
                swap.engine().release()

    def _missing_sizes(self, folder: records.Folder, here: Environment, overwrite: bool) -> list[int]:
        if overwrite:
            folder.clear()
        earlier = folder.read_run()
        if earlier is not None:
            odd = records.differences(earlier, self.request, here)
            if odd:
                raise InputError(
                    f"{folder.path} holds a run with other settings ({'; '.join(odd)}): "
                    "choose another --output-dir, or --overwrite"
                )
        torn = folder.drop_torn_sizes()
        if torn:
            self.note(f"dropped the layers of sizes that were cut off: {torn}")
        done = set(folder.read_overall()["input_size"])
        missing = [size for size in self.request.input_sizes if size not in done]
        if not missing:
            self.note(f"all {len(self.request.input_sizes)} sizes are in {folder.path}: nothing measured (--overwrite)")
        elif done:
            self.note(f"{len(done)} sizes are in {folder.path}: measuring the {len(missing)} that are missing")
        return missing

    def _sweep(
        self,
        folder: records.Folder,
        here: Environment,
        monitor: PowerMonitor,
        sizes: Sequence[int],
        assignments: dict[int, Assignment],
    ) -> None:
        run = self.request
        if self.device.type == "cuda":
            trace.prepare()
        model = models.build(run.model, run.pretrained, run.seed).to(self.device)
        swapped = swap.Swap(model)
        times = {"command": sys.argv, "started_utc": _now_utc(), "ended_utc": None}
        folder.write_run(run, here, times)
        timer = CUDALayerTimer(model, self.device.type)
        bench = Bench(run, model, self.device, timer, monitor, self.note)
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
                except (torch.OutOfMemoryError, cudnn.NotSupportedError, graphs.HostTooSlowError, InputError) as error:
                    status = "oom" if isinstance(error, torch.OutOfMemoryError) else "failed"
                    if isinstance(error, (cudnn.NotSupportedError, InputError)):
                        status = "unsupported"
                    reason = str(error).splitlines()[0]
                    self.note(f"{size} px: {status}: {reason}")
                    wall_s = time.perf_counter() - started_s
                    folder.append(failed_row(run, size, status, reason, started_utc, wall_s), [])
                finally:
                    bench.release()
        swapped.restore()
        if not self.stopped:
            folder.write_run(run, here, times | {"ended_utc": _now_utc()})


def device_uuid(device: torch.device) -> str | None:
    """Return the UUID by which NVML knows a CUDA device, None for a CPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None


def _now_utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
