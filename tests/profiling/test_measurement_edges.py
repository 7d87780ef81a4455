"""Rows of a measurement whose parts are there or not: eager passes, energy, the breakdown of energy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fakes import layer, run

from convscope.convolution.assignment import Assignment
from convscope.convolution.observation import Observation
from convscope.convolution.providers.plan import Execution
from convscope.power import energy
from convscope.power.energy import EnergyWindow, LoadEnergy
from convscope.profiling.layer_energy import ATTRIBUTION, Breakdown, LayerEnergy
from convscope.profiling.measurement import Measurement, layer_rows, overall_row
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.timing.summary import summarize
from convscope.timing.trace import LayerTrace

LAYERS = [layer(name="a"), layer(name="b", position=1)]
SEEN = Observation("gemm", Execution("gemm", "cudnn", 256), 1e-7)
# A pass of 10 ms, of which 200 are in a window of 2 s.
WINDOW = EnergyWindow(10.0, 12.0, 600.0, 6.0, energy.COUNTER, integral_j=630.0, power_samples=40)
LOAD = LoadEnergy(WINDOW, inferences=200.0)
ALONE = Breakdown((LayerEnergy(1.5, 0.25), LayerEnergy(None, None, "too short")), rest_j=0.5)
BOTH = Breakdown((LayerEnergy(1.5, 0.25), LayerEnergy(1.0, 0.125)), rest_j=0.8)


def measured(**changes: Any) -> Measurement:
    found = Measurement(
        summarize([10.0, 10.0]), [summarize([4.0, 6.0]), summarize([2.5])], "m", observations=[SEEN] * 2
    )
    return dataclasses.replace(found, **changes)


def overall(**changes: Any) -> OverallRow:
    assigned = Assignment({"a": "gemm", "b": "gemm"}, {})
    found = measured(**changes)
    layers = layer_rows(run(), 64, LAYERS, found, assigned)
    return overall_row(run(), 64, found, assigned, layers, "2026-01-01T00:00:00+00:00", 3.5)


def rows(reasons: dict[str, str] | None = None, unsupported: str = "fallback", **changes: Any) -> list[LayerRow]:
    assigned = Assignment({"a": "gemm", "b": "gemm"}, reasons or {})
    return layer_rows(run(unsupported=unsupported, dtype="float16"), 64, LAYERS, measured(**changes), assigned)


def test_eager_passes_have_their_cells_where_there_are_any():
    row = overall(eager=summarize([12.0, 14.0, 16.0]))
    assert (row.eager_mean_ms, row.eager_std_ms, row.eager_samples) == (14.0, 2.0, 3)
    row = overall()
    assert (row.eager_mean_ms, row.eager_std_ms, row.eager_samples) == (None, None, None)


def test_figures_of_the_whole_are_what_was_measured():
    row = overall(repeated=3, overhead_us=1.5, peak_memory_bytes=4096, energy_reason="no sensor")
    assert (row.repeated_samples, row.event_overhead_us, row.peak_memory_bytes, row.reason) == (
        3,
        1.5,
        4096,
        "no sensor",
    )
    assert (row.layers_sum_ms, row.convolutions, row.fallback_layers, row.unsupported_layers) == (7.5, 2, 0, 0)
    assert (row.mean, row.std, row.mean_ci95_ms, row.samples, row.median_ms) == (10.0, 0.0, 0.0, 2, 10.0)
    assert (row.started_utc, row.wall_s) == ("2026-01-01T00:00:00+00:00", 3.5)


def test_the_first_of_several_wrong_layers_is_named_with_their_number():
    row = overall(observations=[dataclasses.replace(SEEN, relative_error=error) for error in (0.5, 0.25)])
    assert (row.status, row.wrong_layers) == ("wrong", 2)
    assert (row.reason or "").startswith("2 of 2 layers wrong: a, relative error 0.5, tolerance ")


def test_energy_has_all_its_cells():
    row = overall(energy=LOAD, idle_power_w=100.0)
    assert (row.energy_total_j, row.energy_per_inference_j, row.energy_uncertainty_j) == (
        600.0,
        3.0,
        pytest.approx(0.03),
    )
    assert (row.energy_window_s, row.energy_inferences, row.energy_source) == (2.0, 200.0, energy.COUNTER)
    assert (row.power_mean_w, row.power_samples, row.energy_dynamic_j) == (300.0, 40, pytest.approx(2.0))
    assert row.energy_disagreement_pct == pytest.approx(5.0)
    assert (row.idle_power_w, row.reason) == (100.0, None)


def test_without_idle_power_there_is_no_dynamic_energy_and_without_energy_none_at_all():
    assert overall(energy=LOAD).energy_dynamic_j is None
    assert overall(idle_power_w=100.0).energy_dynamic_j is None


@pytest.mark.parametrize(
    ("load", "breakdown", "cells"),
    [
        (LOAD, BOTH, (2.5, 0.8, pytest.approx(10.0))),
        (LOAD, ALONE, (None, 0.5, None)),
        (None, BOTH, (2.5, 0.8, None)),
        (LOAD, None, (None, None, None)),
    ],
)
def test_a_breakdown_is_compared_with_the_energy_of_the_pass(load, breakdown, cells):
    row = overall(energy=load, breakdown=breakdown)
    assert (row.energy_layers_sum_j, row.energy_rest_j, row.energy_residual_pct) == cells


def test_the_energy_of_a_layer_has_its_uncertainty_and_attribution_or_a_reason():
    one, other = rows(breakdown=ALONE)
    assert (one.energy_j, one.energy_uncertainty_j, one.energy_attribution, one.reason) == (
        1.5,
        0.25,
        ATTRIBUTION,
        None,
    )
    assert (other.energy_j, other.energy_uncertainty_j, other.energy_attribution) == (None, None, None)
    assert (other.status, other.reason) == ("ok", "too short")
    assert {(row.energy_j, row.energy_uncertainty_j, row.energy_attribution, row.reason) for row in rows()} == {
        (None, None, None, None)
    }


def test_the_reason_of_a_fallback_stands_before_that_of_the_energy():
    one, other = rows({"b": "not this one"}, breakdown=ALONE)
    assert (one.status, other.status, other.reason) == ("ok", "fallback", "not this one")


def test_work_and_shape_of_a_layer_are_its_own():
    one, other = rows()
    assert (one.percentage, one.mean_ms, one.samples, one.std_ms) == (50.0, 5.0, 2, pytest.approx(2.0**0.5))
    assert (other.percentage, other.mean_ms, other.samples, other.std_ms) == (25.0, 2.5, 1, None)
    assert (one.flops, one.bytes) == (LAYERS[0].flops, LAYERS[0].minimum_bytes(2))
    assert (one.out_height_px, one.out_width_px, one.position, other.position) == (56, 56, 0, 1)


@pytest.mark.parametrize("unsupported", ["fallback", "skip"])
def test_only_a_skipped_layer_has_no_times(unsupported: str):
    traces = [LayerTrace({"k": 1}, 3.5, 4.5), LayerTrace({"k": 2}, 1.5, 2.5)]
    one, other = rows({"b": "not this one"}, unsupported, traces=traces)
    assert (one.kernel_ms, one.mean_ms, one.percentage, one.samples) == (3.5, 5.0, 50.0, 2)
    skipped = (None, None, None, None)
    assert (one.timing_method, other.timing_method) == ("m", None if unsupported == "skip" else "m")
    assert (other.kernel_ms, other.mean_ms, other.percentage, other.samples) == (
        skipped if unsupported == "skip" else (1.5, 2.5, 25.0, 1)
    )
    assert (one.kernels, other.kernels) == ('{"k": 1}', '{"k": 2}')
