"""Energy with an uncertainty, or a reason why there is none, computed from readings of a sensor. Pure numbers.

An energy counter changes every 20 to 100 ms, however often it is read. A window is therefore cut at its ticks: between
two moments at which the counter was seen to change, energy and time belong to each other. A power reading is an
average over some time before it; its integral by trapezoids is a check of the counter, and replaces it where there is
no counter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.special import ndtr, stdtrit

from convscope.errors import WindowError

COVERAGE = 2.0  # stated uncertainties are two standard deviations, about 95 %
REST_STD = 0.05  # of the power of a rest: a spin of one multiprocessor took 1.4 % more than an idle H200
COUNTER, INSTANT, AVERAGE = "nvml energy counter", "nvml instant power", "nvml average power"
LAGGED_LEAST = 8  # steps from which on their dependence on each other can be estimated
RAPL, PSYS = "rapl energy counter", "rapl energy counter of the whole platform"

# Causes whose time a card counts, each with its names among the causes that one glance sees.
POWER_CAP, THERMAL, POWER_BRAKE = "power cap", "thermal slowdown", "power brake"
GLANCES = {
    POWER_CAP: (POWER_CAP,),
    THERMAL: ("software thermal slowdown", "hardware thermal slowdown"),
    POWER_BRAKE: (POWER_BRAKE,),
}
THROTTLED_PCT = 1.0  # of a window: boost touches the power limit for an instant all the time

# Averaging time of one reading, where there is no counter: NVML's reference says 1 s for power usage on Ampere and
# later; the instant reading is no older than one update of the sensor. `--check-power` measures both on a card.
AVERAGING_S = {INSTANT: 0.1, AVERAGE: 1.0}


@dataclass(frozen=True)
class Sample:
    """One reading: energy counter (J, from any zero) and power (W), None where absent."""

    time_s: float
    energy_j: float | None
    power_w: float | None

    def reads(self, energy_j: float | None, power_w: float | None) -> bool:
        """Tell whether the reading is this one."""
        return (self.energy_j, self.power_w) == (energy_j, power_w)


@dataclass(frozen=True)
class Tick:
    """A change of the counter to `energy_j`, within `half_width_s` of `time_s`."""

    time_s: float
    half_width_s: float
    energy_j: float


@dataclass(frozen=True)
class EnergyWindow:
    """The energy of one device between two moments.

    `uncertainty_j` is two standard deviations: of the edges in time, of the scatter from tick to tick, and of changes
    that a power sensor's averaging can hide. The gain of the sensor (NVIDIA states ±5 % for power) is not in it.
    `integral_j` is the trapezoidal integral of the power readings over the same window, None without them.
    """

    start_s: float
    end_s: float
    energy_j: float
    uncertainty_j: float
    source: str
    integral_j: float | None = None
    power_std_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    power_samples: int = 0

    @property
    def duration_s(self) -> float:
        """The length of the window."""
        return self.end_s - self.start_s

    @property
    def power_mean_w(self) -> float:
        """The mean power over the window."""
        return self.energy_j / self.duration_s

    @property
    def relative_uncertainty(self) -> float:
        """The uncertainty as a share of the energy."""
        return self.uncertainty_j / self.energy_j if self.energy_j > 0 else math.inf

    @property
    def disagreement_pct(self) -> float | None:
        """The excess of the integral of power over the counter, in percent; None where one of them is missing."""
        if self.integral_j is None or self.source not in (COUNTER, RAPL):
            return None
        return 100 * (self.integral_j / self.energy_j - 1)


@dataclass(frozen=True)
class CardState:
    """State of a device at one moment; None where it does not report a value.

    `held_back_s` has, for each cause that the device counts, the time for which it was held below its clocks so far;
    `throttle_reasons` are the causes of this moment.
    """

    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: str | None = None
    other_processes: int | None = None
    time_s: float | None = None
    held_back_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Conditions:
    """State of a device before and after a window, and what held it back in between; None where it is not known."""

    before: CardState = CardState()
    after: CardState = CardState()

    def held_back_pct(self, cause: str) -> float | None:
        """Return the share of the window in which this cause held the device back; None where it is not counted."""
        first, last = (state.held_back_s.get(cause) for state in (self.before, self.after))
        began_s, ended_s = self.before.time_s, self.after.time_s
        if first is None or last is None or began_s is None or ended_s is None:
            return None
        if last < first or ended_s <= began_s:  # the driver was loaded anew
            return None
        return min(100.0, 100 * (last - first) / (ended_s - began_s))

    @property
    def throttle_power_pct(self) -> float | None:
        """The share of the window in which the power limit held the device back."""
        return self.held_back_pct(POWER_CAP)

    @property
    def throttle_thermal_pct(self) -> float | None:
        """The share of the window in which heat or a slowdown by the hardware held the device back."""
        shares = [self.held_back_pct(cause) for cause in (THERMAL, POWER_BRAKE)]
        return None if shares[0] is None else max(share for share in shares if share is not None)

    @property
    def throttle_reasons(self) -> str | None:
        """The causes that held the device back, "none" without any, None where it does not report them.

        A cause that is counted held the device back for `THROTTLED_PCT` of the window; one that is not was seen at
        either end.
        """
        glances = [state.throttle_reasons for state in (self.before, self.after) if state.throttle_reasons is not None]
        shares_pct = {cause: share for cause in GLANCES if (share := self.held_back_pct(cause)) is not None}
        if not glances and not shares_pct:
            return None
        causes = {cause for glance in glances for cause in glance.split(", ")} - {"none"}
        for cause, share_pct in shares_pct.items():
            seen = causes & {*GLANCES[cause]}
            causes -= seen
            if share_pct >= THROTTLED_PCT:
                causes |= seen or {cause}
        return ", ".join(sorted(causes)) or "none"

    @property
    def temperature_start_c(self) -> int | None:
        """The temperature before the window."""
        return self.before.temperature_c

    @property
    def temperature_end_c(self) -> int | None:
        """The temperature after the window."""
        return self.after.temperature_c

    @property
    def sm_clock_mhz(self) -> int | None:
        """The clock of the multiprocessors after the window."""
        return self.after.sm_clock_mhz

    @property
    def other_processes(self) -> int | None:
        """The number of other processes on the device after the window."""
        return self.after.other_processes


@dataclass(frozen=True)
class LoadEnergy:
    """Energy of a window of steady load, with its number of inferences and the conditions of the window.

    `inferences_std` is the standard deviation of the number: completions are known to the time between two looks.
    `rest_s` is the rest after each inference, where there was one; the window is then without the rests.
    """

    window: EnergyWindow
    inferences: float
    inferences_std: float = 0.0
    conditions: Conditions = Conditions()
    rest_s: float = 0.0

    @property
    def per_inference_j(self) -> float:
        """The energy of one inference."""
        return self.window.energy_j / self.inferences

    @property
    def relative_uncertainty(self) -> float:
        """The uncertainty as a share of the energy: of the window's energy and of the number of inferences."""
        return math.hypot(self.window.relative_uncertainty, COVERAGE * self.inferences_std / self.inferences)

    @property
    def uncertainty_j(self) -> float:
        """The uncertainty of the energy of one inference."""
        return self.relative_uncertainty * self.per_inference_j

    @property
    def pass_s(self) -> float:
        """The time of one inference in the window."""
        return self.window.duration_s / self.inferences

    def without_rests(self, pass_s: float, idle_power_w: float) -> LoadEnergy:
        """Return the energy without rests: what inferences took beyond `pass_s`, at the power of the idle device."""
        rest_s = max(0.0, self.pass_s - pass_s)
        rests_s, rests_j = rest_s * self.inferences, rest_s * self.inferences * idle_power_w
        window = self.window
        shorter = dataclasses.replace(
            window,
            end_s=window.end_s - rests_s,
            energy_j=window.energy_j - rests_j,
            uncertainty_j=math.hypot(window.uncertainty_j, COVERAGE * REST_STD * rests_j),
            integral_j=None if window.integral_j is None else window.integral_j - rests_j,
        )
        return dataclasses.replace(self, window=shorter, rest_s=rest_s)

    def dynamic_j(self, idle_power_w: float) -> float:
        """Return the energy of one inference above that of the idle device in the same time."""
        return self.per_inference_j - idle_power_w * self.pass_s


