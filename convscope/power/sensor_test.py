"""Test of a card's power sensors: update periods, averaging times, agreement between sensors.

`check` drives a card through rest, full load and a square wave, and reads every sensor meanwhile; the rest of this
file turns the readings into figures and is pure. The report is saved as `results/sensor_<gpu>.json`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from convscope.errors import SensorError, WindowError
from convscope.power import energy, nvml
from convscope.power.energy import EnergyWindow, Sample

IDLE_S, LOAD_S, WAVE_S, REST_S = 3.0, 4.0, 8.0, 2.0
WAVE_PERIODS = 1.07  # the square wave's period over the sensor's, so that the phase between them sweeps
READ_EVERY_S = 0.001
PLATEAU = 0.15  # of the swing: readings this near to either level count as on it


@dataclass(frozen=True)
class Reading:
    """Readings of all sensors at one moment; None where the card has none."""

    time_s: float
    counter_j: float | None
    instant_w: float | None
    average_w: float | None


@dataclass(frozen=True)
class SensorReport:
    """Figures of a card's sensors; None where a sensor does not answer or the figure cannot be computed."""

    gpu_name: str
    driver: str | None
    looked_s: float
    idle_power_w: float | None
    load_power_w: float | None
    counter_period_ms: float | None
    instant_period_ms: float | None
    average_period_ms: float | None
    instant_rise_ms: float | None
    average_rise_ms: float | None
    instant_window_ms: float | None
    average_window_ms: float | None
    counter_swing_pct: float | None
    instant_swing_pct: float | None
    idle_disagreement_pct: float | None
    load_disagreement_pct: float | None
    wave_disagreement_pct: float | None
    memory_power_w: float | None
    energy_field_equals_counter: bool | None
    read_time_ms: float


def check(card: nvml.NvmlCard, work: Callable[[], None], gpu_name: str) -> SensorReport:
    """Test the sensors of a card, in less than half a minute.

    Args:
        work: launches a few milliseconds of full load on the card and waits for it.
    """
    reader = _Reader(card)
    with reader:
        time.sleep(IDLE_S)
        idle = reader.take()
        _work_for(work, LOAD_S)
        load = reader.take()
        period_s = 1e-3 * (update_period_ms(_series(load, "counter_j")) or 100.0)
        time.sleep(REST_S)
        reader.take()
        _square_wave(work, WAVE_PERIODS * period_s, WAVE_S)
        wave = reader.take()
    settings = card.settings()
    driver = None if settings["driver"] is None else str(settings["driver"])
    memory_w = card.field(nvml.POWER_AVERAGE, nvml.MEMORY_SCOPE)
    known = {"memory_power_w": memory_w, "energy_field_equals_counter": _same_energy(card)}
    return report(idle, load, wave, wave_period_s=WAVE_PERIODS * period_s, gpu_name=gpu_name, driver=driver, **known)


def report(
    idle: Sequence[Reading], load: Sequence[Reading], wave: Sequence[Reading], *, wave_period_s: float, **known: Any
) -> SensorReport:
    """Compute the figures from readings at rest, from the start of a load on, and under a square wave.

    Args:
        known: the fields of the report that are no figures of these readings.
    """
    steady = [reading for reading in load if reading.time_s >= load[0].time_s + (load[-1].time_s - load[0].time_s) / 2]
    low_w, high_w = _mean_power(idle), _mean_power(steady)
    counter_w = _tick_powers(wave)
    instant_w = [value for _, value in _series(wave, "instant_w")]
    average_rise_ms = rise_time_ms(_series(load, "average_w"))
    return SensorReport(
        **known,
        looked_s=wave[-1].time_s - idle[0].time_s,
        idle_power_w=low_w,
        load_power_w=high_w,
        counter_period_ms=update_period_ms(_series(load, "counter_j")),
        instant_period_ms=update_period_ms(_series([*load, *wave], "instant_w")),
        average_period_ms=update_period_ms(_series(load, "average_w")),
        instant_rise_ms=rise_time_ms(_series(load, "instant_w")),
        average_rise_ms=average_rise_ms,
        instant_window_ms=averaging_window_ms(instant_w, wave_period_s),
        # A boxcar average answers a step by a ramp as long as the boxcar, of which 10 to 90 % is 0.8.
        average_window_ms=None if average_rise_ms is None else average_rise_ms / 0.8,
        counter_swing_pct=swing_pct(counter_w, low_w, high_w),
        instant_swing_pct=swing_pct(instant_w, low_w, high_w),
        idle_disagreement_pct=_disagreement_pct(idle),
        load_disagreement_pct=_disagreement_pct(steady),
        wave_disagreement_pct=_disagreement_pct(wave),
        read_time_ms=float(np.median([b.time_s - a.time_s for a, b in pairwise(load)])) * 1e3,
    )


