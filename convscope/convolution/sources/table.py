"""Tables of convolutions by their sizes, 2-D or 3-D, read from CSV; every row is checked before anything runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from convscope.cli.display import several
from convscope.convolution.layer import Layer
from convscope.cudnn.shape import dimensions
from convscope.errors import InputError

EXTENTS = ("size", "kernel", "stride", "padding", "dilation")  # of a layer: a number for each dimension
_SIDES = ("depth", "height", "width")
_LARGEST = 2**31 - 1  # of one number: cuDNN's descriptors hold no larger one
_MOST = 1e18  # fits 63 bits; no card does it in a day


def columns(rank: int) -> list[str]:
    """Return the columns of a table of convolutions with two or three spatial dimensions."""
    return ["layer", "batch", "channels", "filters", *_SIDES[-rank:], *EXTENTS[1:], "groups"]


def parse(text: str, where: str, rank: int) -> list[Layer]:
    """Return the layers of a CSV text.

    Raises:
        InputError: the header or a row is invalid; the message has the line.
    """
    reader, wanted = csv.reader(io.StringIO(text), strict=True), columns(rank)
    try:
        header = next(reader, [])
        if header != wanted:
            raise InputError(f"{where}, line 1: the columns must be {','.join(wanted)}")
        layers: list[Layer] = []
        for cells in reader:
            place = f"{where}, line {reader.line_num}"
            if len(cells) != len(wanted):
                raise InputError(f"{place}: {several(len(cells), 'cell')} where {len(wanted)} belong")
            layers.append(_layer(dict(zip(wanted, cells, strict=True)), len(layers), place, rank))
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from None
    if not layers:
        raise InputError(f"{where}: it has no layers")
    return layers


def _layer(cells: Mapping[str, str], position: int, place: str, rank: int) -> Layer:
    counts = ("batch", "channels", "filters", *_SIDES[-rank:])
    batch, channels, filters, *size = (_number(cells[name], name, place) for name in counts)
    extents: dict[str, Any] = {name: _extents(cells[name], name, place, rank) for name in EXTENTS[1:]}
    layer = Layer.of_sizes(
        cells["layer"] or f"layer {position}", position, batch=batch, in_channels=channels, out_channels=filters,
        size=tuple(size), groups=_number(cells["groups"], "groups", place), **extents,
    )  # fmt: skip
    reason = why_invalid(layer)
    if reason:
        raise InputError(f"{place}: {reason}")
    return layer


def why_invalid(layer: Layer) -> str | None:
    """Return why there is no such convolution, or None where there is."""
    channels, filters, groups = layer.in_channels, layer.out_channels, layer.groups
    for name, count in (("batch", layer.batch), ("channels", channels), ("filters", filters), ("groups", groups)):
        if count < 1:
            return f"{name} {count}: it must be at least 1"
    for name in ("size", "kernel", "stride", "dilation"):
        extents: tuple[int, ...] = getattr(layer, name)
        if min(extents) < 1:
            return f"{name} {dimensions(extents, short=True)}: each must be at least 1"
    if channels % groups or filters % groups:
        return f"groups {groups} must divide channels {channels} and filters {filters}"
    for side, extent, kernel, padding, dilation in zip(
        _SIDES[-len(layer.size) :], layer.size, layer.kernel, layer.padding, layer.dilation, strict=True
    ):
        if extent + 2 * padding > _LARGEST:
            return f"the padded {side} ({extent + 2 * padding}) is more than {_LARGEST}"
        if dilation * (kernel - 1) + 1 > extent + 2 * padding:
            seen = f"the kernel ({kernel}, dilation {dilation})"
            return f"{seen} is larger than the padded {side} ({extent + 2 * padding})"
    most = max(layer.minimum_bytes(1), layer.flops)
    return f"its elements or operations ({most:.1e}) are more than {_MOST:.0e}" if most > _MOST else None


def _number(text: str, name: str, place: str) -> int:
    if not re.fullmatch(r"\d{1,10}", text.strip(), re.ASCII) or int(text) > _LARGEST:
        raise InputError(f"{place}: {name} is {text[:40]!a}: say a whole number, at most {_LARGEST}")
    return int(text)


def _extents(text: str, name: str, place: str, rank: int) -> tuple[int, ...]:
    parts = text.strip().split("x")
    if len(parts) not in (1, rank):
        words, example = {2: ("two", "1x3"), 3: ("three", "1x3x3")}[rank]
        raise InputError(f"{place}: {name} is {text[:40]!a}: say one number, or {words} such as {example}")
    return tuple(_number(part, name, place) for part in (parts * rank if len(parts) == 1 else parts))
