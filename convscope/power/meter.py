"""Interfaces of a power meter and of the load that it measures."""

from __future__ import annotations

from typing import Protocol

from convscope.power.energy import LoadEnergy
from convscope.power.sampler import PowerWindow


class Load(Protocol):
    """Work that goes on and is counted: `graphs.SteadyLoad`, or a test's own."""

    def step(self) -> None:
        """Keep the work going; returns at once."""

    def inferences(self, time_s: float) -> float:
        """Return how many inferences were done by this moment."""


class Meter(Protocol):
    """Measures the energy of a steady load: the energy, or None and the reason why not."""

    def steady(
        self, load: Load, *, warmup_s: float, precision: float, budget_s: float
    ) -> tuple[LoadEnergy | None, str | None]:
        """Return the energy over a window from tick to tick."""

    def settings(self) -> dict[str, object]:
        """Return driver, clocks, power limit and ECC by the names of `Environment`'s fields."""

    def idle_power_w(self) -> float | None:
        """Return the power of the device with nothing to do, None where it does not say."""


class WindowMeter(Protocol):
    """Measures energy over windows of time (`profiler.PowerMonitor`)."""

    @property
    def reason(self) -> str | None:
        """Why there is no energy at all, None while there is."""

    def begin(self) -> PowerWindow:
        """Open a window now."""

    def end(self, window: PowerWindow) -> PowerWindow:
        """Close it, and fill in its energies or the reasons why there are none."""
