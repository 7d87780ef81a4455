"""Energies of layers alone: what is replayed, how it is shared out, how it adds up. No GPU: graphs are stand-ins."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator

import pytest
import torch
from fakes import unusual
from torch import nn

from convscope.convolution import models, swap
from convscope.power.energy import EnergyWindow, LoadEnergy
from convscope.profiling import layer_energy
from convscope.profiling.layer_energy import Breakdown, LayerEnergy
from convscope.timing import graphs
from convscope.timing.hooks import convolution_modules, hooked

L2_BYTES = 50_000


class Model(nn.Module):
    """Two convolutions of one shape, one of another that is called twice, and an activation that writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.shared = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.relu(self.shared(self.relu(self.shared(self.second(self.first(given))))))


@pytest.fixture
def replay_ms() -> float:
    """Length of a replay of each layer; long ones are captured once."""
    return 100.0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, replay_ms: float) -> list[Callable[[], object]]:
    """Stand in for CUDA graphs: what would be captured is kept, and run once."""
    kept: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def capture(step: Callable[[], object]) -> Iterator[object]:
        kept.append(step)
        step()
        yield object()

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(graphs.ReplayLoad, "of", lambda captured: types.SimpleNamespace(pass_ms=replay_ms))
    properties = types.SimpleNamespace(L2_cache_size=L2_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return kept


def hundred_joules(load: object) -> tuple[LoadEnergy | None, str | None]:
    return LoadEnergy(EnergyWindow(0.0, 1.0, 100.0, 1.0, "test"), inferences=10.0), None


def measured(measure_energy: layer_energy.EnergyMeasurement = hundred_joules) -> Breakdown:
    torch.manual_seed(0)
    model, given = Model().eval(), torch.randn(1, 3, 16, 16)
    layers = []
    with torch.inference_mode():
        with hooked(model, after=lambda n, m, x, y: layers.append(models.describe(n, len(layers), m, x.shape))):
            model(given)
        return layer_energy.measure(model, (given,), layers, measure_energy)


def test_each_distinct_shape_is_replayed_once_and_the_rest_of_the_pass_after_them(steps: list):
    found = measured()
    assert len(found.layers) == 4
    assert len(steps) == 3


def test_a_layer_whose_input_must_be_copied_is_not_the_same_as_one_whose_input_lies_right(
    steps: list, monkeypatch: pytest.MonkeyPatch
):
    def forward(model: Model, given: torch.Tensor) -> torch.Tensor:
        return model.second(model.first(given).to(memory_format=torch.channels_last))

    monkeypatch.setattr(Model, "forward", forward)
    measured()
    assert len(steps) == 3


def call_counts(steps: list) -> list[int]:
    """Return how many convolutions each captured step runs."""
    counts = []
    original = nn.Conv2d.forward

    def counting(self: nn.Conv2d, given: torch.Tensor) -> torch.Tensor:
        counts[-1] += 1
        return original(self, given)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(nn.Conv2d, "forward", counting)
        for step in steps:
            counts.append(0)
            step()
    return counts


@pytest.mark.parametrize("replay_ms", [4.99])
def test_a_short_layer_is_called_often_in_one_graph(steps: list):
    found = measured()
    counts = call_counts(steps)
    assert len(counts) == 5  # each of two shapes with few calls, then with many; the rest
    assert counts[1] >= layer_energy.CALLS_LEAST > counts[0]
    assert found.layers[0].energy_j == pytest.approx(10.0 / counts[1])


@pytest.mark.parametrize("replay_ms", [5.0])
def test_a_long_layer_is_called_once_with_each_copy(steps: list):
    found = measured()
    counts = call_counts(steps)
    assert len(counts) == 3
    assert found.layers[0].energy_j == pytest.approx(10.0 / counts[0])


def test_the_energy_of_a_graph_is_shared_out_over_its_calls(steps: list):
    calls = []
    original = nn.Conv2d.forward

    def counting(self: nn.Conv2d, given: torch.Tensor) -> torch.Tensor:
        calls.append(self)
        return original(self, given)

    found = measured()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(nn.Conv2d, "forward", counting)
        steps[0]()
    assert found.layers[0].energy_j == pytest.approx(10.0 / len(calls))
    assert found.layers[0].uncertainty_j == pytest.approx(0.1 / len(calls))


def test_the_copies_of_weights_together_exceed_the_cache(steps: list):
    seen = set()
    original = nn.Conv2d.forward

    def noting(self: nn.Conv2d, given: torch.Tensor) -> torch.Tensor:
        seen.add((self.weight.data_ptr(), given.data_ptr()))
        return original(self, given)

    measured()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(nn.Conv2d, "forward", noting)
        steps[0]()
    call_bytes = 4 * (2 * 3 * 16 * 16 + 3 * 3 * 9 + 3)
    assert len(seen) == layer_energy.copies_needed(call_bytes, 2 * L2_BYTES)
    assert len(seen) * call_bytes > L2_BYTES


def test_the_rest_runs_no_convolution_and_the_model_gets_its_own_back(steps: list):
    model = Model().eval()
    given = torch.randn(1, 3, 16, 16)
    with torch.inference_mode():
        expected = model(given)
        calls = layer_energy.calls_of(model, (given,))
        with layer_energy._stubbed(model, calls):
            assert not convolution_modules(model)
            assert torch.equal(model(given), expected)
        assert torch.equal(model(given), expected)


def test_a_layer_without_energy_says_why_and_there_is_no_sum(steps: list):
    found = measured(lambda load: (None, "no energy: GPU is lost"))
    assert found.layers[0] == LayerEnergy(None, None, "no energy: GPU is lost")
    assert found.layers_sum_j is None
    assert found.residual_pct(1.0) is None


def failing(*failures: Exception | None) -> layer_energy.EnergyMeasurement:
    """Return a measurement that raises one error after another; None measures."""
    left = iter(failures)

    def measure_energy(load: object) -> tuple[LoadEnergy | None, str | None]:
        failure = next(left)
        if failure:
            raise failure
        return hundred_joules(load)

    return measure_energy


def test_a_layer_that_does_not_fit_has_a_reason_and_the_others_their_energy(steps: list):
    found = measured(failing(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), None, None))
    assert found.layers[0] == LayerEnergy(None, None, "no energy: oom: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert found.layers[2].energy_j is not None
    assert (found.rest_j, found.layers_sum_j) == (10.0, None)


def test_a_layer_that_fails_alone_has_a_reason(steps: list):
    found = measured(failing(None, RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), None))
    assert found.layers[0].energy_j is not None
    assert found.layers[2].reason == "no energy: failed: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"


