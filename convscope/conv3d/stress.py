"""Stress test of 3-D convolutions: random shapes, each verified; a failure is shrunk to the smallest shape."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterator, Mapping

import torch

from convscope import failures
from convscope.conv3d import comparison
from convscope.conv3d.comparison import failed
from convscope.conv3d.implementations import Implementations, cuts
from convscope.conv3d.request import LAYOUTS, Conv3d
from convscope.conv3d.rows import StressRow
from convscope.convolution import backends, tolerance
from convscope.convolution.layer import Layer
from convscope.convolution.reference import reference
from convscope.convolution.sources.table import EXTENTS, why_invalid
from convscope.failures import Failure
from convscope.kernels.blocks import Blocks3d

_SHRINKS_MOST = 300  # tries
_NOTED_EVERY, _PAUSED_EVERY = 50, 10  # rounds
_LEAST = {"padding": 0}  # of a number, where it is not 1
_SHRUNK = ("failed", tolerance.WRONG)  # statuses of a row whose shape is shrunk


def run(
    request: Conv3d, rounds: int, implementations: Implementations, note: Callable[[str], None], rows: list[StressRow],
    pause: Callable[[], bool], skip: Callable[[int, str], bool] = lambda turn, name: False,
) -> None:  # fmt: skip
    """Verify every implementation on `rounds` shapes drawn from the seed; a shape that one cannot do is no failure.

    Of failures of one implementation that read the same but for numbers, the first is shrunk.

    Args:
        rows: grows on the way.
        pause: called every few rounds; where it says True the test ends there.
        skip: tells of a round and an implementation whether there is a row already.

    The rounds go through the layouts that are asked for in turn.

    Raises:
        DeviceFaultError: the GPU is lost.
    """
    drawn, shrunk = random.Random(request.seed), set[tuple[str, str]]()
    with torch.inference_mode(), backends.math(request.math):
        for turn in range(rounds):
            layer = draw(drawn)
            shape = layer.convolution(request.dtype, request.math, LAYOUTS[layout_of(request, turn)])
            names = [name for name in request.implementations if not skip(turn, name)]
            samples = {name: cuts(name, shape) for name in names}
            cut = turn // len(request.layouts)  # so that each is seen in each layout
            blocks = {name: some[cut % len(some)] for name, some in samples.items()}
            for row in _round(request, layer, blocks, turn, implementations):
                kind = row.implementation, re.sub(r"\d[\d.e+-]*|\binf\b", "#", row.reason or "")
                if row.status in _SHRUNK and kind not in shrunk:
                    shrunk.add(kind)
                    fails = _failing(request, row.implementation, blocks[row.implementation], turn, implementations)
                    smallest = str(shrink(layer, fails))
                    note(f"round {turn}: {row.implementation} fails: {row.reason}; smallest shape: {smallest}")
                    row = dataclasses.replace(row, smallest=smallest)
                rows.append(row)
            if (turn + 1) % _NOTED_EVERY == 0:
                note(f"{turn + 1} of {rounds} shapes")
            if (turn + 1) % _PAUSED_EVERY == 0 and pause():
                return


def _failing(
    request: Conv3d, name: str, blocks: Blocks3d | None, turn: int, implementations: Implementations
) -> Callable[[Layer], bool]:
    """Return a function that tells whether an implementation, with the same block shapes, fails at another shape."""

    def fails(layer: Layer) -> bool:
        shape = layer.convolution(request.dtype, request.math, LAYOUTS[layout_of(request, turn)])
        alike = [cut for cut in cuts(name, shape) if _without_box(cut) == _without_box(blocks)]
        return bool(alike) and _round(request, layer, {name: alike[0]}, turn, implementations)[0].status in _SHRUNK

    return fails


def _without_box(blocks: Blocks3d | None) -> Blocks3d | None:
    """Return a cut without the box of its pixels, which follows from the output's size."""
    return None if blocks is None else dataclasses.replace(blocks, box=(1, 1, 1))


