"""Simple predictions that a predictor has to beat, each fitted to the same samples as it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.neighbors import NearestNeighbors

from convscope.prediction.features import Features
from convscope.prediction.learners import costs
from convscope.prediction.shapes.sizes import Floats

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
    rows = _nearest_rows(given, asked)
    return np.where(rows < 0, float(np.median(wanted)), wanted[rows])


def _nearest_rows(given: Features, asked: Features) -> npt.NDArray[np.intp]:
    """Return for each layer asked the row with the nearest sizes, by the same algorithm; -1 where none was learned."""
    found = np.full(len(asked.roofline_ms), -1, dtype=np.intp)
    for name in asked.values["algorithm"].unique():
        learned = np.flatnonzero(given.values["algorithm"] == name)
        here = np.flatnonzero(asked.values["algorithm"] == name)
        if len(learned):
            neighbours = NearestNeighbors(n_neighbors=1).fit(given.values[list(NEAREST)].iloc[learned])
            places = neighbours.kneighbors(asked.values[list(NEAREST)].iloc[here], return_distance=False)
            found[here] = learned[places[:, 0]]
    return found


def _linear_by_family(given: Features, wanted: Floats, asked: Features) -> Floats:
    """Return a cost of a call, of its operations and of its bytes, for each family of kernels.

    What ran is not known of layers asked: it is taken to be the family of the nearest layer, by the same algorithm. The
    costs, none below 0, are those with the smallest squares of relative errors; operations and bytes are counted as
    times by the card's peaks.
    """
    nearest_rows, times_ms = _nearest_rows(given, asked), np.exp(wanted) * given.roofline_ms
    learned, here = (each.of_roofline_ms().to_numpy(float) for each in (given, asked))
    found_ms = np.exp(np.median(wanted)) * asked.roofline_ms  # of an algorithm that was not learned
    families = given.families[nearest_rows]
    for name in np.unique(families[nearest_rows >= 0]):
        of_family, rows = given.families == name, (families == name) & (nearest_rows >= 0)
        estimate_ms = here[rows] @ costs.relative_squares(learned[of_family], times_ms[of_family])
        found_ms[rows] = np.where(estimate_ms > 0, estimate_ms, found_ms[rows])
    found: Floats = np.log(found_ms / asked.roofline_ms)
    return found


def _by_algorithm(given: Features, wanted: Floats, asked: Features) -> Floats:
    medians = pd.Series(wanted).groupby(given.values["algorithm"].to_numpy()).median()
    return np.asarray(asked.values["algorithm"].map(medians).fillna(float(np.median(wanted))), dtype=np.float64)


BASELINES: Mapping[str, Baseline] = {
    "one time for all": _mean,
    "roofline": _roofline,
    "k × roofline": _roofline_by_algorithm,
    "k × FLOPs": _flops,
    "linear by kernel family": _linear_by_family,
    "nearest layer": nearest,
}