def ticks(samples: Sequence[Sample]) -> list[Tick]:
    """Return the changes of the counter; WindowError if it went back (driver loaded anew, or card reset)."""
    counted = [(sample.time_s, sample.energy_j) for sample in samples if sample.energy_j is not None]
    changes = []
    for (before_s, before_j), (now_s, now_j) in pairwise(counted):
        if now_j < before_j:
            raise WindowError(f"the energy counter went back from {before_j:.3f} J to {now_j:.3f} J")
        if now_j > before_j:
            half_s = (now_s - before_s) / 2
            changes.append(Tick(before_s + half_s, half_s, now_j))
    return changes


def counter_window(samples: Sequence[Sample], start_s: float, end_s: float, source: str = COUNTER) -> EnergyWindow:
    """Return the longest window inside [start_s, end_s] that begins and ends on a tick of the counter.

    Raises:
        WindowError: fewer than two ticks inside, or a counter that went backwards.
    """
    inside = [tick for tick in ticks(samples) if start_s <= tick.time_s <= end_s]
    if len(inside) < 2:
        raise WindowError(
            f"the energy counter ticked {_often(len(inside))} in {end_s - start_s:.2f} s, a window needs two"
        )
    first, last = inside[0], inside[-1]
    energy_j, duration_s = last.energy_j - first.energy_j, last.time_s - first.time_s
    steps_j = [now.energy_j - before.energy_j for before, now in pairwise(inside)]
    scatter_j = sum_coverage(len(steps_j)) * sum_std(steps_j)
    # A tick lies anywhere between two readings: a rectangle, whose standard deviation is its half width over √3.
    edges_s = math.hypot(first.half_width_s, last.half_width_s) / math.sqrt(3)
    uncertainty_j = math.hypot(COVERAGE * energy_j / duration_s * edges_s, scatter_j)
    return _with_power(EnergyWindow(first.time_s, last.time_s, energy_j, uncertainty_j, source), samples)


