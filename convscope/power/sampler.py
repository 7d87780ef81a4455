"""Sampler of power sensors: reads them periodically, keeps the samples, and gives the energy of any window of time.

A thread takes the samples, because one reading can take milliseconds (NVML's energy counter: 2 to 18 ms in a virtual
machine), and no measured work may wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.energy import CardState, EnergyWindow, Sample


class Sensor(Protocol):
    """One device whose energy and power can be read: `nvml.NvmlCard`, `rapl.RaplPackages`, or a test's fake."""

    name: str
    source: str

    def read(self) -> tuple[float | None, float | None]:
        """Return the energy counter in joules and the power in watts, None where absent."""

    def state(self) -> CardState:
        """Return temperature, clock and throttling at this moment."""

    def settings(self) -> dict[str, object]:
        """Return the settings of the device, which stay the same in a run."""

    def close(self) -> None:
        """Release the device."""


@dataclass
class PowerWindow:
    """A window of time with one entry for each device: its energy, or the reason why there is none."""

    start_s: float
    end_s: float | None = None
    energies: list[EnergyWindow | None] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)


class Sampler:
    """Samples of some sensors; inside its `with` block a thread takes them.

    Args:
        period_s: time between two samples; None starts no thread, and the caller calls `poll`.
    """

    KEPT_S = 60.0
    MARGIN_S = 1.0  # of samples before a window, so that its edges can be interpolated

    def __init__(self, sensors: Sequence[Sensor], clock: Callable[[], float], period_s: float | None) -> None:
        self.sensors = list(sensors)
        self.failure: str | None = None
        self._clock, self._period_s = clock, period_s
        self._samples: list[list[Sample]] = [[] for _ in self.sensors]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        if self.sensors and self._period_s is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="power", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.wait(self._period_s) and self.failure is None:
            self.poll()

    def pause(self, sleep: Callable[[float], None], seconds: float) -> None:
        """Let the thread sample for some seconds; without a thread, take one sample and wait."""
        if self._thread is None:
            self.poll()
        sleep(seconds)

    def poll(self) -> None:
        """Take one sample of every sensor. A sensor that fails ends the sampling; `failure` holds the reason."""
        with self._lock:
            for sensor, samples in zip(self.sensors, self._samples, strict=True):
                before_s = self._clock()
                try:
                    joules, watts = sensor.read()
                except SensorError as error:
                    self.failure = str(error)
                    return
                samples.append(Sample((before_s + self._clock()) / 2, joules, watts))

    def forget(self) -> None:
        """Drop the samples that are older than a minute."""
        oldest_s = self._clock() - self.KEPT_S
        with self._lock:
            self._samples = [[one for one in samples if one.time_s >= oldest_s] for samples in self._samples]

    def energy(self, index: int, start_s: float, end_s: float) -> EnergyWindow:
        """Return the energy of a sensor in a window, by its counter or else by integration, or raise WindowError."""
        with self._lock:
            samples = [sample for sample in self._samples[index] if sample.time_s >= start_s - self.MARGIN_S]
        source = self.sensors[index].source
        if source in energy.AVERAGING_S:
            return energy.power_window(samples, start_s, end_s, energy.AVERAGING_S[source], source)
        return energy.counter_window(samples, start_s, end_s, source)
