"""Captured training step: forward, loss, backward and optimizer as a CUDA graph, replayed for each batch.

The first `WARM_UP_STEPS` batches are trained on kernel by kernel, on the stream of captures. They are steps like all
others, and they leave the kernels loaded, cuDNN's algorithms chosen and the momentum there. Capturing runs nothing:
weights and running statistics stay as they are. So each batch is trained on once, as by a `Stepper`, and nothing is
to be undone.

The optimizer is in the graph, where every number is fixed: the learning rate must be a tensor. Of PyTorch's ways to do
SGD (as read in 2.14) only `fused` reads such a tensor on the GPU; `foreach` and the plain loop fetch it to the host,
which a capture forbids, and SGD has no `capturable`. So `--capture` needs `--fused-optimizer`. The schedule is the
`Stepper`'s, on the host; each rate is rounded to float32, which is what the kernel reads.

`GRAPHS` graphs of the step take turns, in the same memory. Each records events of its own between the phases; while
the GPU replays one, the host reads the times of the other (`StepClock`), and the GPU does not wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from convscope.timing import graphs
from convscope.timing.graphs import Captured, Replayable
from convscope.training.datasets import LabelledBatch
from convscope.training.step import Mark, Stepper, unmarked

WARM_UP_STEPS = 3  # of PyTorch's recipe
GRAPHS = 2
CAPTURED_METHOD = "CUDA events between the phases, in replays of a CUDA graph"


class Recorder(Protocol):
    """Makes graphs of a step, all of them in the same memory.

    Attributes:
        peak_memory_bytes: the most that PyTorch's allocator held in a capture, None before the first.
    """

    peak_memory_bytes: int | None

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run a step as it will be captured."""

    def capture(self, work: Callable[[], object]) -> Replayable:
        """Capture a step that was run before; it is not run now."""

    def event(self) -> Any:
        """Return an event to record in a captured step; each replay overwrites its time."""


class CudaRecorder:
    """CUDA graphs (`Recorder`); other threads may call CUDA meanwhile, such as a loader's that pins memory."""

    def __init__(self) -> None:
        self.peak_memory_bytes: int | None = None
        self._first: Captured | None = None

    def warm_up(self, work: Callable[[], object]) -> None:
        """Run a step on the stream of captures: what libraries keep for each stream is there then."""
        graphs.run_on_side_stream(work)

    def capture(self, work: Callable[[], object]) -> Captured:
        """Capture a step.

        Raises:
            NotCapturableError: CUDA or PyTorch refuses to capture it.
        """
        torch.cuda.reset_peak_memory_stats()
        captured = graphs.capture(work, memory_of=self._first, has_run=True, error_mode="thread_local")
        self.peak_memory_bytes = max(self.peak_memory_bytes or 0, torch.cuda.max_memory_allocated())
        self._first = self._first or captured
        return captured

    def event(self) -> torch.cuda.Event:
        """Return an event that is a node of the graph, and can be timed."""
        return graphs.timing_event()


class _Turn(NamedTuple):
    """A graph of the step, and the events in it at the ends of two phases."""

    graph: Replayable
    forward_ends: Any
    backward_ends: Any


@dataclass
class CapturedStepper(Stepper):
    """Steps as replays of CUDA graphs; `fused` must be True.

    A batch of another shape than the first, such as a smaller last one, is trained on kernel by kernel.
    """

    recorder: Recorder = field(default_factory=CudaRecorder)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rate = torch.tensor(self.learning_rate, dtype=torch.float32, device=self.device)
        self._last_loss = torch.zeros((), device=self.device)
        self._static: LabelledBatch | None = None  # the input of the graphs
        self._warm_ups_left = WARM_UP_STEPS
        self._turns: deque[_Turn] = deque()

    def step(self, batches: Iterator[LabelledBatch], mark: Mark = unmarked) -> torch.Tensor:
        """Train on the next batch; as `Stepper.step`, with the events in the graph as borders inside a replay."""
        images, labels = next(batches)
        if self._static is None:
            moved, expected = self.moved((images, labels))
            self._static = torch.empty_like(moved), torch.empty_like(expected)
        if (images.shape, labels.shape) != (self._static[0].shape, self._static[1].shape):
            return super().step(iter([(images, labels)]), mark)
        self._static[0].copy_(images, non_blocking=True)
        self._static[1].copy_(labels, non_blocking=True)
        mark()
        if self._warm_ups_left:
            self._warm_up(mark)
        else:
            self._replay(mark)
        loss = self._last_loss.clone()
        self._advance()
        mark()
        if not (self._warm_ups_left or self._turns):
            self._turns.extend(self._captured() for _ in range(GRAPHS))
        return loss

    def _warm_up(self, mark: Mark) -> None:
        self.recorder.warm_up(lambda: self._work(mark, mark))
        self._warm_ups_left -= 1

    def _replay(self, mark: Mark) -> None:
        turn = self._turns[0]
        self._turns.rotate(-1)
        turn.graph.replay()
        mark(turn.forward_ends)
        mark(turn.backward_ends)

    def _captured(self) -> _Turn:
        forward_ends, backward_ends = self.recorder.event(), self.recorder.event()
        graph = self.recorder.capture(lambda: self._work(forward_ends.record, backward_ends.record))
        return _Turn(graph, forward_ends, backward_ends)

    def _work(self, forward_ends: Callable[[], object], backward_ends: Callable[[], object]) -> None:
        """Train on the static batch; leave the loss in a tensor that all replays write to.

        The gradients are None before and after: the backward pass writes them, it does not add to them, and a graph
        makes them in its own memory.
        """
        assert self._static is not None
        loss = self._forward(*self._static)
        self._last_loss.copy_(loss.detach())
        forward_ends()
        loss.backward()
        backward_ends()
        (group,) = self._optimizer.param_groups
        scheduled, group["lr"] = group["lr"], self._rate
        self._optimizer.step()
        group["lr"] = scheduled
        self._optimizer.zero_grad(set_to_none=True)

    def _advance(self) -> None:
        super()._advance()
        self._rate.fill_(self._optimizer.param_groups[0]["lr"])