def sum_std(steps: Sequence[float]) -> float:
    """Return the standard deviation of the sum of steps that follow one another; 0 with fewer than two.

    Steps need not be independent. Where one half of a long pass takes more power than the other, a high step is
    followed by a low one, and only the ends of the sum are uncertain; where power wanders, the sum is more uncertain
    than independent steps would make it. So this is the long-run variance (Newey and West 1987: Bartlett's weights,
    lags up to the cube root of the number, two degrees of freedom taken off for each), at least that of one step. A
    constant drift is no uncertainty of the sum, and is taken off first.
    """
    count = len(steps)
    if count < LAGGED_LEAST:
        return float(np.std(steps, ddof=1)) * math.sqrt(count) if count > 1 else 0.0
    lags, at = _lags(count), np.arange(count)
    apart = np.asarray(steps) - np.polyval(np.polyfit(at, steps, 1), at)
    products = [float(np.dot(apart[: count - lag], apart[lag:])) for lag in range(lags + 1)]
    long_run = products[0] + 2 * sum((1 - lag / (lags + 1)) * products[lag] for lag in range(1, lags + 1))
    return math.sqrt(max(count * long_run / (count - 2 * lags - 2), products[0] / (count - 2)))


def _lags(count: int) -> int:
    return round(float(count ** (1 / 3)))


def sum_coverage(count: int) -> float:
    """Return by how many deviations (`sum_std`) a sum of so many steps is uncertain, at the level of `COVERAGE`.

    Few steps know their own scatter badly: Student's t, with the long-run variance's equivalent degrees of freedom.
    """
    freedom = 1.5 * count / (_lags(count) + 1) if count >= LAGGED_LEAST else count - 1
    return float(stdtrit(max(freedom, 1), float(ndtr(COVERAGE))))


