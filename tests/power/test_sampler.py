"""When sensors are sampled, and what is kept."""

from __future__ import annotations

import threading
import time

import pytest
from fakes.sensors import Card, Clock, Power, constant

from convscope.power import energy
from convscope.power.sampler import Sampler
from profiler import PowerMonitor


class Real(Card):
    """A card by the real clock that counts the looks at it."""

    looks = 0

    def read(self) -> tuple[float, float]:
        self.looks += 1
        return time.perf_counter() * 100.0, 100.0


def threads() -> int:
    return sum(thread.name == "power" for thread in threading.enumerate())


def wait_for_looks(card: Real, count: int) -> None:
    until_s = time.perf_counter() + 30
    while card.looks < count:
        assert time.perf_counter() < until_s
        time.sleep(0.001)


@pytest.fixture
def card() -> Real:
    return Real(Clock(), constant(100.0))


def test_a_monitor_whose_energy_nobody_asks_for_takes_no_samples(card: Real):
    with PowerMonitor([card], period_s=0.001) as monitor:
        assert monitor.state().sm_clock_mhz == 1980
        assert threads() == 0
        time.sleep(0.02)
    assert card.looks == 0


def test_the_thread_runs_while_a_window_is_open_and_not_before_or_after(card: Real):
    with PowerMonitor([card], period_s=0.001) as monitor:
        assert threads() == 0
        with monitor.window():
            assert threads() == 1
            wait_for_looks(card, 4)
        assert threads() == 0
        looks = card.looks
        time.sleep(0.02)
        assert card.looks == looks


def test_windows_in_each_other_share_one_thread(card: Real):
    with PowerMonitor([card], period_s=0.001) as monitor:
        with monitor.window():
            with monitor.window():
                assert threads() == 1
            assert threads() == 1
        assert threads() == 0


def test_a_window_that_is_never_closed_ends_with_the_monitor(card: Real):
    with PowerMonitor([card], period_s=0.001) as monitor:
        monitor.begin()
        assert threads() == 1
    assert threads() == 0


def sampled(power: Power, seconds: float, **options: float) -> tuple[Sampler, Clock]:
    clock = Clock()
    sampler = Sampler([Card(clock, power, look_s=0.001, **options)], clock, None)
    until_s = clock.now_s + seconds
    while clock.now_s < until_s:
        sampler.poll()
    return sampler, clock


def test_of_a_reading_that_does_not_change_the_first_and_last_sample_are_kept():
    sampler, _ = sampled(constant(300.0), 3.0)
    (samples,) = sampler._samples
    assert len(samples) == pytest.approx(2 * 30, abs=3)
    assert [tick.half_width_s for tick in energy.ticks(samples)] == pytest.approx([0.0005] * len(energy.ticks(samples)))


def test_a_window_has_the_same_energy_as_with_every_sample():
    sampler, _ = sampled(Power([(100.0, 300.0), (103.0, 400.0)]), 3.0)
    found = sampler.energy(0, 100.3, 102.7)
    truth_j = Power([(100.0, 300.0), (103.0, 400.0)]).energy_j
    assert found.energy_j == pytest.approx(truth_j(found.end_s) - truth_j(found.start_s), rel=0.002)
    assert found.integral_j == pytest.approx(found.energy_j, rel=0.05)


def test_a_power_that_stood_still_for_long_before_a_window_covers_its_beginning():
    clock = Clock()
    card = Card(clock, Power([(105.0, 100.0), (105.1, 300.0)]), source=energy.AVERAGE, look_s=0.001)
    sampler = Sampler([card], clock, None)
    while clock.now_s < 106.0:
        sampler.poll()
    assert sampler.energy(0, 104.5, 105.9).energy_j == pytest.approx(0.6 * 100 + 0.8 * 300, rel=0.1)


def test_samples_of_windows_long_closed_are_dropped_when_the_next_one_opens():
    sampler, clock = sampled(constant(300.0), 1.0)
    clock.sleep(59.5)
    with sampler:
        assert 0 < len(sampler._samples[0]) < 15
    clock.sleep(10.0)
    with sampler:
        assert sampler._samples == [[]]
