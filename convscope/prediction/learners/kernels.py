"""Estimate by the kernels that a call may run: of an algorithm that cuDNN takes one of several kernels for.

One process over all samples of such an algorithm smooths over the step from one kernel to another, where a call may
take several times as long. So samples are more alike here if the same kernel ran, which gives an estimate for each
kernel. Which one runs is not known beforehand, so each has a vote: what a process that knows no kernels makes of 1 for
the samples that it ran in and 0 for the others. The estimate is the mean of the kernels', by the squares of their
votes. How much it counts beside the process that knows no kernels is found by what both miss.

Source of votes: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapter 6.5.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset.samples import kernel_names
from convscope.prediction.features import Floats
from convscope.prediction.learners.matrices import inverse

ALIKE_KERNEL = 2.0
"""Further likeness of two samples of one kernel, as a share of that of any two."""
VOTED = 3
"""Samples that a kernel needs to have a vote; all others are taken for one."""
SHARPNESS = 2
"""Power of the votes, by which the mean of the kernels' estimates is."""
LEAST_VOTE = 1e-9
SETS_MEMORY = "Memset"
"""Begins the name of what sets memory, which is no kernel."""
Labels = npt.NDArray[np.intp]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ByKernel:
    """Estimate by the kernels that one group's points ran.

    Attributes:
        labels: of each point, the number of its kernel; 0 for those that few samples ran in.
        weights: of each point in the estimate of its kernel, and a share of it in those of the others.
        mean: what estimates begin with.
        noise: variance of what is peculiar to a sample.
        share: of this estimate, beside that of the process that knows no kernels.
    """

    labels: Sequence[int]
    weights: Sequence[float]
    mean: float
    noise: float
    share: float

    @functools.cached_property
    def ran(self) -> Floats:
        """1 for the kernel (column) that each point (row) ran, 0 for the others."""
        return _ran(np.array(self.labels))

    def votes_of(self, among: Floats) -> Floats:
        """Return for each point and kernel the weight of the point in the vote.

        Args:
            among: how alike the points are to each other; it is changed.
        """
        among[np.diag_indices(len(among))] += self.noise
        found: Floats = np.linalg.solve(among, self.ran - self.ran.mean(axis=0))
        return found

    def estimate(self, likeness: Floats, votes: Floats) -> Floats:
        """Return the estimate of each row.

        Args:
            likeness: to each point.
            votes: `votes_of` the points.
        """
        cast = likeness @ votes + self.ran.mean(axis=0)
        return _by_votes(likeness, self.ran, np.array(self.weights), self.mean, cast)


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

    def __init__(self, likeness: Floats, inverted: Floats, wanted: Floats, labels: Labels, noise: float) -> None:
        """Fit it.

        Args:
            likeness: of the points to each other, without noise; it stays as it is.
            inverted: its inverse, with noise.
            wanted: what the estimate is to be.
            labels: `numbers` of the points.
        """
        self._likeness, self._labels, self._noise = likeness, labels, noise
        self._ran, self._mean = _ran(labels), float(wanted.mean())
        self._of_votes, self._votes = inverted, inverted @ (self._ran - self._ran.mean(axis=0))
        alike = likeness * (1 + ALIKE_KERNEL * (labels[:, None] == labels))
        alike[np.diag_indices(len(alike))] += noise
        self._of_times = inverse(alike)
        self._weights = self._of_times @ (wanted - self._mean)

    def without(self, gone: Places, asked: Floats | None = None) -> Floats:
        """Return the estimates of points that are left out, by the others alone.

        Args:
            gone: the numbers of the points.
            asked: the likeness to each point of other rows, whose estimates are returned instead.
        """
        left = np.setdiff1d(np.arange(len(self._labels)), gone)
        votes, weights = self._votes[left], self._weights[left]
        both = np.ix_(left, gone)
        votes = votes - self._of_votes[both] @ _alone(self._of_votes, self._votes, gone)
        weights = weights - self._of_times[both] @ _alone(self._of_times, self._weights, gone)
        likeness = (self._likeness[gone] if asked is None else asked)[:, left]
        cast = likeness @ votes + self._ran.mean(axis=0)
        return _by_votes(likeness, self._ran[left], weights, self._mean, cast)

    def fitted(self, share: float) -> ByKernel:
        """Return what a predictor keeps."""
        return ByKernel(self._labels.tolist(), self._weights.tolist(), self._mean, self._noise, share)


def _ran(labels: Labels) -> Floats:
    return np.asarray(np.eye(int(labels.max()) + 1)[labels], dtype=np.float64)


def _alone(inverted: Floats, weights: Floats, gone: Places) -> Floats:
    """Return what is missed of points that are left out together."""
    return np.asarray(np.linalg.solve(inverted[np.ix_(gone, gone)], weights[gone]), dtype=np.float64)


def _by_votes(likeness: Floats, ran: Floats, weights: Floats, mean: float, cast: Floats) -> Floats:
    """Return the mean of the kernels' estimates by their votes."""
    of_kernels = mean + (likeness @ weights)[:, None] + ALIKE_KERNEL * (likeness * weights) @ ran
    powers = np.maximum(cast, LEAST_VOTE) ** SHARPNESS
    found: Floats = (of_kernels * powers).sum(axis=1) / powers.sum(axis=1)
    return found
