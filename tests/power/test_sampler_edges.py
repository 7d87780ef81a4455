"""The sampler at its edges: the moment of a sample, the samples that belong to a window, those that are kept."""

from __future__ import annotations

import threading

import pytest
from fakes.sensors import Card, Clock, constant

from convscope.errors import SensorError, WindowError
from convscope.power import energy
from convscope.power.energy import Sample
from convscope.power.sampler import Sampler
from profiler import PowerMonitor


class Scripted(Card):
    """A sensor that says one thing after another; a look takes half a second."""

    def __init__(
        self, clock: Clock, *readings: tuple[float | None, float | None], source: str = energy.COUNTER
    ) -> None:
        super().__init__(clock, constant(100.0), source=source)
        self._readings = list(readings)

    def read(self) -> tuple[float | None, float | None]:
        self.clock.sleep(0.5)
        if not self._readings:
            raise SensorError("it is gone")
        return self._readings.pop(0)


def filled(source: str, *samples: tuple[float, float | None, float | None]) -> Sampler:
    """Return a sampler of one sensor that has taken these samples: time, joules, watts."""
    sampler = Sampler([Scripted(Clock(), source=source)], Clock(), None)
    sampler._samples[0] += [Sample(*one) for one in samples]
    return sampler


def test_a_sample_is_of_the_middle_of_its_look():
    clock = Clock()
    sampler = Sampler([Scripted(clock, (1.0, 2.0), (3.0, 4.0))], clock, None)
    sampler.poll()
    clock.sleep(1.0)
    sampler.poll()
    assert sampler._samples == [[Sample(100.25, 1.0, 2.0), Sample(101.75, 3.0, 4.0)]]


def test_of_readings_that_do_not_change_the_first_and_the_last_are_kept():
    clock = Clock()
    sampler = Sampler([Scripted(clock, *[(1.0, 2.0)] * 4, (3.0, 2.0), (1.0, 2.0))], clock, None)
    times_s = []
    for _ in range(6):
        sampler.poll()
        times_s.append([sample.time_s for sample in sampler._samples[0]])
    assert times_s[:3] == [[100.25], [100.25, 100.75], [100.25, 101.25]]
    assert times_s[3:] == [[100.25, 101.75], [100.25, 101.75, 102.25], [100.25, 101.75, 102.25, 102.75]]


def test_a_sensor_that_fails_leaves_its_reason_and_no_sample():
    clock = Clock()
    sampler = Sampler([Scripted(clock)], clock, None)
    sampler.poll()
    assert sampler.failure == "it is gone"
    assert sampler._samples == [[]]


def test_without_a_period_no_thread_is_started_and_pausing_takes_a_sample():
    clock = Clock()
    with Sampler([Scripted(clock, (1.0, 2.0))], clock, None) as sampler:
        assert not [thread for thread in threading.enumerate() if thread.name == "power"]
        sampler.pause(clock.sleep, 4.0)
    assert clock.now_s == 104.5
    assert len(sampler._samples[0]) == 1


def test_without_sensors_no_thread_is_started():
    with Sampler([], Clock(), 0.001):
        assert not [thread for thread in threading.enumerate() if thread.name == "power"]


def test_the_edge_of_a_window_is_interpolated_from_a_sample_a_second_before_it():
    samples = (9.0, None, 100.0), (11.0, None, 200.0), (12.0, None, 300.0)
    found = filled(energy.AVERAGE, *samples).energy(0, 10.0, 12.0)
    assert found.energy_j == 175.0 + 250.0


@pytest.mark.parametrize(("reset_s", "matters"), [(8.5, False), (9.5, True)])
def test_a_counter_that_was_set_back_more_than_a_second_before_a_window_is_no_matter(reset_s: float, matters: bool):
    times_s = [8.25, 8.75, 9.25, 9.75, 10.25, 10.75, 11.25]
    samples = [(time_s, (50.0 if time_s < reset_s else 0.0) + time_s, None) for time_s in times_s]
    sampler = filled(energy.COUNTER, *samples)
    if matters:
        with pytest.raises(WindowError, match="went back"):
            sampler.energy(0, 10.0, 12.0)
    else:
        assert sampler.energy(0, 10.0, 12.0).energy_j == 1.0


@pytest.mark.parametrize(("source", "averaging_s"), [(energy.INSTANT, 0.1), (energy.AVERAGE, 1.0)])
def test_power_is_uncertain_by_the_averaging_time_of_its_sensor(source: str, averaging_s: float):
    samples = [Sample(float(time_s), None, 100.0 * time_s) for time_s in range(4)]
    sampler = filled(source, *((one.time_s, None, one.power_w) for one in samples))
    assert sampler.energy(0, 1.0, 3.0) == energy.power_window(samples, 1.0, 3.0, averaging_s, source)


def test_a_counter_is_used_where_the_sensor_has_one():
    samples = [(float(time_s), 7.0 * time_s, 100.0) for time_s in range(5)]
    found = filled(energy.RAPL, *samples).energy(0, 0.0, 5.0)
    assert (found.energy_j, found.source, found.integral_j) == (21.0, energy.RAPL, 300.0)


def test_the_energy_is_of_the_sensor_that_was_asked_for():
    sampler = Sampler([Scripted(Clock()), Scripted(Clock())], Clock(), None)
    sampler._samples[0] += [Sample(float(time_s), 7.0 * time_s, None) for time_s in range(5)]
    sampler._samples[1] += [Sample(float(time_s), 9.0 * time_s, None) for time_s in range(5)]
    assert [sampler.energy(index, 0.0, 5.0).energy_j for index in (0, 1)] == [21.0, 27.0]


class Broken:
    """A load that fails at its first step."""

    def step(self) -> None:
        raise RuntimeError("it broke")


def test_samples_are_kept_for_a_minute():
    clock = Clock()
    monitor = PowerMonitor([Card(clock, constant(100.0))], clock=clock, sleep=clock.sleep, period_s=None)
    monitor._sampler._samples[0] += [Sample(time_s, 0.0, 100.0) for time_s in (39.0, 40.0, 41.0)]
    with pytest.raises(RuntimeError, match="it broke"), monitor:
        monitor.steady(Broken())
    assert [one.time_s for one in monitor._sampler._samples[0]][:2] == [40.0, 41.0]
