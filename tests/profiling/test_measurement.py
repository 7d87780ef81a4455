"""The rows that a measurement becomes."""

from __future__ import annotations

import dataclasses
import json

import pytest
from fakes import layer, run

from convscope.convolution.assignment import Assignment
from convscope.convolution.observation import Observation
from convscope.convolution.providers.plan import Execution
from convscope.failures import Failure
from convscope.power.energy import CardState, Conditions, EnergyWindow, LoadEnergy
from convscope.profiling.layer_energy import Breakdown, LayerEnergy
from convscope.profiling.measurement import Measurement, failed_row, layer_rows, overall_row
from convscope.profiling.request import Run
from convscope.profiling.rows import LayerRow, OverallRow
from convscope.timing.summary import summarize
from convscope.timing.trace import LayerTrace

LAYERS = [layer(name="a"), layer(name="b", position=1, kernel=(1, 7), padding=(0, 3))]
NO_REASONS = Assignment({"a": "gemm", "b": "gemm"}, {})
ONE_REASON = Assignment({"a": "gemm", "b": "torch"}, {"b": "not this one"})
FOUND = Measurement(
    passes=summarize([9.0, 11.0]),
    layers=[summarize([4.0, 6.0]), summarize([2.0, 2.0])],
    method="a stopwatch",
    eager=summarize([12.0, 14.0]),
    observations=[
        Observation("gemm", Execution("gemm", "cudnn", 256), 1e-7),
        Observation("torch", Execution("torch", "torch")),
    ],
)
CONDITIONS = Conditions(
    CardState(temperature_c=40, time_s=1.0, held_back_s={"power cap": 3.0}),
    CardState(temperature_c=50, sm_clock_mhz=1700, time_s=3.0, held_back_s={"power cap": 4.0}),
)
TRACED = [LayerTrace({"k1": 2, "k2": 1}, 3.5, 4.5), LayerTrace({"k3": 1}, 1.5, None)]


def overall(found: Measurement = FOUND, assigned: Assignment = NO_REASONS, asked: Run | None = None) -> OverallRow:
    asked = asked or run()
    layers = layer_rows(asked, 64, LAYERS, found, assigned)
    return overall_row(asked, 64, found, assigned, layers, "2026-01-01T00:00:00+00:00", 3.0)


def rows(assigned: Assignment = NO_REASONS, found: Measurement = FOUND, **changes: str) -> list[LayerRow]:
    return layer_rows(run(**changes), 64, LAYERS, found, assigned)


def test_the_overall_row_holds_the_times_of_the_pass():
    row = overall()
    assert (row.mean, row.min, row.max, row.samples, row.eager_mean_ms) == (10.0, 9.0, 11.0, 2, 13.0)


def test_the_overall_row_adds_the_layers_up():
    assert (overall().layers_sum_ms, overall().convolutions) == (7.0, 2)


def test_the_overall_row_says_how_it_was_timed_and_with_what_settings():
    row = overall(asked=run(batch_size=4, math="tf32", device="cuda:0"))
    assert (row.timing_method, row.batch_size, row.math, row.device) == ("a stopwatch", 4, "tf32", "cuda:0")


def test_without_an_energy_window_its_cells_are_empty():
    row = overall()
    assert {row.power_mean_w, row.energy_per_inference_j, row.energy_window_s, row.energy_source} == {None}


def test_an_energy_window_becomes_power_and_energy_of_an_inference():
    window = EnergyWindow(start_s=10.0, end_s=12.0, energy_j=600.0, uncertainty_j=6.0, source="a counter")
    found = dataclasses.replace(FOUND, energy=LoadEnergy(window, inferences=200.0))
    row = overall(found)
    assert (row.power_mean_w, row.energy_per_inference_j, row.energy_window_s) == (300.0, 3.0, 2.0)


def with_energy(pass_s: float, reason: str | None = None, rest_s: float = 0.0) -> OverallRow:
    window = EnergyWindow(start_s=10.0, end_s=12.0, energy_j=600.0, uncertainty_j=6.0, source="a counter")
    energy = LoadEnergy(window, inferences=2.0 / pass_s, conditions=CONDITIONS, rest_s=rest_s)
    return overall(dataclasses.replace(FOUND, energy=energy, energy_reason=reason))


@pytest.mark.parametrize(
    ("pass_s", "excess_pct", "reason"),
    [
        (0.0100, 0.0, None),
        (0.01009, 0.9, None),
        (0.01015, 1.5, "the passes whose energy was measured were 1.5 % longer than mean"),
        (0.0102, 2.0, "the passes whose energy was measured were 2.0 % longer than mean"),
        (0.0098, -2.0, "the passes whose energy was measured were 2.0 % shorter than mean"),
    ],
)
def test_a_row_says_where_the_passes_of_its_energy_are_not_those_of_its_time(
    pass_s: float, excess_pct: float, reason: str | None
):
    row = with_energy(pass_s)
    assert row.energy_pass_vs_mean_pct == pytest.approx(excess_pct, abs=1e-9)
    assert (row.status, row.reason) == ("ok", reason)


def test_a_row_says_where_its_energy_was_measured_with_rests():
    said = "inferences kept step with the power sensor: 3.2 µs of rest after each are taken off"
    assert with_energy(0.01, rest_s=3.2e-6).reason == said
    longer = "the passes whose energy was measured were 2.0 % longer than mean"
    assert with_energy(0.0102, rest_s=3.2e-6).reason == f"{longer}; {said}"


