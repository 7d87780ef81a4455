"""Estimate of what PyTorch's search takes (`torch benchmark`): the least of the estimates of the plans that it tries.

The search times the first plans of heuristic A and runs the fastest. Which one that is differs from shape to shape, so
that what such calls took says little of another shape; the plans by themselves are predicted well. The least of several
estimates is too low, for each has an error, and what is not in the list may be faster: how much too low it usually is,
and how much it counts beside the estimate from other calls of the search, is learned by arithmetic, from what was
held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import splits
from convscope.dataset.samples import ARITHMETIC
from convscope.prediction.learners import process
from convscope.prediction.shapes.sizes import Floats

FEWEST = 50
"""Samples of a search in an arithmetic that its share is learned from at least."""
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Search:
    """Weights of the least of the plans' estimates.

    Attributes:
        shares: by arithmetic, beside the estimate from other calls of the search; nothing where too few are known.
        usual: by arithmetic, the logarithm of what a call takes over the least, its median.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)

    def both(self, own: Floats, least: Floats, frame: pd.DataFrame) -> Floats:
        """Return the estimates of rows, from that of the search itself and the least of its plans' (NaN for none)."""
        names = splits.joined(frame, ARITHMETIC)
        share, usual = (np.array([known.get(name, 0.0) for name in names]) for known in (self.shares, self.usual))
        return np.where(np.isnan(least), own, (1 - share) * own + share * (least + usual))


def fit(missed: Floats, missed_by_least: Floats, frame: pd.DataFrame) -> Search:
    """Fit it to what both miss of rows that were held out: the measured logarithm less the estimated one."""
    shares, usual, names = {}, {}, splits.joined(frame, ARITHMETIC)
    for name in sorted({*names}):
        own, least = (each[names == name] for each in (missed, missed_by_least))
        known = np.isfinite(own) & np.isfinite(least)
        if known.sum() >= FEWEST:
            usual[name] = float(np.median(least[known]))
            shares[name] = process.share(own[known], least[known] - usual[name])
    return Search(shares, usual)


def least(estimates: Floats, of: Places, count: int) -> Floats:
    """Return for each of so many rows the least estimate of what was tried for it; NaN for nothing, or an unknown one.

    Args:
        of: of each estimate, the number of the row.
    """
    found = np.full(count, np.nan)
    np.fmin.at(found, of, estimates)
    found[of[np.isnan(estimates)]] = np.nan
    return found
