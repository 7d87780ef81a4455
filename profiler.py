"""The measuring itself: power of a card, times of a model's convolutions, and the two together over input sizes.

`UnifiedProfiler` is what `run_profile.py` calls. Nothing under `convscope/` imports this file: what a study needs to
measure with is handed to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from convscope import gpus
from convscope.convolution.sources.files import source_of
from convscope.errors import SensorError, WindowError
from convscope.pinning.document import Pins
from convscope.pinning.planned import choosers, pins_in
from convscope.power import energy, nvml
from convscope.power.energy import CardState, Conditions, EnergyWindow, LoadEnergy
from convscope.power.meter import SteadyLoad
from convscope.power.rapl import RaplPackages
from convscope.power.sampler import PowerWindow, Sampler, Sensor
from convscope.profiling.request import Run, make_run
from convscope.profiling.sweep import Profiled, Reuse, Sweep, measure_each
from convscope.storage.paths import RESULTS
from convscope.timing import graphs
from convscope.timing.calls import watched
from convscope.timing.completions import Count
from convscope.timing.layer_times import Reading
from convscope.verification.candidates import Note


class PowerMonitor:
    """Power and energy of one or more devices over windows of time, each with an uncertainty.

    Sensors are sampled while a window is open. Windows may nest and overlap, each has its own samples. Without a
    sensor it still is an object: `reason` says why there is none, and windows have no energy.

    Args:
        sensors: the devices; `PowerMonitor.of` opens cards by UUID, `of_device` what belongs to a device of PyTorch.
        reason: why there are no sensors; a device whose energy cannot be read brings its own reason.
        period_s: time between two looks at the sensors; None leaves the looking to the monitor's own calls.
    """

    CHECK_S = 0.02
    DETUNINGS = 2  # of a load, where its energy scatters too much
    RESTARTS = 3  # of a window in which the device ran out of work; a host that is always late is measured as it is
    WHOLE = 0.9  # inferences that a window holds at least, so that its scatter knows the power of all their parts

    def __init__(
        self,
        sensors: Sequence[Sensor] = (),
        reason: str | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        period_s: float | None = 0.002,
    ) -> None:
        refusals = [sensor.reason for sensor in sensors if sensor.reason]
        self._missing = reason or next(iter(refusals), None if sensors else "nothing to ask")
        self._clock, self._sleep = clock, sleep
        self._sensors = list(sensors)
        self._sampler = Sampler([] if self._missing else sensors, clock, period_s)

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
            properties = torch.cuda.get_device_properties(device)
            return cls.of([gpus.uuid(properties.name, properties.uuid)])
        try:
            return cls([RaplPackages()])
        except SensorError as error:
            return cls(reason=str(error))

    @property
    def reason(self) -> str | None:
        """The reason why there is no power and energy, None while there is."""
        return self._missing or self._sampler.failure

    def __enter__(self) -> PowerMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        for sensor in self._sensors:
            sensor.close()

    def begin(self) -> PowerWindow:
        """Open a window now; sampling goes on until it is closed."""
        self._sampler.__enter__()
        self._sampler.poll()
        return PowerWindow(self._clock())

    def end(self, window: PowerWindow) -> PowerWindow:
        """Close a window now and fill in its energies."""
        window.end_s = self._clock()
        self._sampler.poll()
        self._sampler.__exit__()
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
        except WindowError as error:
            return None, f"no energy: {error}"

    def steady(
        self,
        load: SteadyLoad,
        *,
        warmup_s: float = 0.2,
        minimum_s: float = 1.0,
        precision: float = 0.01,
        budget_s: float = 5.0,
        idle_power_w: float | None = None,
    ) -> tuple[LoadEnergy | None, str | None]:
        """Measure the first device under a steady load: the energy, or None and the reason why not.

        The first `warmup_s` seconds are the ramp and do not count. The window then begins and ends on a tick, lasts at
        least `minimum_s`, and is made longer until its relative uncertainty is `precision`, up to `budget_s` seconds.
        The load goes on until an inference has ended after the window, so that fractions are counted at both ends.

        Where the ticks scatter so much that the budget would not do, the inferences may keep step with the sensor.
        Then the load is detuned and the window begins anew; the rests are taken off at the power of the idle device,
        `idle_power_w`. Without that, nothing is detuned. A window in which the device ran out of work begins anew.
        """
        if self.reason:
            return None, f"no energy: {self.reason}"
        limit_s = max(budget_s, minimum_s)
        with self._sampler:
            self._drive(load, warmup_s)
            self._drive(load, limit_s, until=lambda: load.completions.begun)
            if load.completions.begun or self.reason:
                return self._over_ticks(load, minimum_s, precision, limit_s, idle_power_w)
        return None, f"no energy: no inference ended within {limit_s:g} s"

    def _over_ticks(
        self, load: SteadyLoad, minimum_s: float, precision: float, limit_s: float, idle_power_w: float | None
    ) -> tuple[LoadEnergy | None, str | None]:
        """Lengthen a window until it is as long and as precise as is asked for, or the time is spent."""
        before, start_s = self.state(), self._clock()
        reason: str | None = f"no energy: the device ran out of work again and again in {limit_s:g} s"
        end_s, plain_s, starved, restarts = start_s + limit_s, None, load.starved, self.RESTARTS
        detunings, anew = 0 if idle_power_w is None else self.DETUNINGS, 0
        while self._clock() < end_s and not self.reason:
            self._drive(load, max(self.CHECK_S, min(start_s + minimum_s, end_s) - self._clock()))
            if load.starved > starved and restarts:  # the host paused; its work is queued further ahead now
                start_s, starved, restarts, anew = self._clock(), load.starved, restarts - 1, anew + 1
                continue
            found, reason = self._since(load, start_s, limit_s)
            if found is None:
                continue
            if plain_s is not None and idle_power_w is not None:
                found = found.without_rests(plain_s, idle_power_w)
            precise_s = energy.needed_s(found.window.duration_s, found.relative_uncertainty, precision)
            needed_s = max(minimum_s, self.WHOLE * found.pass_s, precise_s)
            if found.window.duration_s >= needed_s:
                return dataclasses.replace(found, conditions=Conditions(before, self.state())), None
            reason = energy.too_short(needed_s, precision, limit_s, anew, end_s - start_s)
            if needed_s > limit_s and detunings and load.detune():
                plain_s, detunings = plain_s or found.pass_s, detunings - 1
                self._drive(load, self.CHECK_S)
                start_s, anew = self._clock(), anew + 1
        return None, f"no energy: {self.reason}" if self.reason else reason

    def _since(self, load: SteadyLoad, start_s: float, limit_s: float) -> tuple[LoadEnergy | None, str | None]:
        """Return the energy from the first tick after `start_s` to the last one before now, or None and the reason."""
        now_s = self._clock()
        self._sampler.poll()
        window, reason = self._energy(0, start_s, now_s)
        if window is None:
            return None, reason
        count = self._counted(load, window, limit_s)
        if count is None:
            return None, f"no energy: {self.reason or f'an inference takes more than {limit_s:g} s'}"
        return LoadEnergy(window, count.inferences, count.std), None

    def _counted(self, load: SteadyLoad, window: EnergyWindow, limit_s: float) -> Count | None:
        """Drive on until an inference has ended after the window, and count those in it; None if none ends in time."""
        done = load.completions
        self._drive(load, limit_s, until=lambda: done.cover(window.end_s))
        return done.between(window.start_s, window.end_s) if done.cover(window.end_s) else None

    def _drive(self, load: SteadyLoad, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end_s = self._clock() + seconds
        while self._clock() < end_s and not until() and not self.reason:
            load.step()
            self._sampler.pause(self._sleep, load.pause_s)

    def state(self) -> CardState:
        """Return the first device's temperature, clock and throttling at this moment; empty without a device."""
        return self._sensors[0].state() if self._sensors else CardState()

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
        return self._sensors[0].settings() if self._sensors else {}


