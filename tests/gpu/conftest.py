"""Everything in this folder needs an NVIDIA GPU: `make gpu-test`, or `pytest -m gpu`."""

import os
import re
from pathlib import Path

import pytest
import torch


def card_of(worker: str, visible: str | None, count: int) -> str:
    """Return the GPU of a process among several (pytest-xdist's "gw3"): they take turns.

    Args:
        visible: the environment's choice of GPUs, None where it has none.
        count: of the GPUs that PyTorch sees.
    """
    cards = visible.split(",") if visible else [str(number) for number in range(count)]
    return cards[int(re.sub(r"\D", "", worker) or 0) % len(cards)]


if (_worker := os.environ.get("PYTEST_XDIST_WORKER")) and (_count := torch.cuda.device_count()):
    # Before anything uses CUDA, which reads it once.
    os.environ["CUDA_VISIBLE_DEVICES"] = card_of(_worker, os.environ.get("CUDA_VISIBLE_DEVICES"), _count)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