def test_a_row_with_energy_has_the_conditions_of_its_window():
    row = with_energy(0.01)
    assert (row.temperature_start_c, row.temperature_end_c, row.sm_clock_mhz) == (40, 50, 1700)
    assert (row.throttle_power_pct, row.throttle_thermal_pct) == (pytest.approx(50.0), None)
    assert row.throttle_reasons == "power cap"


def test_a_row_without_energy_has_the_conditions_of_its_times():
    row = overall(dataclasses.replace(FOUND, conditions=CONDITIONS))
    assert (row.temperature_start_c, row.temperature_end_c, row.sm_clock_mhz) == (40, 50, 1700)
    assert (row.throttle_power_pct, row.throttle_reasons) == (pytest.approx(50.0), "power cap")
    assert row.energy_pass_vs_mean_pct is None


def test_a_pass_whose_layers_could_not_be_measured_alone_keeps_its_times_and_says_why():
    lost = Breakdown(
        (LayerEnergy(None, None, "no energy: oom: too large"), LayerEnergy(0.1, 0.01)), None, "no energy: x"
    )
    found = dataclasses.replace(FOUND, breakdown=lost)
    first, second = rows(found=found)
    assert (first.status, first.mean_ms, first.energy_j, first.reason) == ("ok", 5.0, None, "no energy: oom: too large")
    assert (second.energy_j, second.reason) == (0.1, None)
    row = overall(found)
    assert (row.status, row.mean) == ("ok", 10.0)
    assert row.reason == "no energy: x (the pass without its convolutions)"


@pytest.mark.parametrize(("unsupported", "counts"), [("fallback", (1, 0)), ("skip", (0, 1))])
def test_the_overall_row_counts_layers_that_ran_something_else(unsupported: str, counts: tuple[int, int]):
    row = overall(assigned=ONE_REASON, asked=run(unsupported=unsupported))
    assert (row.fallback_layers, row.unsupported_layers) == counts


def test_a_failed_size_has_status_and_reason_and_no_figures():
    row = failed_row(run(), 96, Failure("oom", "too large", 2048), "2026-01-01T00:00:00+00:00", 1.0)
    assert (row.input_size, row.status, row.reason) == (96, "oom", "too large")
    assert {row.mean, row.eager_mean_ms, row.layers_sum_ms, row.samples} == {None}


def test_each_layer_has_its_row_in_the_order_of_the_pass():
    assert [(row.layer, row.position) for row in rows()] == [("a", 0), ("b", 1)]


def test_the_share_of_a_layer_is_that_of_the_whole_pass():
    assert [row.percentage for row in rows()] == [50.0, 20.0]


def test_pairs_are_written_height_by_width():
    assert (rows()[1].kernel_size, rows()[1].padding) == ("1x7", "0x3")


def test_a_row_says_what_really_ran():
    row = rows()[0]
    assert (row.ran_algorithm, row.ran_provider, row.workspace_bytes, row.relative_error) == (
        "gemm", "cudnn", 256, 1e-7,
    )  # fmt: skip


def test_a_layer_that_fell_back_keeps_its_time_and_says_why():
    row = rows(ONE_REASON, unsupported="fallback")[1]
    assert (row.status, row.reason, row.mean_ms, row.ran_algorithm) == ("fallback", "not this one", 2.0, "torch")


def test_a_skipped_layer_has_no_time_and_says_why():
    row = rows(ONE_REASON, unsupported="skip")[1]
    assert (row.status, row.reason) == ("unsupported", "not this one")
    assert {row.mean_ms, row.percentage, row.std_ms, row.median_ms, row.samples} == {None}


def test_layers_that_can_are_ok_beside_those_that_cannot():
    row = rows(ONE_REASON, unsupported="skip")[0]
    assert (row.status, row.reason, row.mean_ms) == ("ok", None, 5.0)


def test_without_a_trace_the_cells_of_the_kernels_are_empty():
    assert {(row.kernels, row.kernel_ms, row.span_ms) for row in rows()} == {(None, None, None)}


def test_kernels_are_written_as_json_of_names_and_counts():
    found = dataclasses.replace(FOUND, traces=TRACED)
    row = rows(found=found)[0]
    assert (json.loads(row.kernels or ""), row.kernel_ms, row.span_ms) == ({"k1": 2, "k2": 1}, 3.5, 4.5)


def test_a_skipped_layer_names_its_kernels_and_keeps_no_time_of_them():
    found = dataclasses.replace(FOUND, traces=TRACED)
    row = rows(ONE_REASON, found, unsupported="skip")[1]
    assert (row.kernels, row.kernel_ms) == ('{"k3": 1}', None)


def test_layers_and_figures_that_do_not_go_together_are_an_error():
    with pytest.raises(ValueError, match="longer than argument"):
        layer_rows(run(), 64, LAYERS[:1], FOUND, NO_REASONS)


@pytest.mark.parametrize("error", [1.4, float("nan"), float("inf")])
def test_a_layer_above_its_tolerance_is_wrong_and_so_is_the_pass(error: float):
    observations = [dataclasses.replace(FOUND.observations[0], relative_error=error), FOUND.observations[1]]
    found = dataclasses.replace(FOUND, observations=observations)
    first, second = rows(found=found)
    assert (first.status, second.status) == ("wrong", "ok")
    assert first.reason.startswith(f"relative error {error:.2g}, tolerance ")
    row = overall(found)
    assert (row.status, row.wrong_layers, row.mean) == ("wrong", 1, 10.0)
    assert row.reason == f"1 of 2 layers wrong: a, {first.reason}"
    assert (overall().status, overall().wrong_layers) == ("ok", 0)
