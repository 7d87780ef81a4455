"""The stress test: legal shapes by chance, and failures shrunk to the smallest."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from convscope import stress
from convscope.conv3d import Conv3d
from convscope.implementations import Prepared, Workshop
from convscope.kernels.conv3d_layout import Blocks
from convscope.kernels.tuning import Memory
from convscope.layersets import Layer3d, why_impossible

ASKED = Conv3d("cosmoflow", ("torch",), "cpu", "cpu", math="fp32", seed=3)


class Wrong(Workshop):
    """PyTorch, with an error that only kernels of more than one row and more than two channels meet."""

    def prepare(self, name, shape, weight, blocks=None):
        ready = super().prepare(name, shape, weight, blocks)
        if shape.weight[3] == 1 or shape.input[1] <= 2:
            return ready
        return Prepared(lambda x: ready.call(x) + 0.1, ready.renew, ready.said)


def memory(folder: Path) -> Memory[Blocks]:
    return Memory(folder / "tuned.json", Blocks)


def test_shapes_are_legal_and_of_all_kinds():
    drawn = random.Random(0)
    layers = [stress.draw(drawn) for _ in range(300)]
    assert all(why_impossible(layer) is None for layer in layers)
    assert {layer.groups for layer in layers} == {1, 2, 3}
    assert sum(layer.stride == (1, 1, 1) for layer in layers) > 100
    assert sum(layer.dilation != (1, 1, 1) for layer in layers) > 50


def test_a_right_implementation_passes_every_round(tmp_path: Path):
    with Workshop(torch.device("cpu"), memory(tmp_path)) as workshop:
        rows = stress.run(ASKED, 8, workshop, lambda line: None)
    assert [row.status for row in rows] == ["ok"] * 8
    assert all(0 <= row.elementwise_error <= row.tolerance for row in rows)


def test_a_wrong_one_is_shrunk_to_the_smallest_shape_that_shows_it(tmp_path: Path):
    said: list[str] = []
    with Wrong(torch.device("cpu"), memory(tmp_path)) as workshop:
        rows = stress.run(ASKED, 6, workshop, said.append)
    failed = [row for row in rows if row.status == "failed"]
    assert failed
    smallest = {"3-1 1x2x1 on 1x2x1, batch 1", "3-1 1x2x1 on 1, padding 0x1x0, batch 1"}
    assert {row.smallest for row in failed} <= smallest
    assert len(said) == len(failed)
    assert "over" in failed[0].reason


def test_shrinking_stops_at_a_shape_of_which_nothing_smaller_fails():
    layer = Layer3d("", 0, 3, 12, 12, (9, 8, 7), (3, 3, 3), (2, 1, 1), (2, 1, 0), (1, 2, 1), 2)
    smallest = stress.shrink(layer, lambda small: small.groups == 2 and small.size[2] >= 3 and small.padding[0] >= 1)
    assert (smallest.groups, smallest.channels, smallest.filters, smallest.batch) == (2, 2, 2, 1)
    assert (smallest.size, smallest.padding, smallest.kernel) == ((1, 1, 3), (1, 0, 0), (1, 1, 1))
