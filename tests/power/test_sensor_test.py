"""The sensor self-test's figures from looks at a sensor whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.sensors import Card, Clock, Power, square_wave

from convscope.power import energy, sensor_test
from convscope.power.sensor_test import Reading, SensorReport
from convscope.profiling.report import save, sensor_report

LOOK_S = 0.005
LOW_W, HIGH_W = 100.0, 700.0


def looks(
    power: Power, start_s: float, seconds: float, instant_s: float = 0.025, average_s: float = 1.0
) -> list[Reading]:
    """Look at a card whose counter sees everything and whose instant power sees `instant_s` of each 100 ms."""
    clock = Clock()
    clock.now_s = start_s
    counter = Card(clock, power, look_s=0.0)
    counter._zero_s = 0.0
    instant = Card(clock, power, source=energy.INSTANT, boxcar_s=instant_s, look_s=0.0, noise_w=0.5)
    average = Card(clock, power, source=energy.AVERAGE, boxcar_s=average_s, look_s=0.0, noise_w=0.5)
    found = []
    while clock.now_s < start_s + seconds:
        found.append(Reading(clock.now_s, counter.read()[0], instant.read()[1], average.read()[1]))
        clock.sleep(LOOK_S)
    return found


@pytest.fixture(scope="module")
def report() -> SensorReport:
    step = Power([(0.0, LOW_W), (110.0, LOW_W), (110.001, HIGH_W)])
    return sensor_test.report(
        looks(Power([(0.0, LOW_W)]), 100.0, 3.0),
        looks(step, 109.99, 4.0),
        looks(square_wave(LOW_W, HIGH_W, 0.107, 140.0), 120.0, 10.0),
        gpu_name="NVIDIA Simulated",
        driver="1.0",
        wave_period_s=0.107,
        memory_power_w=None,
        energy_field_equals_counter=True,
    )


def test_periods_are_those_of_the_sensor(report: SensorReport):
    assert report.counter_period_ms == pytest.approx(100, abs=5)
    assert report.instant_period_ms == pytest.approx(100, abs=5)
    assert report.average_period_ms == pytest.approx(100, abs=5)


def test_levels_are_those_of_the_load(report: SensorReport):
    assert report.idle_power_w == pytest.approx(LOW_W, rel=0.02)
    assert report.load_power_w == pytest.approx(HIGH_W, rel=0.02)


def test_the_average_takes_as_long_to_rise_as_it_averages(report: SensorReport):
    assert report.average_window_ms == pytest.approx(1000, rel=0.15)


def test_a_part_time_sensor_is_known_by_its_window_and_its_swing(report: SensorReport):
    assert report.instant_window_ms == pytest.approx(25, abs=12)
    assert report.instant_swing_pct > 80
    assert report.counter_swing_pct < 30


def test_counter_and_integral_agree_at_rest_and_under_load(report: SensorReport):
    assert abs(report.idle_disagreement_pct) < 1
    assert abs(report.load_disagreement_pct) < 1


def test_a_reading_that_never_changes_has_no_period():
    assert sensor_test.update_period_ms([(at / 10, 5.0) for at in range(50)]) is None


def test_a_reading_that_never_rises_has_no_rise_time():
    assert sensor_test.rise_time_ms([(at / 10, 5.0) for at in range(50)]) is None


def test_a_rise_is_timed_from_a_tenth_to_nine_tenths():
    ramp = [(at / 100, 100.0 + 4.0 * min(at, 100)) for at in range(200)]
    assert sensor_test.rise_time_ms(ramp) == pytest.approx(800, abs=20)


def test_a_window_as_long_as_half_the_wave_is_a_lower_bound():
    assert sensor_test.averaging_window_ms([100.0 + at for at in range(100)], 0.1) == pytest.approx(50.0)


def test_too_few_readings_tell_nothing():
    assert sensor_test.averaging_window_ms([1.0, 2.0, 3.0], 0.1) is None
    assert sensor_test.swing_pct([1.0], 100.0, 700.0) is None


def test_the_report_is_saved_as_json(report: SensorReport, tmp_path: Path):
    save(report, tmp_path / "results" / "sensor_simulated.json")
    saved = json.loads((tmp_path / "results" / "sensor_simulated.json").read_text())
    assert saved["gpu_name"] == "NVIDIA Simulated"
    assert saved["memory_power_w"] is None


def test_the_report_is_printed_with_what_is_missing_as_a_dash(report: SensorReport):
    text = sensor_report(report)
    assert "memory power - W; energy field 191 equals the counter" in text
    assert any(line.startswith("energy counter") and " 100 " in line for line in text.splitlines())
