"""Steps that are replayed as graphs: they train as eager steps do. The graphs are a CPU's (`trainings.Recorder`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fakes.trainings import Border, Recorder
from torch import nn

from convscope.timing import graphs
from convscope.training import captured
from convscope.training.captured import GRAPHS, WARM_UP_STEPS, CapturedStepper, CudaRecorder
from convscope.training.datasets import LabelledBatch
from convscope.training.step import Stepper

CPU = torch.device("cpu")
STEPS = 9


def network() -> nn.Module:
    """Return a classifier of 3 × 8 × 8 images with all that a step changes: weights, running statistics, chance."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 5)
    return nn.Sequential(*layers)


def batches(*sizes: int) -> Iterator[LabelledBatch]:
    generator = torch.Generator().manual_seed(1)
    for size in sizes:
        yield torch.randn(size, 3, 8, 8, generator=generator), torch.randint(5, (size,), generator=generator)


def stepper(kind: type[Stepper] = CapturedStepper, momentum: float = 0.9, **more: Any) -> Stepper:
    return kind(network(), CPU, 0.1, momentum, 5e-4, STEPS, fused=True, **more)


def captured_stepper(**more: Any) -> tuple[CapturedStepper, Recorder]:
    recorder = Recorder()
    made = stepper(recorder=recorder, **more)
    assert isinstance(made, CapturedStepper)
    recorder.stepper = made
    return made, recorder


def losses(made: Stepper, *sizes: int) -> list[float]:
    torch.manual_seed(2)  # of the dropout
    given = batches(*sizes)
    return torch.stack([made.step(given) for _ in sizes]).tolist()  # read when all steps are done


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_captured_training_is_the_eager_one(momentum: float, autocast: bool):
    eager = stepper(Stepper, momentum, autocast=autocast)
    replayed, recorder = captured_stepper(momentum=momentum, autocast=autocast)
    assert losses(replayed, *[8] * STEPS) == pytest.approx(losses(eager, *[8] * STEPS), rel=1e-5)
    for name, value in eager.network.state_dict().items():
        torch.testing.assert_close(replayed.network.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert replayed.network.state_dict()["1.num_batches_tracked"] == STEPS
    assert sum(graph.replays for graph in recorder.graphs) == STEPS - WARM_UP_STEPS


def test_the_graphs_are_captured_after_the_warm_up_and_take_turns():
    replayed, recorder = captured_stepper()
    given = batches(*[8] * STEPS)
    seen = []
    for _ in range(STEPS):
        replayed.step(given)
        seen.append((recorder.warm_ups, [graph.replays for graph in recorder.graphs]))
    assert GRAPHS == 2
    assert seen == [(1, []), (2, []), (3, [0, 0]), (3, [1, 0]), (3, [1, 1]), (3, [2, 1]), (3, [2, 2]), (3, [3, 2]),
                    (3, [3, 3])]  # fmt: skip


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8, 8, 3), (8, 8, 8, 8, 1, 8, 8), (8, 3, 8, 8, 8)])
def test_a_smaller_batch_is_trained_on_without_the_graph(sizes: tuple[int, ...]):
    eager, (replayed, recorder) = stepper(Stepper), captured_stepper()
    assert losses(replayed, *sizes) == pytest.approx(losses(eager, *sizes), rel=1e-5)
    assert sum(graph.replays for graph in recorder.graphs) == sizes.count(8) - WARM_UP_STEPS
    for name, value in eager.network.state_dict().items():
        torch.testing.assert_close(replayed.network.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_the_graph_reads_the_learning_rate_of_the_schedule_from_one_tensor():
    rates: dict[str, list[float]] = {"eager": [], "captured": []}
    places = set()

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rate = optimizer.param_groups[0]["lr"]
        rates["captured" if torch.is_tensor(rate) else "eager"].append(float(rate))
        if torch.is_tensor(rate):
            assert rate.dtype == torch.float32  # as the kernel takes it
            places.add(rate.data_ptr())

    for made in (stepper(Stepper), captured_stepper()[0]):
        losses(made, 8, 8)  # the schedule's wrapper of `step` hides a hook before the first
        made._optimizer.register_step_pre_hook(look)
        losses(made, *[8] * (STEPS - 2))
        scheduled = made._optimizer.param_groups[0]["lr"]
        assert isinstance(scheduled, float)  # the schedule goes on from what it had, unrounded
        assert scheduled == pytest.approx(0, abs=1e-9)
    captures = rates["captured"].pop(1), rates["captured"].pop(1)  # which run nothing
    assert captures[0] == captures[1] == rates["captured"][1]
    assert len(places) == 1
    assert rates["captured"] == pytest.approx(rates["eager"], rel=1e-6)


def test_every_batch_is_copied_into_the_same_tensors_and_stays_as_it_is():
    replayed, _ = captured_stepper()
    places = set()
    replayed.network.register_forward_pre_hook(lambda module, given: places.add(given[0].data_ptr()))
    batch = next(batches(8))
    kept = batch[0].clone()
    for _ in range(WARM_UP_STEPS + 1):
        replayed.step(iter([batch]))
    replayed.step(batches(8))
    assert len(places) == 1
    assert batch[0].data_ptr() not in places
    assert torch.equal(batch[0], kept)


def test_channels_last_stays_so_in_the_graphs_input():
    replayed, _ = captured_stepper(memory=torch.channels_last)
    seen = []
    replayed.network.register_forward_pre_hook(lambda module, given: seen.append(given[0].stride()[1]))
    losses(replayed, *[8] * (WARM_UP_STEPS + 1))
    assert set(seen) == {1}


def test_the_borders_inside_a_replay_are_the_events_of_its_graph():
    replayed, recorder = captured_stepper()
    losses(replayed, *[8] * WARM_UP_STEPS)
    marks: list[tuple[int, Any]] = []

    def mark(border: object = None) -> None:
        marks.append((sum(graph.replays for graph in recorder.graphs), border))

    given = batches(8, 8, 8)
    for _ in range(3):
        replayed.step(given, mark)
    assert [replays for replays, _ in marks] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]
    assert [type(border) for _, border in marks[:4]] == [type(None), Border, Border, type(None)]
    one, two, three = ([border for _, border in marks[at + 1 : at + 3]] for at in (0, 4, 8))
    assert one == three
    assert not {*one} & {*two}


def test_a_step_that_is_not_replayed_ends_its_phases_in_their_order():
    replayed, _ = captured_stepper()
    weight = replayed.network[0].weight
    before, seen = weight.detach().clone(), []

    def mark(border: object = None) -> None:
        changed = not torch.equal(weight, before)
        seen.append("changed" if changed else "gradient" if weight.grad is not None else "none")

    replayed.step(batches(8), mark)
    assert seen == ["none", "none", "gradient", "changed"]


def test_graphs_of_a_gpu_are_in_the_memory_of_the_first_and_have_their_peak(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def capture(work: Callable[[], object], **options: Any) -> str:
        asked.append(options)
        return f"graph {len(asked)}"

    peaks = iter([500, 400])
    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks))
    recorder = CudaRecorder()
    assert recorder.peak_memory_bytes is None
    made = [recorder.capture(lambda: None) for _ in range(captured.GRAPHS)]
    assert made == ["graph 1", "graph 2"]
    assert [options["memory_of"] for options in asked] == [None, "graph 1"]
    assert all(options["has_run"] and options["error_mode"] == "thread_local" for options in asked)
    assert recorder.peak_memory_bytes == 500
