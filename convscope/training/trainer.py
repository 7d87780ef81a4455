"""Training of one model at one batch size, measured: times, energy and memory of the steps, then a trace.

A window covers the steps of each epoch, except the very first steps, and closes before the held-out images are tested.
The GPU is waited for at a window's ends only. The host's cost of a step, memory and the trace, which would disturb
the steps, are measured on further steps afterwards.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from convscope.cli.display import several
from convscope.convolution import algorithms, assignment, backends, models, swap
from convscope.convolution.operator import card_check
from convscope.distributed import Ranks
from convscope.errors import InputError
from convscope.power.energy import EnergyWindow
from convscope.power.meter import Meter
from convscope.storage.paths import slug
from convscope.training import datasets, operators
from convscope.training.captured import GRAPHS, WARM_UP_STEPS, CapturedStepper
from convscope.training.datasets import Images, LabelledBatch, Noise
from convscope.training.operators import StepProfile
from convscope.training.request import Training
from convscope.training.step import PHASES, MemoryMarks, PhaseRanges, StepClock, Stepper

LAUNCH_STEPS = 5
TRACED_STEPS = 3


@dataclass(frozen=True)
class Epoch:
    """One epoch: the losses of its steps, then loss and accuracy (%) over the held-out images, None without any."""

    losses: list[float]
    test_loss: float | None
    accuracy_pct: float | None


@dataclass
class Trained:
    """Measurements of one process of a cell: times of each measured step's phases, and the windows around them."""

    parameters: int
    skipped_steps: int
    epochs: list[Epoch] = field(default_factory=list)
    phases_ms: list[tuple[float, ...]] = field(default_factory=list)
    window_s: float = 0.0
    energies: list[EnergyWindow] = field(default_factory=list)
    energy_reason: str | None = None
    launch_ms: float | None = None
    peak_memory_bytes: int | None = None
    mean_memory_bytes: int | None = None


