"""The stress test of 3-D convolutions: shapes by chance, each verified; a failure is shrunk to the smallest shape."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from convscope import failures
from convscope.conv3d import comparison
from convscope.conv3d.implementations import Implementations
from convscope.conv3d.layersets import Layer3d, Triple, why_impossible
from convscope.conv3d.request import Conv3d
from convscope.conv3d.rows import StressRow
from convscope.convolution import backends
from convscope.convolution.reference import reference
from convscope.failures import Failure
from convscope.kernels.conv3d import catalogue
from convscope.kernels.conv3d.layout import Blocks3d

_SHRINKS_MOST = 300  # tries
_NOTED_EVERY, _PAUSED_EVERY = 50, 10  # rounds
_SIDES = ("size", "kernel", "stride", "padding", "dilation")
_LEAST = {"padding": 0}  # of a number, where it is not 1


def run(
    asked: Conv3d, rounds: int, workshop: Implementations, note: Callable[[str], None], rows: list[StressRow],
    pause: Callable[[], bool],
    skip: Callable[[int, str], bool] = lambda turn, name: False,
) -> None:  # fmt: skip
    """Verify every implementation on `rounds` shapes drawn from the seed; what one cannot do is not its failure.

    Of failures of one implementation that read the same but for numbers, the first is shrunk.

    Args:
        rows: grows on the way.
        pause: called every few rounds; where it says True the test ends there.
        skip: tells of a round and an implementation whether there is a row already.

    Raises:
        DeviceFaultError: the GPU is lost.
    """
    drawn, shrunk = random.Random(asked.seed), set[tuple[str, str]]()
    with torch.inference_mode(), backends.math(asked.math):
        for turn in range(rounds):
            layer = draw(drawn)
            names = [name for name in asked.implementations if not skip(turn, name)]
            every = {name: catalogue.samples(name, layer.shape(asked.dtype, asked.math)) for name in names}
            cuts = {name: found[turn % len(found)] for name, found in every.items()}
            for row in _round(asked, layer, cuts, turn, workshop):
                kind = row.implementation, re.sub(r"\d[\d.e+-]*|\binf\b", "#", row.reason or "")
                if row.status == "failed" and kind not in shrunk:
                    shrunk.add(kind)
                    fails = _failing(asked, row.implementation, cuts[row.implementation], turn, workshop)
                    smallest = str(shrink(layer, fails))
                    note(f"round {turn}: {row.implementation} fails: {row.reason}; smallest shape: {smallest}")
                    row = dataclasses.replace(row, smallest=smallest)
                rows.append(row)
            if (turn + 1) % _NOTED_EVERY == 0:
                note(f"{turn + 1} of {rounds} shapes")
            if (turn + 1) % _PAUSED_EVERY == 0 and pause():
                return


def _failing(
    asked: Conv3d, name: str, cut: Blocks3d | None, turn: int, workshop: Implementations
) -> Callable[[Layer3d], bool]:
    """Return what tells whether an implementation, cut as it was, fails at another shape too."""

    def fails(layer: Layer3d) -> bool:
        if cut not in catalogue.samples(name, layer.shape(asked.dtype, asked.math)):
            return False
        return _round(asked, layer, {name: cut}, turn, workshop)[0].status == "failed"

    return fails


def _round(
    asked: Conv3d, layer: Layer3d, cuts: Mapping[str, Blocks3d | None], turn: int, workshop: Implementations
) -> list[StressRow]:
    """Verify one shape by some implementations, each cut as said, all against one reference."""
    shape = layer.shape(asked.dtype, asked.math)
    rows = [StressRow(turn, name, str(layer), math=asked.math, dtype=asked.dtype) for name in cuts]
    reasons = [workshop.why_not(name, shape) for name in cuts]
    if all(reasons):
        return [_failed(row, Failure("unsupported", str(reason))) for row, reason in zip(rows, reasons, strict=True)]
    try:
        x, weight = comparison.tensors(shape, workshop.device, asked.seed + turn)
        exact = reference(x, weight, shape)
    except Exception as error:
        failure = failures.of_cell(error, workshop.device)
        return [_failed(row, failure) for row in rows]

    def tried(row: StressRow) -> StressRow:
        name = row.implementation
        try:
            ready = workshop.prepare(name, shape, weight, cuts[name])
            off = exact.error(workshop.run(name, lambda: ready.call(x)))
        except Exception as error:
            return _failed(row, failures.of_cell(error, workshop.device))
        most = comparison.allowed_error(name, layer, shape)
        row = dataclasses.replace(row, elementwise_error=off, tolerance=most, blocks=ready.said())
        return row if off <= most else _failed(row, Failure("failed", f"elementwise error {off:.1e} over {most:.1e}"))

    return [
        _failed(row, Failure("unsupported", reason)) if reason else tried(row)
        for row, reason in zip(rows, reasons, strict=True)
    ]


def _failed(row: StressRow, failure: Failure) -> StressRow:
    return dataclasses.replace(row, status=failure.status, reason=failure.reason)


def draw(drawn: random.Random) -> Layer3d:
    """Return a convolution by chance, one that can be: odd sizes, groups, strides, dilations, few and many channels."""
    while True:
        groups = drawn.choice((1, 1, 1, 1, 2, 3))
        plain = drawn.random() < 0.5  # the copy engine's kernels take stride 1 only
        made = Layer3d(
            name="",
            position=0,
            batch=drawn.randint(1, 3),
            channels=groups * drawn.choice((1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48)),
            filters=groups * drawn.choice((1, 2, 3, 5, 16, 31, 32, 64, 65)),
            size=_triple(drawn, 1, 20),
            kernel=_triple(drawn, 1, 4),
            stride=(1, 1, 1) if plain else _triple(drawn, 1, 3),
            padding=_triple(drawn, 0, 2),
            dilation=(1, 1, 1) if plain else _triple(drawn, 1, 2),
            groups=groups,
        )
        if why_impossible(made) is None:
            return made


def _triple(drawn: random.Random, low: int, high: int) -> Triple:
    return drawn.randint(low, high), drawn.randint(low, high), drawn.randint(low, high)


def shrink(layer: Layer3d, fails: Callable[[Layer3d], bool]) -> Layer3d:
    """Return the smallest shape that fails as well: each number in turn made smaller, as long as something still is."""
    tries, shrunk = 0, True
    while shrunk:
        shrunk = False
        for smaller in _smaller(layer):
            tries += 1
            if tries > _SHRINKS_MOST:
                return layer
            if fails(smaller):
                layer, shrunk = smaller, True
                break
    return layer


def _smaller(layer: Layer3d) -> Iterator[Layer3d]:
    """Yield the legal shapes with one number smaller: the least it can be, half, one less."""
    for less in _less(layer.batch, 1):
        yield from _legal(dataclasses.replace(layer, batch=less))
    for less in _less(layer.groups, 1):
        yield from _legal(dataclasses.replace(layer, groups=less))
    for less in _less(layer.channels // layer.groups, 1):
        yield from _legal(dataclasses.replace(layer, channels=less * layer.groups))
    for less in _less(layer.filters // layer.groups, 1):
        yield from _legal(dataclasses.replace(layer, filters=less * layer.groups))
    for name in _SIDES:
        triple: Sequence[int] = getattr(layer, name)
        for axis, value in enumerate(triple):
            for less in _less(value, _LEAST.get(name, 1)):
                side: Any = {name: (*triple[:axis], less, *triple[axis + 1 :])}
                yield from _legal(dataclasses.replace(layer, **side))


def _less(value: int, least: int) -> list[int]:
    return [less for less in dict.fromkeys((least, value // 2, value - 1)) if least <= less < value]


def _legal(layer: Layer3d) -> list[Layer3d]:
    return [] if why_impossible(layer) else [layer]
