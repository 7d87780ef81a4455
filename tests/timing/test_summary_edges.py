"""Statistics of repeated times against scipy's own, and at the counts where they begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from convscope.timing import summary
from convscope.timing.summary import Difference, difference, summarize

times = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=30, unique=True)


@pytest.mark.parametrize(
    ("count", "ranks"), [(5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))]
)
def test_the_interval_of_a_median_has_the_ranks_that_the_tables_give(count: int, ranks: tuple[int, int] | None):
    """Conover, "Practical Nonparametric Statistics": ranks 6 and 15 of 20, none of five."""
    ordered = [float(time_ms) for time_ms in range(count)]
    assert summary.median_interval_ms(ordered[::-1]) == ranks


@given(times)
def test_the_interval_of_a_mean_is_students(times_ms: list[float]):
    found = summarize(times_ms)
    low, high = stats.t.interval(0.95, len(times_ms) - 1, loc=np.mean(times_ms), scale=stats.sem(times_ms))
    assert found.ci95_ms == pytest.approx((high - low) / 2, rel=1e-9)
    assert found.std_ms == pytest.approx(np.std(times_ms, ddof=1), rel=1e-9)
    assert found.p95_ms == np.percentile(times_ms, 95)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@given(one=times, other=times)
def test_the_interval_of_a_difference_is_welchs(confidence: float, one: list[float], other: list[float]):
    found = difference(summarize(one), summarize(other), confidence)
    test = stats.ttest_ind(one, other, equal_var=False).confidence_interval(confidence)
    assert found.mean_ms == pytest.approx(np.mean(one) - np.mean(other), rel=1e-9, abs=1e-9)
    assert found.half_width_ms == pytest.approx((test.high - test.low) / 2, rel=1e-9)


def test_a_difference_is_at_95_percent_where_nothing_is_said():
    one, other = summarize([1.0, 2.0, 4.0]), summarize([1.0, 3.0])
    assert difference(one, other) == difference(one, other, 0.95)


@pytest.mark.parametrize(("mean_ms", "tie"), [(0.5, True), (-0.5, True), (0.51, False), (-0.51, False), (0.0, True)])
def test_a_difference_as_large_as_its_half_width_is_a_tie(mean_ms: float, tie: bool):
    assert Difference(mean_ms, 0.5).is_tie is tie


def test_two_samples_have_a_spread_and_one_has_none():
    assert summarize([1.0, 3.0]).std_ms == 2.0**0.5
    assert summarize([1.0]).std_ms is None


@pytest.mark.parametrize("lone", ["one", "other"])
def test_a_single_sample_on_either_side_cannot_be_compared(lone: str):
    sides = {"one": summarize([1.0, 2.0]), "other": summarize([1.0, 2.0])} | {lone: summarize([1.0])}
    with pytest.raises(ValueError, match="two or more are needed"):
        difference(**sides)


def test_one_side_without_spread_is_compared_by_the_other():
    still, moving = summarize([1.0] * 4), summarize([2.0, 4.0])
    assert difference(moving, still).half_width_ms == pytest.approx(summary.half_width_ms(2.0**0.5, 2), rel=1e-12)


def test_the_spread_over_placements_is_in_percent_of_the_mean():
    found = summary.summarize_placed([[0.25, 0.25], [0.5, 1.0]])
    assert (found.mean_ms, found.placements, found.placement_spread_pct) == (0.5, 2, 100.0)


def test_the_first_time_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="a time is not finite: nan"):
        summarize([1.0, float("nan"), float("inf")])
