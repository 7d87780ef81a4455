"""Trial of one engine in this process: built, checked against eager PyTorch, and timed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from convscope.convolution import backends, models, roofline, tolerance
from convscope.convolution.backends import PlanThread
from convscope.convolution.layer import Layer
from convscope.convolution.reference import allowed_error, relative_distance
from convscope.failures import Failure
from convscope.inference.engines import catalogue
from convscope.inference.engines.runners import Runner
from convscope.inference.engines.workload import BuildCost, Workload
from convscope.inference.request import Inference
from convscope.power.energy import EnergyWindow
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.table import fill

_ROUNDED_IMAGES = 4  # for the error that a data type adds to a model's output
SETTLING_S = 0.2  # of load before the first sample on a GPU: the clocks of an idle card are down


@dataclass(frozen=True)
class Measured:
    """Measurements of one process of a cell; None where the scenario does not need them."""

    cost: BuildCost
    timing_method: str
    relative_error: float | None
    tolerance: float
    setup_s: float
    latencies_ms: list[float] | None = None
    calls: int | None = None
    window_s: float | None = None
    energy: EnergyWindow | None = None
    energy_reason: str | None = None
    peak_memory_bytes: int | None = None


Built = tuple[Runner, Measured]


class BrokenError(Exception):
    """A cell cannot be measured, in one process at least."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass
class EngineTrial:
    """Trials of engines on one model and one device, in one process of a study.

    Attributes:
        rank: number of this process; each process has its own images.
        open_meter: opens the power sensors for the length of a window: their thread disturbs times taken outside one.
        make_bench: as in `Workload`.
    """

    inference: Inference
    model: nn.Module
    device: torch.device
    rank: int
    open_meter: Callable[[], contextlib.AbstractContextManager[Meter]]
    make_bench: Callable[[Run, nn.Module], Bench]
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._references: dict[int, torch.Tensor] = {}
        self._layers: dict[int, list[Layer]] = {}

    def set_up(self, engine: str, share: int, thread: PlanThread, stack: contextlib.ExitStack) -> Built:
        """Build an engine for a batch, and `check_output`; `stack` closes it."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="convscope-")))
        request, given, allowed = self.inference, self._images(share), self._allowed
        workload = fill(Workload, self, request, name=request.model, given=given, folder=folder)
        self._reference(share)  # before the engine's set-up is timed
        started_s = time.perf_counter()
        runner, cost = thread.run(lambda: catalogue.make(engine, workload))
        setup_s = time.perf_counter() - started_s
        stack.callback(lambda: thread.run(runner.close))
        measured = Measured(cost, runner.timing_method, None, allowed, setup_s)
        return runner, self.check_output(runner, share, thread, measured)

    def check_output(self, runner: Runner, share: int, thread: PlanThread, measured: Measured) -> Measured:
        """Run once and record the output's error against eager float32: the largest so far.

        Raises:
            BrokenError: it is larger than is allowed.
        """
        error = relative_distance(thread.run(runner.output), self._reference(share))
        if error is None or not error <= measured.tolerance:
            difference = f"its output differs from eager float32 by {math.nan if error is None else error:.2g}"
            raise BrokenError(Failure(tolerance.WRONG, f"{difference}, {measured.tolerance:.2g} is allowed"))
        return dataclasses.replace(measured, relative_error=max(error, measured.relative_error or 0.0))

    def _images(self, count: int) -> torch.Tensor:
        return models.images(count, self.inference.image_size_px, self.inference.seed + self.rank)

    def _reference(self, share: int) -> torch.Tensor:
        """Return the output of eager PyTorch in float32 without TF32, as float64 on the CPU."""
        if share not in self._references:
            with torch.inference_mode(), self._exactly() as model:
                self._references[share] = model(self._images(share).to(self.device)).double().cpu()
        return self._references[share]

    @functools.cached_property
    def _allowed(self) -> float:
        request = self.inference
        math_mode = request.math if self.device.type == "cuda" else "fp32"
        with self._exactly() as model:
            images = self._images(_ROUNDED_IMAGES).to(self.device)
            allowed = allowed_error(model, images, self.layers(_ROUNDED_IMAGES), request.dtype, math_mode)
        if allowed is None:
            reason = f"the numbers of {request.model} leave the range of {request.dtype}: choose another --dtype"
            raise BrokenError(Failure("failed", reason))
        return allowed

    @contextlib.contextmanager
    def _exactly(self) -> Iterator[nn.Module]:
        """Move the model to the device for the length of the block, with float32 without TF32."""
        with backends.math("fp32"), backends.searching(False):
            try:
                yield self.model.to(self.device)
            finally:
                self.model.to("cpu")

    def layers(self, share: int) -> list[Layer]:
        """Return the convolutions and fully connected layers of a pass over a batch."""
        if share not in self._layers:
            side_px = self.inference.image_size_px
            self._layers[share] = roofline.layers_of(self.inference.model, self.model, (share, 3, side_px, side_px))
        return self._layers[share]

    def warm(self, runner: Runner) -> None:
        """Call a few times, and on a GPU for as long as its clocks take to rise."""
        runner.latencies_ms(self.inference.warmup_iters)
        if self.device.type == "cuda":
            runner.window(SETTLING_S)

    def window(self, runner: Runner, thread: PlanThread, measured: Measured) -> Measured:
        """Keep the engine busy for a window of time, and measure its throughput and energy."""
        with self.open_meter() as meter:
            opened = meter.begin()
            calls, seconds = thread.run(lambda: runner.window(self.inference.min_seconds))
            meter.end(opened)
            missing = f"no energy: {meter.reason}" if meter.reason else next(iter(opened.reasons), None)
        energy = next(iter(opened.energies), None)
        return dataclasses.replace(measured, calls=calls, window_s=seconds, energy=energy, energy_reason=missing)
