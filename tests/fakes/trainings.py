"""A training study that takes the least time (three steps of a small network on noise), and graphs of its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from convscope.distributed import Ranks
from convscope.power.energy import EnergyWindow
from convscope.power.sampler import PowerWindow
from convscope.storage.store import Store
from convscope.training import datasets
from convscope.training.captured import CapturedStepper
from convscope.training.request import Training, check
from convscope.training.rows import SCHEMA
from convscope.training.study import TrainingStudy
from fakes import ENVIRONMENT

SMALL = "torchvision:squeezenet1_1"
ASKED = Training(models=(SMALL,), batch_sizes=(4,), gpu="cpu", stem="imagenet", math="fp32", dataset="synthetic",
                 skipped_steps=1, max_steps=3)  # fmt: skip


def asked(**changes: Any) -> Training:
    """Return the request, but for the changes, checked."""
    return check(dataclasses.replace(ASKED, **changes))


class Meter:
    """A meter whose windows hold 20 J in 2 s each."""

    reason = None

    def __init__(self) -> None:
        self.windows = 0

    def begin(self) -> PowerWindow:
        self.windows += 1
        return PowerWindow(0.0)

    def end(self, window: PowerWindow) -> PowerWindow:
        window.energies.append(EnergyWindow(0.0, 2.0, 20.0, 0.2, "a counter"))
        window.reasons.append(None)
        return window


def study(folder: Path, meter: Any = None, stop: Callable[[], bool] = lambda: False, **changes: Any) -> TrainingStudy:
    """Return a study of a folder whose run has begun."""
    notes: list[str] = []
    made = TrainingStudy(
        asked(**changes),
        datasets.Images(None, None),
        torch.device("cpu"),
        Ranks(),
        meter or Meter(),
        Store(folder, SCHEMA),
        folder / "profiles",
        stop,
        notes.append,
    )
    made.store.prepare()
    made.store.missing(made.training, ENVIRONMENT, [])
    made.store.begin(made.training, ENVIRONMENT, ["x"])
    return made


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
