"""Repeated times in, one summary out."""

from __future__ import annotations

import math
import statistics as reference

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convscope.timing.summary import difference, half_width_ms, paired_difference, summarize, summarize_placed

some_times = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=50)


def test_a_summary_holds_what_the_samples_say():
    found = summarize([4.0, 1.0, 2.0, 3.0])
    assert (found.count, found.mean_ms, found.min_ms, found.max_ms, found.median_ms) == (4, 2.5, 1.0, 4.0, 2.5)


def test_the_deviation_is_that_of_a_sample():
    assert summarize([1.0, 2.0, 3.0, 4.0]).std_ms == pytest.approx(reference.stdev([1, 2, 3, 4]))


def test_the_95th_percentile_lies_between_the_samples_around_it():
    assert summarize([float(ms) for ms in range(1, 102)]).p95_ms == pytest.approx(96.0)


def test_a_single_sample_says_nothing_of_its_spread():
    found = summarize([1.5])
    assert (found.mean_ms, found.p95_ms, found.std_ms, found.ci95_ms) == (1.5, 1.5, None, None)


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.706), (5, 2.776), (20, 2.093), (1000, 1.962)])
def test_the_interval_is_students_for_the_number_of_samples(count: int, quantile: float):
    assert half_width_ms(1.0, count) == pytest.approx(quantile / count**0.5, rel=1e-3)


def test_the_interval_of_a_summary_is_that_of_its_deviation_and_count():
    found = summarize([1.0, 2.0, 3.0])
    assert found.std_ms == 1.0
    assert found.ci95_ms == half_width_ms(1.0, 3)


def test_no_times_are_refused():
    with pytest.raises(ValueError, match="no times to summarize"):
        summarize([])


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_time_that_is_not_finite_is_refused_with_its_value(odd: float):
    with pytest.raises(ValueError, match=f"a time is not finite: {odd}"):
        summarize([1.0, odd])


@given(some_times)
def test_mean_median_and_percentile_lie_between_the_extremes(times: list[float]):
    found = summarize(times)
    margin = 1e-9 * found.max_ms
    for value in (found.mean_ms, found.median_ms, found.p95_ms):
        assert found.min_ms - margin <= value <= found.max_ms + margin


@given(some_times)
def test_the_order_of_the_samples_does_not_matter(times: list[float]):
    assert summarize(times).mean_ms == pytest.approx(summarize(sorted(times)).mean_ms)


def test_the_difference_of_two_means_has_welchs_interval():
    # scipy.stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.99), scipy 1.15
    one, other = summarize([2.0, 2.2, 2.4, 2.1]), summarize([1.0, 1.5, 0.9])
    found = difference(one, other, 0.99)
    assert found.mean_ms == pytest.approx(1.0416667)
    assert (found.mean_ms - found.half_width_ms, found.mean_ms + found.half_width_ms) == pytest.approx(
        (-0.2154712, 2.2988045)
    )
    assert found.is_tie


def test_a_single_sample_cannot_be_compared():
    with pytest.raises(ValueError, match="a single sample has no spread"):
        difference(summarize([1.0]), summarize([1.0, 2.0]))


def test_times_without_spread_are_told_apart_by_their_means():
    same, longer = summarize([1.0, 1.0]), summarize([2.0, 2.0])
    assert difference(same, same).is_tie
    assert not difference(longer, same).is_tie


def test_a_placed_summary_has_its_interval_from_the_means_of_the_placements():
    found = summarize_placed([[1.0, 1.2], [1.1, 1.3], [1.2, 1.4]])
    assert (found.count, found.placements) == (6, 3)
    assert found.mean_ms == pytest.approx(1.2)
    assert found.ci95_ms == pytest.approx(summarize([1.1, 1.2, 1.3]).ci95_ms)
    assert found.placement_spread_pct == pytest.approx(100 * 0.2 / 1.2)


def test_a_doubt_that_all_samples_share_widens_the_interval():
    without, with_doubt = (summarize_placed([[1.0], [1.2]], doubt) for doubt in (0.0, 0.5))
    assert with_doubt.ci95_ms == pytest.approx(math.hypot(without.ci95_ms, 0.5))
    assert with_doubt.mean_ms == without.mean_ms


def test_a_single_placement_says_nothing_of_others():
    found = summarize_placed([[1.0, 1.2]], 0.5)
    assert (found.placements, found.ci95_ms, found.placement_spread_pct) == (1, None, None)


def test_times_of_zero_have_no_spread_in_percent():
    assert summarize_placed([[0.0], [0.0]]).placement_spread_pct is None


def test_the_interval_holds_the_truth_where_placements_scatter_more_than_samples():
    drawn = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        places = 1.0 + drawn.normal(0, 0.05, 5)
        found = summarize_placed([list(drawn.normal(place, 0.001, 4)) for place in places])
        covered += abs(found.mean_ms - 1.0) <= found.ci95_ms
    assert covered / 400 == pytest.approx(0.95, abs=0.03)


def test_an_error_that_a_round_shares_cancels_in_a_paired_difference():
    found = paired_difference([1.5, 7.5, 3.6], [1.0, 7.0, 3.0], 0.99)
    assert found.mean_ms == pytest.approx(0.5333, abs=1e-4)
    assert found.half_width_ms == pytest.approx(9.925 * 0.057735 / 3**0.5, rel=1e-3)


def test_a_single_round_cannot_be_compared():
    with pytest.raises(ValueError, match="a single round has no spread"):
        paired_difference([1.0], [2.0])
