"""Intervals around a prediction that hold what they claim, by algorithm: split-conformal quantiles of held-out rests.

The rests are of rows that the estimate did not learn from, held out in the way in which it will be asked: other rows,
other layers, other families, other sizes, or another card. Source: Vovk, Gammerman and Shafer, Algorithmic Learning in
a Random World (2005), chapter 4 (Mondrian conformal prediction). Those of sums over a model are of whole models.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from convscope.cli.options import LEVELS
from convscope.dataset.splits import Labels
from convscope.prediction.shapes.sizes import Floats

EVERY = ""
"""Name of the group of all rows."""
FEWEST = 50
"""Rests that a group needs for intervals of itself."""

BINS = 20
"""Groups of rests by distance, from which the growth of an interval is learned: fewer where some had too few rests."""
LEAST_SHARE = 0.1
"""Width where nothing is far, as a share of the mean width, at least."""
REACH = 0.99
"""Share of the held-out rows that are no further from what was learned than an interval is said to hold for."""
MOST_REACHES = 3
"""Distance over the reach from which on an interval grows no more: nothing so far away was seen."""

Widths = Mapping[str, Mapping[str, float | None]]


@dataclasses.dataclass(frozen=True)
class Growth:
    """Growth of intervals with the distance from what was learned: `start` + `slope` × distance, at 1 in the mean.

    Source: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, Distribution-free predictive inference for regression
    (2018), section 5.2: rests are divided by what they depend on, so that their quantiles hold for each of its values.

    Attributes:
        reach: distance beyond which hardly anything was held out; None where the distance says nothing.
    """

    start: float = 1.0
    slope: float = 0.0
    reach: float | None = None

    def at(self, far: Floats) -> Floats:
        """Return the width at these distances, over that in the mean."""
        if self.reach is None:
            return np.full(len(far), self.start)
        found: Floats = self.start + self.slope * np.minimum(far, MOST_REACHES * self.reach)
        return found

    def is_beyond(self, far: Floats) -> npt.NDArray[np.bool_]:
        """Tell which distances are larger than those that intervals were learned from."""
        return np.full(len(far), False) if self.reach is None else far > self.reach


def growth(rests: Floats, far: Floats) -> Growth:
    """Return how the sizes of rests grow with the distance; not at all where too few rests, or distances, are known."""
    known = np.isfinite(rests) & np.isfinite(far)
    sizes, far = np.abs(rests[known]), far[known]
    bins = min(BINS, len(sizes) // FEWEST)
    if bins < 2 or far.min() == far.max():
        return Growth()
    parts = np.array_split(np.argsort(far, kind="stable"), bins)
    middles = np.array([far[part].mean() for part in parts])
    high = np.array([np.quantile(sizes[part], 0.9) for part in parts])
    start, slope = nnls(np.stack([np.ones(bins), middles], axis=1), high)[0]
    start = max(start, LEAST_SHARE * float(high.mean()))
    usual = start + slope * float(far.mean())
    if usual == 0:
        return Growth()
    return Growth(float(start / usual), float(slope / usual), float(np.quantile(far, REACH)))


def widths(rests: Floats, groups: Labels) -> dict[str, dict[str, float | None]]:
    """Return by group and level half the width of an interval in the logarithm; None for too few rests."""
    found = {EVERY: _widths(rests)}
    for name in sorted({*groups}):
        of_group = rests[groups == name]
        if len(of_group) >= FEWEST:
            found[str(name)] = _widths(of_group)
    return found


def widest(rests: Floats, groups: Labels, parts: Labels) -> dict[str, dict[str, float | None]]:
    """Return widths as `widths` does, each the widest of those that the rests of one part alone give.

    So they hold in whichever part a case is of. A group's are of the parts where it has intervals of itself; None where
    one of these has too few rests.
    """
    masks = [parts == part for part in np.unique(parts.astype(str))]
    several = [widths(rests[mask], groups[mask]) for mask in masks]
    found: dict[str, dict[str, float | None]] = {}
    for name in sorted({name for known in several for name in known}):
        of_group = [known[name] for known in several if name in known]
        for level in map(str, LEVELS):
            halves = [half for known in of_group if (half := known[level]) is not None]
            found.setdefault(name, {})[level] = max(halves) if len(halves) == len(of_group) else None
    return found


def _widths(rests: Floats) -> dict[str, float | None]:
    return {str(level): quantile(np.abs(rests), level / 100) for level in LEVELS}


def quantile(sizes: Floats, share: float) -> float | None:
    """Return the size that a further one does not exceed in at least this share of cases; None for too few."""
    place = math.ceil((len(sizes) + 1) * share)
    return None if place > len(sizes) else float(np.sort(sizes)[place - 1])


def shares(sizes: Floats, groups: Labels) -> dict[str, float | None]:
    """Return by level the size that a case of a further group does not exceed; None for too few groups.

    Cases of one group are alike, so that many of them say little of another group. Each group weighs the same, and the
    one to come as much as each of them, at infinity. Source: Lee, Barber and Willett, Distribution-free inference with
    hierarchical data (2023), where groups are exchangeable, and the cases in each.
    """
    order = np.argsort(sizes)
    names, of_case, counts = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    reached = np.cumsum((1 / counts)[of_case][order]) / (len(names) + 1)
    found: dict[str, float | None] = {}
    for level in LEVELS:
        place = int(np.searchsorted(reached, level / 100 - 1e-9))
        found[str(level)] = None if place == len(sizes) else float(sizes[order][place])
    return found


def of_rows(known: Widths, groups: Sequence[str], level: int) -> Floats:
    """Return for each row half the width in the logarithm, of its group or of all; infinite for too few rests."""
    half = {name: math.inf if (value := by[str(level)]) is None else value for name, by in known.items()}
    return np.array([half.get(name, half[EVERY]) for name in groups])
