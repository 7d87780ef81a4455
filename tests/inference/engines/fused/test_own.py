"""Modules that choose between a library and this project's kernels: on a CPU they are what they replace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

from convscope.convolution import models
from convscope.convolution.fusion import graphs
from convscope.errors import NothingFitsError, NotSupportedError
from convscope.inference.engines.fused import first, own, rows, steps, tails
from convscope.inference.engines.fused.parts import parts_of
from convscope.inference.engines.fused.planned import Planned


def traced(name: str) -> fx.GraphModule:
    model = models.build(name, seed=0)
    found, _ = graphs.fused(graphs.folded(model.eval())[0], steps.step_of)
    assert isinstance(found, fx.GraphModule)
    return found


@pytest.mark.parametrize(
    ("name", "firsts", "chosen", "heads"),
    [("resnet50", 1, 53, 1), ("torchvision:efficientnet_b0", 1, 81, 17), ("torchvision:convnext_tiny", 1, 58, 1)],
)
def test_networks_compute_the_same(name: str, firsts: int, chosen: int, heads: int):
    model = traced(name)
    rows.with_rows(model)
    tails.with_tails(model)
    other = copy.deepcopy(model)
    assert steps.with_heads(other) == heads
    assert (first.with_first(other), own.with_chosen(other, {})) == (firsts, chosen)
    given = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(other(given), model(given))
    assert own.count(other) == f"0 of {chosen} convolutions by Triton"


def test_a_module_with_hooks_groups_or_named_padding_is_left_alone():
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hooked, self.grouped, self.same = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 8, 3)
            self.same.padding = "same"
            self.reflected, self.plain = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.Conv2d(8, 8, 1)
            self.hooked.register_forward_hook(lambda module, given, output: output)
            self.pool, self.linear = nn.AdaptiveAvgPool2d(2), nn.Linear(4, 2)
            self.linear.register_forward_hook(lambda module, given, output: output)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.plain(self.reflected(self.same(self.grouped(self.hooked(x)))))

    model = fx.symbolic_trace(Layers())
    assert own.with_chosen(model, {}) == 1
    assert isinstance(model.plain, own.ChosenConvolution)
    assert first.with_first(model) == 0
    assert steps.with_heads(Layers()) == 0


def test_a_module_that_is_called_twice_is_left_alone():
    """Branches side by side could call it at the same time, and its programs would count in the same memory."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool, self.once = nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.pool(self.conv(x)) + self.pool(self.conv(x + 1.0)) + self.once(x)

    model = fx.symbolic_trace(Twice())
    assert own.with_chosen(model, {}) == 1
    assert isinstance(model.once, own.ChosenConvolution)
    assert steps.with_heads(model) == 0


def test_a_model_that_is_no_trace_stays_as_it_is():
    model = nn.Sequential(nn.Conv2d(8, 8, 3))
    assert (first.with_first(model), own.with_chosen(model, {}), own.count(model)) == (0, 0, "")
    assert type(model[0]) is nn.Conv2d


class Plan(Planned):
    """A plan that takes so long, or is refused when it runs."""

    def __init__(self, time_us: float | None) -> None:
        self.time_us, self.is_closed = time_us, False

    def close(self) -> None:
        self.is_closed = True


class Nothing:
    def choose(self, x: torch.Tensor, added: torch.Tensor | None, size: tuple[int, int]) -> None:
        raise NothingFitsError("no blocks")


@pytest.mark.parametrize(
    ("times_us", "best"),
    [((None, 3.0, 1.0, 2.0), 2), ((1.0, None), 0), ((8.0, 9.0), None), ((None,), None), ((), None)],
)
def test_the_fastest_is_kept_and_the_other_plans_are_closed(
    times_us: tuple[float | None, ...], best: int | None, monkeypatch: pytest.MonkeyPatch
):
    offered = [Plan(each) for each in times_us]

    def timed(work: Any) -> float:
        way = work.args[0]
        if isinstance(way, Plan) and way.time_us is None:
            raise NotSupportedError("refused when it runs")
        return way.time_us if isinstance(way, Plan) else 5.0

    monkeypatch.setattr("convscope.kernels.autotune.time_us", timed)
    monkeypatch.setattr(own.planned, "plans", lambda *asked: iter(offered))
    conv = tails.TailedConvolution(nn.Conv2d(8, 8, 1), "silu")
    parts = parts_of(conv)
    assert parts is not None
    made: Any = Nothing()
    found = own.ChosenConvolution(conv, parts, {})._choose(made, torch.zeros(1, 8, 2, 2), None, (2, 2))
    assert found is (False if best is None else offered[best])
    assert [plan.is_closed for plan in offered] == [at != best for at in range(len(offered))]
    own.close([found])
    assert all(plan.is_closed for plan in offered)
