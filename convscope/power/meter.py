"""Interfaces of a power meter and of the steady load that it measures."""

from __future__ import annotations

from typing import Protocol

from convscope.power.energy import LoadEnergy
from convscope.power.sampler import PowerWindow


class SteadyLoad(Protocol):
    """Work that repeats one inference and counts them: `graphs.ReplayLoad`, `graphs.HostLoad`, or a test's fake."""

    def step(self) -> None:
        """Keep the work going; call it again and again."""

    def inferences(self, time_s: float) -> float:
        """Return how many inferences were done by this moment (perf_counter), the running one as a fraction."""


class Meter(Protocol):
    """Power and energy of one or more devices (`profiler.PowerMonitor`); without a sensor it gives reasons instead."""

    @property
    def reason(self) -> str | None:
        """The reason why there is no power and energy, None while there is."""

    def begin(self) -> PowerWindow:
        """Open a window now."""

    def end(self, window: PowerWindow) -> PowerWindow:
        """Close it and fill in its energies, or the reasons why there are none."""

    def steady(
        self, load: SteadyLoad, *, warmup_s: float, precision: float, budget_s: float
    ) -> tuple[LoadEnergy | None, str | None]:
        """Return the first device's energy over a window of steady load, or None and the reason."""

    def idle_power_w(self) -> float | None:
        """Return the first device's power while it is idle, None where it cannot be read."""

    def settings(self) -> dict[str, object]:
        """Return the first device's settings by the names of `Environment`'s fields."""
