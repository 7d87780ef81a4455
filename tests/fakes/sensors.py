"""A power sensor whose truth is known: a load over time, and what a card's counter and readings make of it."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from convscope.errors import SensorError
from convscope.power import energy
from convscope.power.energy import CardState
from convscope.timing.completions import Completions
from fakes import Gpu
from profiler import PowerMonitor


class Clock:
    """Seconds that pass by `sleep` and by what looking costs; starts at 100 s so that there is a past."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class GpuClock:
    """The clock of a simulated GPU's host, as a simulated card wants it."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    @property
    def now_s(self) -> float:
        return self._gpu.host_ms / 1e3

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self._gpu.host_ms += seconds * 1e3


class Power:
    """Power over time, piecewise linear between (second, watt) points, constant outside them."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._points = [(-1e6, points[0][1]), *points, (1e6, points[-1][1])]
        self._times_s = [time_s for time_s, _ in self._points]
        self._energies_j = [0.0]  # up to each point
        for (left_s, left_w), (right_s, right_w) in pairwise(self._points):
            self._energies_j.append(self._energies_j[-1] + (right_s - left_s) * (left_w + right_w) / 2)

    def energy_j(self, until_s: float) -> float:
        at = min(bisect.bisect_left(self._times_s, until_s), len(self._points) - 1) - 1
        if at < 0:
            return 0.0
        (left_s, left_w), (right_s, right_w) = self._points[at], self._points[at + 1]
        end_s = min(until_s, right_s)
        end_w = left_w + (right_w - left_w) * (end_s - left_s) / (right_s - left_s) if right_s > left_s else left_w
        return self._energies_j[at] + (end_s - left_s) * (left_w + end_w) / 2

    def mean_w(self, start_s: float, end_s: float) -> float:
        return (self.energy_j(end_s) - self.energy_j(start_s)) / (end_s - start_s)


def constant(watts: float) -> Power:
    return Power([(0.0, watts)])


class Looks:
    """Power as a sensor has it that looks every `every_s` and takes the power to be the same until it looks again."""

    def __init__(self, watts: Callable[[float], float], every_s: float, from_s: float) -> None:
        self._watts, self._every_s, self._from_s = watts, every_s, from_s
        self._energies_j = [0.0]  # up to each look

    def energy_j(self, until_s: float) -> float:
        looks = max(0, math.floor((until_s - self._from_s) / self._every_s))
        while len(self._energies_j) <= looks:
            look_s = self._from_s + (len(self._energies_j) - 1) * self._every_s
            self._energies_j.append(self._energies_j[-1] + self._every_s * self._watts(look_s))
        return self._energies_j[looks]

    def mean_w(self, start_s: float, end_s: float) -> float:
        return (self.energy_j(end_s) - self.energy_j(start_s)) / (end_s - start_s)


def square_wave(low_w: float, high_w: float, period_s: float, until_s: float, from_s: float = 0.0) -> Power:
    points = []
    for index in range(math.ceil((until_s - from_s) / period_s)):
        start_s = from_s + index * period_s
        for offset, watts in ((0.0, high_w), (0.5 - 1e-9, high_w), (0.5, low_w), (1.0 - 1e-9, low_w)):
            points.append((start_s + offset * period_s, watts))
    return Power(points)


