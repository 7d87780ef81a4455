"""The steps of a training run, their clock, and what is read from their borders."""

from __future__ import annotations

import fakes
import pytest
import torch
from torch import nn

from convscope.training import step


class Line(nn.Module):
    """A classifier of 3 × 2 × 2 images with two classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def stepper(**changes) -> step.Stepper:
    options = {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 5e-4, "steps": 4}
    return step.Stepper(Line(), torch.device("cpu"), **options | changes)


def batches(count: int):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(8, 3, 2, 2, generator=generator)
    return iter([(images, (images.sum((1, 2, 3)) > 0).long())] * count)


def test_the_phases_of_a_step_add_up_to_the_time_between_two_steps():
    clock = step.StepClock(on_gpu=False, clock=fakes.Clock(step_s=0.002))
    clock.start()
    for _ in range(2 * len(step.PHASES)):
        clock.mark()
    assert clock.read_ms() == [pytest.approx((2.0, 2.0, 2.0, 2.0))] * 2


def test_a_step_that_was_not_finished_is_not_read():
    clock = step.StepClock(on_gpu=False, clock=fakes.Clock())
    clock.start()
    for _ in range(len(step.PHASES) + 3):
        clock.mark()
    assert len(clock.read_ms()) == 1


def test_on_a_gpu_events_are_recorded_and_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    gpu = fakes.Gpu()
    gpu.patch(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("waited inside a step"))
    clock = step.StepClock(on_gpu=True)
    clock.start()
    for duration_ms in (1.0, 2.0, 3.0, 4.0):
        gpu.work(duration_ms)
        clock.mark()
    assert gpu.host_ms == 0
    assert clock.read_ms() == [(1.0, 2.0, 3.0, 4.0)]


@pytest.mark.parametrize("delay_ms", [0.0, 100.0])
def test_events_in_graphs_are_read_before_a_replay_overwrites_them(monkeypatch: pytest.MonkeyPatch, delay_ms: float):
    gpu, expected = fakes.Gpu(), list[tuple[float, ...]]()
    gpu.patch(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("waited for all of the GPU"))
    inside = [(torch.cuda.Event(), torch.cuda.Event()) for _ in range(2)]
    clock = step.StepClock(on_gpu=True, ahead=2)
    clock.start()
    for number in range(5):
        gpu.work(1.0)
        has_data_ms = gpu.busy_until_ms
        clock.mark()
        if not delay_ms and number:
            assert gpu.busy_until_ms - gpu.host_ms > 30.0  # the host waited, and the GPU still has a step to do
        gpu.host_ms += delay_ms
        forward_ends, backward_ends = inside[number % 2]
        gpu.work(2.0 + number)
        forward_ends.record()
        expected.append((1.0, gpu.busy_until_ms - has_data_ms, 30.0 + number, 4.0))
        gpu.work(30.0 + number)
        backward_ends.record()
        gpu.work(4.0)
        for border in (forward_ends, backward_ends, None):
            clock.mark(border)
    assert clock.read_ms() == clock.read_ms() == [pytest.approx(times) for times in expected]
    assert gpu.host_ms > 0


def test_a_step_marks_the_end_of_every_phase_in_their_order():
    trained = stepper()
    seen: list[str] = []
    weight = trained.network.linear.weight
    before = weight.detach().clone()

    def mark() -> None:
        changed = not torch.equal(weight, before)
        seen.append("changed" if changed else "gradient" if weight.grad is not None else "none")

    trained.step(batches(1), mark)
    assert seen == ["none", "none", "gradient", "changed"]


def test_steps_lower_the_loss_and_raise_the_accuracy():
    trained = stepper(learning_rate=0.5, steps=40)
    losses = [trained.step(batches(1), lambda: None).item() for _ in range(40)]
    _, accuracy_pct = trained.test(trained.network, batches(1))
    assert losses[-1] < losses[0] / 2
    assert accuracy_pct == 100


def test_testing_leaves_the_network_in_training():
    trained = stepper()
    trained.test(trained.network, batches(1))
    assert trained.network.training


def test_the_learning_rate_has_fallen_to_nothing_after_the_last_step():
    trained = stepper(steps=3)
    for _ in range(3):
        trained.step(batches(1), lambda: None)
    assert trained._optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights():
    seen = []
    trained = stepper(autocast=True)
    trained.network.linear.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    trained.step(batches(1), lambda: None)
    assert seen == [torch.bfloat16]
    assert trained.network.linear.weight.dtype == torch.float32


def test_mean_memory_weighs_the_phases_by_their_time():
    memory = step.MemoryMarks()
    memory.held_bytes = [100, 100, 300, 100, 100]
    assert memory.mean_bytes([0.0, 1.0, 3.0, 0.0]) == 200
    assert memory.mean_bytes([4.0, 0.0, 0.0, 4.0]) == 100
