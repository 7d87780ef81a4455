"""Power and energy on a real card."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from convscope import gpus
from convscope.power import energy, nvml, sensor_test
from convscope.power.energy import Conditions
from convscope.timing import graphs
from convscope.timing.stopwatch import Stopwatch
from profiler import PowerMonitor, UnifiedProfiler

pytestmark = pytest.mark.quiet


@pytest.fixture
def monitor():
    with PowerMonitor.of_device(torch.device("cuda:0")) as opened:
        if opened.reason:
            pytest.skip(opened.reason)
        yield opened


def uuid_of_card() -> str:
    properties = torch.cuda.get_device_properties(0)
    return gpus.uuid(properties.name, properties.uuid)


def test_the_card_is_found_by_the_uuid_that_pytorch_gives():
    uuid = uuid_of_card()
    module = nvml.load()
    assert uuid in nvml.visible_uuids(module, None)
    assert nvml.visible_uuids(module, uuid[:12]) == [uuid]


def test_counter_and_integral_agree_under_steady_load(monitor: PowerMonitor):
    work = graphs.full_load()
    work()
    with monitor.window() as whole:
        end = time.perf_counter() + 1.5
        with monitor.window() as inner:
            while time.perf_counter() < end:
                work()
        while time.perf_counter() < end + 1.0:
            work()
    first, second = whole.energies[0], inner.energies[0]
    assert first is not None
    assert second is not None
    assert first.source == energy.COUNTER
    assert first.energy_j > second.energy_j
    for found in (first, second):
        assert found.power_mean_w > 300
        assert found.disagreement_pct is not None
        assert abs(found.disagreement_pct) < 5


def test_load_takes_more_power_than_rest(monitor: PowerMonitor):
    idle_w = monitor.idle_power_w()
    work = graphs.full_load()
    with monitor.window() as window:
        end = time.perf_counter() + 1.5
        while time.perf_counter() < end:
            work()
    assert window.energies[0].power_mean_w > 1.5 * idle_w


def test_the_time_that_the_power_limit_held_the_card_back_is_counted_in_nanoseconds(monitor: PowerMonitor):
    before, work = monitor.state(), graphs.full_load()
    if energy.POWER_CAP not in before.held_back_s:
        pytest.skip("this card does not count the time of the power limit")
    end = time.perf_counter() + 4.0
    capped = False
    while time.perf_counter() < end:
        work()
        capped = capped or energy.POWER_CAP in (monitor.state().throttle_reasons or "")
    after = monitor.state()
    raw_pct = 100 * (after.held_back_s[energy.POWER_CAP] - before.held_back_s[energy.POWER_CAP]) / 4.0
    assert 0 <= raw_pct < 105
    if capped:
        assert Conditions(before, after).throttle_power_pct > 1.0


@pytest.mark.parametrize("milliseconds", [2.0, 30.0, 200.0])
def test_the_passes_of_an_energy_window_last_as_long_as_those_that_are_timed(
    monitor: PowerMonitor, milliseconds: float
):
    numbers = torch.zeros(2**28, device="cuda")  # the memory's speed does not depend on the power limit
    calls = round(milliseconds / Stopwatch(numbers.device).pass_ms(lambda: numbers.add_(1.0)))
    with graphs.capture(lambda: [numbers.add_(1.0) for _ in range(calls)]) as captured:
        load = graphs.settle(captured)
        found, reason = monitor.steady(load)
    assert found is not None, reason
    assert found.pass_s == pytest.approx(load.pass_ms / 1e3, rel=0.01)
    assert found.relative_uncertainty <= 0.01


def test_a_row_without_energy_has_the_state_of_the_card(tmp_path: Path):
    overall, _ = UnifiedProfiler("alexnet", "torch", num_sizes=1, measure_energy=False, note=print).run(tmp_path)
    row = overall.iloc[0]
    assert row["sm_clock_mhz"] > 0
    assert row["temperature_start_c"] > 0
    assert isinstance(row["throttle_reasons"], str)
    assert overall["energy_per_inference_j"].isna().all()


def test_layers_and_rest_add_up_to_the_pass(tmp_path: Path):
    run = UnifiedProfiler("alexnet", "implicit precomp gemm", num_sizes=1, measure_iters=3, layer_energy=True)
    overall, layers = run.run(tmp_path)
    assert layers["energy_j"].notna().all()
    assert (layers["energy_uncertainty_j"] < 0.02 * layers["energy_j"]).all()
    assert overall.iloc[0]["energy_layers_sum_j"] == pytest.approx(layers["energy_j"].sum())
    assert abs(overall.iloc[0]["energy_residual_pct"]) < 30


def test_a_precision_that_the_budget_does_not_allow_leaves_the_cell_empty_and_says_what_it_would_take(tmp_path: Path):
    run = UnifiedProfiler("alexnet", "torch", num_sizes=1, energy_precision=1e-6, energy_budget_s=1.5, note=print)
    overall, _ = run.run(tmp_path)
    assert overall["energy_per_inference_j"].isna().all()
    assert "needs a window of" in overall.iloc[0]["reason"]
    assert overall.iloc[0]["status"] == "ok"


def test_the_sensor_report_has_periods(monkeypatch: pytest.MonkeyPatch):
    for name, seconds in (("IDLE_S", 1.0), ("LOAD_S", 2.0), ("WAVE_S", 2.0), ("REST_S", 0.2)):
        monkeypatch.setattr(sensor_test, name, seconds)
    card = nvml.NvmlCard(uuid_of_card())
    found = sensor_test.check(card, graphs.full_load(), torch.cuda.get_device_name())
    card.close()
    assert found.counter_period_ms is not None
    assert 5 < found.counter_period_ms < 500
    assert found.load_power_w > found.idle_power_w
