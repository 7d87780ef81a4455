"""Ranges of the tensors of a trace, seen in a pass over images: what the steps of 8-bit numbers are taken from."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import fx


class Range(NamedTuple):
    """Largest magnitude of a tensor over the images, and its size for them."""

    largest: float
    size: torch.Size


class _Watched(fx.Interpreter):
    def __init__(self, model: fx.GraphModule, wanted: Collection[fx.Node]) -> None:
        super().__init__(model)
        self._wanted = wanted
        self.found: dict[fx.Node, Range] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self._wanted and isinstance(result, torch.Tensor) and result.numel():
            self.found[n] = Range(float(result.abs().max()), result.shape)
        return result


def ranges_of(model: fx.GraphModule, wanted: Collection[fx.Node], images: torch.Tensor) -> dict[fx.Node, Range]:
    """Run a trace once on images, and return the ranges of the tensors that these nodes return.

    Args:
        images: N × 3 × H × W, in the model's data type, layout and device.
    """
    watched = _Watched(model, wanted)
    with torch.inference_mode():
        watched.run(images)
    return watched.found
