"""Where one engine is set up in this process, seen to compute the same as eager PyTorch, and timed."""

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

from convscope.convolution import backends, models, roofline
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

_ROUNDED_IMAGES = 4  # by which it is told how far a data type moves a model's output
SETTLING_S = 0.2  # of load before the first sample on a GPU: the clocks of an idle card are down


@dataclass(frozen=True)
class Measured:
    """What one process measured of a cell; None where the scenario has no use for it."""

    setup: BuildCost
    method: str
    relative_error: float | None
    tolerance: float
    setup_s: float
    latencies_ms: list[float] | None = None
    calls: int | None = None
    window_s: float | None = None
    energy: EnergyWindow | None = None
    energy_reason: str | None = None
    peak_memory_bytes: int | None = None


class BrokenError(Exception):
    """A cell cannot be measured, in one process at least."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass
class EngineTrial:
    """Tries engines on one model and one device; one process of a study.

    Attributes:
        rank: this process's number: its images are its own.
        open_meter: opens the power sensors for the length of a window: their thread disturbs what is timed outside.
        make_bench: makes the bench that times a model's layers, for the engine cudnn-best.
        note: called with one line where something is worth knowing.
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

    def set_up(
        self, engine: str, share: int, aside: PlanThread, stack: contextlib.ExitStack
    ) -> tuple[Runner, Measured]:
        """Make an engine for a batch, and see that it computes the same as eager; `stack` closes it.

        Raises:
            BrokenError: it does not.
        """
        task, allowed = self._task(share, Path(stack.enter_context(_folder()))), self._allowed
        self._reference(share)  # now: what it takes is not the engine's
        started_s = time.perf_counter()
        runner, setup = aside.run(lambda: catalogue.make(engine, task))
        setup_s = time.perf_counter() - started_s
        stack.callback(lambda: aside.run(runner.close))
        found = Measured(setup, runner.timing_method, None, allowed, setup_s)
        return runner, self.agreeing(runner, share, aside, found)

    def agreeing(self, runner: Runner, share: int, aside: PlanThread, found: Measured) -> Measured:
        """Run once and note how far the output is from eager float32: the largest so far.

        Raises:
            BrokenError: it is too far.
        """
        error = relative_distance(aside.run(runner.output), self._reference(share))
        if error is None or not error <= found.tolerance:
            far = f"its output differs from eager float32 by {math.nan if error is None else error:.2g}"
            raise BrokenError(Failure("failed", f"{far}, {found.tolerance:.2g} is allowed"))
        return dataclasses.replace(found, relative_error=max(error, found.relative_error or 0.0))

    def _task(self, share: int, folder: Path) -> Workload:
        asked = self.inference
        return Workload(
            name=asked.model,
            model=self.model,
            given=self._given(share),
            device=self.device,
            dtype=asked.dtype,
            layout=asked.layout,
            math=asked.math,
            folder=folder,
            make_bench=self.make_bench,
            note=self.note,
        )

    def _given(self, share: int) -> torch.Tensor:
        asked = self.inference
        return models.images(share, asked.image_size_px, asked.seed + self.rank)

    def _reference(self, share: int) -> torch.Tensor:
        """Return what eager PyTorch computes in float32 without TF32, as float64 on the CPU."""
        if share not in self._references:
            with torch.inference_mode(), self._exactly() as model:
                self._references[share] = model(self._given(share).to(self.device)).double().cpu()
        return self._references[share]

    @functools.cached_property
    def _allowed(self) -> float:
        asked = self.inference
        math_mode = asked.math if self.device.type == "cuda" else "fp32"
        with self._exactly() as model:
            given = self._given(_ROUNDED_IMAGES).to(self.device)
            found = allowed_error(model, given, self.layers(_ROUNDED_IMAGES), asked.dtype, math_mode)
        if found is None:
            left = f"the numbers of {asked.model} leave the range of {asked.dtype}: choose another --dtype"
            raise BrokenError(Failure("failed", left))
        return found

    @contextlib.contextmanager
    def _exactly(self) -> Iterator[nn.Module]:
        """Lend the model on the device, for float32 without TF32."""
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

    def warm(self, runner: Runner) -> bool:
        """Call a few times, and on a GPU for so long that the clocks are up."""
        runner.latencies_ms(self.inference.warmup_iters)
        if self.device.type == "cuda":
            runner.window(SETTLING_S)
        return True

    def window(self, runner: Runner, aside: PlanThread, found: Measured) -> Measured:
        """Keep the engine busy for a while, and read the energy of that."""
        with self.open_meter() as meter:
            opened = meter.begin()
            calls, seconds = aside.run(lambda: runner.window(self.inference.min_seconds))
            meter.end(opened)
            missing = f"no energy: {meter.reason}" if meter.reason else next(iter(opened.reasons), None)
        energy = next(iter(opened.energies), None)
        return dataclasses.replace(found, calls=calls, window_s=seconds, energy=energy, energy_reason=missing)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a directory for an engine's files that is gone when it is left."""
    return tempfile.TemporaryDirectory(prefix="convscope-")