def update_period_ms(series: Sequence[tuple[float, float]]) -> float | None:
    """Return the median time between changes of a reading, None with fewer than three changes."""
    changed_s = [now for (_, before), (now, value) in pairwise(series) if value != before]
    return float(np.median(np.diff(changed_s))) * 1e3 if len(changed_s) >= 3 else None


def rise_time_ms(series: Sequence[tuple[float, float]]) -> float | None:
    """Return the rise time, from 10 to 90 % of the step, of a reading; None where it does not rise."""
    if len(series) < 10:
        return None
    values = np.array([value for _, value in series])
    low, high = values[0], float(np.median(values[-len(values) // 4 :]))
    if high <= 1.2 * low:
        return None
    tenth_s = next(at for at, value in series if value >= low + 0.1 * (high - low))
    ninetieth_s = next(at for at, value in series if value >= low + 0.9 * (high - low))
    return (ninetieth_s - tenth_s) * 1e3


def averaging_window_ms(readings: Sequence[float], period_s: float) -> float | None:
    """Return the averaging time of a reading, computed from readings of a square wave at many phases.

    A reading that averages over w, of a wave of period p that is on for p/2, is between the two levels for a share
    2 w / p of the phases. Above p/2 it never reaches a level and the share grows no more: then half the period is
    returned, as a lower bound. None with fewer than ten distinct readings.
    """
    distinct = sorted(set(readings))
    if len(distinct) < 10:
        return None
    low, high = distinct[0], distinct[-1]
    margin = PLATEAU * (high - low)
    between = [value for value in distinct if low + margin < value < high - margin]
    share = len(between) / len(distinct) / (1 - 2 * PLATEAU)
    return min(1.0, share) * period_s / 2 * 1e3


def swing_pct(readings: Sequence[float], low_w: float | None, high_w: float | None) -> float | None:
    """Return the range of readings under a square wave as a share of the step from rest to load, in percent.

    A sensor that averages over all of the time reads the mean of the wave at any phase (near 0); one that measures
    during a part of each period reads anything between the levels (near 100).
    """
    if len(readings) < 10 or low_w is None or high_w is None or high_w <= low_w:
        return None
    least, most = np.percentile(readings, [5, 95])
    return float(100 * (most - least) / (high_w - low_w))


class _Reader:
    """Reads every sensor of a card in a thread; `take` returns the readings since the last call of it."""

    def __init__(self, card: nvml.NvmlCard) -> None:
        self._card = card
        self._readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)

    def __enter__(self) -> _Reader:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(READ_EVERY_S):
            self._readings.append(read(self._card))

    def take(self) -> list[Reading]:
        readings, self._readings = self._readings, []
        return readings


def read(card: nvml.NvmlCard) -> Reading:
    """Read every sensor of a card once."""
    before_s = time.perf_counter()
    try:
        counter_j: float | None = card.counter_j()
    except SensorError:
        counter_j = None
    middle_s = (before_s + time.perf_counter()) / 2
    return Reading(middle_s, counter_j, card.field(nvml.POWER_INSTANT), card.field(nvml.POWER_AVERAGE))


def _work_for(work: Callable[[], None], seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        work()


def _square_wave(work: Callable[[], None], period_s: float, seconds: float) -> None:
    started_s = time.perf_counter()
    for index in range(int(seconds / period_s)):
        on_s = started_s + index * period_s
        _work_for(work, on_s + period_s / 2 - time.perf_counter())
        time.sleep(max(0.0, on_s + period_s - time.perf_counter()))


def _series(readings: Sequence[Reading], name: str) -> list[tuple[float, float]]:
    values = [(reading.time_s, getattr(reading, name)) for reading in readings]
    return [(time_s, value) for time_s, value in values if value is not None]


def _samples(readings: Sequence[Reading]) -> list[Sample]:
    return [Sample(reading.time_s, reading.counter_j, reading.instant_w) for reading in readings]


def _window(readings: Sequence[Reading]) -> EnergyWindow | None:
    try:
        return energy.counter_window(_samples(readings), readings[0].time_s, readings[-1].time_s)
    except WindowError:
        return None


def _mean_power(readings: Sequence[Reading]) -> float | None:
    window, known = _window(readings), [value for _, value in _series(readings, "average_w")]
    return window.power_mean_w if window else float(np.mean(known)) if known else None


def _tick_powers(readings: Sequence[Reading]) -> list[float]:
    ticks = energy.ticks(_samples(readings))
    return [(now.energy_j - before.energy_j) / (now.time_s - before.time_s) for before, now in pairwise(ticks)]


def _disagreement_pct(readings: Sequence[Reading]) -> float | None:
    window = _window(readings)
    return window.disagreement_pct if window else None


def _same_energy(card: nvml.NvmlCard) -> bool | None:
    field_j = card.field(nvml.ENERGY_FIELD)
    if field_j is None:
        return None
    try:
        return abs(card.counter_j() - field_j) < 200.0  # they may be one update apart
    except SensorError:
        return None
