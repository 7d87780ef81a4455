"""What all tests share: hypothesis without a clock and without chance, and a machine whose GPUs are out of sight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("suite")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make PyTorch see no CUDA device, on a machine that has one too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
