"""The search of the highest rate: it begins around a prediction and ends between two rates that are close."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convscope.inference.serving import search
from convscope.inference.serving.simulation import Batcher

FIRST = [50.0, 75.0, 90.0, 100.0, 110.0]
MOST = 100_000.0
ANY = search.Range(1e-3, MOST)


def searched(
    within: dict[float, bool], highest: float, first: list[float] | None = None, limits: search.Range = ANY
) -> list[float]:
    """Return the rates that a search asks for where rates up to `highest` keep the limit."""
    tried = []
    for rate in search.search(within, lambda: FIRST if first is None else first, limits):
        tried.append(rate)
        within[rate] = rate <= highest
    return tried


def test_a_limit_among_the_first_rates_is_bracketed_by_them_and_halved():
    assert searched({}, 92.0) == [50, 75, 90, 100, 110, 95, 92.5]


def test_a_limit_above_all_first_rates_is_looked_for_above():
    tried = searched({}, 200.0)
    assert tried[:9] == [*FIRST, 138, 172, 215, 194]
    assert search.bracket(dict.fromkeys([100.0, 110.0], True)) == (110.0, None)


def test_a_limit_below_all_first_rates_is_looked_for_below():
    tried = searched({}, 10.0)
    assert tried[:5] == [50, 75, 25, 12.5, 6.25]


def test_a_limit_that_no_rate_keeps_ends_the_search_at_the_lowest_rate():
    assert searched({}, 0.0, limits=search.Range(20.0, MOST)) == [50, 75, 25, 20]
    assert search.is_complete({20.0: False}, search.Range(20.0, MOST))
    assert searched({}, 30.0, [1.0, 2.0], search.Range(20.0, MOST))[:2] == [20, 25]


def test_an_engine_faster_than_the_generator_is_measured_at_the_generators_rate():
    assert searched({}, 1e9, [3e5, 4e5]) == [MOST]


def test_rates_of_an_earlier_call_count():
    assert searched({51.0: True, 76.0: True}, 92.0) == [90, 100, 110, 95, 92.5]
    assert searched({95.0: True, 98.0: False}, 95.0) == []


def test_nothing_is_predicted_where_the_limit_is_known():
    known = {90.0: True, 94.0: False}
    assert search.is_complete(known, ANY)
    assert list(search.search(known, lambda: pytest.fail("no more rates are needed"), ANY)) == []
    assert not search.is_complete({}, ANY)
    assert not search.is_complete({90.0: True}, ANY)
    assert not search.is_complete({90.0: True, 100.0: False}, ANY)


def test_no_rate_lies_above_what_the_generator_reaches():
    assert max(searched({}, 1e9, [60_000.0, 90_000.0, 110_000.0])) == MOST
    assert search.is_complete({MOST: True}, ANY)


@given(st.floats(1e-3, 5e4), st.floats(1e-2, 1e2))
def test_a_search_ends_with_the_limit_between_two_close_rates(highest: float, ratio: float):
    within: dict[float, bool] = {}
    searched(within, highest, [search.rounded(share * highest * ratio) for share in search.RATE_SHARES])
    good, bad = search.bracket(within)
    assert len(within) <= 20
    if good is not None and bad is not None and len(within) < 20:
        assert good <= highest < bad <= good * 1.0501


def test_the_highest_rate_is_found_by_bisection():
    assert search.highest(lambda rate: rate <= 700, 0.0, 1000.0, steps=12) == pytest.approx(700, abs=1)
    assert search.highest(lambda rate: False, 0.0, 1000.0, steps=5) == 0.0
    assert search.rounded(12_345.6) == 12_300


@pytest.mark.parametrize(("steps", "found"), [(0, 0.0), (1, 500.0), (2, 500.0), (3, 625.0), (4, 687.5)])
def test_each_step_of_a_bisection_halves_the_range(steps: int, found: float):
    assert search.highest(lambda rate: rate <= 700, 0.0, 1000.0, steps) == found


@pytest.mark.parametrize(
    ("slo_ms", "best"), [(101.0, 101.0), (101.9, 101.0), (-1.0, 256.0), (1000.0, 255.0), (1.0, 1.0), (0.99, 256.0)]
)
def test_the_rates_are_shares_of_the_highest_that_the_simulation_holds(monkeypatch, slo_ms: float, best: float):
    batcher, asked = Batcher(64), set()

    def p99_ms(batch_s: object, batched: Batcher, rate_qps: float, duration_s: float, seed: int) -> float:
        asked.add((batched, duration_s, seed))
        return rate_qps

    monkeypatch.setattr(search.simulation, "simulated_p99_ms", p99_ms)
    rates = search.rates_around({1: 0.5, 64: 0.25}, batcher, slo_ms, seed=5)
    assert rates == [float(f"{share * best:.3g}") for share in (0.5, 0.75, 0.9, 1.0, 1.1)]
    assert asked == {(batcher, 20_000 / 256.0, 5)}


def test_the_rates_lie_around_what_the_simulation_holds():
    rates = search.rates_around({1: 0.001, 8: 0.002}, Batcher(8), slo_ms=10.0, seed=0)
    assert rates == sorted(rates)
    assert rates[0] < 4000 < rates[-1] * 1.2