def test_a_rest_that_does_not_fit_has_a_reason_and_the_layers_their_energy(steps: list):
    found = measured(failing(None, None, torch.OutOfMemoryError("CUDA out of memory")))
    assert all(layer.energy_j is not None for layer in found.layers)
    assert (found.rest_j, found.rest_reason) == (None, "no energy: oom: CUDA out of memory")


def test_outputs_that_do_not_fit_beside_each_other_are_a_reason_of_every_layer(
    steps: list, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(layer_energy, "calls_of", refuse)
    found = measured()
    assert {layer.reason for layer in found.layers} == {found.rest_reason} == {"no energy: oom: CUDA out of memory"}
    assert len(found.layers) == 4


def test_a_lost_gpu_is_no_matter_of_one_layer(steps: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("convscope.failures.device_fault", lambda device: "illegal address")
    with pytest.raises(RuntimeError, match="CUDA error: an illegal"):
        measured(failing(RuntimeError("CUDA error: an illegal memory access")))


def test_a_mistake_of_the_program_is_no_matter_of_one_layer(steps: list):
    with pytest.raises(RuntimeError, match="no such thing"):
        measured(failing(RuntimeError("no such thing")))


def test_the_residual_is_what_layers_and_rest_are_above_the_pass():
    found = Breakdown((LayerEnergy(0.3, 0.01), LayerEnergy(0.5, 0.01)), rest_j=0.3)
    assert found.layers_sum_j == pytest.approx(0.8)
    assert found.residual_pct(1.0) == pytest.approx(10.0)


@pytest.mark.parametrize(("call_bytes", "copies"), [(1, 200), (30, 7), (100, 2), (1000, 2)])
def test_there_are_enough_copies_for_twice_the_cache_and_at_least_two(call_bytes: int, copies: int):
    assert layer_energy.copies_needed(call_bytes, 200) == copies


def of_functional(refused: str | None = None) -> Breakdown:
    torch.manual_seed(0)
    model, given = unusual.Functional().eval(), torch.randn(1, 3, 12, 12)
    with torch.inference_mode():
        swap.Swap(model).apply({"conv2d": "direct", "last": "direct"})
        layers = models.layers_of(models.find_source(f"{unusual.__file__}:Functional"), 12)
        return layer_energy.measure(model, (given,), layers, hundred_joules, refused)


def test_calls_outside_modules_are_replayed_alone_and_left_out_of_the_rest(steps: list):
    found = of_functional()
    assert len(found.layers) == 5
    assert len(steps) == 5 + 1
    assert found.layers_sum_j is not None
    assert found.rest_j == pytest.approx(10.0)


def test_the_rest_of_a_pass_that_cannot_be_captured_has_a_reason(steps: list):
    found = of_functional("the host waits for the GPU in the pass")
    assert len(steps) == 5
    assert found.layers_sum_j is not None
    assert (found.rest_j, found.rest_reason) == (None, "no energy: the host waits for the GPU in the pass")
