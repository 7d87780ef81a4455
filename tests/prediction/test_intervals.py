"""Intervals: quantiles that hold what they claim, by group, and none where there are too few cases."""

from __future__ import annotations

import numpy as np
import pytest

from convscope.prediction import intervals


@pytest.mark.parametrize("level", intervals.LEVELS)
def test_intervals_hold_in_each_group_what_they_claim(level: int):
    draw = np.random.default_rng(0)
    groups = np.array(["narrow", "wide"] * 2000, dtype=object)
    spread = np.where(groups == "narrow", 0.1, 1.0)
    known = intervals.widths(draw.normal(0, spread), groups)
    half = intervals.of_rows(known, list(groups), level)
    new = np.abs(draw.normal(0, spread))
    for name in ("narrow", "wide"):
        assert 100 * (new <= half)[groups == name].mean() == pytest.approx(level, abs=3)


def test_a_group_of_few_has_the_intervals_of_all():
    rests, groups = np.arange(100.0), np.array(["many"] * 90 + ["few"] * 10, dtype=object)
    known = intervals.widths(rests, groups)
    assert set(known) == {intervals.EVERY, "many"}
    assert intervals.of_rows(known, ["few"], 90) == intervals.of_rows(known, ["never seen"], 90)


def test_a_quantile_counts_the_case_to_come():
    sizes = np.array([1.0, 2.0, 3.0, 4.0])
    assert intervals.quantile(sizes, 0.5) == 3.0  # of five places the third
    assert intervals.quantile(sizes, 0.8) == 4.0
    assert intervals.quantile(sizes, 0.9) is None


def test_too_few_cases_give_an_interval_without_ends():
    known = intervals.widths(np.array([0.1, 0.2]), np.array(["a", "a"], dtype=object))
    assert intervals.of_rows(known, ["a"], 90).tolist() == [np.inf]
