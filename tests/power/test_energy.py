"""Joules with an uncertainty from a sensor's readings, or a reason why not."""

from __future__ import annotations

import pytest

from convscope.errors import WindowError
from convscope.power import energy
from convscope.power.energy import EnergyWindow, LoadEnergy, Sample


def counter(tick_s: float = 0.1, power_w: float = 300.0, until_s: float = 3.0) -> list[Sample]:
    """Return looks every millisecond at a counter under constant power that changes every `tick_s`."""
    times_s = [0.001 * look for look in range(int(until_s / 0.001))]
    return [Sample(time_s, int(time_s / tick_s) * tick_s * power_w, None) for time_s in times_s]


def test_a_tick_lies_between_the_looks_around_it():
    (tick,) = energy.ticks([Sample(1.0, 5.0, None), Sample(1.2, 5.0, None), Sample(1.4, 8.0, None)])
    assert (tick.time_s, tick.half_width_s, tick.energy_j) == pytest.approx((1.3, 0.1, 8.0))


def test_a_counter_that_went_backwards_is_refused_with_its_values():
    with pytest.raises(WindowError, match=r"went back from 9\.000 J to 4\.000 J"):
        energy.ticks([Sample(1.0, 9.0, None), Sample(2.0, 4.0, None)])


def test_a_window_begins_and_ends_on_ticks_inside_its_bounds():
    found = energy.counter_window(counter(), 0.55, 2.55)
    assert (found.start_s, found.end_s) == pytest.approx((0.6, 2.5), abs=0.002)


def test_constant_power_is_found_to_the_time_between_two_looks():
    found = energy.counter_window(counter(power_w=300.0), 0.5, 2.6)
    assert found.energy_j == pytest.approx(300.0 * found.duration_s, abs=300.0 * 0.002)


@pytest.mark.parametrize(("end_s", "count"), [(0.05, 0), (0.15, 1)])
def test_a_window_needs_two_ticks(end_s: float, count: int):
    with pytest.raises(WindowError, match=f"ticked {count} times in .* a window needs two"):
        energy.counter_window(counter(), 0.0, end_s)


def test_the_integral_of_a_ramp_is_its_area():
    ramp = [Sample(0.1 * step, None, 100.0 * step) for step in range(11)]
    assert energy.integrate(ramp, 0.25, 0.75) == pytest.approx(250.0)


def test_readings_that_do_not_cover_the_window_are_refused():
    with pytest.raises(WindowError, match="do not cover the window"):
        energy.integrate([Sample(1.0, None, 100.0), Sample(2.0, None, 100.0)], 0.5, 1.5)


def test_energy_of_one_inference_is_the_windows_over_the_inferences_in_it():
    window = EnergyWindow(1.0, 3.0, energy_j=600.0, uncertainty_j=6.0, source=energy.COUNTER)
    found = LoadEnergy(window, inferences=200.0)
    assert (found.per_inference_j, found.uncertainty_j) == (3.0, 0.03)


def test_dynamic_energy_leaves_out_what_an_idle_card_would_have_taken():
    window = EnergyWindow(1.0, 3.0, energy_j=600.0, uncertainty_j=6.0, source=energy.COUNTER)
    assert LoadEnergy(window, inferences=200.0).dynamic_j(idle_power_w=100.0) == pytest.approx(2.0)
