"""Sampler of power sensors: reads them periodically, keeps the samples, and gives the energy of any window of time.

A thread takes the samples, because one reading can take milliseconds (NVML's energy counter: 2 to 18 ms in a virtual
machine), and no measured work may wait for it.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.energy import CardState, EnergyWindow, Sample


class Sensor(Protocol):
    """One device whose energy and power can be read: `nvml.NvmlCard`, `rapl.RaplPackages`, or a test's fake.

    `reason` says why its energy cannot be read, None where it can; its state and settings can be read in any case.
    """

    name: str
    source: str
    reason: str | None

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
    """Samples of some sensors; inside its `with` block, which may be nested, a thread takes them.

    Outside of the block nothing is sampled: the thread would disturb times that are taken meanwhile.

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
        self._entered = 0

    def __enter__(self) -> Sampler:
        if not self._entered:
            self._forget()
        self._entered += 1
        if self.sensors and self._period_s is not None and self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="power", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered <= 0:
            self.stop()

    def stop(self) -> None:
        """End the sampling, whoever has begun it."""
        self._entered = 0
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
                if len(samples) > 1 and samples[-1].reads(joules, watts) and samples[-2].reads(joules, watts):
                    samples.pop()  # of a reading that does not change the first and the last sample say all
                samples.append(Sample((before_s + self._clock()) / 2, joules, watts))

    def _forget(self) -> None:
        """Drop the samples that are older than a minute: no window is open."""
        oldest_s = self._clock() - self.KEPT_S
        with self._lock:
            self._samples = [[one for one in samples if one.time_s >= oldest_s] for samples in self._samples]

    def energy(self, index: int, start_s: float, end_s: float) -> EnergyWindow:
        """Return the energy of a sensor in a window, by its counter or else by integration, or raise WindowError."""
        with self._lock:
            samples = self._samples[index]
            first = bisect.bisect_left(samples, start_s - self.MARGIN_S, key=lambda sample: sample.time_s)
            samples = samples[max(0, first - 1) :]
        source = self.sensors[index].source
        if source in energy.AVERAGING_S:
            return energy.power_window(samples, start_s, end_s, energy.AVERAGING_S[source], source)
        return energy.counter_window(samples, start_s, end_s, source)
