"""A training study that takes the least time (three steps of a small network on noise), and graphs of its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from convscope.training.captured import CapturedStepper
from convscope.training.request import Training, check

SMALL = "torchvision:squeezenet1_1"
ASKED = Training(models=(SMALL,), batch_sizes=(4,), gpu="cpu", stem="imagenet", math="fp32", dataset="synthetic",
                 skipped_steps=1, max_steps=3)  # fmt: skip


def asked(**changes: Any) -> Training:
    """Return the request, but for the changes, checked."""
    return check(dataclasses.replace(ASKED, **changes))


class Graph:
    """A graph whose replay runs the step again."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self.replays = work, 0

    def replay(self) -> None:
        self.replays += 1
        self._work()


class Border:
    """An event in a graph."""

    def record(self) -> None:
        pass


class Recorder:
    """Graphs on a CPU: a capture runs Python's part of a step and, as on a GPU, leaves all tensors as they were.

    `graphs` has them in the order of their making; `stepper` is set to the one that has this recorder.
    """

    def __init__(self) -> None:
        self.peak_memory_bytes: int | None = None
        self.stepper: CapturedStepper | None = None
        self.warm_ups = 0
        self.graphs: list[Graph] = []

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warm_ups += 1
        work()

    def capture(self, work: Callable[[], object]) -> Graph:
        kept = [(tensor, tensor.clone()) for tensor in self._tensors()]
        drawn = torch.get_rng_state()
        work()
        torch.set_rng_state(drawn)
        for tensor, before in kept:
            tensor.detach().copy_(before)
        assert len(kept) == len(self._tensors()), "the optimizer's state must be there before the capture"
        self.graphs.append(Graph(work))
        return self.graphs[-1]

    def event(self) -> Border:
        return Border()

    def _tensors(self) -> list[torch.Tensor]:
        assert self.stepper is not None
        momenta = [state["momentum_buffer"] for state in self.stepper._optimizer.state.values()]
        return [*self.stepper.network.state_dict().values(), *momenta, self.stepper._last_loss]
