"""Simple predictions that a predictor has to beat, each fitted to the same samples as it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from sklearn.neighbors import KNeighborsRegressor

from convscope.prediction.features import Features, Floats

Baseline = Callable[[Features, Floats, Features], Floats]
"""Function of the features and logarithms over the roofline that are learned, and of features asked: logarithms."""
NEAREST = ("log_batch", "log_channels", "log_filters", "log_out_side", "log_taps", "log_stride", "log_groups")


def _mean(given: Features, wanted: Floats, asked: Features) -> Floats:
    """One time for all: the median."""
    median = float(np.median(wanted + np.log(given.roofline_ms)))
    found: Floats = median - np.log(asked.roofline_ms)
    return found


def _roofline(given: Features, wanted: Floats, asked: Features) -> Floats:
    """The roofline's time, and nothing learned."""
    return np.zeros(len(asked.roofline_ms))


def _roofline_by_algorithm(given: Features, wanted: Floats, asked: Features) -> Floats:
    """A multiple of the roofline's time, for each algorithm."""
    return _by_algorithm(given, wanted, asked)


def _flops(given: Features, wanted: Floats, asked: Features) -> Floats:
    """A time for each operation, for each algorithm."""
    learned = given.values["log_flops"].to_numpy(float) - np.log(given.roofline_ms)
    here = asked.values["log_flops"].to_numpy(float) - np.log(asked.roofline_ms)
    found: Floats = _by_algorithm(given, wanted - learned, asked) + here
    return found


def nearest(given: Features, wanted: Floats, asked: Features) -> Floats:
    """Return for each layer asked what the layer with the nearest sizes has, by the same algorithm."""
    found = np.full(len(asked.roofline_ms), float(np.median(wanted)))
    for name in asked.values["algorithm"].unique():
        learned = (given.values["algorithm"] == name).to_numpy()
        here = (asked.values["algorithm"] == name).to_numpy()
        if learned.any():
            neighbours = KNeighborsRegressor(1).fit(given.values.loc[learned, list(NEAREST)], wanted[learned])
            found[here] = neighbours.predict(asked.values.loc[here, list(NEAREST)])
    return found


def _by_algorithm(given: Features, wanted: Floats, asked: Features) -> Floats:
    medians = pd.Series(wanted).groupby(given.values["algorithm"].to_numpy()).median()
    return np.asarray(asked.values["algorithm"].map(medians).fillna(float(np.median(wanted))), dtype=np.float64)


BASELINES: Mapping[str, Baseline] = {
    "one time for all": _mean,
    "roofline": _roofline,
    "k × roofline": _roofline_by_algorithm,
    "k × FLOPs": _flops,
    "nearest layer": nearest,
}
