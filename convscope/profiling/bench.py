"""Bench of one model at one input size: its pass, its convolutions, energy, kernels, and the algorithms that ran.

The instruments are handed in (`profiler.CUDALayerTimer`, `profiler.PowerMonitor`, or a test's fakes). The order of the
steps matters, and is kept here alone: times, then energy, and last another process has the card to trace the same pass
(what it does there changes the passes of this one, until a graph is captured anew: docs/timing.md). It may capture the
pass already while this one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import torch
from torch import nn

from convscope.convolution import swap
from convscope.convolution.layer import Layer, has_calls
from convscope.convolution.observation import Observation, check_listed, is_finite, observe
from convscope.convolution.operator import release
from convscope.convolution.sources.network import Network
from convscope.convolution.sources.source import Inputs
from convscope.errors import HostTooSlowError, NotCapturableError
from convscope.power.energy import Conditions, LoadEnergy
from convscope.power.meter import Meter, SteadyLoad
from convscope.profiling import layer_energy
from convscope.profiling.measurement import Measurement
from convscope.profiling.passes import Passes
from convscope.profiling.request import Run
from convscope.profiling.tracing import Tracer
from convscope.timing import eager, graphs, placement, trace
from convscope.timing.graphs import HostLoad
from convscope.timing.layer_times import (
    LayerTimer,
    LayerTimes,
    Overhead,
    is_plausible_reference,
    layer_time,
    overhead_of,
    plausible_overhead,
)
from convscope.timing.shares import of_operators
from convscope.timing.stopwatch import CPU_METHOD, Stopwatch
from convscope.timing.summary import Summary, summarize, summarize_placed
from convscope.timing.trace import LayerTrace

EAGER_S = 0.25  # eager passes are timed for this long
CALIBRATION_SAMPLES = 40
CALIBRATIONS_MOST = 3
EAGER_WARMUP_MOST = 3  # the observed pass has warmed everything but the host's caches


class _Timed(NamedTuple):
    """Times of a pass in each placement, the peak of its memory, the conditions, and its energy or why it has none."""

    placed: list[LayerTimes]
    peak_bytes: int
    conditions: Conditions
    energy: LoadEnergy | None
    energy_reason: str | None


OPERATORS_METHOD = "self time of operators (torch.profiler)"
REPLACING = ", calls replaced in the pass"  # which takes the host time in each


def _method(placed: Sequence[LayerTimes]) -> str:
    """Return the name of the way in which the placements were timed, with a remark where samples were overfull."""
    ways = list(dict.fromkeys(times.way for times in placed))
    return "; ".join(ways) + (graphs.OVERFULL if any(times.overfull for times in placed) else "")


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
        tracer: Tracer | None = None,
        network: Network | None = None,
    ) -> None:
        self._run, self._model, self._device = run, model, device
        self._network = network or Network.of(run)
        self._timer, self._meter, self._note, self._tracer = timer, meter, note, tracer
        self._stopwatch = Stopwatch(device)
        self._noted: set[str] = set()
        self._passes = Passes(run, model, device, timer, self._note_once)
        self.reference: Overhead | None = None
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
                given = self._inputs(size)
                self._passes.ask_to_capture(given)
                self.reference = self._measured_reference(given)
            self.release()

    def _measured_reference(self, given: Inputs) -> Overhead | None:
        for _ in range(CALIBRATIONS_MOST):
            times = self._passes.times(given, CALIBRATION_SAMPLES)
            measured = overhead_of([times], self._run.adds_up)
            if measured is None or times.way == eager.INCLUDED_METHOD:
                return None
            if is_plausible_reference(measured):
                return measured
            seen_us = measured.pair_us
        self._note_once(f"the overhead of events read {seen_us:.2f} µs, which cannot be: each size goes by its own")
        return None

    def measure(
        self, size: int, layers: Sequence[Layer], check_errors: bool, algorithms: Mapping[str, str] | None = None
    ) -> Measurement:
        """Measure one forward pass of inputs of this size and every convolution in it.

        Args:
            algorithms: those that the model's layers have, by name, for the process that traces the same pass.
        """
        given = self._inputs(size)
        self.expect(layers)
        observations = observe(self._model, given, check_errors)
        check_listed(observations, [layer.name for layer in layers])
        infinite = self._why_infinite(given)
        if self._device.type == "cpu":
            found = self._on_cpu(given, observations)
        else:
            self._passes.ask_to_capture(given, has_run=True)
            wanted = size, algorithms or {}
            ahead = partial(self._tracer.prepare, *wanted) if self._tracer else lambda: None
            found = self._on_gpu(given, observations, layers, ahead, partial(self._traces, len(layers), *wanted))
        return dataclasses.replace(found, infinite=infinite)

    def _why_infinite(self, given: Inputs) -> str | None:
        """Return what is wrong with the output of a pass in 16 bits, None where all its numbers are finite."""
        if self._run.dtype == "float32" or is_finite(self._model(*given)):
            return None
        return f"the model's output is not finite: its numbers leave the range of {self._run.dtype}"

    def expect(self, layers: Sequence[Layer]) -> None:
        """Prepare to time these layers: calls outside `nn.Conv2d` modules too where there are some."""
        self._timer.calls = has_calls(layers)

    def expect_captures(self, given: Inputs) -> None:
        """Find out anew whether passes of these inputs can be captured, by the model as it is now."""
        if self._device.type == "cuda":
            self._passes.ask_to_capture(given)

    def layer_times_ms(self, given: Inputs, place: int = 0) -> list[float]:
        """Return the mean time of each convolution of a pass, in order, from one capture (on a CPU, from passes).

        The times are taken by events as `measure` takes them, and nothing else is measured, so that they can be
        repeated.

        Args:
            place: number of the placement in memory, as `placement.moved` takes it.

        Raises:
            NotCapturableError: the model's own pass was captured, and this one, with other algorithms, cannot be.
        """
        if self._device.type == "cpu":
            return [summary.mean_ms for summary in self._cpu_layers(given)[0]]
        with placement.moved(self._model, given, place) as there:
            self._model(*there)
            may_refuse = self.reference is None or self._passes.refused is not None
            times = self._passes.times(there, self._run.measure_iters, self._run.warmup_iters, may_refuse)
        return [fmean(samples) for samples in times.less(self._overhead([times]))]

    def launched_ms(self, given: Inputs, passes: int) -> list[float]:
        """Return the least time of each convolution in some passes on a GPU that Python launches, launches included."""
        times = eager.eager_times(partial(self._model, *given), self._timer, passes, hides=False)
        return [min(samples) for samples in times.layers_ms]

    def steady_energy(self, load: SteadyLoad) -> tuple[LoadEnergy | None, str | None]:
        """Measure the energy of a steady load as the run asks for it; a missing energy is noted once."""
        run = self._run
        if not run.energy:
            return None, None
        energy, reason = self._meter.steady(
            load,
            warmup_s=run.energy_warmup_s,
            precision=run.energy_precision,
            budget_s=run.energy_budget_s,
            idle_power_w=self.idle_power_w,
        )
        if reason:
            self._note_once(reason)
        return energy, reason

    def pass_energy(self, given: Inputs) -> tuple[LoadEnergy | None, str | None]:
        """Measure the energy of a captured pass; NotCapturableError where it cannot be captured."""
        with graphs.capture(partial(self._model, *given)) as plain:
            return self.steady_energy(graphs.settle(plain))

    def release(self) -> None:
        """Free the GPU memory that a size used."""
        release(self._device)

    def _inputs(self, size: int) -> Inputs:
        return self._network.inputs(self._run.image_size(size), self._device)

    def _on_cpu(self, given: Inputs, observations: list[Observation]) -> Measurement:
        run = self._run
        self._eager_ms(given, run.warmup_iters)
        passes_ms = self._eager_ms(given, run.measure_iters)
        layers, layers_pass_ms = self._cpu_layers(given)
        energy, energy_reason = self.steady_energy(HostLoad(partial(self._model, *given)))
        return Measurement(
            passes=summarize(passes_ms),
            layers=layers,
            layers_pass_ms=layers_pass_ms,
            method=CPU_METHOD + (REPLACING if swap.replaces_calls(self._model) else ""),
            observations=observations,
            eager=summarize(passes_ms),
            energy=energy,
            energy_reason=energy_reason,
            idle_power_w=self.idle_power_w,
            work=of_operators(trace.record_operators(self._model, given), trace.EAGER),
            work_method=OPERATORS_METHOD,
        )

    def _on_gpu(
        self, given: Inputs, observations: list[Observation], layers: Sequence[Layer],
        ahead: Callable[[], None], traced: Callable[[], list[LayerTrace]],
    ) -> Measurement:  # fmt: skip
        run = self._run
        torch.cuda.reset_peak_memory_stats()
        self._eager_ms(given, min(run.warmup_iters, EAGER_WARMUP_MOST))
        eager_ms = self._eager_ms(given, run.measure_iters, EAGER_S)
        timed = self._at_once(given, ahead) or self._one_by_one(given)
        alone = self._alone(given, layers) if run.layer_energy else None
        self.release()
        traces = traced()
        placed = timed.placed
        overhead, method = self._overhead(placed), _method(placed)
        by_layer = zip(*(each.less(overhead) for each in placed), strict=True)
        seen: Sequence[LayerTrace | None] = traces or [None] * len(observations)
        times = [
            layer_time(events_ms, each, method, is_first=position == 0)
            for position, (events_ms, each) in enumerate(zip(by_layer, seen, strict=True))
        ]
        return Measurement(
            passes=summarize_placed([each.passes_ms for each in placed]),
            layers=[of_layer.times for of_layer in times],
            layer_methods=[of_layer.method for of_layer in times],
            method=method,
            observations=observations,
            eager=None if swap.replaces_calls(self._model) else summarize(eager_ms),
            repeated=sum(each.repeated for each in placed),
            overhead_us=None if overhead is None else overhead.pair_us,
            traces=traces,
            work=self._tracer.work if self._tracer else (),
            work_method=self._tracer.work_method if self._tracer else "",
            energy=timed.energy,
            energy_reason=timed.energy_reason,
            conditions=timed.conditions,
            breakdown=alone,
            idle_power_w=self.idle_power_w,
            peak_memory_bytes=timed.peak_bytes,
            remark=f"timed eagerly: {self._passes.refused}" if self._passes.refused else None,
        )

    def _at_once(self, given: Inputs, ahead: Callable[[], None]) -> _Timed | None:
        """Capture the pass in all placements and time them together; None where they do not fit, or cannot be captured.

        While this process captures, the one that traces does, too. It is done before the last capture here.
        """
        if not self._passes.fit_together():
            return None
        before = self._meter.state()
        ahead()
        try:
            with self._passes.together(given, self._wait_for_tracer) as (placed, peak_bytes, load):
                conditions = Conditions(before, self._meter.state())
                return _Timed(placed, peak_bytes, conditions, *self.steady_energy(load))
        except (NotCapturableError, torch.OutOfMemoryError):
            return None
        finally:
            self._wait_for_tracer()
            self.release()

    def _wait_for_tracer(self) -> None:
        if self._tracer:
            self._tracer.wait_until_prepared()

    def _one_by_one(self, given: Inputs) -> _Timed:
        """Time the pass in one placement after another, captured or not."""
        before = self._meter.state()
        placed, peak_bytes = self._passes.one_by_one(given)
        conditions = Conditions(before, self._meter.state())
        return _Timed(placed, peak_bytes, conditions, *self._energy(given, placed[-1]))

    def _energy(self, given: Inputs, times: LayerTimes) -> tuple[LoadEnergy | None, str | None]:
        if not self._run.energy:
            return None, None
        if self._passes.refused:
            return self.steady_energy(eager.eager_load(partial(self._model, *given), times))
        return self.pass_energy(given)

    def _eager_ms(self, given: Inputs, samples: int, enough_s: float = float("inf")) -> list[float]:
        return self._stopwatch.eager(partial(self._model, *given), samples=samples, enough_s=enough_s).all_ms

    def _alone(self, given: Inputs, layers: Sequence[Layer]) -> layer_energy.Breakdown:
        return layer_energy.measure(self._model, given, layers, self.steady_energy, self._passes.refused)

    def _cpu_layers(self, given: Inputs) -> tuple[list[Summary], float]:
        """Return the times of the layers, and the mean of the passes that they were timed in."""
        samples, passes_ms = [], []
        for _ in range(self._run.measure_iters):
            with self._timer:
                passes_ms += self._eager_ms(given, 1)
            samples.append(self._timer.read_ms())
        return [summarize(times) for times in zip(*samples, strict=True)], fmean(passes_ms)

    def _overhead(self, placed: Sequence[LayerTimes]) -> Overhead | None:
        """Return the overhead of a pair of events, None where there is none, or the host's launch outweighs it."""
        if any(times.way == eager.INCLUDED_METHOD for times in placed):
            return None
        measured = overhead_of(placed, self._run.adds_up)
        if measured is None or self.reference is None:
            return measured
        return plausible_overhead(measured, self.reference)

    def _traces(self, count: int, size: int, algorithms: Mapping[str, str]) -> list[LayerTrace]:
        captures = self._passes.refused is None
        traces, missing = self._tracer.trace(size, algorithms, captures) if self._tracer else ([], None)
        if traces and len(traces) != count:
            traces, missing = (
                [],
                f"{len(traces)} convolutions were traced, and {count} timed: the model's numbers decide",
            )
        if missing:
            self._note_once(f"no kernel names and times: {missing}")
        return traces

    def _note_once(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            self._note(line)