def _round(
    request: Conv3d, layer: Layer, blocks: Mapping[str, Blocks3d | None], turn: int, implementations: Implementations
) -> list[StressRow]:
    """Verify one shape by some implementations, each with its block shapes, all against one reference."""
    layout = layout_of(request, turn)
    shape = layer.convolution(request.dtype, request.math, LAYOUTS[layout])
    rows = [StressRow(turn, name, str(layer), layout, math=request.math, dtype=request.dtype) for name in blocks]
    reasons = [implementations.why_not(name, shape) for name in blocks]
    if all(reasons):
        return [failed(row, Failure("unsupported", str(reason))) for row, reason in zip(rows, reasons, strict=True)]
    try:
        x, weight = comparison.tensors(shape, implementations.device, request.seed + turn)
        exact = reference(x, weight, shape)
    except Exception as error:
        failure = failures.of_cell(error, implementations.device)
        return [failed(row, failure) for row in rows]

    def tried(row: StressRow) -> StressRow:
        name = row.implementation
        try:
            ready = implementations.prepare(name, shape, weight, blocks[name])
            error = exact.error(implementations.run(name, lambda: ready.call(x)))
        except Exception as raised:
            return failed(row, failures.of_cell(raised, implementations.device))
        return comparison.verified(dataclasses.replace(row, blocks=ready.said()), error, layer, shape)

    return [
        failed(row, Failure("unsupported", reason)) if reason else tried(row)
        for row, reason in zip(rows, reasons, strict=True)
    ]


def layout_of(request: Conv3d, turn: int) -> str:
    """Return the layout of a round."""
    return request.layouts[turn % len(request.layouts)]


def draw(drawn: random.Random) -> Layer:
    """Return a random valid convolution: odd sizes, groups, strides, dilations, few and many channels."""
    while True:
        groups = drawn.choice((1, 1, 1, 1, 2, 3))
        plain = drawn.random() < 0.5
        layer = Layer.of_sizes(
            "", 0, groups=groups, batch=drawn.randint(1, 3),
            in_channels=groups * drawn.choice((1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 48, 64, 128)),
            out_channels=groups * drawn.choice((1, 2, 3, 5, 16, 31, 32, 64, 65, 128, 130, 256)),
            size=_triple(drawn, 1, 20), kernel=_triple(drawn, 1, 4),
            stride=(1, 1, 1) if plain else _triple(drawn, 1, 3), padding=_triple(drawn, 0, 2),
            dilation=(1, 1, 1) if plain else _triple(drawn, 1, 2),
        )  # fmt: skip
        if why_invalid(layer) is None:
            return layer


def _triple(drawn: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(drawn.randint(low, high) for _ in range(3))


def shrink(layer: Layer, fails: Callable[[Layer], bool]) -> Layer:
    """Return the smallest shape that fails as well: one number after another is reduced while it still fails."""
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


def _smaller(layer: Layer) -> Iterator[Layer]:
    """Yield the valid shapes with one number smaller: the least it can be, half, one less."""
    units = {"batch": 1, "groups": 1, "in_channels": layer.groups, "out_channels": layer.groups}
    for name, unit in units.items():
        for less in _less(getattr(layer, name) // unit, 1):
            yield from _valid(layer.resized(**{name: less * unit}))
    for name in EXTENTS:
        extents: tuple[int, ...] = getattr(layer, name)
        for axis, value in enumerate(extents):
            for less in _less(value, _LEAST.get(name, 1)):
                yield from _valid(layer.resized(**{name: (*extents[:axis], less, *extents[axis + 1 :])}))


def _less(value: int, least: int) -> list[int]:
    return [less for less in dict.fromkeys((least, value // 2, value - 1)) if least <= less < value]


def _valid(layer: Layer) -> list[Layer]:
    return [] if why_invalid(layer) else [layer]