class Card:
    """A sensor of `power`: everything it says is latched every `tick_s`, first at `phase_s`.

    A power reading averages over the `boxcar_s` before the latch, with `noise_w` (a standard deviation) on it. A look
    takes `look_s`. After `fails_at_s` it is lost. `resets_at_s` sets the counter to zero.
    """

    def __init__(
        self,
        clock: Clock | GpuClock,
        power: Power | Looks,
        *,
        source: str = energy.COUNTER,
        tick_s: float = 0.1,
        phase_s: float = 0.0,
        boxcar_s: float = 0.1,
        noise_w: float = 0.0,
        look_s: float = 0.002,
        fails_at_s: float = math.inf,
        resets_at_s: float = math.inf,
        seed: int = 0,
    ) -> None:
        self.name, self.source, self.reason = "GPU-simulated", source, None
        self.clock, self.power = clock, power
        self._tick_s, self._phase_s, self._boxcar_s = tick_s, phase_s, boxcar_s
        self._noise_w, self._look_s = noise_w, look_s
        self._fails_at_s, self._resets_at_s = fails_at_s, resets_at_s
        self._seed = seed
        self._zero_s = clock.now_s - 50.0

    def read(self) -> tuple[float | None, float | None]:
        self.clock.sleep(self._look_s / 2)
        if self.clock.now_s >= self._fails_at_s:
            raise SensorError("no energy counter: NVML says GPU is lost")
        tick = math.floor((self.clock.now_s - self._phase_s) / self._tick_s)
        latched_s = tick * self._tick_s + self._phase_s
        watts = self.power.mean_w(latched_s - self._boxcar_s, latched_s)
        watts += random.Random(f"{self._seed} {tick}").gauss(0.0, self._noise_w)
        self.clock.sleep(self._look_s / 2)
        return (self._counted_j(latched_s) if self.source == energy.COUNTER else None), watts

    def _counted_j(self, latched_s: float) -> float:
        zero_s = self._resets_at_s if latched_s >= self._resets_at_s else self._zero_s
        return round((self.power.energy_j(latched_s) - self.power.energy_j(zero_s)) * 1e3) / 1e3

    def state(self) -> CardState:
        return CardState(temperature_c=40, sm_clock_mhz=1980, throttle_reasons="none", other_processes=0)

    def settings(self) -> dict[str, object]:
        return {"driver": "simulated"}

    def close(self) -> None:
        pass


class Load:
    """Inferences of equal length, one after the other, from `began_s` to `ends_s`; seen at each step."""

    pause_s = 0.0005
    starved = 0

    def __init__(
        self, clock: Callable[[], float], pass_s: float, began_s: float | None = None, ends_s: float = math.inf
    ) -> None:
        self._clock, self._pass_s, self._ends_s = clock, pass_s, ends_s
        self._began_s = clock() if began_s is None else began_s
        self._looked_s = self._began_s
        self.completions = Completions()
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        now_s = self._clock()
        finished = math.floor((min(now_s, self._ends_s) - self._began_s) / self._pass_s)
        self.completions.add(finished, self._looked_s, now_s)
        self._looked_s = now_s

    def detune(self) -> bool:
        return False


@dataclass(frozen=True)
class DrawnEnergy:
    """Energy of an inference beside its truth, in percent of it; `found` is False where the monitor gave none."""

    found: bool
    error_pct: float = math.nan
    uncertainty_pct: float = math.nan

    @property
    def covered(self) -> bool:
        return abs(self.error_pct) <= self.uncertainty_pct


def drawn_energy(pass_s: float, seed: int, swing: float = 0.0, **options: float) -> DrawnEnergy:
    """Measure passes of a simulated card whose power, phases and times of a look are drawn.

    Args:
        swing: the first half of each pass takes this share more than the mean power, the second half less.
        options: of `PowerMonitor.steady`.
    """
    draw, clock = random.Random(seed), Clock()
    watts, began_s = draw.uniform(80, 700), clock.now_s - draw.random() * pass_s
    power = constant(watts)
    if swing:
        power = square_wave(watts * (1 - swing), watts * (1 + swing), pass_s, clock.now_s + 20.0, began_s)
    card = Card(clock, power, phase_s=draw.random() * 0.1, look_s=draw.uniform(5e-4, 4e-3))
    monitor = PowerMonitor([card], clock=clock, sleep=clock.sleep, period_s=None)
    found, _ = monitor.steady(Load(clock, pass_s, began_s), **options)
    if found is None:
        return DrawnEnergy(False)
    return DrawnEnergy(True, 100 * (found.per_inference_j / (watts * pass_s) - 1), 100 * found.relative_uncertainty)


def share(true_for: Callable[[int], bool], count: int) -> float:
    """Return for which share of 0 … count - 1 something holds."""
    return sum(true_for(index) for index in range(count)) / count
