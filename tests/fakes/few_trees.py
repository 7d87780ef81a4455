"""Fewer trees in a predictor than it has by default: enough for drawn samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from convscope.prediction.learners import booster, core

_ALL = {(booster, "ROUNDS"): booster.ROUNDS, (core, "LINEAR_ROUNDS"): core.LINEAR_ROUNDS}


@pytest.fixture(scope="package", autouse=True)
def few_trees() -> Iterator[None]:
    """Fit a sixth of the trees in each test of the package."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), count in _ALL.items():
            patch.setattr(module, name, count // 6)
        yield
