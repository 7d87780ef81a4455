"""Measures one model at one input size: the pass, its convolutions, energy, kernels, and what really ran.

The instruments are handed in (`profiler.CUDALayerTimer`, `profiler.PowerMonitor`, or a test's own), so that the order
of the steps, which matters, stands here alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import nn

from convscope.convolution import models, swap
from convscope.convolution.layer import Layer
from convscope.convolution.operator import recording, release
from convscope.convolution.reference import relative_error
from convscope.errors import HookMismatchError, HostTooSlowError, TraceMissingError
from convscope.power.energy import LoadEnergy
from convscope.power.meter import Load, Meter
from convscope.profiling import layer_energy
from convscope.profiling.measurement import Measurement, Observation
from convscope.profiling.request import Run
from convscope.timing import graphs, trace
from convscope.timing.graphs import HostLoad
from convscope.timing.hooks import hooked
from convscope.timing.layer_times import LayerTimer, LayerTimes, layer_times, pair_overhead_us, plausible_overhead_us
from convscope.timing.stopwatch import wall_times_ms
from convscope.timing.summary import Summary, summarize

TRACED_REPLAYS = 3
EAGER_S = 0.25  # eager passes are timed for this long
SETTLING_S = 0.1
CALIBRATION_SAMPLES = 40
EAGER_WARMUP_MOST = 3  # the eager pass that looks at what ran has warmed everything but the host's caches
CUDA_METHOD = "cuda graph replay, cuda events"
OVERFULL = ", launch longer than the queue"  # see graphs.LaunchHider
CPU_METHOD = "time.perf_counter"


class Bench:
    """Measures one model at one size after another, on the device where the model is."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        device: torch.device,
        timer: LayerTimer,
        meter: Meter,
        note: Callable[[str], None],
    ) -> None:
        self._run, self._model, self._device = run, model, device
        self._timer, self._meter, self._note = timer, meter, note
        self._noted: set[str] = set()
        self.reference_us: float | None = None
        self.idle_power_w: float | None = None

    def calibrate(self, size: int) -> None:
        """Measure what every size refers to: the device's idle power, and the overhead of a pair of events.

        The model must not be swapped yet: PyTorch's own convolutions follow each other on one stream.
        """
        if self._run.energy:
            self.idle_power_w = self._meter.idle_power_w()
        if self._device.type == "cuda":
            # Where even this does not fit, the size itself will say so, in its row.
            with contextlib.suppress(torch.OutOfMemoryError, HostTooSlowError):
                self.reference_us = self._pair_overhead_us(self._input(size))
            self.release()

    def _pair_overhead_us(self, given: torch.Tensor) -> float:
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(graphs.capture(lambda: self._model(given)))
            instrumented = stack.enter_context(graphs.capture(lambda: self._model(given), self._timer, beside=plain))
            self._settle(plain)
            times = layer_times(plain, instrumented, self._timer.read_ms, CALIBRATION_SAMPLES)
        return pair_overhead_us(times.added_ms, len(times.layers_ms))

    def _input(self, size: int) -> torch.Tensor:
        return models.images(self._run.batch_size, size, self._run.seed).to(self._device)

    def measure(self, size: int, layers: Sequence[Layer], check_errors: bool) -> Measurement:
        """Measure one forward pass of batch × 3 × size × size and every convolution in it."""
        given = self._input(size)
        witnesses = self._witness(given, check_errors)
        if len(witnesses) != len(layers):
            raise HookMismatchError(f"{len(witnesses)} convolutions ran, {len(layers)} were expected")
        if self._device.type == "cpu":
            return self._on_cpu(given, witnesses)
        found = self._on_gpu(given, witnesses)
        if self._run.layer_energy:
            found.breakdown = layer_energy.measure(self._model, given, layers, self.steady_energy)
        return found

    def release(self) -> None:
        """Give back what a size held on the GPU."""
        release(self._device)

    def _witness(self, given: torch.Tensor, check_errors: bool) -> list[Observation]:
        seen: list[Observation] = []

        def after(name: str, module: nn.Module, given: torch.Tensor, output: torch.Tensor) -> None:
            ran = swap.what_ran(module, output)
            seen.append(Observation(ran, relative_error(module, given, output) if check_errors else None))

        with recording(), hooked(self._model, after=after):
            self._model(given)
        return seen

    def _on_cpu(self, given: torch.Tensor, witnesses: list[Observation]) -> Measurement:
        run = self._run
        wall_times_ms(self._model, given, run.warmup_iters)
        passes_ms = wall_times_ms(self._model, given, run.measure_iters)
        layers = self._cpu_layers(given)
        energy, energy_reason = self.steady_energy(HostLoad(lambda: self._model(given)))
        return Measurement(
            passes=summarize(passes_ms),
            layers=layers,
            method=CPU_METHOD,
            witnesses=witnesses,
            eager=summarize(passes_ms),
            energy=energy,
            energy_reason=energy_reason,
            idle_power_w=self.idle_power_w,
        )

    def _on_gpu(self, given: torch.Tensor, witnesses: list[Observation]) -> Measurement:
        torch.cuda.reset_peak_memory_stats()
        run = self._run
        wall_times_ms(self._model, given, min(run.warmup_iters, EAGER_WARMUP_MOST))
        eager_ms = wall_times_ms(self._model, given, run.measure_iters, EAGER_S)
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(graphs.capture(lambda: self._model(given)))
            with graphs.capture(lambda: self._model(given), self._timer, beside=plain) as instrumented:
                energy, energy_reason = self.steady_energy(self._settle(plain))
                times = self._layer_times(plain, instrumented)
            traces = self._traces(plain, given)
            peak_bytes = torch.cuda.max_memory_allocated()
        overhead_us = self._overhead_us(times)
        return Measurement(
            passes=summarize(times.passes_ms),
            layers=[summarize(samples) for samples in times.less(overhead_us)],
            method=CUDA_METHOD + (OVERFULL if times.overfull else ""),
            witnesses=witnesses,
            eager=summarize(eager_ms),
            repeated=times.repeated,
            overhead_us=overhead_us,
            traces=traces,
            energy=energy,
            energy_reason=energy_reason,
            idle_power_w=self.idle_power_w,
            peak_memory_bytes=peak_bytes,
        )

    def layer_times_ms(self, given: torch.Tensor) -> list[float]:
        """Return the mean time of each convolution of a pass, in order, from one capture (on a CPU, from passes).

        The same times as `measure` takes, and nothing else, so that they can be taken again and again.
        """
        if self._device.type == "cpu":
            return [summary.mean_ms for summary in self._cpu_layers(given)]
        self._model(given)
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(graphs.capture(lambda: self._model(given)))
            instrumented = stack.enter_context(graphs.capture(lambda: self._model(given), self._timer, beside=plain))
            self._settle(plain)
            times = self._layer_times(plain, instrumented)
        return [fmean(samples) for samples in times.less(self._overhead_us(times))]

    def _cpu_layers(self, given: torch.Tensor) -> list[Summary]:
        samples = []
        for _ in range(self._run.measure_iters):
            with self._timer:
                self._model(given)
            samples.append(self._timer.read_ms())
        return [summarize(times) for times in zip(*samples, strict=True)]

    def _settle(self, plain: graphs.Captured) -> graphs.ReplayLoad:
        """Keep the GPU busy for as long as its clocks need to settle: a card that was idle a moment ago is slower."""
        load = graphs.ReplayLoad(plain, min(graphs.replay_times_ms(plain, 3)))
        load.keep_busy(SETTLING_S)
        return load

    def steady_energy(self, load: Load) -> tuple[LoadEnergy | None, str | None]:
        """Measure the energy of a steady load as the run asks for it; what is missing is noted once."""
        run = self._run
        if not run.energy:
            return None, None
        found, reason = self._meter.steady(
            load, warmup_s=run.energy_warmup_s, precision=run.energy_precision, budget_s=run.energy_budget_s
        )
        if reason:
            self._note_once(reason)
        return found, reason

    def _layer_times(self, plain: graphs.Captured, instrumented: graphs.Captured) -> LayerTimes:
        for _ in range(self._run.warmup_iters):
            plain.replay()
            instrumented.replay()
        return layer_times(plain, instrumented, self._timer.read_ms, self._run.measure_iters)

    def _overhead_us(self, times: LayerTimes) -> float:
        measured_us = pair_overhead_us(times.added_ms, len(times.layers_ms))
        return measured_us if self.reference_us is None else plausible_overhead_us(measured_us, self.reference_us)

    def _traces(self, plain: graphs.Captured, given: torch.Tensor) -> list[trace.LayerTrace]:
        try:
            events = trace.record_layers(self._model, given, plain.replay, TRACED_REPLAYS)
            return trace.by_layer(events, TRACED_REPLAYS)
        except TraceMissingError as error:
            self._note_once(f"no kernel names and times: {error}")
            return []

    def _note_once(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            self._note(line)
