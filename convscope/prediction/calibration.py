"""Calibration to another card: which layers to measure on it, and the correction that they give.

The correction is a Gaussian process over a few features of a layer, its prediction and its rest on other cards: smooth
where layers are alike, nothing where none was measured. scikit-learn fits it; it is kept as numbers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from convscope.prediction.features import Features
from convscope.prediction.shapes.sizes import Floats

FEATURES = (
    *("log_batch", "log_channels", "log_filters", "log_out_side", "log_taps", "log_stride"),
    *("ridge", "side_of_4"),
)
MOST, FEWEST = 400, 10
"""Rows that a correction is fitted to at most (its cost grows with their third power), and at least."""


@dataclass(frozen=True)
class Correction:
    """A fitted Gaussian process: its mean at x is `mean` + k(x, points) · weights, k = exp(-|x - point|² / 2 length²).

    Attributes:
        center, spread: of the features, which are taken off and divided by.
        rests: of each row where the process was fitted to all others.
    """

    center: list[float]
    spread: list[float]
    points: list[list[float]]
    weights: list[float]
    mean: float
    length: float
    rests: list[float]

    def predict(self, plane: Floats) -> Floats:
        """Return the correction for rows as `coordinates` gives them."""
        scaled = (plane - np.array(self.center)) / np.array(self.spread)
        found: Floats = self.mean + _likeness(scaled, np.array(self.points), self.length) @ np.array(self.weights)
        return found


def coordinates(given: Features, predicted: Floats, effects: Floats) -> Floats:
    """Return the features that a correction rests on, a row each.

    Args:
        predicted: the logarithms that are to be corrected.
        effects: the rests of the same work on other cards.
    """
    columns = [given.values[name].to_numpy(float) for name in FEATURES]
    return np.column_stack([*columns, predicted, effects])


def chosen(plane: Floats, count: int, seed: int = 0) -> npt.NDArray[np.intp]:
    """Return the rows that are worth measuring on another card: the middles of as many clusters, in ascending order."""
    spread = plane.std(axis=0)
    scaled = (plane - plane.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    different = np.unique(scaled, axis=0)
    wanted = min(count, len(different))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        middles = KMeans(wanted, n_init=10, random_state=seed).fit(different).cluster_centers_
    nearest = {int(np.argmin(((scaled - middle) ** 2).sum(axis=1))) for middle in middles}
    return np.array(sorted(nearest), dtype=np.intp)


def fit(plane: Floats, missed: Floats) -> Correction:
    """Fit a correction.

    Args:
        plane: as `coordinates` gives them, of the measured rows.
        missed: measured minus predicted logarithm of each.
    """
    center, spread = plane.mean(axis=0), plane.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    scaled, mean = (plane - center) / spread, float(missed.mean())
    deviation = float(missed.std()) or 1.0
    kernel = ConstantKernel(0.5) * RBF(3.0, (0.5, 30.0)) + WhiteKernel(0.1, (1e-3, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at the edge of its range is one
        found = GaussianProcessRegressor(kernel, random_state=0).fit(scaled, (missed - mean) / deviation).kernel_
    scale, length, noise = found.k1.k1.constant_value, found.k1.k2.length_scale, found.k2.noise_level
    inverse = np.linalg.inv(scale * _likeness(scaled, scaled, length) + noise * np.eye(len(scaled)))
    weights = inverse @ (missed - mean)
    rests = weights / np.diag(inverse)  # Rasmussen and Williams, Gaussian Processes (2006), equation 5.12
    return Correction(
        center.tolist(), spread.tolist(), scaled.tolist(), (scale * weights).tolist(), mean, float(length),
        rests.tolist(),
    )  # fmt: skip


def _likeness(a: Floats, b: Floats, length: float) -> Floats:
    squares = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    likeness: Floats = np.exp(-squares / (2 * length**2))
    return likeness
