"""Energy from a counter that ticks: readings in, joules for each inference out. Pure numbers, no sensor.

NVML's energy counter changes every 20 to 100 ms, however often it is read. A window is therefore cut at its ticks:
between the moments at which the counter was seen to change, energy and time belong to each other exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Reading:
    """The counter at one moment, and how many inferences the GPU had finished by then (fractions count)."""

    time_s: float
    energy_j: float
    inferences: float


@dataclass(frozen=True)
class EnergyWindow:
    """A window from tick to tick under steady load."""

    energy_j: float
    duration_s: float
    inferences: float
    ticks: int
    source: str = "nvml energy counter"

    @property
    def power_mean_w(self) -> float:
        """Mean power over the window."""
        return self.energy_j / self.duration_s

    @property
    def per_inference_j(self) -> float:
        """Energy of one inference: the window's energy over the inferences that it held."""
        return self.energy_j / self.inferences


def ticks(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings at which the counter had just changed."""
    return [now for before, now in pairwise(readings) if now.energy_j != before.energy_j]


def window(at_ticks: Sequence[Reading]) -> EnergyWindow:
    """Return the window from the first tick to the last.

    Raises:
        ValueError: fewer than two ticks, a counter that went backwards, or no inference in between.
    """
    if len(at_ticks) < 2:
        raise ValueError(f"a window needs two ticks of the counter, {len(at_ticks)} seen")
    first, last = at_ticks[0], at_ticks[-1]
    if last.energy_j <= first.energy_j:
        raise ValueError(f"the energy counter went from {first.energy_j} J to {last.energy_j} J")
    if last.inferences <= first.inferences:
        raise ValueError("no inference finished between two ticks of the counter")
    return EnergyWindow(
        energy_j=last.energy_j - first.energy_j,
        duration_s=last.time_s - first.time_s,
        inferences=last.inferences - first.inferences,
        ticks=len(at_ticks) - 1,
    )
