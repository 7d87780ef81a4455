"""Power and energy on a real card."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from convscope.power import energy, nvml, sensor_test
from convscope.timing import graphs
from profiler import PowerMonitor, UnifiedProfiler


@pytest.fixture
def monitor():
    with PowerMonitor.of_device(torch.device("cuda:0")) as opened:
        if opened.reason:
            pytest.skip(opened.reason)
        yield opened


def test_the_card_is_found_by_the_uuid_that_pytorch_gives():
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
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
        assert abs(found.disagreement_pct) < 5


def test_load_takes_more_power_than_rest(monitor: PowerMonitor):
    idle_w = monitor.idle_power_w()
    work = graphs.full_load()
    with monitor.window() as window:
        end = time.perf_counter() + 1.5
        while time.perf_counter() < end:
            work()
    assert window.energies[0].power_mean_w > 1.5 * idle_w


def test_layers_and_rest_add_up_to_the_pass(tmp_path: Path):
    run = UnifiedProfiler("alexnet", "implicit precomp gemm", num_sizes=1, measure_iters=3, layer_energy=True)
    overall, layers = run.run(tmp_path)
    assert layers["energy_j"].notna().all()
    assert (layers["energy_uncertainty_j"] < 0.02 * layers["energy_j"]).all()
    assert overall.iloc[0]["energy_layers_sum_j"] == pytest.approx(layers["energy_j"].sum())
    assert abs(overall.iloc[0]["energy_residual_pct"]) < 30


def test_a_precision_that_the_budget_does_not_allow_leaves_the_cell_empty_and_says_what_it_would_take(tmp_path: Path):
    run = UnifiedProfiler("alexnet", "torch", num_sizes=1, energy_precision=1e-6, energy_budget_s=1.5, note=str)
    overall, _ = run.run(tmp_path)
    assert overall["energy_per_inference_j"].isna().all()
    assert "needs a window of" in overall.iloc[0]["reason"]
    assert overall.iloc[0]["status"] == "ok"


def test_the_sensor_report_has_periods(monkeypatch: pytest.MonkeyPatch):
    for name, seconds in (("IDLE_S", 1.0), ("LOAD_S", 2.0), ("WAVE_S", 2.0), ("REST_S", 0.2)):
        monkeypatch.setattr(sensor_test, name, seconds)
    card = nvml.NvmlCard(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    found = sensor_test.check(card, graphs.full_load(), torch.cuda.get_device_name())
    card.close()
    assert found.counter_period_ms is not None
    assert 5 < found.counter_period_ms < 500
    assert found.load_power_w > found.idle_power_w
