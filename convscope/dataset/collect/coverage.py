"""Coverage of a collection: the shapes of its models, drawn and renewed ones, in groups that are measured together.

Groups take turns among batch sizes and arithmetic. Models and sizes come in an order drawn by chance, each with a few
shapes at a time, so that whatever time there is, what has been measured by then covers the range. A shape that is known
is in no further group.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from convscope.convolution.layer import Layer
from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset.collect import drawn
from convscope.dataset.collect.request import SETTINGS, Collection
from convscope.dataset.collect.uses import Key, Use, key_of, layers_of, table_of, uses_of

ENERGY_SHAPES = 6
"""Shapes of a group whose energy is measured: that takes seconds for each of the best candidates of each."""
TURN_SHAPES = 8
"""Shapes of a model at one size that come before those of another."""
BLOCK_SHAPES = 64
"""Shapes that are drawn or renewed and take turns as those of a model at one size do."""


@dataclass(frozen=True)
class Stratum:
    """Part of the range that groups are of: one setting and one batch size."""

    setting: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.setting.replace(',', '_')}_b{self.batch_size}"


T = TypeVar("T")
Source = Callable[[], tuple[tuple[Layer, Use], ...]]
"""Shapes that take their turn together, at any batch, each with a call that has it."""


@dataclass(frozen=True)
class Group:
    """Shapes that are measured together, each with the first call that has it; with `energy`, joules too.

    Grouped convolutions are ahead of the others: cuDNN launches many of them on several streams, and events cost
    another amount before the last of these than behind it (docs/timing.md).
    """

    stratum: Stratum
    keys: tuple[Key, ...]
    uses: tuple[Use, ...]
    energy: bool

    @classmethod
    def of(cls, stratum: Stratum, uses: Sequence[Use], energy: bool) -> Group:
        """Return the group of these shapes, in the order that it measures them in."""
        in_order = sorted(uses, key=lambda use: use.key[-1] == "1")
        return cls(stratum, tuple(use.key for use in in_order), tuple(in_order), energy)

    def table(self) -> str:
        """Return the shapes as a table that `run_verify.py --model FILE.csv` takes; they are named s0, s1, …"""
        return table_of(self.keys)


def sources(asked: Collection, stratum: Stratum) -> list[Source]:
    """Return what the shapes of a stratum come from: each model at each size and blocks of drawn ones, or the renewed.

    A collection that renews shapes has no others.
    """
    if asked.renewed:
        own = [use for setting, use in asked.renewed if Stratum(setting, use.batch_size) == stratum]
        return [functools.partial(_given, tuple(block)) for block in blocks(own)]
    of_models = [functools.partial(uses_of, *each) for each in itertools.product(asked.models, asked.sizes)]
    layers = drawn.first(asked.drawn, asked.drawn_kinds)
    return [*of_models, *(functools.partial(_drawn, tuple(block)) for block in blocks(layers))]


def blocks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield some of the items at a time, `BLOCK_SHAPES` at most."""
    return (items[at : at + BLOCK_SHAPES] for at in range(0, len(items), BLOCK_SHAPES))


@functools.cache
def _given(uses: tuple[Use, ...]) -> tuple[tuple[Layer, Use], ...]:
    return tuple(zip(layers_of([use.key for use in uses]), uses, strict=True))


@functools.cache
def _drawn(layers: tuple[Layer, ...]) -> tuple[tuple[Layer, Use], ...]:
    return tuple((each, Use(None, None, None, 0, key_of(each))) for each in layers)


def groups(asked: Collection, known: Set[tuple[str, Key]], begun: int = 0) -> Iterator[Group]:
    """Yield groups of shapes that are not known, in turn of each stratum, until all are in one.

    Args:
        known: settings with shapes that have been measured.
        begun: the number of groups that there were before these.
    """
    seen, number = set(known), itertools.count(begun + 1)
    turns = [_of_stratum(asked, stratum, seen, number) for stratum in strata(asked)]
    while turns:
        for turn in list(turns):
            group = next(turn, None)
            if group is None:
                turns.remove(turn)
            else:
                yield group


def strata(asked: Collection) -> list[Stratum]:
    """Return every setting with every batch size."""
    return [Stratum(setting, size) for size in asked.batch_sizes for setting in asked.settings]


def shapes_of(asked: Collection, stratum: Stratum) -> set[Key]:
    """Return the shapes of a stratum, of whatever source."""
    every = (each for source in sources(asked, stratum) for each in source())
    return set(filter(asked.includes, (key_of(layer.resized(batch=stratum.batch_size)) for layer, _ in every)))


def without_shapes(asked: Collection) -> list[str]:
    """Return the models that take none of the sizes, or have no convolution that is measured."""
    return [model for model in asked.models if not any(uses_of(model, size) for size in asked.sizes)]


def _of_stratum(
    asked: Collection, stratum: Stratum, seen: set[tuple[str, Key]], number: Iterator[int]
) -> Iterator[Group]:
    waiting, draw = sources(asked, stratum), random.Random(f"{asked.seed} {stratum}")
    draw.shuffle(waiting)
    found = _found(waiting, stratum, seen, draw, asked.includes)
    left = next(found, None)
    while left is not None:
        energy = next(number) % asked.energy_every == 0 if asked.energy_every else False
        most = ENERGY_SHAPES if energy else asked.group_shapes
        uses: list[Use] = []
        taken = 0
        while left is not None and len(uses) < most:
            layer, use = left
            needs = layer.minimum_bytes(ELEMENT_BYTES[SETTINGS[stratum.setting]["dtype"]])
            if uses and taken + needs > asked.group_bytes:
                break
            uses.append(use)
            taken += needs
            left = next(found, None)
        yield Group.of(stratum, uses, energy)


def _found(
    waiting: list[Source], stratum: Stratum, seen: set[tuple[str, Key]], draw: random.Random,
    includes: Callable[[Key], bool],
) -> Iterator[tuple[Layer, Use]]:  # fmt: skip
    """Yield the shapes that no group has yet, each with the first call that has it; sources take turns."""
    turns = deque(waiting)
    while turns:
        source = turns.popleft()
        new: dict[Key, tuple[Layer, Use]] = {}
        for one, use in source():
            layer = one.resized(batch=stratum.batch_size)
            key = key_of(layer)
            if (stratum.setting, key) not in seen and includes(key):
                new.setdefault(key, (layer, dataclasses.replace(use, key=key)))
        for key in draw.sample([*new], min(TURN_SHAPES, len(new))):
            seen.add((stratum.setting, key))
            yield new[key]
        if len(new) > TURN_SHAPES:
            turns.append(source)
