"""Estimate by the kernels that a call may run: of an algorithm that cuDNN takes one of several kernels for.

One process over all samples of such an algorithm smooths over the step from one kernel to another, where a call may
take several times as long. So samples are more alike here if the same kernel ran, which gives an estimate for each
kernel. Which one runs is not known beforehand, so each has a vote, by random trees (`forest`). The estimate is the mean
of the kernels', by the cubes of their votes. How much it counts beside the process that knows no kernels is found by
what both miss.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset.samples import kernel_names
from convscope.prediction.learners.forest import Forest, Labels
from convscope.prediction.learners.matrices import inverse
from convscope.prediction.shapes.sizes import Floats

ALIKE_KERNEL = 2.0
"""Further likeness of two samples of one kernel, as a share of that of any two."""
VOTED = 3
"""Samples that a kernel needs to have a vote; all others are taken for one."""
SHARPNESS = 3
"""Power of the votes, by which the mean of the kernels' estimates is."""
SETS_MEMORY = "Memset"
"""Begins the name of what sets memory, which is no kernel."""
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ByKernel:
    """Estimate by the kernels that one group's points ran.

    Attributes:
        labels: of each point, the number of its kernel; 0 for those that few samples ran in.
        trees: that vote for kernels by features of a call.
        weights: of each point in the estimate of its kernel, and a share of it in those of the others.
        mean: what estimates begin with.
        share: of this estimate, beside that of the process that knows no kernels.
    """

    labels: Sequence[int]
    trees: Forest
    weights: Sequence[float]
    mean: float
    share: float

    @functools.cached_property
    def _ran(self) -> Floats:
        return _ran(np.array(self.labels))

    def estimate(self, likeness: Floats, asked: Floats) -> Floats:
        """Return the estimate of each row.

        Args:
            likeness: to each point.
            asked: the features of each row, scaled as those that the trees were fitted to.
        """
        return _by_votes(likeness, self._ran, np.array(self.weights), self.mean, self.trees, asked)


def numbers(frame: pd.DataFrame) -> Labels:
    """Return of each row the number of its kernel among those that at least `VOTED` rows ran in; 0 for the others.

    Kernels that run together are one. Without the column of kernels, or where it is empty, a row has 0.
    """
    if "kernels" not in frame:
        return np.zeros(len(frame), dtype=np.intp)
    name_of = {
        text: "\n".join(sorted({name for name in kernel_names(text) or () if not name.startswith(SETS_MEMORY)}))
        for text in frame["kernels"].dropna().unique()
    }
    names = frame["kernels"].map(name_of).fillna("")
    counts = names[names != ""].value_counts()
    often = {name: number for number, name in enumerate(sorted(counts.index[counts >= VOTED]), 1)}
    return names.map(lambda name: often.get(name, 0)).to_numpy(dtype=np.intp)


class Fit:
    """Estimate by kernels of the points of one group, and what it misses of rows that are left out."""

    def __init__(self, likeness: Floats, points: Floats, wanted: Floats, labels: Labels, noise: float) -> None:
        """Fit it.

        Args:
            likeness: of the points to each other, without noise; it stays as it is.
            points: the features of each, scaled.
            wanted: what the estimate is to be.
            labels: `numbers` of the points.
            noise: variance of what is peculiar to a sample.
        """
        self._likeness, self._points, self._labels = likeness, points, labels
        self._ran, self._mean = _ran(labels), float(wanted.mean())
        alike = likeness.copy()
        np.multiply(alike, 1 + ALIKE_KERNEL, out=alike, where=labels[:, None] == labels)
        alike[np.diag_indices(len(alike))] += noise
        self._inverse = inverse(alike)
        self._weights = self._inverse @ (wanted - self._mean)
        self._without = dict[bytes, tuple[Floats, Forest]]()

    def without(self, gone: Places, asked: tuple[Floats, Floats] | None = None) -> Floats:
        """Return the estimates of points that are left out, by the others alone.

        Args:
            gone: the numbers of the points.
            asked: of other rows, whose estimates are returned instead, the likeness to each point, and the features.
        """
        likeness, features = (self._likeness[gone], self._points[gone]) if asked is None else asked
        if len(gone) == len(self._labels):
            return np.full(len(features), self._mean)
        weights, trees = self._fitted_without(gone)
        return _by_votes(likeness, self._ran, weights, self._mean, trees, features)

    def _fitted_without(self, gone: Places) -> tuple[Floats, Forest]:
        """Return the weights, 0 of what is gone, and the trees; they take long, and the same are asked for again."""
        if (key := gone.tobytes()) not in self._without:
            left = np.setdiff1d(np.arange(len(self._labels)), gone)
            alone = np.linalg.solve(self._inverse[np.ix_(gone, gone)], self._weights[gone])
            weights = np.zeros(len(self._labels))
            weights[left] = self._weights[left] - self._inverse[np.ix_(left, gone)] @ alone
            self._without[key] = weights, Forest.fit(self._points[left], self._labels[left])
        return self._without[key]

    def fitted(self, share: float) -> ByKernel:
        """Return what a predictor keeps."""
        trees = Forest.fit(self._points, self._labels)
        return ByKernel(self._labels.tolist(), trees, self._weights.tolist(), self._mean, share)


def _ran(labels: Labels) -> Floats:
    return np.asarray(np.eye(int(labels.max()) + 1)[labels], dtype=np.float64)


def _by_votes(likeness: Floats, ran: Floats, weights: Floats, mean: float, trees: Forest, asked: Floats) -> Floats:
    """Return the mean of the kernels' estimates by their votes."""
    of_kernels = mean + (likeness @ weights)[:, None] + ALIKE_KERNEL * (likeness * weights) @ ran
    powers = trees.votes(asked, ran.shape[1]) ** SHARPNESS
    found: Floats = (of_kernels * powers).sum(axis=1) / powers.sum(axis=1)
    return found
