"""`convscope env` on a machine with a GPU."""

from __future__ import annotations

import torch

from convscope.equipment import checks


def test_a_card_its_energy_and_its_kernels_are_found():
    found = {each.what: each for each in checks.every()}
    assert torch.cuda.get_device_name(0) in found["GPU 0"].found
    for what in ("GPU 0", "GPU 0, energy", "names of kernels", "cuDNN", "results"):
        assert found[what].state == checks.THERE, found[what]
