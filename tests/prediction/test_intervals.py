"""Intervals: quantiles that hold what they claim, by group, and none where there are too few cases."""

from __future__ import annotations

import numpy as np
import pytest

from convscope.cli.options import LEVELS
from convscope.prediction import intervals


@pytest.mark.parametrize("level", LEVELS)
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


def test_the_widest_of_several_parts_holds_in_each_of_them():
    rests, groups = np.repeat([0.1, 0.4], [120, 80]), np.full(200, "gemm", dtype=object)
    groups[:60] = "fft"
    ends = np.repeat(["smallest", "largest"], [120, 80]).astype(object)
    found, pooled = intervals.widest(rests, groups, ends), intervals.widths(rests, groups)
    assert [found[name]["50"] for name in (intervals.EVERY, "gemm", "fft")] == [0.4, 0.4, 0.1]
    assert pooled[intervals.EVERY]["50"] == 0.1
    assert intervals.widest(rests, groups, np.full(200, "one")) == pooled


def test_a_part_of_too_few_gives_intervals_without_ends():
    rests, groups = np.full(104, 0.1), np.full(104, "gemm", dtype=object)
    found = intervals.widest(rests, groups, np.repeat(["many", "few"], [100, 4]).astype(object))
    assert found[intervals.EVERY]["95"] is None
    assert found[intervals.EVERY]["50"] == found["gemm"]["95"] == 0.1


def test_a_quantile_counts_the_case_to_come():
    sizes = np.array([1.0, 2.0, 3.0, 4.0])
    assert intervals.quantile(sizes, 0.5) == 3.0  # of five places the third
    assert intervals.quantile(sizes, 0.8) == 4.0
    assert intervals.quantile(sizes, 0.9) is None


def test_too_few_cases_give_an_interval_without_ends():
    known = intervals.widths(np.array([0.1, 0.2]), np.array(["a", "a"], dtype=object))
    assert intervals.of_rows(known, ["a"], 90).tolist() == [np.inf]


@pytest.mark.parametrize("level", [50, 80])
def test_sizes_of_a_further_group_are_held_however_many_cases_the_others_have(level: int):
    draw = np.random.default_rng(0)
    held = []
    for _ in range(400):
        spread, counts = draw.exponential(1.0, 13), draw.integers(1, 60, 13)
        groups = np.repeat([f"model {number}" for number in range(13)], counts).astype(object)
        sizes = np.abs(draw.normal(0, np.repeat(spread, counts)))
        here = groups == "model 0"
        most = intervals.shares(sizes[~here], groups[~here])[str(level)]
        assert most is not None
        held.append(100 * (sizes[here] <= most).mean())
    assert level - 3 < np.mean(held) < level + 9


def test_a_high_level_needs_many_groups():
    names = [f"model {number}" for number in range(10)]
    sizes = np.arange(100.0)
    assert intervals.shares(sizes[:8], np.array(names[:8], dtype=object))["90"] is None
    assert intervals.shares(sizes[:9], np.array(names[:9], dtype=object))["90"] == 8.0
    assert intervals.shares(sizes, np.array(names * 10, dtype=object))["95"] is None


def test_intervals_that_grow_hold_near_and_far():
    draw = np.random.default_rng(0)
    far = draw.uniform(0, 10, 4000)
    rests, groups = draw.normal(0, 0.02 + 0.05 * far), np.full(4000, "gemm", dtype=object)
    growth = intervals.growth(rests, far)
    known = intervals.widths(rests / growth.at(far), groups)
    asked = draw.uniform(0, 10, 4000)
    half = intervals.of_rows(known, list(groups), 90) * growth.at(asked)
    holds = np.abs(draw.normal(0, 0.02 + 0.05 * asked)) <= half
    for least, most in ((0, 1), (1, 5), (5, 10)):
        assert 100 * holds[(asked >= least) & (asked < most)].mean() == pytest.approx(90, abs=5)
    constant = intervals.of_rows(intervals.widths(rests, groups), list(groups), 90)
    assert 100 * (np.abs(rests) <= constant)[far > 8].mean() < 80  # what they were before


def test_intervals_do_not_grow_where_the_distance_says_nothing():
    draw = np.random.default_rng(0)
    rests, far = draw.normal(0, 1, 2000), draw.uniform(0, 1, 2000)
    assert intervals.growth(rests, far).at(np.array([0.0, 1.0])) == pytest.approx([1, 1], abs=0.15)
    for growth in (intervals.growth(rests, np.zeros(2000)), intervals.growth(rests[:60], far[:60])):
        assert growth.at(np.array([0.0, 5.0, np.inf])).tolist() == [1, 1, 1]
        assert not growth.is_beyond(np.array([0.0, np.inf])).any()


def test_intervals_do_not_grow_without_end():
    far = np.linspace(0, 1, 2000)
    growth = intervals.growth(far, far)
    assert growth.reach == pytest.approx(0.99, abs=0.01)
    assert growth.is_beyond(np.array([0.5, 2.0, np.inf])).tolist() == [False, True, True]
    assert growth.at(np.array([np.inf])) == growth.at(np.array([3 * growth.reach]))