class CUDALayerTimer:
    """Times every convolution of a model, swapped or not, inside the whole model.

    On a GPU it lays a pair of CUDA events around each, and one ahead: enter it while a graph is captured, and each
    replay of that graph writes the times anew. On a CPU it reads the host's clock. The hooks are there only inside the
    `with` block; with `calls` they see those outside `nn.Conv2d` modules too, which costs the host some time.
    """

    def __init__(self, model: nn.Module, device_type: str, calls: bool = False) -> None:
        self._model, self.calls = model, calls
        self._on_gpu = device_type == "cuda"
        self._marks: list[tuple[Any, Any, Any]] = []
        self._open: list[tuple[Any, Any]] = []
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> CUDALayerTimer:
        self._marks, self._open = [], []
        self._hooks.enter_context(watched(self._model, self._before, self._after, self.calls))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _before(self, name: str, module: nn.Module, given: torch.Tensor) -> None:
        self._open.append((self._mark(), self._mark()))

    def _after(self, name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
        self._marks.append((*self._open.pop(), self._mark()))

    def _mark(self) -> Any:
        if self._on_gpu:
            (event := graphs.timing_event()).record()
            return event
        return time.perf_counter()

    def read_ms(self) -> list[float]:
        """Return the times of the last pass in ms, one for each convolution, on a GPU with the overhead of events."""
        return self.reader()().layers_ms

    def reader(self) -> Callable[[], Reading]:
        """Return what reads the last pass, the empty pairs ahead of its convolutions too, also after another one."""
        marks, on_gpu = self._marks, self._on_gpu
        return lambda: Reading.of(marks, on_gpu)


class UnifiedProfiler:
    """Profiles one model with one convolution algorithm over many input sizes.

    Args:
        model: a module, of which a copy is measured, or a name (`names.KINDS`).
        algorithm: a name that `algorithms.find` knows, with spaces or underscores; a plan of cuDNN is one too.
        num_sizes: number of sizes (100), spread evenly over `input_size_range` (224 to 512 px, both ends included).
        measure_energy: open a window of a second or more on the energy counter at each size.
        inputs: of a module, a tensor or a tuple of tensors: their sizes are the one size that is measured, and their
            batch is the batch size unless one is given. None gives it images.
        name: of a module in folders and tables; None takes its class's.
        stop: asked before each size; where it says True the sweep ends there, and `stopped` is True.
        note: called with one line where something is worth knowing.
        settings: fields of `profiling.request.Run`, `input_sizes` too; `gpu`, its name in folders; `plans`, a file.

    Raises:
        InputError: a setting that cannot be, or two that exclude each other.
    """

    def __init__(
        self,
        model: str | nn.Module,
        algorithm: str,
        batch_size: int | None = None,
        num_sizes: int | None = None,
        warmup_iters: int = 10,
        measure_iters: int = 20,
        input_size_range: tuple[int, int] | None = None,
        *,
        measure_energy: bool = True,
        inputs: torch.Tensor | Sequence[torch.Tensor] | None = None,
        name: str | None = None,
        stop: Callable[[], bool] = lambda: False,
        note: Note = lambda line: print(line, file=sys.stderr),
        **settings: Any,
    ) -> None:
        source = source_of(model, inputs, name)
        pins, settings = pins_in(algorithm, settings)
        batch_size = (source.batch_size if source else 1) if batch_size is None else batch_size
        run = make_run(
            source.name if source else str(model), algorithm, num_sizes=num_sizes, input_size_range=input_size_range,
            batch_size=batch_size, warmup_iters=warmup_iters, measure_iters=measure_iters, energy=measure_energy,
            source=source, **settings,
        )  # fmt: skip
        self._sweep = Sweep(run, PowerMonitor.of_device, CUDALayerTimer, stop, note, None, source, **choosers(pins))

    @classmethod
    def of(
        cls, run: Run, stop: Callable[[], bool], note: Note, log: Note | None = None, pins: Pins | None = None
    ) -> UnifiedProfiler:
        """Return the profiler of a request that is checked already; `log` is called with a line a size."""
        profiler = cls.__new__(cls)
        profiler._sweep = Sweep(run, PowerMonitor.of_device, CUDALayerTimer, stop, note, log, **choosers(pins))
        return profiler

    @property
    def request(self) -> Run:
        """The request, every setting decided."""
        return self._sweep.run

    @property
    def stopped(self) -> bool:
        """True if the last sweep ended before its last size."""
        return self._sweep.stopped

    @property
    def folder(self) -> Path:
        """The folder of results unless `run` is given another: `results/<stage>/<model>_<algorithm>_<gpu>/`."""
        return RESULTS / self.request.stage / self.request.folder_name

    def run(
        self, output_dir: Path | str | None = None, overwrite: bool = False, *,
        retry: bool = False, any_card: bool = False, take_over: bool = False,
    ) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
        """Measure the sizes that the folder does not have yet; return the overall table and the table of layers.

        Args:
            overwrite: measure all sizes again; the folder's tables are kept in another inside it.
            retry: measure those again that failed or ran out of memory.
            any_card: let sizes of another card of the same name stand in the folder; each row names its card.
            take_over: take the folder over where nobody can tell whether its holder has ended.

        Raises:
            InputError: layers that cannot use the algorithm, a folder that cannot be written, that another run holds,
                or that has sizes measured under other settings.
            DeviceFaultError: the GPU was lost on the way; the sizes before are in the folder.
            WriteError: the folder could not be written any more; the sizes before are in it.
        """
        return self._sweep.measure(Path(output_dir or self.folder), Reuse(overwrite, retry, any_card, take_over))


def profile(
    model: str | nn.Module, inputs: torch.Tensor | Sequence[torch.Tensor] | None = None,
    algorithms: Sequence[str] = ("torch",), *, output_dir: Path | str | None = None, **settings: Any,
) -> Profiled:  # fmt: skip
    """Measure a model with each of some algorithms; return the tables, and keep them where `output_dir` says.

    Settings are those of `UnifiedProfiler`, where none is given `sweep.AT_ONCE`; raises what that and its `run` raise.
    """
    return measure_each(functools.partial(UnifiedProfiler, model, inputs=inputs), algorithms, output_dir, settings)
