"""Completed inferences at a moment, from looks at them."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from fakes.sensors import share

from convscope.timing.completions import Completions


def looked_at(pass_s: float, looks_s: list[float], first_s: float = 0.0) -> Completions:
    """Return what looks see of inferences of equal length, the first of which begins at `first_s`."""
    found = Completions()
    for before_s, look_s in itertools.pairwise([0.0, *looks_s]):
        found.add(math.floor((look_s - first_s) / pass_s), before_s, look_s)
    return found


def exact(*moments_s: float) -> Completions:
    found = Completions()
    for number, moment_s in enumerate(moments_s, 1):
        found.add(number, moment_s, moment_s)
    return found


def test_between_completions_the_inference_under_way_counts_as_a_fraction():
    count = exact(1.0, 2.0, 4.0).between(1.25, 3.5)
    assert (count.inferences, count.std) == (pytest.approx(1.5), 0.0)


def test_moments_are_covered_from_the_first_completion_to_the_last():
    found = exact(1.0, 2.0)
    assert [found.cover(moment_s) for moment_s in (0.99, 1.0, 2.0, 2.01)] == [False, True, True, False]


def test_before_the_first_completion_nothing_is_covered():
    found = Completions()
    assert (found.begun, found.cover(0.0)) == (False, False)
    found.add(0, 0.0, 1.0)
    assert not found.begun
    found.add(1, 1.0, 2.0)
    assert found.begun


@pytest.mark.parametrize(("start_s", "end_s"), [(0.5, 1.5), (1.5, 2.5)])
def test_an_inference_that_was_not_seen_to_end_is_no_number(start_s: float, end_s: float):
    with pytest.raises(ValueError, match="on both sides"):
        exact(1.0, 2.0).between(start_s, end_s)


def test_a_single_completion_gives_no_pass():
    with pytest.raises(ValueError, match="on both sides"):
        exact(1.0).between(1.0, 1.0)


def test_a_completion_lies_in_the_middle_between_two_looks():
    found = Completions()
    found.add(1, 0.8, 1.2)
    found.add(2, 1.9, 2.1)
    assert found.between(1.0, 1.5).inferences == pytest.approx(0.5)


def test_completions_seen_at_one_look_lie_around_its_middle_and_not_at_its_end():
    found = Completions()
    found.add(1, 1.0, 1.0)
    found.add(4, 1.5, 4.5)  # 2, 3 and 4 at about 2, 3 and 4 s
    found.add(5, 5.0, 5.0)
    assert found.between(1.0, 3.0).inferences == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("width_s", "std"), [(0.1, math.hypot(0.1, 0.1) / math.sqrt(12)), (0.0, 0.0), (1.0, math.sqrt(2 / 12))]
)
def test_the_uncertainty_is_of_the_time_between_two_looks_in_passes(width_s: float, std: float):
    found = Completions()
    for number in (1, 2, 3):
        found.add(number, number - width_s / 2, number + width_s / 2)
    assert found.between(1.0, 3.0).std == pytest.approx(std)


def test_the_uncertainty_is_never_of_more_than_one_inference():
    found = Completions()
    found.add(10, 0.0, 10.0)
    found.add(20, 10.0, 20.0)
    assert found.between(5.0, 15.0).std == pytest.approx(math.sqrt(2 / 12))


def test_halfway_between_two_completions_their_uncertainties_average_out():
    found = Completions()
    found.add(1, 0.9, 1.1)
    found.add(2, 1.9, 2.1)
    found.add(3, 3.0, 3.0)
    assert found.between(1.5, 3.0).std == pytest.approx(0.2 / math.sqrt(12) / math.sqrt(2))


@pytest.mark.parametrize("pass_s", [0.0003, 0.002, 0.03, 0.2])
def test_the_count_is_unbiased_and_within_two_deviations_in_95_of_100_draws(pass_s: float):
    errors = []

    def covered(seed: int) -> bool:
        draw = random.Random(seed)
        looks_s = list(itertools.accumulate(draw.uniform(0.0005, 0.004) for _ in range(900)))
        found = looked_at(pass_s, looks_s, draw.random() * pass_s)
        start_s, end_s = 0.45 + 0.1 * draw.random(), 1.4 + 0.1 * draw.random()
        count = found.between(start_s, end_s)
        errors.append(count.inferences - (end_s - start_s) / pass_s)
        return abs(errors[-1]) <= 2 * count.std

    assert share(covered, 200) >= 0.93
    assert abs(sum(errors) / len(errors)) < 0.06
