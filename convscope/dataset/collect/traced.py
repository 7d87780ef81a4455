"""Calls of convolutions in whole models, traced without a GPU and without weights."""

from __future__ import annotations

from collections.abc import Iterable

from convscope.convolution import names
from convscope.dataset.calls import AT_ANY_BATCH, CallRow
from convscope.dataset.collect.request import family_of
from convscope.dataset.collect.uses import uses_of
from convscope.dataset.samples import SHAPE


def is_of_a_library(model: str) -> bool:
    """Tell whether a name is one of a library's own, without arguments: it leads to no other code, and to no file."""
    return names.kind_of(model) is None and not model.startswith(names.HF) and names.without_arguments(model) == model


def calls(passes: Iterable[tuple[str, int]]) -> list[CallRow]:
    """Return every call of a plain 2-D convolution in these passes, each a model at a size in pixels.

    A model that does not take a size has none there, and neither has one that is not here.
    """
    found = []
    for model, size in sorted(passes):
        for _, use in uses_of(model, size):
            cells = {name: cell for name, cell in zip(SHAPE, use.key, strict=True) if name in AT_ANY_BATCH}
            shape = {name: int(cell) if cell.isdecimal() else cell for name, cell in cells.items()}
            found.append(CallRow(model, family_of(model), size, use.position, use.layer, **shape))  # type: ignore[arg-type]
    return found
