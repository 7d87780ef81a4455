"""Judgement at its edges: errors, intervals and probabilities as exact numbers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from fakes import LAYER_ROW, OVERALL

from convscope.profiling.comparison import judgement
from convscope.profiling.comparison.judgement import Change, Estimate
from convscope.profiling.rows import OverallRow

# Quantiles of Student's distribution at 97.5 %, by degrees of freedom (any table).
QUANTILES = {1: 12.706204736432095, 2: 4.302652729696142, 4: 2.7764451051977987}
CARD = dataclasses.replace(OVERALL, sm_clock_mhz=2000, timing_method="graph")
SAME = Change(0.0, -1.0, 1.0, 1.0)


def layer_estimate(**changes: Any) -> Estimate | None:
    row = {"mean_ms": 2.0, "std_ms": 0.5, "samples": 4} | changes
    return judgement.estimate(dataclasses.replace(LAYER_ROW, **row))


def placed(count: int | None, **changes: Any) -> Estimate | None:
    return layer_estimate(placements=count, mean_ci95_ms=QUANTILES[4], **changes)


def card(**changes: Any) -> OverallRow:
    return dataclasses.replace(CARD, **changes)


@pytest.mark.parametrize(("samples", "std_ms", "error_ms"), [(4, 0.5, 0.25), (2, 0.0, 0.0), (1, 0.5, None)])
def test_the_error_of_a_mean_over_samples_is_that_of_students_interval(samples: int, std_ms: float, error_ms: float):
    for changes in ({}, {"placements": 1, "mean_ci95_ms": 1.0}, {"mean_ci95_ms": 1.0}, {"placements": 3}):
        found = layer_estimate(samples=samples, std_ms=std_ms, **changes)
        assert found == Estimate(2.0, error_ms, samples - 1, False, None, None)


def test_a_pass_has_its_times_in_other_columns_than_a_layer():
    row = dataclasses.replace(OVERALL, mean=0.5, std=0.75, samples=9)
    assert judgement.estimate(row) == Estimate(0.5, 0.25, 8)


@pytest.mark.parametrize("changes", [{"mean_ms": None}, {"mean_ms": 0.0}, {"samples": None}])
def test_a_row_without_times_has_no_estimate(changes: dict[str, Any]):
    assert layer_estimate(**changes) is None


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_error_of_a_mean_over_placements_comes_from_their_interval(count: int):
    found = layer_estimate(placements=count, mean_ci95_ms=QUANTILES[count - 1] / 4)
    assert found == Estimate(2.0, pytest.approx(0.25, rel=1e-12), count - 1, True, None, None)


@pytest.mark.parametrize(("count", "reach_ms"), [(2, 0.25), (5, 0.4)])
def test_no_placement_is_farther_from_the_mean_than_the_spread_and_the_number_allow(count: int, reach_ms: float):
    found = placed(count, placement_spread_pct=25.0)
    assert found is not None
    assert (found.low_ms, found.high_ms) == (pytest.approx(2.0 - reach_ms), pytest.approx(2.0 + reach_ms))
    assert (found.freedom, found.is_placed) == (count - 1, True)


def test_the_difference_of_two_means_over_samples_has_welchs_interval_and_probability():
    found = judgement.change(Estimate(200.0, 3.0, 1), Estimate(230.0, 3.0, 1), 5.0, doubt_ms=2.0)
    half_ms = QUANTILES[2] * math.sqrt(18.0) + 2.0  # two degrees of freedom
    assert found is not None
    assert (found.change_pct, found.low_pct) == (15.0, pytest.approx((30 - half_ms) / 2, rel=1e-12))
    assert found.high_pct == pytest.approx((30 + half_ms) / 2, rel=1e-12)
    beyond = (30.0 - 2.0 - 10.0) / math.sqrt(18.0)
    assert found.p_value == pytest.approx(1 - beyond / math.sqrt(2 + beyond**2), rel=1e-12)


@pytest.mark.parametrize(("errors_ms", "freedoms"), [((3.0, 4.0), (1, 4)), ((4.0, 3.0), (4, 1))])
def test_each_error_weighs_in_the_degrees_of_freedom(errors_ms: tuple[float, float], freedoms: tuple[int, int]):
    a, b = (Estimate(100.0, error_ms, freedom) for error_ms, freedom in zip(errors_ms, freedoms, strict=True))
    found = judgement.change(a, b, 5.0)
    freedom = 25.0**2 / (9.0**2 / 1 + 16.0**2 / 4)
    assert found is not None
    assert found.high_pct == -found.low_pct == pytest.approx(5.0 * float(judgement.stdtrit(freedom, 0.975)))
    assert found.p_value == 1.0


@pytest.mark.parametrize("is_placed", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("freedoms", [(1, 4), (4, 1)])
def test_an_interval_with_placements_has_the_fewer_degrees_of_freedom(is_placed, freedoms):
    each = zip((3.0, 4.0), freedoms, is_placed, strict=True)
    found = judgement.change(*(Estimate(100.0, error_ms, *others) for error_ms, *others in each), 5.0)
    assert found is not None
    assert found.high_pct == pytest.approx(5.0 * QUANTILES[1])


@pytest.mark.parametrize(
    ("b_ms", "p_value"), [(74.0, 0.0), (75.0, 0.0), (76.0, 1.0), (124.0, 1.0), (125.0, 0.0), (126.0, 0.0)]
)
def test_means_without_an_error_differ_surely_or_not_at_all(b_ms: float, p_value: float):
    found = judgement.change(Estimate(100.0, 0.0, 1), Estimate(b_ms, 0.0, 1), 25.0)
    assert found == Change(b_ms - 100.0, b_ms - 100.0, b_ms - 100.0, p_value)


def test_one_mean_without_spread_leaves_the_error_of_the_other():
    found = judgement.change(Estimate(100.0, 0.0, 4), Estimate(100.0, 1.0, 4), 5.0)
    assert found is not None
    assert found.high_pct == pytest.approx(QUANTILES[4])


def test_a_single_sample_on_either_side_gives_no_interval():
    one, other = Estimate(100.0, None, 0), Estimate(100.0, 1.0, 4)
    assert judgement.change(one, other, 5.0) is judgement.change(other, one, 5.0) is None


DOUBT = "another place in memory may turn it round"


@pytest.mark.parametrize(("low_ms", "high_ms", "doubt"), [(1.0, 2.0, DOUBT), (2.5, 2.75, DOUBT), (3.0, 4.0, DOUBT),
                                                          (3.01, 4.0, ""), (0.0, 1.99, "")])  # fmt: skip
def test_placements_that_reach_one_another_may_turn_a_difference_round(low_ms: float, high_ms: float, doubt: str):
    a, b = Estimate(2.5, 0.1, 1, True, 2.0, 3.0), Estimate(2.5, 0.1, 1, True, low_ms, high_ms)
    assert judgement.placement_doubt(a, b) == judgement.placement_doubt(b, a) == doubt


@pytest.mark.parametrize("missing", ["low_ms", "high_ms"])
def test_without_a_spread_over_placements_there_is_no_doubt_about_them(missing: str):
    whole = Estimate(2.5, 0.1, 1, True, 2.0, 3.0)
    part = dataclasses.replace(whole, **{missing: None})
    assert judgement.placement_doubt(whole, part) == judgement.placement_doubt(part, whole) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"throttle_thermal_pct": 0.99, "throttle_reasons": "software thermal slowdown"}, ""),
        ({"throttle_thermal_pct": 1.0}, "1 % of the window by heat"),
        ({"throttle_thermal_pct": 0.0, "throttle_reasons": "power brake, thermal slowdown"}, "power brake"),
        ({"throttle_reasons": "power brake, thermal slowdown"}, "power brake, thermal slowdown"),
    ],
)
def test_heat_counts_from_one_percent_of_the_window_where_it_is_counted(changes: dict[str, Any], why: str):
    doubts = [
        judgement.card_doubt(*pair, SAME, 100.0, 5.0) for pair in ((card(**changes), CARD), (CARD, card(**changes)))
    ]
    assert doubts == ([f"{name} was throttled ({why})" for name in "AB"] if why else ["", ""])


@pytest.mark.parametrize("capped", [{"throttle_power_pct": 0.5}, {"throttle_reasons": "power cap"}])
@pytest.mark.parametrize("clock_mhz", [None, 0])
def test_a_power_limit_is_a_doubt_where_a_clock_is_missing(capped: dict[str, Any], clock_mhz: int | None):
    blind = card(sm_clock_mhz=clock_mhz)
    doubt = "was held at its power limit, at clocks that are not known"
    for a, b, named in (
        (card(**capped), blind, "A"), (blind, card(**capped), "B"),
        (dataclasses.replace(blind, **capped), card(**capped), "A"),
    ):  # fmt: skip
        assert judgement.card_doubt(a, b, SAME, 100.0, 5.0) == f"{named} {doubt}"
    assert judgement.card_doubt(blind, card(throttle_power_pct=0.0), SAME, 100.0, 5.0) == ""
    assert judgement.card_doubt(card(**capped), card(**capped), SAME, 100.0, 5.0) == ""


@pytest.mark.parametrize(
    ("interval", "clock_mhz", "doubtful"),
    [
        ((-25.0, 25.0), 2000, False),
        ((-24.5, 0.0), 2500, False),
        ((-24.5, 0.5), 2500, True),
        ((0.0, 24.5), 1500, False),
        ((-0.5, 24.5), 1500, True),
        ((24.5, 25.0), 2500, True),  # the lower end stays where B's clock was higher
        ((-25.0, -24.5), 1500, True),  # the upper end stays where it was lower
        ((50.5, 60.0), 1500, False),
        ((50.0, 60.0), 1500, True),
        ((-60.0, -50.5), 2500, False),
        ((-60.0, -50.0), 2500, True),
    ],
)
def test_an_interval_reaches_as_far_as_the_clocks_can_account_for(interval, clock_mhz: int, doubtful: bool):
    found = Change(0.0, *interval, 0.5)
    said = judgement.card_doubt(CARD, card(sm_clock_mhz=clock_mhz), found, 100.0, 25.0)
    why = f"clocks of 2000 and {clock_mhz} MHz can account for 25.0 %"
    assert said == (why if doubtful else "")


def test_the_clocks_account_for_a_share_of_bs_time():
    said = judgement.card_doubt(CARD, card(sm_clock_mhz=1000), Change(0.0, -1.0, 1.0, 0.5), 150.0, 5.0)
    assert said == "clocks of 2000 and 1000 MHz can account for 75.0 %"


@pytest.mark.parametrize(
    ("p_values", "largest"),
    [
        ([], -1.0),
        ([0.051], -1.0),
        ([0.05], 0.05),
        ([0.03, 0.05], 0.05),
        ([0.5, 0.03, 0.01, 0.02], 0.03),
        ([0.026, 0.06], -1.0),
        ([0.02, 0.06], 0.02),
        ([0.0, 1.0], 0.0),
    ],
)
def test_the_largest_probability_that_counts_among_many_is_within_its_rank_of_five_percent(p_values, largest: float):
    assert judgement.beyond_chance(p_values) == largest
