"""Packed filters: whose they are, how long they live, and when they are packed again."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from types import ModuleType

import pytest
import torch
from torch import nn

from convscope.cudnn.shape import Convolution
from convscope.kernels import packing
from convscope.kernels import plan as plan_module
from convscope.kernels.plan import KernelPlan
from convscope.timing import graphs

SHAPE = Convolution((1, 2, 4, 4), (3, 2, 1, 1), (0, 0), (1, 1), (1, 1))
X = torch.zeros(SHAPE.input)


class Kernel(ModuleType):
    """A kernel that lays filters out by adding 1, and whose output is the packed tensor itself."""

    def __init__(self, alias: bool = False) -> None:
        super().__init__("kernel")
        self.packs, self._alias = 0, alias

    def pack(self, weight: torch.Tensor, shape: Convolution, blocks: str) -> torch.Tensor:
        self.packs += 1
        return weight.contiguous() if self._alias else weight + 1


class Plan(KernelPlan[str]):
    """A plan of such a kernel."""

    _keyed_by = ()

    def __init__(self, kernel: Kernel | None = None, shape: Convolution = SHAPE) -> None:
        self.kernel = kernel or Kernel()
        super().__init__("direct", self.kernel, shape, "blocks")

    def _choose(self, x: torch.Tensor, weight: torch.Tensor) -> str:
        return "blocks"

    def _launch(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, blocks: str) -> torch.Tensor:
        return packed


class InGraph(Plan):
    """A plan that may pack its filters in a graph."""

    packs_in_graphs = True


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return what says, by its last entry, whether a graph is being captured."""
    said = [False]
    for module in (packing, plan_module):
        monkeypatch.setattr(module, "is_capturing", lambda weight: said[-1])
    return said


def filters() -> nn.Parameter:
    return nn.Parameter(torch.randn(SHAPE.weight))


def test_filters_are_packed_once():
    plan, weight = Plan(), filters()
    assert plan.run(X, weight) is plan.run(X, weight)
    assert plan.kernel.packs == 1


def test_packed_filters_do_not_outlive_their_weight():
    plan, weight = Plan(), filters()
    packed = weakref.ref(plan.run(X, weight))
    assert packed() is not None
    del weight
    gc.collect()
    assert packed() is None


@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_a_kernel_that_reads_the_filters_where_they_lie_does_not_keep_the_weight_alive(
    laid: torch.memory_format, capturing: list[bool]
):
    weight = nn.Parameter(torch.randn(3, 2, 2, 2).to(memory_format=laid))
    plan = Plan(Kernel(alias=True), dataclasses.replace(SHAPE, weight=tuple(weight.shape)))
    plan.run(X, weight)
    capturing.append(True)  # it needs no packing before
    assert torch.equal(plan.run(X, weight), weight)
    capturing.append(False)
    alive = weakref.ref(weight)
    storage = weakref.ref(weight.untyped_storage())
    del weight
    gc.collect()
    assert alive() is None
    assert storage() is None


def test_a_packed_weight_has_no_gradient_that_keeps_it_alive():
    plan, weight = Plan(), filters()
    assert not plan.run(X, weight).requires_grad


def test_filters_that_were_written_to_are_packed_again():
    plan, weight = Plan(), filters()
    plan.run(X, weight)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(plan.run(X, weight), weight + 1)


def test_filters_put_in_the_place_of_others_are_packed_too():
    plan, module = Plan(), nn.Conv2d(2, 3, 1)
    plan.run(X, module.weight)
    module.weight = filters()
    assert torch.equal(plan.run(X, module.weight), module.weight + 1)
    module.weight.data = torch.randn(SHAPE.weight)
    assert torch.equal(plan.run(X, module.weight), module.weight + 1)


def test_renewed_filters_of_inference_are_packed_again():
    with torch.inference_mode():
        plan, weight = Plan(), torch.randn(SHAPE.weight)
        plan.run(X, weight)
        weight.mul_(2)
        plan.renew()
        assert torch.equal(plan.run(X, weight), weight + 1)


def test_what_a_graph_reads_lives_as_long_as_the_graph(capturing: list[bool]):
    plan, weight = Plan(), filters()
    plan.run(X, weight)
    with graphs.holding() as held:
        capturing.append(True)
        packed = weakref.ref(plan.run(X, weight))
    capturing.append(False)
    plan.close()
    del weight
    gc.collect()
    assert packed() is not None
    held.clear()
    gc.collect()
    assert packed() is None


def test_what_a_graph_of_another_makers_reads_lives_as_long_as_the_weight(capturing: list[bool]):
    plan, weight = Plan(), filters()
    plan.run(X, weight)
    capturing.append(True)
    packed = weakref.ref(plan.run(X, weight))
    capturing.append(False)
    plan.close()
    gc.collect()
    assert packed() is not None
    del weight
    gc.collect()
    assert packed() is None


@pytest.mark.parametrize("renewed", [False, True])
def test_a_graph_sees_filters_that_were_written_to_once_they_are_packed_again(capturing: list[bool], renewed: bool):
    plan, weight = Plan(), filters()
    plan.run(X, weight)
    with graphs.holding() as held:
        capturing.append(True)
        plan.run(X, weight)
    capturing.append(False)
    (read,) = held
    with torch.no_grad():
        (weight.data if renewed else weight).mul_(2)
    if renewed:
        plan.renew()
    with torch.inference_mode():
        plan.run(X, weight)
    assert torch.equal(read, weight + 1)


def test_filters_are_not_packed_in_a_graph(capturing: list[bool]):
    plan = Plan()
    capturing.append(True)
    with pytest.raises(RuntimeError, match="run the layer once before capturing it"):
        plan.run(X, filters())


def test_filters_packed_in_a_graph_are_not_taken_for_packed_before_its_replay(capturing: list[bool]):
    plan, weight = InGraph(), filters()
    capturing.append(True)
    plan.run(X, weight)
    capturing.append(False)
    plan.run(X, weight)
    assert plan.kernel.packs == 2


def test_a_tensor_held_outside_of_a_capture_is_nobodys():
    assert not graphs.hold(torch.zeros(1))