class Trainer:
    """One model at one batch size, on the device of this process."""

    def __init__(
        self, training: Training, model: str, batch_size: int, images: Images, device: torch.device, ranks: Ranks
    ) -> None:
        """Build the model, its loader and its optimizer.

        Raises:
            InputError: the model cannot take these images, a layer cannot use the algorithm, no batch is whole, or no
                step would be replayed.
        """
        self._training, self._device, self._ranks = training, device, ranks
        self._on_gpu = device.type == "cuda"
        self._held_out = datasets.test_loader(images.held_out) if images.held_out else None
        self._loader: torch.utils.data.DataLoader[LabelledBatch] | Noise
        if images.train is None:
            self._loader = Noise(batch_size, training.classes, training.image_size_px, training.seed, device)
        else:
            self._loader = datasets.train_loader(
                images.train, batch_size, training.seed, training.workers, self._on_gpu, ranks.rank, ranks.world
            )
        torch.manual_seed(training.seed)
        self._model = models.classifier(model, training.classes, training.stem, training.seed)
        assigned = self._assigned(model, batch_size)
        memory = backends.LAYOUTS[training.layout]
        self._model.to(device, memory_format=memory)  # type: ignore[call-overload]
        swap.Swap(self._model).apply(assigned)
        network = ranks.wrapped(self._model, device)
        if training.compiled:
            network = torch.compile(network)  # type: ignore[assignment]
        self.epoch_steps = len(self._loader)
        all_steps = training.epochs * self.epoch_steps
        self.total_steps = min(all_steps, training.max_steps or all_steps)
        self._stepper = (CapturedStepper if training.captured else Stepper)(
            network, device, training.learning_rate, training.momentum, training.weight_decay, self.total_steps,
            training.dtype == "bfloat16", training.fused_optimizer, memory,
        )  # fmt: skip
        self._clock = StepClock(self._on_gpu, ahead=GRAPHS if training.captured else None)
        parameters = sum(parameter.numel() for parameter in self._model.parameters())
        self.trained = Trained(parameters, self._skipped_steps())

    def _skipped_steps(self) -> int:
        """Return how many of the first steps are not timed, those among them that are not replayed."""
        asked, total = self._training.skipped_steps, self.total_steps
        skipped = asked if total > asked else total // 2  # a large batch leaves few steps in an epoch
        if not self._training.captured:
            return skipped
        if total <= WARM_UP_STEPS:
            raise InputError(f"{several(total, 'step')}, of which --capture replays none of the first {WARM_UP_STEPS}")
        return max(skipped, WARM_UP_STEPS)

    def _assigned(self, model: str, batch_size: int) -> dict[str, str]:
        """Return the algorithm of each layer, after checking that all of them can use it."""
        training, side_px = self._training, self._training.image_size_px
        layers = models.followed(slug(model), self._model, (batch_size, 3, side_px, side_px))
        algorithm = algorithms.find(training.algorithm)
        reasons = assignment.why_not_each(algorithm, layers, training.device_type, card_check(self._device))
        if any(reasons):
            raise InputError("; ".join(algorithms.refusals(reasons, slug(model))))
        return {layer.name: algorithm.name for layer in layers}

    def train(self, meter: Meter) -> Trained:
        """Train for all epochs and measure."""
        for number, taken in enumerate(range(0, self.total_steps, self.epoch_steps)):
            self.trained.epochs.append(self._epoch(number, taken, meter))
        if isinstance(self._stepper, CapturedStepper):  # a replay allocates nothing: its memory is the capture's
            peaks = self.trained.peak_memory_bytes, self._stepper.recorder.peak_memory_bytes
            self.trained.peak_memory_bytes = max(filter(None, peaks), default=None)
        return self.trained

    def _epoch(self, number: int, taken: int, meter: Meter) -> Epoch:
        count = min(self.epoch_steps, self.total_steps - taken)
        if not isinstance(self._loader, Noise):
            self._loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        batches = iter(self._loader)
        skipped = max(0, min(count, self.trained.skipped_steps - taken))
        losses = [self._stepper.step(batches) for _ in range(skipped)]
        if count > skipped:
            losses += self._measured(batches, count - skipped, meter)
        tested = self._stepper.test(self._model, iter(self._held_out)) if self._held_out else (None, None)
        return Epoch(torch.stack(losses).tolist(), *tested)

    def _measured(self, batches: Iterator[LabelledBatch], count: int, meter: Meter) -> list[torch.Tensor]:
        """Take steps inside a window of time and energy that all processes open together."""
        self._wait()
        self._ranks.gather(None)
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        window, started_s = meter.begin(), time.perf_counter()
        self._clock.start()
        losses = [self._stepper.step(batches, self._clock.mark) for _ in range(count)]
        self._wait()
        self.trained.window_s += time.perf_counter() - started_s
        meter.end(window)
        self.trained.phases_ms += self._clock.read_ms()
        self.trained.energies += [energy for energy in window.energies[:1] if energy is not None]
        missing = [f"no energy: {meter.reason}"] if meter.reason else window.reasons
        self.trained.energy_reason = next(filter(None, missing), self.trained.energy_reason)
        if self._on_gpu:
            self.trained.peak_memory_bytes = max(self.trained.peak_memory_bytes or 0, torch.cuda.max_memory_allocated())
        return losses

    def look_closer(self) -> None:
        """Measure launch cost, and the memory of a step that is not captured, on further steps."""
        batches = self._endless()
        if self._on_gpu:
            self.trained.launch_ms = statistics.median(self._launch_ms(batches) for _ in range(LAUNCH_STEPS))
        if self._on_gpu and not self._training.captured:
            memory = MemoryMarks()
            memory.mark()
            self._stepper.step(batches, memory.mark)
            means_ms = [statistics.fmean(times) for times in zip(*self.trained.phases_ms, strict=True)]
            self.trained.mean_memory_bytes = round(memory.mean_bytes(means_ms))

    def _endless(self) -> Iterator[LabelledBatch]:
        return itertools.chain.from_iterable(itertools.repeat(self._loader))

    def _launch_ms(self, batches: Iterator[LabelledBatch]) -> float:
        """Return the host's time for one step while nothing keeps it waiting, its images on the device already."""
        batch = self._stepper.moved(next(batches))
        self._wait()
        started_s = time.perf_counter()
        self._stepper.step(iter([batch]))
        return (time.perf_counter() - started_s) * 1e3

    def trace(self, path: Path) -> StepProfile:
        """Trace some steps after as many as are not counted; nothing may be timed in this process any more."""
        ranges, batches = PhaseRanges(), self._endless()
        for _ in range(max(1, self._training.skipped_steps)):
            self._stepper.step(batches)

        def work() -> None:
            ranges.start()
            for _ in range(TRACED_STEPS):
                self._stepper.step(batches, ranges.mark)
            ranges.close()

        self._wait()
        return operators.record(work, TRACED_STEPS, self._on_gpu, self._training.profile_memory, path)

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def phase_times(trained: Trained) -> dict[str, list[float]]:
    """Return the times of each phase and of the whole step, one for each measured step."""
    by_phase = zip(PHASES, zip(*trained.phases_ms, strict=True), strict=True)
    return {name: list(times) for name, times in by_phase} | {"step": [sum(times) for times in trained.phases_ms]}
