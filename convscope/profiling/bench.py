"""Bench of one model at one input size: its pass, its convolutions, energy, kernels, and the algorithms that ran.

The instruments are handed in (`profiler.CUDALayerTimer`, `profiler.PowerMonitor`, or a test's fakes). The order of the
steps matters, and is kept here alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import torch
from torch import nn

from convscope.convolution import models
from convscope.convolution.layer import Layer
from convscope.convolution.observation import Observation, observe
from convscope.convolution.operator import release
from convscope.errors import HookMismatchError, HostTooSlowError
from convscope.power.energy import LoadEnergy
from convscope.power.meter import Meter, SteadyLoad
from convscope.profiling import layer_energy
from convscope.profiling.measurement import Measurement
from convscope.profiling.request import Run
from convscope.timing import graphs, trace
from convscope.timing.graphs import HostLoad
from convscope.timing.layer_times import LayerTimer, LayerTimes, instrumented, plausible_overhead_us
from convscope.timing.stopwatch import CPU_METHOD, Stopwatch
from convscope.timing.summary import Summary, summarize

TRACED_REPLAYS = 3
EAGER_S = 0.25  # eager passes are timed for this long
CALIBRATION_SAMPLES = 40
EAGER_WARMUP_MOST = 3  # the observed pass has warmed everything but the host's caches


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
        self._stopwatch = Stopwatch(device)
        self._noted: set[str] = set()
        self.reference_us: float | None = None
        self.idle_power_w: float | None = None

    def calibrate(self, size: int) -> None:
        """Measure the references of all sizes: the device's idle power, and the overhead of a pair of events.

        The model must not be swapped yet: PyTorch's own convolutions follow each other on one stream.
        """
        if self._run.energy:
            self.idle_power_w = self._meter.idle_power_w()
        if self._device.type == "cuda":
            # Where even this does not fit, the row of the size will report it.
            with contextlib.suppress(torch.OutOfMemoryError, HostTooSlowError):
                self.reference_us = self._layer_times(self._input(size), CALIBRATION_SAMPLES).pair_overhead_us
            self.release()

    def measure(self, size: int, layers: Sequence[Layer], check_errors: bool) -> Measurement:
        """Measure one forward pass of batch × 3 × size × size and every convolution in it."""
        given = self._input(size)
        observations = observe(self._model, given, check_errors)
        if len(observations) != len(layers):
            raise HookMismatchError(f"{len(observations)} convolutions ran, {len(layers)} were expected")
        if self._device.type == "cpu":
            return self._on_cpu(given, observations)
        measurement = self._on_gpu(given, observations)
        if self._run.layer_energy:
            measurement.breakdown = layer_energy.measure(self._model, given, layers, self.steady_energy)
        return measurement

    def layer_times_ms(self, given: torch.Tensor) -> list[float]:
        """Return the mean time of each convolution of a pass, in order, from one capture (on a CPU, from passes).

        The times are taken as `measure` takes them, and nothing else is measured, so that they can be repeated.
        """
        if self._device.type == "cpu":
            return [summary.mean_ms for summary in self._cpu_layers(given)[0]]
        self._model(given)
        times = self._layer_times(given, self._run.measure_iters, self._run.warmup_iters)
        return [fmean(samples) for samples in times.less(self._overhead_us(times))]

    def steady_energy(self, load: SteadyLoad) -> tuple[LoadEnergy | None, str | None]:
        """Measure the energy of a steady load as the run asks for it; a missing energy is noted once."""
        run = self._run
        if not run.energy:
            return None, None
        energy, reason = self._meter.steady(
            load, warmup_s=run.energy_warmup_s, precision=run.energy_precision, budget_s=run.energy_budget_s
        )
        if reason:
            self._note_once(reason)
        return energy, reason

    def release(self) -> None:
        """Free the GPU memory that a size used."""
        release(self._device)

    def _input(self, size: int) -> torch.Tensor:
        return models.images(self._run.batch_size, size, self._run.seed).to(self._device)

    def _on_cpu(self, given: torch.Tensor, observations: list[Observation]) -> Measurement:
        run = self._run
        self._eager_ms(given, run.warmup_iters)
        passes_ms = self._eager_ms(given, run.measure_iters)
        layers, layers_pass_ms = self._cpu_layers(given)
        energy, energy_reason = self.steady_energy(HostLoad(partial(self._model, given)))
        return Measurement(
            passes=summarize(passes_ms),
            layers=layers,
            layers_pass_ms=layers_pass_ms,
            method=CPU_METHOD,
            observations=observations,
            eager=summarize(passes_ms),
            energy=energy,
            energy_reason=energy_reason,
            idle_power_w=self.idle_power_w,
        )

    def _on_gpu(self, given: torch.Tensor, observations: list[Observation]) -> Measurement:
        torch.cuda.reset_peak_memory_stats()
        run = self._run
        self._eager_ms(given, min(run.warmup_iters, EAGER_WARMUP_MOST))
        eager_ms = self._eager_ms(given, run.measure_iters, EAGER_S)
        step = partial(self._model, given)
        with graphs.capture(step) as plain:
            with instrumented(plain, step, self._timer) as watched:
                energy, energy_reason = self.steady_energy(watched.load)
                times = watched.times(run.measure_iters, run.warmup_iters)
            traces = self._traces(plain, given)
            peak_bytes = torch.cuda.max_memory_allocated()
        overhead_us = self._overhead_us(times)
        return Measurement(
            passes=summarize(times.passes_ms),
            layers=[summarize(samples) for samples in times.less(overhead_us)],
            method=times.method,
            observations=observations,
            eager=summarize(eager_ms),
            repeated=times.repeated,
            overhead_us=overhead_us,
            traces=traces,
            energy=energy,
            energy_reason=energy_reason,
            idle_power_w=self.idle_power_w,
            peak_memory_bytes=peak_bytes,
        )

    def _eager_ms(self, given: torch.Tensor, samples: int, enough_s: float = float("inf")) -> list[float]:
        return self._stopwatch.eager(partial(self._model, given), samples=samples, enough_s=enough_s).all_ms

    def _layer_times(self, given: torch.Tensor, samples: int, warmup: int = 0) -> LayerTimes:
        step = partial(self._model, given)
        with graphs.capture(step) as plain, instrumented(plain, step, self._timer) as watched:
            return watched.times(samples, warmup)

    def _cpu_layers(self, given: torch.Tensor) -> tuple[list[Summary], float]:
        """Return the times of the layers, and the mean of the passes that they were timed in."""
        samples, passes_ms = [], []
        for _ in range(self._run.measure_iters):
            with self._timer:
                passes_ms += self._eager_ms(given, 1)
            samples.append(self._timer.read_ms())
        return [summarize(times) for times in zip(*samples, strict=True)], fmean(passes_ms)

    def _overhead_us(self, times: LayerTimes) -> float:
        measured_us = times.pair_overhead_us
        return measured_us if self.reference_us is None else plausible_overhead_us(measured_us, self.reference_us)

    def _traces(self, plain: graphs.Captured, given: torch.Tensor) -> list[trace.LayerTrace]:
        traces, missing = trace.trace_pass(self._model, given, plain.replay, TRACED_REPLAYS)
        if missing:
            self._note_once(f"no kernel names and times: {missing}")
        return traces

    def _note_once(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            self._note(line)
