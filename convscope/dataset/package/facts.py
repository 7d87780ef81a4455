"""Facts of a data set that its documents say: what it covers, how sure its figures are, what it lacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from convscope.dataset.columns import STATUSES
from convscope.dataset.importers import FORMATS
from convscope.dataset.package.merging import card_of, repeats
from convscope.dataset.samples import SHAPE, SampleRow

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MAY_LACK = ("energy_j", "kernels", "mean_ci95_ms", "relative_error", "family")


@dataclass(frozen=True)
class Release:
    """Facts of a data set that only people can give: version, day (2026-01-31), address of its page, its maker."""

    version: str
    day: str
    url: str
    creator: str


@dataclass(frozen=True)
class Noise:
    """Distance of repeats of the same work from the first of their kind: |again / first - 1|, in percent."""

    where: str
    repeats: int
    median_pct: float
    p95_pct: float


@dataclass(frozen=True)
class Facts:
    """Facts of a table of samples, as documents say them.

    Attributes:
        measured: number of those that have a time; `energy_alone` have only an energy.
        by_algorithm: number of samples of each algorithm by status, the most frequent algorithm first.
        values: of a few columns, the different values with their numbers.
        days: first and last day of measuring; empty where the runs do not say it.
        interval_pct: median of the half-widths of the 95 % intervals, as a share of the mean; None without any.
        lacking: of some columns, the number of measured samples that have none.
    """

    samples: int
    measured: int
    energy_alone: int
    with_energy: int
    shapes: int
    by_algorithm: Mapping[str, Mapping[str, int]]
    values: Mapping[str, Mapping[str, int]]
    days: tuple[str, ...]
    noise: tuple[Noise, ...]
    interval_pct: float | None
    lacking: Mapping[str, int]
    of_others: int

    def listed(self, name: str) -> str:
        """Return the values of a column, one after another."""
        return ", ".join(self.values[name]) or "not said"


def facts(rows: Sequence[SampleRow]) -> Facts:
    """Return the facts of samples."""
    succeeded = [row for row in rows if row.status == "ok"]
    measured = [row for row in succeeded if row.mean_ms is not None]
    counted: dict[str, Counter[str]] = {}
    for row in rows:
        counted.setdefault(row.algorithm, Counter())[row.status] += 1
    in_order = sorted(counted, key=lambda name: (-counted[name].total(), name))
    named = ("gpu_name", "batch_size", "model", "family", "input_size", "cudnn", "driver", "torch", "timing_method")
    values = {name: _values(getattr(row, name) for row in rows) for name in named}
    values["settings"] = _values(f"{row.dtype} {row.math} {row.layout}" for row in rows)
    days = sorted({day[0] for row in rows if (day := _DAY.search(row.run))})
    shares = [100 * row.mean_ci95_ms / row.mean_ms for row in measured if row.mean_ci95_ms is not None and row.mean_ms]
    return Facts(
        samples=len(rows), measured=len(measured), energy_alone=len(succeeded) - len(measured),
        with_energy=sum(row.energy_j is not None for row in rows),
        shapes=len({tuple(getattr(row, name) for name in SHAPE) for row in rows}),
        by_algorithm={name: {each: counted[name][each] for each in STATUSES} for name in in_order}, values=values,
        days=(days[0], days[-1]) if days else (), noise=tuple(_noise(rows)),
        interval_pct=median(shares) if shares else None,
        lacking={name: sum(getattr(row, name) is None for row in measured) for name in _MAY_LACK},
        of_others=sum(row.run.partition(" ")[0] in FORMATS for row in rows),
    )  # fmt: skip


def _values(found: Iterable[object]) -> dict[str, int]:
    counted = Counter(each for each in found if each is not None)
    return {str(each): counted[each] for each in sorted(counted, key=lambda value: (isinstance(value, str), value))}


def _noise(rows: Sequence[SampleRow]) -> Iterable[Noise]:
    """Yield the noise of repeats on one card, and of those on two cards of the same kind."""
    apart: dict[str, list[float]] = {"on the same card": [], "on another card": [], "on a card that is not said": []}
    for numbers in repeats(rows):
        found = [(rows[each].mean_ms, rows[each].run) for each in numbers if rows[each].status == "ok"]
        times = [(mean_ms, card_of(run)) for mean_ms, run in found if mean_ms]
        for mean_ms, card in times[1:]:
            first_ms, first_card = times[0]
            same = "on the same card" if card == first_card else "on another card"
            where = "on a card that is not said" if None in (card, first_card) else same
            apart[where].append(100 * abs(mean_ms / first_ms - 1))
    for where, shares in apart.items():
        if shares:
            yield Noise(where, len(shares), median(shares), float(np.quantile(shares, 0.95)))