def power_window(
    samples: Sequence[Sample], start_s: float, end_s: float, averaging_s: float, source: str
) -> EnergyWindow:
    """Return the window [start_s, end_s] by integrating power, for sensors without a counter.

    Args:
        averaging_s: averaging time of a reading of this sensor. Changes of power within that time of the window's
            edges may belong to the other side; this share of the power's range is uncertain.

    Raises:
        WindowError: fewer than two readings of power in the window.
    """
    readings = _powers(samples, start_s, end_s)
    changes = 1 + sum(a != b for a, b in pairwise(readings))
    if changes < 2:
        raise WindowError(f"the power reading changed {_often(changes - 1)} in {end_s - start_s:.2f} s")
    energy_j = integrate(samples, start_s, end_s)
    scatter_w = float(np.std(readings, ddof=1)) / math.sqrt(changes)
    lag_j = averaging_s * (max(readings) - min(readings)) / math.sqrt(3)
    uncertainty_j = COVERAGE * math.hypot(scatter_w * (end_s - start_s), lag_j)
    return _with_power(EnergyWindow(start_s, end_s, energy_j, uncertainty_j, source), samples)


def integrate(samples: Sequence[Sample], start_s: float, end_s: float) -> float:
    """Return the integral of power over [start_s, end_s] by trapezoids, in joules; both edges are interpolated.

    Raises:
        WindowError: the readings do not reach over both edges.
    """
    known = [(sample.time_s, sample.power_w) for sample in samples if sample.power_w is not None]
    if not known or known[0][0] > start_s or known[-1][0] < end_s:
        raise WindowError("the power readings do not cover the window")
    times_s, powers_w = np.array(known, dtype=np.float64).T
    inside = (times_s > start_s) & (times_s < end_s)
    edges_w = np.interp([start_s, end_s], times_s, powers_w)
    grid_s = np.concatenate([[start_s], times_s[inside], [end_s]])
    grid_w = np.concatenate([[edges_w[0]], powers_w[inside], [edges_w[1]]])
    return float(np.sum(np.diff(grid_s) * (grid_w[1:] + grid_w[:-1]) / 2))


def _powers(samples: Sequence[Sample], start_s: float, end_s: float) -> list[float]:
    return [s.power_w for s in samples if s.power_w is not None and start_s <= s.time_s <= end_s]


def _with_power(window: EnergyWindow, samples: Sequence[Sample]) -> EnergyWindow:
    """Return the window with the statistics of the power readings in it, where there are two or more."""
    readings = _powers(samples, window.start_s, window.end_s)
    if len(readings) < 2:
        return window
    try:
        integral_j: float | None = integrate(samples, window.start_s, window.end_s)
    except WindowError:
        integral_j = None
    return dataclasses.replace(
        window, integral_j=integral_j, power_std_w=float(np.std(readings, ddof=1)), power_min_w=min(readings),
        power_max_w=max(readings), power_samples=len(readings),
    )  # fmt: skip


def too_short(needed_s: float, precision: float, limit_s: float, anew: int = 0, left_s: float = 0.0) -> str:
    """Return the reason for a missing energy whose window would have had to be longer than is allowed.

    Args:
        anew: how often the window began anew.
        left_s: the time that was left at the last time.
    """
    needs = f"no energy: {100 * precision:g} % needs a window of {needed_s:.1f} s"
    if not anew:
        return f"{needs}, {limit_s:g} s are allowed"
    times = _often(anew)
    why = "the device ran out of work, or kept step with the sensor"
    return f"{needs}, it began anew {times} with {left_s:.1f} s of {limit_s:g} left ({why})"


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def needed_s(duration_s: float, relative_uncertainty: float, precision: float) -> float:
    """Return the length of window that this relative precision needs: edges weigh less in a longer window."""
    return duration_s * relative_uncertainty / precision
