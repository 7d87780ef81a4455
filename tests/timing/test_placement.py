"""Placements of a pass in memory, as far as a CPU has any."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from convscope.timing import placement


def test_what_is_not_asked_for_is_not_evicted():
    evict = placement.Eviction(torch.device("cuda"), is_asked=False)
    evict()
    assert evict.nbytes == 0


@pytest.mark.parametrize("index", [0, 3])
def test_on_a_cpu_nothing_is_moved(index: int):
    model, inputs = nn.Conv2d(3, 4, 3), (torch.zeros(1, 3, 8, 8),)
    address = model.weight.data_ptr()
    with placement.moved(model, inputs, index) as there:
        assert there is inputs
        assert model.weight.data_ptr() == address
