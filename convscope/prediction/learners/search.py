"""Estimate of what PyTorch's search takes (`torch benchmark`): about the least of the estimates of the plans it tries.

The search times the first plans of heuristic A, each once, and runs the fastest. Which one that is differs from shape
to shape, so that what such calls took says little of another shape; the plans by themselves are predicted well. Plans
that take nearly as long as the fastest are chosen too, so the estimate is a mean of the plans', those of more time
counting less. It is too low, for each estimate has an error, and what is not in the list may be faster: how much too
low it usually is, and how much it counts beside the estimate from other calls of the search, is learned by arithmetic,
from what was held out.

The search launches each kernel from the host. For some engines that takes longer than a small call, and for those that
launch kernels for each group also longer than many others, though not in a graph or where the GPU has other work, as in
samples. So a plan is passed over for another that is faster with its launches. How long an engine takes for a launch is
learned too: the time with which searches take what is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from convscope.dataset import samples, splits
from convscope.dataset.samples import ARITHMETIC
from convscope.prediction.features import Features
from convscope.prediction.learners import process
from convscope.prediction.shapes.sizes import Floats

FEWEST = 50
"""Samples of a search in an arithmetic that its share is learned from at least."""
LAUNCH_MS = 0.006
"""Time of a launch from the host, of those for each group, before that of the engine is learned: of 0 to 12 µs, that
with which most searches of grouped convolutions take what the fastest of their plans takes, on both cards
(`benchmarks/data_set.py`)."""
GROUPS = ", for each group"
"""Stands behind an engine whose kernels are launched for each group."""
HOSTS_MS = tuple(us / 1e3 for us in (0, 3, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 25))
"""Times that an engine may take to launch from the host, of which one is chosen."""
SWEEPS, WORTH = 2, 1e-5
"""Times that each engine's is chosen anew, and the fall of the mean error from which on another time is taken."""
ERROR_MS, ERROR = 0.0005, 0.02
"""Error of a time that a search takes, in ms and as a share: what is slower by it has the weight 1/e."""
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
        launches: for each group of a convolution, of plans that launch several; by arithmetic, class and engine.
        hosts: by engine, alone or with `GROUPS`, the time in ms that a search takes at least for a launch.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[str, float] = field(default_factory=dict)

    def both(self, own: Floats, least: Floats, frame: pd.DataFrame) -> Floats:
        """Return the estimates of rows, from that of the search itself and the least of its plans' (NaN for none)."""
        names = splits.joined(frame, ARITHMETIC)
        share, usual = (np.array([known.get(name, 0.0) for name in names]) for known in (self.shares, self.usual))
        return np.where(np.isnan(least), own, (1 - share) * own + share * (least + usual))


@dataclass(frozen=True)
class Tries:
    """Plans that searches try, a row each.

    Attributes:
        of: the number of the search's row, of `count`.
        engines: of each, with `GROUPS` where it launches kernels for each group.
        roofline_ms: of its shape.
        launches: that count: of all groups, or one.
    """

    of: Places
    count: int
    engines: splits.Labels
    roofline_ms: Floats
    launches: Floats

    @classmethod
    def of_rows(
        cls, given: Features, frame: pd.DataFrame, of: Places, count: int, launches: Mapping[str, float]
    ) -> Tries:
        """Return them from samples of plans; `launches` as in `Search`."""
        of_group = pd.Series(_labels(given, frame)).map(launches).to_numpy(float)
        engines = given.values["engine"].astype(str) + np.where(np.isfinite(of_group), GROUPS, "")
        of_all = np.nan_to_num(of_group * frame["groups"].to_numpy(float), nan=1.0)
        return cls(of, count, engines.to_numpy(dtype=object), given.roofline_ms, of_all)

    def least(self, estimates: Floats, hosts: Mapping[str, float]) -> Floats:
        """Return about the least of the estimates of a search's plans; NaN for a row that tries none, or one unknown.

        Args:
            estimates: of each plan, the logarithm of its time over the roofline's.
            hosts: as in `Search`.
        """
        numbers, names = pd.factorize(self.engines)
        each_ms = np.array([hosts.get(name, _host_ms(name)) for name in names])
        timed_ms = np.maximum(np.exp(estimates) * self.roofline_ms, each_ms[numbers] * self.launches)
        fastest_ms = np.full(self.count, np.inf)
        with np.errstate(invalid="ignore"):
            np.minimum.at(fastest_ms, self.of, timed_ms)  # NaN if one is
            past_ms = timed_ms - fastest_ms[self.of]
            weights = np.exp(-past_ms / (ERROR_MS + ERROR * fastest_ms[self.of]))
            total = np.bincount(self.of, weights, self.count)
            found: Floats = np.bincount(self.of, weights * estimates, self.count) / total
        return found

    def hosts(self, estimates: Floats, took: Floats) -> dict[str, float]:
        """Return the times to launch from the host with which searches take about the least: `Search.hosts`.

        One engine after another gets the time with the smallest mean error, but for the median of errors.

        Args:
            took: of each row, what the search took, as the logarithm over the roofline's time; NaN for no search.
        """
        errors = took - self.least(estimates, {})
        if np.isfinite(errors).sum() < FEWEST:
            return {}
        counts = pd.Series(self.engines).value_counts()
        found = {str(name): _host_ms(name) for name in sorted(counts.index[counts >= FEWEST])}

        def missed(hosts: Mapping[str, float]) -> float:
            errors = took - self.least(estimates, hosts)
            return float(np.nanmean(np.abs(errors - np.nanmedian(errors))))

        least = missed(found)
        for name in [*found] * SWEEPS:
            for host_ms in HOSTS_MS:
                tried = {**found, name: host_ms}
                if (error := missed(tried)) < least - WORTH:
                    least, found = error, tried
        return found


def _host_ms(engine: str) -> float:
    """Return the time of a launch of an engine before it is learned."""
    return LAUNCH_MS if engine.endswith(GROUPS) else 0.0


def fit(
    missed: Floats, missed_by_least: Floats, frame: pd.DataFrame, launches: Mapping[str, float],
    hosts: Mapping[str, float],
) -> Search:  # fmt: skip
    """Fit it to what both miss of rows that were held out: the measured logarithm less the estimated one."""
    shares, usual, names = {}, {}, splits.joined(frame, ARITHMETIC)
    for name in sorted({*names}):
        own, least = (each[names == name] for each in (missed, missed_by_least))
        known = np.isfinite(own) & np.isfinite(least)
        if known.sum() >= FEWEST:
            usual[name] = float(np.median(least[known]))
            shares[name] = process.share(own[known], least[known] - usual[name])
    return Search(shares, usual, launches, hosts)


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


def _labels(given: Features, frame: pd.DataFrame) -> splits.Labels:
    """Return the arithmetic, class and engine of each row."""
    named = zip(splits.joined(frame, ARITHMETIC), given.classes[0], given.values["engine"], strict=True)
    return np.array([", ".join(each) for each in named], dtype=object)
