"""Estimate of what PyTorch's search takes (`torch benchmark`): the least of the estimates of the plans that it tries.

The search times the first plans of heuristic A and runs the fastest. Which one that is differs from shape to shape, so
that what such calls took says little of another shape; the plans by themselves are predicted well. The least of several
estimates is too low, for each has an error, and what is not in the list may be faster: how much too low it usually is,
and how much it counts beside the estimate from other calls of the search, is learned by arithmetic, from what was
held out.

The search launches each kernel from the host. A plan that launches several for each group takes at least the time of
its launches there, though not in a graph or where the GPU has other work, as in samples; one that calls cuBLASLt takes
longer to launch than others. So a plan is passed over for another that is faster with its launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import choices, ranked_plans, samples, splits
from convscope.dataset.samples import ARITHMETIC
from convscope.prediction.features import Features
from convscope.prediction.learners import process
from convscope.prediction.shapes.sizes import Floats

FEWEST = 50
"""Samples of a search in an arithmetic that its share is learned from at least."""
LAUNCH_MS = 0.006
"""Time of a launch from the host for each group, and of one through cuBLASLt: of 0 to 12 µs, that with which most
searches take what the fastest of their plans takes, on both cards (`benchmarks/data_set.py`)."""
CUBLASLT = f"{choices.PLAN}{ranked_plans.CUBLASLT}"
"""The engine that calls it."""
SEVERAL, APART, AGREE = 5, 0.2, 0.8
"""Samples that say how many kernels a plan launches for each group, at least, how far apart they may be, and the share
of them that must not be farther."""
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Search:
    """Weights of the least of the plans' estimates.

    Attributes:
        shares: by arithmetic, beside the estimate from other calls of the search; nothing where too few are known.
        usual: by arithmetic, the logarithm of what a call takes over the least, its median.
        launches: for each group of a convolution, of plans that launch so many; by arithmetic, class and engine.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)

    def both(self, own: Floats, least: Floats, frame: pd.DataFrame) -> Floats:
        """Return the estimates of rows, from that of the search itself and the least of its plans' (NaN for none)."""
        names = splits.joined(frame, ARITHMETIC)
        share, usual = (np.array([known.get(name, 0.0) for name in names]) for known in (self.shares, self.usual))
        return np.where(np.isnan(least), own, (1 - share) * own + share * (least + usual))


def fit(missed: Floats, missed_by_least: Floats, frame: pd.DataFrame, launches: Mapping[str, float]) -> Search:
    """Fit it to what both miss of rows that were held out: the measured logarithm less the estimated one."""
    shares, usual, names = {}, {}, splits.joined(frame, ARITHMETIC)
    for name in sorted({*names}):
        own, least = (each[names == name] for each in (missed, missed_by_least))
        known = np.isfinite(own) & np.isfinite(least)
        if known.sum() >= FEWEST:
            usual[name] = float(np.median(least[known]))
            shares[name] = process.share(own[known], least[known] - usual[name])
    return Search(shares, usual, launches)


def launches(given: Features, frame: pd.DataFrame) -> dict[str, float]:
    """Return how many kernels plans launch for each group, where samples agree that there are as many; by `_labels`."""
    if "kernels" not in frame:
        return {}
    rows = np.flatnonzero((frame["groups"] > 1) & frame["kernels"].notna())
    counts = {text: samples.launches(text) for text in frame["kernels"].iloc[rows].unique()}
    groups = frame["groups"].to_numpy(float)[rows]
    table = pd.DataFrame({"groups": groups, "each": frame["kernels"].iloc[rows].map(counts).to_numpy(float) / groups})
    found = {}
    for name, known in table.dropna().groupby(_labels(given, frame)[rows][table["each"].notna()]):
        median = float(known["each"].median())
        agree = float(((known["each"] / median - 1).abs() <= APART).mean())
        several = len(known) >= SEVERAL and known["groups"].max() >= 2 * known["groups"].min()
        if several and agree >= AGREE and median >= 1:
            found[str(name)] = median
    return found


def launched(known: Mapping[str, float], given: Features, frame: pd.DataFrame) -> Floats:
    """Return the logarithm of the time of each row's launches over the roofline's; -inf where they are few."""
    of_group = pd.Series(_labels(given, frame)).map(known).to_numpy(float)
    by_cublaslt = given.values["engine"].to_numpy(dtype=object) == CUBLASLT
    took_ms = np.where(by_cublaslt, 1.0, np.nan_to_num(of_group * frame["groups"].to_numpy(float))) * LAUNCH_MS
    with np.errstate(divide="ignore"):
        found: Floats = np.log(took_ms / given.roofline_ms)
    return found


def _labels(given: Features, frame: pd.DataFrame) -> splits.Labels:
    """Return the arithmetic, class and engine of each row."""
    named = zip(splits.joined(frame, ARITHMETIC), given.classes[0], given.values["engine"], strict=True)
    return np.array([", ".join(each) for each in named], dtype=object)


def least(estimates: Floats, of: Places, count: int, launched: Floats) -> Floats:
    """Return for each of so many rows the estimate of what is fastest with its launches; NaN if one is not known.

    Args:
        of: of each estimate, the number of the row.
        launched: of each, what its launches take at least.
    """
    found = np.full(count, np.nan)
    slowest_first = np.lexsort((estimates, np.maximum(estimates, launched)))[::-1]
    found[of[slowest_first]] = estimates[slowest_first]  # the last of a row stays
    found[of[np.isnan(estimates)]] = np.nan
    return found
