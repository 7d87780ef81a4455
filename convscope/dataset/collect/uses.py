"""Calls of plain 2-D convolutions in models, and their shapes as the cells of a table of convolutions."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass

from convscope.convolution import algorithms, models
from convscope.convolution.layer import Layer
from convscope.convolution.sources import table
from convscope.convolution.sources.network import Network
from convscope.cudnn.shape import dimensions
from convscope.errors import InputError

Key = tuple[str, ...]
"""The cells of a shape in a table of convolutions, without its name; batch size, channels, filters, height, …"""


@dataclass(frozen=True)
class Use:
    """One call of a convolution in a model at one size, and its shape; a drawn one is of no model."""

    model: str | None
    input_size: int | None
    layer: str | None
    position: int
    key: Key

    @property
    def batch_size(self) -> int:
        """The batch size of the shape."""
        return int(self.key[0])


def key_of(layer: Layer) -> Key:
    """Return the cells of a layer's shape."""
    extents = (dimensions(each) for each in (layer.kernel, layer.stride, layer.padding, layer.dilation))
    counts = layer.batch, layer.in_channels, layer.out_channels, *layer.size
    return *map(str, counts), *extents, str(layer.groups)


def table_of(keys: Sequence[Key]) -> str:
    """Return shapes as the text of a table of convolutions, `FILE.csv` for `--model`; they are named s0, s1, …"""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns(2))
    writer.writerows([f"s{number}", *key] for number, key in enumerate(keys))
    return text.getvalue()


def layers_of(keys: Sequence[Key]) -> list[Layer]:
    """Return the convolutions of some shapes.

    Raises:
        InputError: there is none of one of them.
    """
    return table.parse(table_of(keys), "shapes", 2) if keys else []


@functools.cache
def uses_of(model: str, size: int) -> tuple[tuple[Layer, Use], ...]:
    """Return the 2-D convolutions of a model at one size that are nothing else besides, at batch 1.

    A model that does not take the size has none.
    """
    try:
        layers = Network(models.find_source(model)).layers(size)
    except InputError:
        return ()
    plain = (each for each in layers if len(each.size) == 2 and not algorithms.why_not_by_module("it", each))
    return tuple((each, Use(model, size, each.name, each.position, key_of(each))) for each in plain)
