"""Two folders of results side by side: what differs, what may be compared, and the verdict on each row."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from fakes import run
from fakes.compared import GPU, LAYER, PASS, layer, overall, written

from convscope.errors import InputError
from convscope.profiling.comparison import compare
from convscope.profiling.rows import LayerRow, OverallRow, profile_store
from convscope.storage import wording
from convscope.timing.summary import half_width_ms


def judged(tmp_path: Path, a: OverallRow, b: OverallRow, tolerance_pct: float = 1.0) -> compare.Comparison:
    """Return the comparison of two passes."""
    results = [compare.read(written(tmp_path / name, [row])) for name, row in (("a", a), ("b", b))]
    (found,) = compare.passes(*results, tolerance_pct)
    return found


def judged_layer(tmp_path: Path, a: Any, b: Any, tolerance_pct: float = 1.0) -> compare.Comparison:
    """Return the comparison of two layers, each given with the pass that it was taken in."""
    given = (("a", a), ("b", b))
    results = [compare.read(written(tmp_path / name, [row], [of])) for name, (row, of) in given]
    (found,) = compare.layers(*results, tolerance_pct)
    return found


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((1.1, 2.0), "slower"),
        ((-2.0, -1.1), "faster"),
        ((-0.9, 0.9), "same"),
        ((0.5, 1.5), "ambiguous"),
        ((-1.5, -0.5), "ambiguous"),
        ((-3.0, 3.0), "ambiguous"),
    ],
)
def test_an_interval_says_what_lies_wholly_on_one_side_of_the_borders(interval: tuple[float, float], verdict: str):
    assert compare.verdict(*interval, 1.0) == verdict


@pytest.mark.parametrize(("b_ms", "verdict"), [(10.5, "slower"), (9.5, "faster"), (10.02, "same")])
def test_a_pass_is_judged_by_its_mean_against_the_tolerance(tmp_path: Path, b_ms: float, verdict: str):
    assert judged(tmp_path, PASS, overall(mean=b_ms)).verdict == verdict


def test_the_interval_is_welchs_in_percent_of_a(tmp_path: Path):
    # scipy.stats.ttest_ind_from_stats(10.5, .2, 20, 10, .05, 20, equal_var=False): 0.5 ± 2.0799 · 0.0461 ms
    found = judged(tmp_path, PASS, overall(mean=10.5, std=0.2))
    assert (found.change_pct, found.low_pct, found.high_pct) == pytest.approx((5.0, 4.041, 5.959), abs=2e-3)


def test_an_interval_across_a_border_is_ambiguous_and_names_the_border(tmp_path: Path):
    found = judged(tmp_path, PASS, overall(mean=10.1, std=0.2))
    assert (found.verdict, found.reason) == ("ambiguous", "the interval crosses +1 %")


def test_a_single_sample_is_ambiguous(tmp_path: Path):
    found = judged(tmp_path, PASS, overall(mean=20.0, std=None, samples=1))
    assert (found.verdict, found.reason) == ("ambiguous", "a single sample says nothing of its spread")


HOT = [
    ({"throttle_reasons": "hardware slowdown"}, "hardware slowdown"),
    ({"throttle_reasons": "power cap, software thermal slowdown"}, "software thermal slowdown"),
    ({"throttle_reasons": "hardware thermal slowdown, power brake"}, "hardware thermal slowdown, power brake"),
    ({"throttle_thermal_pct": 1.0}, "1 % of the window by heat"),
    ({"throttle_reasons": "hardware slowdown", "throttle_thermal_pct": 0.0}, "hardware slowdown"),
]


@pytest.mark.parametrize(("hot", "why"), HOT)
def test_a_pass_slowed_by_heat_or_hardware_is_ambiguous_and_says_which_and_why(
    tmp_path: Path, hot: dict[str, Any], why: str
):
    found = judged(tmp_path, PASS, overall(mean=20.0, **hot))
    assert (found.verdict, found.reason) == ("ambiguous", f"B was throttled ({why})")
    found = judged(tmp_path / "other", overall(**hot), overall(mean=20.0))
    assert (found.verdict, found.reason) == ("ambiguous", f"A was throttled ({why})")


def test_heat_of_less_than_a_percent_of_the_window_cannot_account_for_much(tmp_path: Path):
    mild = {"throttle_thermal_pct": 0.9, "throttle_reasons": "software thermal slowdown"}
    assert judged(tmp_path, PASS, overall(mean=20.0, **mild)).verdict == "slower"


CAPPED = [{"throttle_reasons": "power cap"}, {"throttle_power_pct": 80.0}]


@pytest.mark.parametrize("capped", CAPPED)
def test_twice_as_slow_at_the_same_clock_is_slower_on_a_power_capped_card(tmp_path: Path, capped: dict[str, Any]):
    assert judged(tmp_path, overall(**capped), overall(mean=20.0, **capped)).verdict == "slower"


@pytest.mark.parametrize("capped", CAPPED)
def test_the_clocks_of_a_power_capped_card_decide(tmp_path: Path, capped: dict[str, Any]):
    found = judged(tmp_path, PASS, overall(mean=11.0, sm_clock_mhz=1755, **capped))
    assert (found.verdict, found.reason) == ("ambiguous", "clocks of 1980 and 1755 MHz can account for 12.5 %")


@pytest.mark.parametrize("capped", CAPPED)
def test_a_power_capped_card_without_clocks_is_ambiguous(tmp_path: Path, capped: dict[str, Any]):
    found = judged(tmp_path, PASS, overall(mean=20.0, sm_clock_mhz=None, **capped))
    assert (found.verdict, found.reason) == ("ambiguous", "B was held at its power limit, at clocks that are not known")


def test_a_difference_that_the_clocks_can_account_for_is_ambiguous(tmp_path: Path):
    found = judged(tmp_path, PASS, overall(mean=11.0, sm_clock_mhz=1755))
    assert (found.verdict, found.reason) == ("ambiguous", "clocks of 1980 and 1755 MHz can account for 12.5 %")


def test_an_earlier_text_of_a_timing_method_is_the_same_method(tmp_path: Path):
    earlier, now = next(iter(wording.PRESENT.items()))
    assert judged(tmp_path, overall(timing_method=earlier), overall(mean=20.0, timing_method=now)).verdict == "slower"


def test_sameness_at_different_clocks_is_ambiguous(tmp_path: Path):
    assert judged(tmp_path, PASS, overall(sm_clock_mhz=1755)).verdict == "ambiguous"


def test_a_difference_beyond_what_the_clocks_can_account_for_stands(tmp_path: Path):
    assert judged(tmp_path, PASS, overall(mean=20.0, sm_clock_mhz=1755)).verdict == "slower"


def test_a_clock_that_makes_b_faster_does_not_hide_that_it_is_slower(tmp_path: Path):
    assert judged(tmp_path, overall(sm_clock_mhz=1755), overall(mean=11.0)).verdict == "slower"


def test_passes_timed_in_different_ways_are_ambiguous(tmp_path: Path):
    found = judged(tmp_path, overall(timing_method="graph"), overall(mean=20.0, timing_method="hooks"))
    assert (found.verdict, found.reason) == ("ambiguous", "timed in different ways (graph; hooks)")


def test_without_clocks_the_intervals_decide(tmp_path: Path):
    silent = {"sm_clock_mhz": None, "throttle_reasons": None}
    assert judged(tmp_path, overall(**silent), overall(mean=20.0, **silent)).verdict == "slower"


def test_a_size_that_was_not_measured_is_not_compared(tmp_path: Path):
    found = judged(tmp_path, PASS, OverallRow("alexnet", "direct", 64, status="oom", reason="CUDA out of memory"))
    assert (found.verdict, found.reason, found.a_ms, found.b_ms) == ("not compared", "B is oom", 10.0, None)


def test_a_size_in_one_run_only_is_shown_as_such(tmp_path: Path):
    a = compare.read(written(tmp_path / "a", [PASS, overall(input_size=96)]))
    b = compare.read(written(tmp_path / "b"))
    assert [(each.input_size, each.verdict, each.reason) for each in compare.passes(a, b, 1.0)] == [
        (64, "same", ""),
        (96, "not compared", "only in A"),
    ]


def test_layers_that_fell_back_are_counted_beside_the_verdict(tmp_path: Path):
    found = judged(tmp_path, PASS, overall(mean=20.0, fallback_layers=3))
    assert (found.verdict, found.reason) == ("slower", "B ran 3 layers with a fallback")


def test_power_and_energy_stand_beside_the_times(tmp_path: Path):
    found = judged(tmp_path, overall(power_mean_w=400.0, energy_per_inference_j=4.0), overall(power_mean_w=300.0))
    assert (found.a_w, found.b_w, found.a_j, found.b_j) == (400.0, 300.0, 4.0, None)


def test_a_layer_is_judged_at_its_size_and_position(tmp_path: Path):
    found = judged_layer(tmp_path, (PASS, LAYER), (PASS, layer(mean_ms=1.2)))
    assert (found.input_size, found.position, found.layer, found.verdict) == (64, 0, "features.0", "slower")


def test_a_layer_of_a_throttled_pass_is_ambiguous(tmp_path: Path):
    assert (
        judged_layer(tmp_path, (PASS, LAYER), (overall(throttle_reasons="hardware slowdown"), LAYER)).verdict
        == "ambiguous"
    )


def test_a_layer_is_no_surer_than_the_overhead_that_was_taken_off(tmp_path: Path):
    a, b = ((overall(event_overhead_us=us), layer(mean_ms=ms)) for us, ms in ((100.0, 1.0), (2.5, 1.09)))
    assert judged_layer(tmp_path, a, b).verdict == "ambiguous"


# ---- placements

PLACED = {"mean_ci95_ms": 0.01, "placements": 3, "placement_spread_pct": 0.5}


def test_the_interval_rests_on_the_intervals_of_both_rows_where_tensors_were_moved(tmp_path: Path):
    # √(0.2² + 0.1²) ms of 10 ms
    a = overall(mean_ci95_ms=0.2, placements=3, placement_spread_pct=1.0)
    b = overall(mean=12.0, mean_ci95_ms=0.1, placements=3, placement_spread_pct=1.0)
    found = judged(tmp_path, a, b)
    assert (found.low_pct, found.high_pct) == pytest.approx((20 - 2.236, 20 + 2.236), abs=1e-3)


def test_samples_in_one_place_do_not_make_a_row_surer_than_its_placements(tmp_path: Path):
    a = (PASS, layer(mean_ci95_ms=0.1, placements=3, placement_spread_pct=0.1, std_ms=1e-6))
    b = (PASS, layer(mean_ms=1.06, mean_ci95_ms=0.1, placements=3, placement_spread_pct=0.1, std_ms=1e-6))
    found = judged_layer(tmp_path, a, b)
    assert (found.verdict, found.reason) == ("ambiguous", "the interval crosses -1 and +1 %")


def test_a_layer_is_not_slower_where_another_placement_would_have_made_it_faster(tmp_path: Path):
    a = (PASS, layer(**PLACED | {"placement_spread_pct": 8.0}))
    b = (PASS, layer(mean_ms=1.1, **PLACED | {"placement_spread_pct": 8.0}))
    found = judged_layer(tmp_path, a, b)
    why = "another place in memory may turn it round: spreads of 8.0 and 8.0 % over placements"
    assert (found.verdict, found.reason) == ("ambiguous", why)
    found = judged_layer(tmp_path / "other", b, a)
    assert found.verdict == "ambiguous"


def test_a_layer_is_slower_where_no_placement_would_have_made_it_faster(tmp_path: Path):
    a = (PASS, layer(**PLACED | {"placement_spread_pct": 8.0}))
    b = (PASS, layer(mean_ms=1.2, **PLACED | {"placement_spread_pct": 8.0}))
    assert judged_layer(tmp_path, a, b).verdict == "slower"


def test_the_interval_of_a_layer_that_was_moved_holds_the_overhead_already(tmp_path: Path):
    a, b = ((overall(event_overhead_us=us), layer(mean_ms=ms, **PLACED)) for us, ms in ((100.0, 1.0), (2.5, 1.09)))
    assert judged_layer(tmp_path, a, b).verdict == "slower"


def test_a_row_that_was_not_moved_is_compared_as_before(tmp_path: Path):
    old, new = (PASS, LAYER), (PASS, layer(mean_ms=1.2, **PLACED))
    assert judged_layer(tmp_path, old, new).verdict == "slower"


# ---- many rows at once


def rows_at(count: int, **changes: Any) -> list[LayerRow]:
    return [layer(position=at, layer=f"features.{at}", **changes) for at in range(count)]


def folders(tmp_path: Path, a: list[LayerRow], b: list[LayerRow]) -> list[compare.Comparison]:
    results = [compare.read(written(tmp_path / name, [PASS], of)) for name, of in (("a", a), ("b", b))]
    return compare.layers(*results, 1.0)


BARELY = {"mean_ci95_ms": 0.02, "placements": 3, "placement_spread_pct": 0.1}


def test_one_layer_of_many_that_is_slower_by_little_more_than_its_interval_is_what_chance_brings(tmp_path: Path):
    same, odd = rows_at(50, **BARELY), layer(mean_ms=1.045, **BARELY)
    (found,) = folders(tmp_path / "alone", [layer(**BARELY)], [odd])
    assert found.verdict == "slower"
    first, *others = folders(tmp_path / "many", same, [dataclasses.replace(same[0], mean_ms=1.045), *same[1:]])
    assert (first.verdict, first.reason) == ("ambiguous", "of 50 layers compared one may be as far apart by chance")
    assert {each.verdict for each in others} <= {"ambiguous", "same"}


def test_many_layers_that_are_slower_by_little_more_than_their_intervals_are_slower(tmp_path: Path):
    found = folders(tmp_path, rows_at(50, **BARELY), rows_at(50, **BARELY | {"mean_ms": 1.045}))
    assert {each.verdict for each in found} == {"slower"}


def test_one_layer_of_many_that_is_much_slower_is_slower(tmp_path: Path):
    same = rows_at(50, **BARELY)
    first, *_ = folders(tmp_path, same, [dataclasses.replace(same[0], mean_ms=2.0), *same[1:]])
    assert first.verdict == "slower"


def simulated(chance: random.Random, count: int) -> list[LayerRow]:
    """Return layers as a run measures them that takes 1 ms in each of three placements, give or take 2 %."""
    rows = []
    for at in range(count):
        means = [chance.gauss(1.0, 0.02) for _ in range(3)]
        mean_ms, std_ms = fmean(means), stdev(means)
        row = layer(
            position=at, layer=f"features.{at}", mean_ms=mean_ms, mean_ci95_ms=half_width_ms(std_ms, 3), placements=3,
            placement_spread_pct=100 * (max(means) - min(means)) / mean_ms,
        )  # fmt: skip
        rows.append(row)
    return rows


def test_two_runs_of_the_same_command_differ_beyond_their_intervals_in_no_more_than_5_percent_of_layers():
    chance, apart, alarms, runs = random.Random(1), 0, 0, 60
    for _ in range(runs):
        a, b = (compare.Result(Path(), {}, {64: PASS}, {(64, row.position): row for row in simulated(chance, 50)})
                for _ in "ab")  # fmt: skip
        found = compare.layers(a, b, 0.0)
        apart += sum(each.low_pct > 0 or each.high_pct < 0 for each in found)
        alarms += any(each.verdict in ("slower", "faster") for each in found)
    assert 0.005 < apart / (50 * runs) < 0.05
    assert alarms / runs <= 0.05


def test_rows_of_two_cards_are_named_among_the_differences(tmp_path: Path):
    a = written(tmp_path / "a", environment={"gpu_uuid": "GPU-1"})
    folder = profile_store(a, "alexnet_direct")
    asked = run(device="cuda:0", gpu="h200", input_sizes=(96,))
    folder.begin(asked, dataclasses.replace(GPU, gpu_uuid="GPU-2"), [])
    folder.append([overall(input_size=96)])
    b = written(tmp_path / "b", environment={"gpu_uuid": "GPU-1"})
    found = compare.differences(compare.read(a), compare.read(b), across=False)
    assert found["gpu_uuid"] == ("GPU-1, GPU-2", "GPU-1")


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ({"model_digest": "1a"}, {"model_digest": "2b"}, {"model_digest": ("1a", "2b")}),
        ({"model_digest": ""}, {"model_digest": "2b"}, {}),
        ({"provider": None}, {"provider": "triton"}, {"provider": (None, "triton")}),
    ],
)
def test_another_provider_and_other_code_of_the_model_are_named(
    tmp_path: Path, a: dict[str, Any], b: dict[str, Any], named: dict[str, Any]
):
    results = [compare.read(written(tmp_path / name, **about)) for name, about in (("a", a), ("b", b))]
    assert compare.differences(*results, across=False) == named


def test_a_layer_that_fell_back_is_not_compared(tmp_path: Path):
    found = judged_layer(tmp_path, (PASS, LAYER), (PASS, layer(status="fallback")))
    assert (found.verdict, found.reason) == ("not compared", "B is fallback")


def test_another_layer_in_the_same_place_is_not_compared(tmp_path: Path):
    found = judged_layer(tmp_path, (PASS, LAYER), (PASS, layer(layer="conv1")))
    assert (found.verdict, found.reason) == ("not compared", "features.0 in A, conv1 in B")


@pytest.mark.parametrize("change", [{"model": "vgg16"}, {"batch_size": 4}, {"dtype": "float16"}])
def test_different_work_is_refused_even_across(tmp_path: Path, change: dict[str, Any]):
    a, b = compare.read(written(tmp_path / "a")), compare.read(written(tmp_path / "b", **change))
    with pytest.raises(InputError, match=f"A and B are different work \\({next(iter(change))} "):
        compare.differences(a, b, across=True)


@pytest.mark.parametrize(
    "change",
    [
        {"math": "tf32"},
        {"device": "cpu"},
        *({"environment": {name: "other"}} for name in ("gpu_name", "driver", "cuda", "cudnn", "torch")),
        {"environment": {"power_limit_w": 300.0}},
    ],
    ids=str,
)
def test_another_environment_is_refused_and_named_unless_asked_for(tmp_path: Path, change: dict[str, Any]):
    a, b = compare.read(written(tmp_path / "a")), compare.read(written(tmp_path / "b", **change))
    with pytest.raises(InputError, match=r"A and B ran in different environments \(\w+ .* and .*\): --across"):
        compare.differences(a, b, across=False)
    name = next(iter(change.get("environment", change))).replace("device", "device_type")
    assert list(compare.differences(a, b, across=True)) == [name]


def test_another_processor_matters_to_a_run_on_a_cpu(tmp_path: Path):
    a = compare.read(written(tmp_path / "a", device="cpu"))
    b = compare.read(written(tmp_path / "b", device="cpu", environment={"cpu": "another"}))
    with pytest.raises(InputError, match="cpu a processor and another"):
        compare.differences(a, b, across=False)
