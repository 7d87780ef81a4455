"""The trainer of one cell: the host's time for a step, and the settings that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import fakes
import pytest
import torch
from fakes.trainings import SMALL, asked

from convscope.distributed import Ranks
from convscope.timing.hooks import convolution_modules
from convscope.training import datasets
from convscope.training import study as training_study
from convscope.training import trainer as training_trainer
from convscope.training.trainer import Epoch, Trained, Trainer

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


def test_settings_of_a_step_reach_it():
    made = trainer(layout="nhwc", fused_optimizer=True, momentum=0.5, weight_decay=0.25)
    conv = next(iter(convolution_modules(made._model).values()))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    (group,) = made._stepper._optimizer.param_groups
    assert (group["fused"], group["momentum"], group["weight_decay"]) == (True, 0.5, 0.25)
    images, _ = made._stepper.moved(next(iter(made._loader)))
    assert images.is_contiguous(memory_format=torch.channels_last)
