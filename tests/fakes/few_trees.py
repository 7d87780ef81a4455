"""Fewer trees in a predictor than it has by default: enough for drawn samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from convscope.prediction.learners import booster, core

TREES = 50


@pytest.fixture(scope="package", autouse=True)
def few_trees() -> Iterator[None]:
    """Fit a sixth or a fourth of the trees in each test of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(booster, "ROUNDS", TREES)
        patch.setattr(core, "LINEAR_ROUNDS", TREES)
        yield
