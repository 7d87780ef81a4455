"""The trainer of one cell: the host's time for a step, and the settings that reach it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace

import fakes
import pytest
import torch
from fakes.trainings import SMALL, Recorder, asked

from convscope.distributed import Ranks
from convscope.errors import InputError
from convscope.timing.hooks import convolution_modules
from convscope.training import captured, datasets
from convscope.training import study as training_study
from convscope.training import trainer as training_trainer
from convscope.training.captured import CapturedStepper
from convscope.training.step import StepClock
from convscope.training.trainer import Epoch, Trained, Trainer
from profiler import PowerMonitor

CPU = torch.device("cpu")
NOISE = datasets.Images(None, None)


def trainer(**changes) -> Trainer:
    return Trainer(asked(**changes), SMALL, 4, NOISE, CPU, Ranks())


def test_the_hosts_time_for_a_step_is_without_the_loader(monkeypatch: pytest.MonkeyPatch):
    clock = fakes.Clock(step_s=0.5)

    def slow() -> Iterator[datasets.LabelledBatch]:
        for batch in iter(made._loader):
            clock.sleep(100.0)
            yield batch

    made = trainer()
    monkeypatch.setattr(training_trainer, "time", SimpleNamespace(perf_counter=clock))
    assert made._launch_ms(slow()) == 500.0  # two looks at the clock, nothing between them


def test_a_step_that_the_host_takes_long_to_launch_is_host_bound():
    def bound(launch_ms: float | None) -> object:
        trained = Trained(1, 0, [Epoch([1.0], None, None)], [(50.0, 3.0, 6.0, 1.0)] * 2, 1.0, launch_ms=launch_ms)
        trained.energy_reason = "none"
        return training_study._figures([trained], 32, on_gpu=True).get("host_bound")

    assert [bound(launch_ms) for launch_ms in (None, 8.9, 9.1)] == [None, False, True]


class Clock(StepClock):
    """The clock of a CPU, which knows no events."""

    def mark(self, border: object = None) -> None:
        super().mark()


class OnCpu(CapturedStepper):
    """A captured stepper with graphs of a CPU."""

    def __post_init__(self) -> None:
        self.recorder = Recorder()
        self.recorder.stepper = self
        super().__post_init__()


def captured_trainer(monkeypatch: pytest.MonkeyPatch, **changes) -> Trainer:
    """Return the trainer of a captured cell, which a CPU has not."""
    monkeypatch.setattr(training_trainer, "CapturedStepper", OnCpu)
    request = dataclasses.replace(asked(fused_optimizer=True, **changes), captured=True)
    made = Trainer(request, SMALL, 4, NOISE, CPU, Ranks())
    assert made._clock._ahead == captured.GRAPHS
    made._clock = Clock(on_gpu=False)
    return made


def test_a_captured_cell_trains_as_the_eager_one_and_times_replays_only(monkeypatch: pytest.MonkeyPatch):
    eager = trainer(fused_optimizer=True, max_steps=7, skipped_steps=0)
    replayed = captured_trainer(monkeypatch, max_steps=7, skipped_steps=0)
    losses = []
    for made in (eager, replayed):
        torch.manual_seed(3)  # of the dropout
        losses.append(made.train(PowerMonitor(reason="nobody to ask")).epochs[0].losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert (eager.trained.skipped_steps, len(eager.trained.phases_ms)) == (0, 7)
    assert (replayed.trained.skipped_steps, len(replayed.trained.phases_ms)) == (3, 4)
    assert replayed.trained.peak_memory_bytes is None


def test_the_memory_of_a_captured_cell_is_that_of_its_capture(monkeypatch: pytest.MonkeyPatch):
    made = captured_trainer(monkeypatch, max_steps=4)
    made._stepper.recorder.peak_memory_bytes = 700
    made.trained.peak_memory_bytes = 300
    assert made.train(PowerMonitor(reason="nobody to ask")).peak_memory_bytes == 700


@pytest.mark.parametrize(("asked_for", "total", "skipped"), [(0, 5, 3), (3, 5, 3), (4, 5, 4), (10, 5, 3), (10, 8, 4)])
def test_steps_that_are_not_replayed_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, asked_for: int, total: int, skipped: int
):
    made = captured_trainer(monkeypatch, max_steps=None, skipped_steps=asked_for)
    made.total_steps = total
    assert made._skipped_steps() == skipped


def test_so_few_steps_that_none_is_replayed_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="3 steps, of which --capture replays none of the first 3"):
        captured_trainer(monkeypatch, max_steps=3)


def test_settings_of_a_step_reach_it():
    made = trainer(layout="nhwc", fused_optimizer=True, momentum=0.5, weight_decay=0.25)
    conv = next(iter(convolution_modules(made._model).values()))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    (group,) = made._stepper._optimizer.param_groups
    assert (group["fused"], group["momentum"], group["weight_decay"]) == (True, 0.5, 0.25)
    images, _ = made._stepper.moved(next(iter(made._loader)))
    assert images.is_contiguous(memory_format=torch.channels_last)
