"""A race of plans whose times are given: two shapes, three layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from convscope.atlas.offered import KnownPlan
from convscope.atlas.race import Race, Shape
from convscope.convolution.layer import Layer
from convscope.cudnn.graph.engines import Offer
from convscope.cudnn.graph.plan import Plan
from convscope.verification.candidates import GUESS, HEURISTIC
from fakes import layer
from fakes.swapping import subject_on

SQUARE = {"in_channels": 64, "out_channels": 64, "in_height": 56, "in_width": 56, "kernel": (3, 3), "padding": (1, 1)}
WIDE = SQUARE | {"out_channels": 128}
LAYERS = (
    layer(name="one", position=0, **SQUARE),
    layer(name="two", position=1, **WIDE),
    layer(name="three", position=2, **SQUARE),
)


def offer(engine: int, **changes: Any) -> Offer:
    return Offer(Plan(engine), {"a": engine}, (), (), 64, **changes)


def known(*engines: int) -> tuple[KnownPlan, ...]:
    return tuple(KnownPlan(offer(engine)) for engine in engines)


def shapes() -> list[Shape]:
    """Two shapes, one of two layers and three plans, one of one layer and two plans."""
    return [Shape((LAYERS[0], LAYERS[2]), known(0, 1, 2)), Shape((LAYERS[1],), known(0, 5))]


# Of a call in ms, by layer and algorithm; PyTorch's where nothing else is said.
TIMES = {
    "one": {"plan:0": 1.0, "plan:1": 0.5, "plan:2": 9.0, GUESS: 1.0, HEURISTIC: 1.0},
    "two": {"plan:0": 2.0, "plan:5": 1.9, GUESS: 2.5, HEURISTIC: 2.0},
    "three": {"plan:0": 3.0, "plan:1": 0.7, "plan:2": 9.0, GUESS: 3.0, HEURISTIC: 3.0},
}


class OnPaper(Race):
    """A race whose passes take the times of `TIMES`, longer by 1 % in each later round."""

    def __init__(self, mine: Sequence[Shape], note: Callable[[str], None] = pytest.fail, fails: str = "") -> None:
        self.ran: list[tuple[str, ...]] = []
        self.fails = fails
        bench = SimpleNamespace(
            layer_times_ms=self._taken_ms,
            launched_ms=lambda given, passes: self._taken_ms(given, 0),
            release=lambda: None,
            expect=lambda layers: None,
        )
        super().__init__(subject_on("cpu", LAYERS), bench, note, mine)  # type: ignore[arg-type]

    def _guessed(self) -> Iterator[Layer]:
        return iter(LAYERS)

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        self._now = self.assignments[name]
        return work()

    def _taken_ms(self, given: object, place: int) -> list[float]:
        assigned = tuple(self._now[each.name] for each in LAYERS)
        self.ran.append(assigned)
        if self.fails in assigned:
            raise torch.OutOfMemoryError("no room\nat all")
        return [TIMES[each.name][name] * (1 + place / 100) for each, name in zip(LAYERS, assigned, strict=True)]
