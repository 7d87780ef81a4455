"""Trial of one engine in this process: built, checked against eager PyTorch, and timed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from convscope.cli.signals import WARNING, kept_from_children
from convscope.convolution import backends, roofline, tolerance
from convscope.convolution.backends import PlanThread
from convscope.convolution.layer import Layer
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.errors import WriteError
from convscope.failures import Failure
from convscope.inference import agreement, pictures
from convscope.inference.agreement import Agreement
from convscope.inference.engines import catalogue, keeping
from convscope.inference.engines.endpoint import library_size
from convscope.inference.engines.runners import Runner
from convscope.inference.engines.workload import BuildCost, Engine, Workload
from convscope.inference.load import LoadTest
from convscope.inference.request import Inference
from convscope.power.energy import EnergyWindow
from convscope.power.meter import Meter
from convscope.profiling.bench import Bench
from convscope.profiling.request import Run
from convscope.storage.table import fill

_CHECKS = 2  # inputs on which an output is checked in turn
_LIBRARY, _MORE, _INPUTS = 2, 3, 4  # the input that requests take their images from; that of `more`; all inputs
SETTLING_S = 0.2  # of load before the first sample on a GPU: the clocks of an idle card are down


@dataclass(frozen=True)
class Measured:
    """Measurements of one process of a cell; None where the scenario does not need them.

    Attributes:
        image_error: the largest in any check of the output (`Agreement`); `top1_agreement_pct` is the smallest.
        checks: how often the output was checked.
        rounding: the type whose roundings are allowed for.
    """

    cost: BuildCost
    timing_method: str
    image_tolerance: float
    setup_s: float
    rounding: str
    image_error: float = 0.0
    checks: int = 0
    top1_agreement_pct: float | None = None
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


def _make(engine: str, workload: Workload) -> Engine:
    with kept_from_children(WARNING):  # compilers are to finish, too
        return catalogue.make(engine, workload)


@dataclass
class EngineTrial:
    """Trials of engines on one model and one device, in one process of a study.

    Attributes:
        rank: number of this process; each process has its own images.
        open_meter: opens the power sensors for the length of a window: their thread disturbs times taken outside one.
        make_bench: as in `Workload`.
        keep: stores a folder with an engine's files under a name; None keeps none.
    """

    inference: Inference
    model: nn.Module
    device: torch.device
    rank: int
    open_meter: Callable[[], contextlib.AbstractContextManager[Meter]]
    make_bench: Callable[[Run, nn.Module], Bench]
    note: Callable[[str], None]
    keep: Callable[[str, Path], None] | None = None

    def __post_init__(self) -> None:
        self._references: dict[tuple[int, int, str], tuple[torch.Tensor, Agreement]] = {}
        self._agreements: dict[str, Agreement] = {}
        self._library: torch.Tensor | None = None
        self._layers: dict[int, list[Layer]] = {}

    def set_up(self, engine: str, share: int, thread: PlanThread, stack: contextlib.ExitStack) -> Built:
        """Build an engine for a batch, and `check_output`; `stack` closes it."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="convscope-")))
        request, given = self.inference, self._images(share, 0)
        rounding = catalogue.ENGINES[engine].rounds or request.dtype
        allowed, more = self._agreement(rounding).allowed, functools.partial(self._images, which=_MORE)
        workload = fill(Workload, self, request, name=request.model, given=given, folder=folder, more=more)
        for which in range(_CHECKS):  # before the engine's set-up is timed, and its memory counted
            self._reference(share, which, rounding)
        started_s = time.perf_counter()
        runner, cost = thread.run(lambda: _make(engine, workload))
        setup_s = time.perf_counter() - started_s
        stack.callback(lambda: thread.run(runner.close))
        measured = Measured(cost, runner.timing_method, allowed, setup_s, rounding)
        measured = self.check_output(lambda images: thread.run(lambda: runner.output(images)), share, measured)
        if self.keep is not None and cost.files:
            layout, on_gpu = cost.layout or request.layout, self.device.type == "cuda"
            try:
                keeping.gather(cost.files, folder / "kept", given, request.dtype, layout, on_gpu)
            except OSError as error:
                raise WriteError(f"--keep: cannot write to {folder} ({error.strerror}): set TMPDIR") from None
            self.keep(f"engines/{engine}_batch{share}", folder / "kept")
        return runner, measured

    def check_output(self, output: Callable[[torch.Tensor], torch.Tensor], share: int, measured: Measured) -> Measured:
        """Judge an engine's output against eager float32, on other images than the check before.

        So an engine that returns an earlier output is wrong.

        Args:
            output: returns the output for images.

        Raises:
            BrokenError: the error of an image is larger than is allowed.
        """
        which = measured.checks % _CHECKS
        outputs = output(self._images(share, which))
        judged = self._judged(outputs, *self._reference(share, which, measured.rounding), measured)
        return dataclasses.replace(judged, checks=measured.checks + 1)

    def check_answers(self, test: LoadTest, measured: Measured) -> Measured:
        """Judge what an engine delivered under load, for some of the images that requests named.

        Raises:
            BrokenError: as `check_output`.
        """
        named, outputs = test.answers()
        if not outputs.numel():
            return measured
        exact, judge = self._expected(self.library()[named], measured.rounding)
        return self._judged(outputs.view(exact.shape), exact, judge, measured)

    def _judged(self, outputs: torch.Tensor, exact: torch.Tensor, judge: Agreement, measured: Measured) -> Measured:
        error = judge.error(outputs, exact)
        if not error <= judge.allowed:
            difference = f"the output for an image differs from eager float32 by {error:.2g} of the distance between"
            raise BrokenError(Failure(tolerance.WRONG, f"{difference} images, {judge.allowed:.2g} is allowed"))
        top1 = agreement.top1_agreement_pct(outputs, exact) if self.inference.is_trained and exact.dim() == 2 else None
        return dataclasses.replace(
            measured,
            image_error=max(error, measured.image_error),
            image_tolerance=max(judge.allowed, measured.image_tolerance),
            top1_agreement_pct=agreement.least(top1, measured.top1_agreement_pct),
        )

    def library(self) -> torch.Tensor:
        """Return the images in host memory that requests name."""
        if self._library is None:
            image_bytes = 3 * self.inference.image_size_px**2 * ELEMENT_BYTES[self.inference.dtype]
            self._library = self._images(library_size(image_bytes), _LIBRARY)
        return self._library

    def _images(self, count: int, which: int) -> torch.Tensor:
        """Return the images of one of `_INPUTS` inputs: each process and each input has its own."""
        request = self.inference
        seed = request.seed + _INPUTS * self.rank + which
        if not request.is_trained:
            return pictures.scenes(count, request.image_size_px, seed)
        folder = Path(request.images) if request.images else None
        return pictures.photographs(count, request.image_size_px, seed, folder)

    def _reference(self, share: int, which: int, rounding: str) -> tuple[torch.Tensor, Agreement]:
        """Return what is expected of one of the inputs, of an engine that rounds to a type."""
        key = share, which, rounding
        if key not in self._references:
            self._references[key] = self._expected(self._images(share, which), rounding)
        return self._references[key]

    def _expected(self, images: torch.Tensor, rounding: str) -> tuple[torch.Tensor, Agreement]:
        """Return eager PyTorch's output in float32 without TF32, as float64 on the CPU, and how others are judged."""
        judge = self._agreement(rounding)  # first: it moves the model as well
        with torch.inference_mode(), self._exactly() as model:
            given = images.to(self.device)
            exact = model(given).double()
            try:
                return exact.cpu(), judge.over(model, given, exact)
            except ValueError as error:
                raise self._not_judged(error, rounding) from None

    def _not_judged(self, error: ValueError, rounding: str) -> BrokenError:
        status = "failed" if rounding == self.inference.dtype else "unsupported"  # by fewer bits than was asked for
        return BrokenError(Failure(status, f"agreement with {self.inference.model} cannot be judged: {error}"))

    def _agreement(self, rounding: str) -> Agreement:
        if rounding not in self._agreements:
            request, count = self.inference, agreement.JUDGED_IMAGES
            math_mode = request.math if self.device.type == "cuda" else "fp32"
            try:
                with self._exactly() as model:
                    images, layers = self._images(count, 0).to(self.device), self.layers(count)
                    self._agreements[rounding] = agreement.judged(model, images, layers, rounding, math_mode)
            except ValueError as error:
                raise self._not_judged(error, rounding) from None
        return self._agreements[rounding]

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
