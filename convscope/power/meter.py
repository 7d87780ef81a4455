"""Interfaces of a power meter and of the steady load that it measures."""

from __future__ import annotations

from typing import Protocol

from convscope.power.energy import CardState, LoadEnergy
from convscope.power.sampler import PowerWindow
from convscope.timing.completions import Completions


class SteadyLoad(Protocol):
    """Work that repeats one inference and notes each end: `graphs.ReplayLoad`, `graphs.HostLoad`, or a fake."""

    @property
    def pause_s(self) -> float:
        """The time to wait between two steps."""

    @property
    def starved(self) -> int:
        """Number of times that its device was out of work so far, because the host paused."""

    @property
    def completions(self) -> Completions:
        """The completions of its inferences so far, in seconds of perf_counter."""

    def step(self) -> None:
        """Keep the work going; call it again and again."""

    def detune(self) -> bool:
        """Give each inference another period from now on by a rest after it; False where that would not help."""


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
        self, load: SteadyLoad, *, warmup_s: float, precision: float, budget_s: float, idle_power_w: float | None
    ) -> tuple[LoadEnergy | None, str | None]:
        """Return the first device's energy over a window of steady load, or None and the reason."""

    def state(self) -> CardState:
        """Return the first device's temperature, clock and throttling at this moment; empty without a device."""

    def idle_power_w(self) -> float | None:
        """Return the first device's power while it is idle, None where it cannot be read."""

    def settings(self) -> dict[str, object]:
        """Return the first device's settings by the names of `Environment`'s fields."""
