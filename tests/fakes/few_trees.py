"""Fewer trees in a predictor than it has by default: enough for drawn samples, and a third of the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from convscope.prediction.learners import booster

_ALL = booster.ROUNDS


@pytest.fixture(scope="package", autouse=True)
def few_trees() -> Iterator[None]:
    """Fit a third of the trees in each test of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(booster, "ROUNDS", _ALL // 3)
        yield
