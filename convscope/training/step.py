"""Training step, its four phases, and a clock that marks their borders without waiting for the GPU.

A mark on a GPU is a CUDA event: it is recorded behind the work queued so far, and read when all is done. The end of a
step is the start of the next, so that the steps fill a window without a gap and the phases add up to the step.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from convscope.training.datasets import LabelledBatch

PHASES = ("data", "forward", "backward", "optimizer")
RANGE = "convscope:"
CUDA_METHOD, CPU_METHOD = "CUDA events between the phases", "time.perf_counter"

Mark = Callable[..., None]
"""Called as a phase ends: without an argument, or with the event that a replayed graph records there."""


def unmarked(border: object = None) -> None:
    """Mark nothing."""


class StepClock:
    """Times of the phases of steps that follow each other: `start` once, then `mark` at the end of each phase.

    Args:
        ahead: most steps that are not read yet when the next one has its data, None for any number: the host waits for
            the oldest and reads it. A replay overwrites the times of the events in its graph.
    """

    def __init__(self, on_gpu: bool, clock: Callable[[], float] = time.perf_counter, ahead: int | None = None) -> None:
        self._on_gpu, self._clock, self._ahead = on_gpu, clock, ahead
        self._marks: list[Any] = []
        self._steps_ms: list[tuple[float, ...]] = []

    def start(self) -> None:
        """Forget everything; the first step begins now."""
        self._marks, self._steps_ms = [self._now()], []

    def mark(self, border: Any = None) -> None:
        """End a phase and begin the next: at an event that a graph records, without one now."""
        self._marks.append(self._now() if border is None else border)
        whole, begun = divmod(len(self._marks) - 1, len(PHASES))
        if self._ahead is not None and whole >= self._ahead and begun == 1:
            oldest = self._marks[: len(PHASES) + 1]
            oldest[-1].synchronize()
            self._steps_ms += self._read_ms(oldest)
            del self._marks[: len(PHASES)]

    def _now(self) -> Any:
        if not self._on_gpu:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read_ms(self) -> list[tuple[float, ...]]:
        """Return the times of each whole step's phases; on a GPU everything marked must be done by now."""
        return [*self._steps_ms, *self._read_ms(self._marks)]

    def _read_ms(self, marks: Sequence[Any]) -> list[tuple[float, ...]]:
        pairs = itertools.pairwise(marks)
        between = [float(a.elapsed_time(b)) if self._on_gpu else (b - a) * 1e3 for a, b in pairs]
        count = len(PHASES)
        return [tuple(between[at : at + count]) for at in range(0, len(between) - count + 1, count)]


class PhaseRanges:
    """Ranges that name the phases in a trace: marked in a clock's place under torch.profiler; `close` ends the last."""

    def __init__(self) -> None:
        self._phases, self._open = itertools.cycle(PHASES), contextlib.ExitStack()

    def start(self) -> None:
        """Begin the first phase."""
        self._open.enter_context(record_function(RANGE + next(self._phases)))

    def mark(self) -> None:
        """End a phase and begin the next."""
        self.close()
        self.start()

    def close(self) -> None:
        """End the phase that is open."""
        self._open.close()


class MemoryMarks:
    """Memory held by PyTorch's allocator on the GPU at the start of a step and at the end of each phase."""

    def __init__(self) -> None:
        self.held_bytes: list[int] = []

    def mark(self) -> None:
        """Read it at a border of phases."""
        self.held_bytes.append(torch.cuda.memory_allocated())

    def mean_bytes(self, phases_ms: Sequence[float]) -> float:
        """Return the mean over a step with phases of these lengths, memory changing evenly within each."""
        means = [(a + b) / 2 for a, b in itertools.pairwise(self.held_bytes)]
        return sum(held * phase_ms for held, phase_ms in zip(means, phases_ms, strict=True)) / sum(phases_ms)


@dataclass
class Stepper:
    """A network with its optimizer (SGD, its learning rate falling to 0 along a cosine), and the steps that train it.

    `network` may be compiled or distributed; `autocast` computes in bfloat16 where that is safe, weights in float32.
    `fused` has the optimizer update all parameters in one kernel, `memory` is the images' order of channels.
    """

    network: nn.Module
    device: torch.device
    learning_rate: float
    momentum: float
    weight_decay: float
    steps: int
    autocast: bool = False
    fused: bool = False
    memory: torch.memory_format = torch.contiguous_format

    def __post_init__(self) -> None:
        self.network.train()
        options: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        options |= {"fused": True} if self.fused else {}
        self._optimizer = torch.optim.SGD(self.network.parameters(), self.learning_rate, **options)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, self.steps)
        self._loss = nn.CrossEntropyLoss()

    def step(self, batches: Iterator[LabelledBatch], mark: Mark = unmarked) -> torch.Tensor:
        """Train on the next batch; `mark` is called as each of `PHASES` ends. Returns the loss, not waited for."""
        images, labels = self.moved(next(batches))
        mark()
        loss = self._forward(images, labels)
        mark()
        loss.backward()
        mark()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._advance()
        mark()
        return loss.detach()

    def _forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self._casting():
            loss: torch.Tensor = self._loss(self.network(images), labels)
        return loss

    def _advance(self) -> None:
        """Set the learning rate of the next step."""
        self._schedule.step()

    def moved(self, batch: LabelledBatch) -> LabelledBatch:
        """Copy a batch to the device, in the order of channels; nothing is copied that lies there so."""
        images, labels = batch
        images = images.to(self.device, non_blocking=True, memory_format=self.memory)
        return images, labels.to(self.device, non_blocking=True)

    def _casting(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()

    def test(self, model: nn.Module, batches: Iterator[LabelledBatch]) -> tuple[float, float]:
        """Return mean loss and accuracy (%) of a model, in evaluation mode, over labelled images."""
        model.eval()
        losses, correct, count = 0.0, 0, 0
        with torch.no_grad(), self._casting():
            for images, labels in batches:
                expected = labels.to(self.device)
                output = model(images.to(self.device)).float()
                losses += float(nn.functional.cross_entropy(output, expected, reduction="sum"))
                correct += int((output.argmax(1) == expected).sum())
                count += len(labels)
        model.train()
        return losses / count, 100 * correct / count
