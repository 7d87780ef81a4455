"""Gradient-boosted trees by LightGBM: fitted the same way each time, and kept as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.prediction.features import CATEGORIES
from convscope.prediction.shapes.sizes import Floats

ROUNDS = 300
"""Number of trees, each fitted to what those before it leave, unless a fit says otherwise."""
SETTINGS: Mapping[str, Any] = {
    "objective": "l1",  # of a logarithm: the median of the ratio
    "learning_rate": 0.05,
    "num_leaves": 63,
    "min_data_in_leaf": 20,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}

Levels = Mapping[str, Sequence[str]]


def levels(values: pd.DataFrame) -> dict[str, list[str]]:
    """Return the names that each category has."""
    return {name: sorted(values[name].unique()) for name in CATEGORIES}


def matrix(values: pd.DataFrame, known: Levels) -> Floats:
    """Return features as numbers, a row each: a category's place among those known, NaN for another."""
    columns = []
    for name in values.columns:
        if name in CATEGORIES:
            places = {level: float(place) for place, level in enumerate(known[name])}
            columns.append(np.array([places.get(level, np.nan) for level in values[name]]))
        else:
            columns.append(values[name].to_numpy(float))
    return np.column_stack(columns)


class Booster:
    """Trees that were fitted, or read from their text."""

    def __init__(self, trees: lightgbm.Booster) -> None:
        self._trees = trees

    @classmethod
    def read(cls, text: str) -> Booster:
        """Return trees that were written as text."""
        return cls(lightgbm.Booster(model_str=text))

    @classmethod
    def fit(
        cls, names: Sequence[str], given: Floats, wanted: Floats, rounds: int | None = None, **changed: Any
    ) -> Booster:
        """Return trees for these features, by name, and what they are to give.

        Args:
            rounds: number of trees; None: `ROUNDS`.
            changed: settings of LightGBM in place of those in `SETTINGS`.
        """
        places = [names.index(name) for name in CATEGORIES]
        data = lightgbm.Dataset(given, wanted, feature_name=[*names], categorical_feature=places, free_raw_data=True)
        return cls(lightgbm.train({**SETTINGS, **changed}, data, rounds or ROUNDS))

    @property
    def text(self) -> str:
        """The trees as text, from which `read` makes them again to the last digit."""
        return str(self._trees.model_to_string())

    def predict(self, given: Floats) -> Floats:
        """Return what the trees give for these features."""
        found: npt.NDArray[np.float64] = np.asarray(self._trees.predict(given, num_threads=1), dtype=np.float64)
        return found
