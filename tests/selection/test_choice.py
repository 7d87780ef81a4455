"""Choice for one layer: beyond the intervals or not at all, ties as ties, limits, predictions outside what is known."""

from __future__ import annotations

import math

import pytest

from convscope.selection import choice
from convscope.selection.candidates import PREDICTED, Candidate, Value, gain
from convscope.selection.choice import Rule, choose


def timed(name: str, middle: float, half: float = 0.01, **options: object) -> Candidate:
    return Candidate(name, {"time": Value(middle, middle - half, middle + half)}, **options)  # type: ignore[arg-type]


def predicted(name: str, middle: float, outside: str = "") -> Candidate:
    return Candidate(name, {"time": Value(middle, middle * 0.9, middle * 1.1, PREDICTED, outside)})


def chosen(*candidates: Candidate, **rule: object) -> tuple[str, str]:
    found = choose(candidates, Rule(**rule))  # type: ignore[arg-type]
    return found.chosen.algorithm, found.remark


def test_a_gain_beyond_both_intervals_changes_a_layer():
    assert chosen(timed("torch", 1.0), timed("gemm", 0.97)) == ("gemm", "")


@pytest.mark.parametrize("half", [0.02, 0.5])
def test_a_gain_within_them_does_not(half: float):
    assert chosen(timed("torch", 1.0, half), timed("gemm", 0.97)) == ("torch", "tie with gemm")
    assert chosen(timed("torch", 1.0), timed("gemm", 0.97, half)) == ("torch", "tie with gemm")


def test_what_is_slower_is_no_tie():
    assert chosen(timed("torch", 1.0), timed("gemm", 1.5)) == ("torch", "")


def test_a_tie_of_others_goes_to_the_least_workspace():
    few, many = timed("gemm", 0.5, workspace_bytes=10), timed("fft", 0.495, workspace_bytes=20)
    assert chosen(timed("torch", 1.0), many, few) == ("gemm", "tie with fft")
    assert chosen(timed("torch", 1.0), timed("fft", 0.495), few) == ("gemm", "tie with fft")
    assert chosen(timed("torch", 1.0), timed("fft", 0.47, workspace_bytes=20), few) == ("fft", "")


def test_a_tie_of_the_same_workspace_goes_to_the_faster():
    pair = timed("gemm", 0.5, workspace_bytes=0), timed("fft", 0.495, workspace_bytes=0)
    assert chosen(timed("torch", 1.0), *pair) == ("fft", "tie with gemm")


def test_of_a_tie_only_those_are_taken_that_are_better_than_pytorch():
    unsure = timed("fft", 0.6, 0.5, workspace_bytes=0)
    assert chosen(timed("torch", 1.0), timed("gemm", 0.5, workspace_bytes=9), unsure) == ("gemm", "")


def test_without_pytorchs_own_choice_nothing_is_changed():
    assert chosen(timed("gemm", 0.5), timed("fft", 0.4)) == ("torch", choice.UNKNOWN)
    assert chosen(timed("torch", 1.0)) == ("torch", "no other candidate")


def test_what_has_no_interval_decides_nothing():
    once = timed("gemm", 0.5, math.inf)
    assert chosen(timed("torch", 1.0), once) == ("torch", "no other candidate; 1 without an interval")
    assert chosen(timed("torch", 1.0), once, timed("fft", 0.6)) == ("fft", "1 without an interval")
    assert chosen(timed("torch", 1.0, math.inf), timed("fft", 0.6))[0] == "torch"


def test_the_least_is_taken_within_intervals_too_where_asked_for():
    every = timed("torch", 1.0, 0.2), timed("gemm", 0.97, 0.2, workspace_bytes=0), timed("fft", 0.96, 0.2)
    assert chosen(*every) == ("torch", "tie with gemm, fft")
    assert chosen(*every, least=True) == ("fft", "2 within its interval")
    assert chosen(timed("torch", 1.0), timed("gemm", 1.0), least=True)[0] == "torch"
    assert chosen(timed("torch", 1.0), timed("gemm", 0.5, math.inf), least=True)[0] == "torch"


def test_the_least_keeps_to_limits_and_to_what_was_learned():
    every = timed("torch", 1.0), timed("gemm", 0.5, workspace_bytes=10), predicted("fft", 0.4, "log_taps, dtype")
    assert chosen(*every, least=True)[0] == "gemm"
    assert chosen(*every, least=True, max_workspace_bytes=9)[0] == "torch"
    assert chosen(*every, least=True, outside=True) == ("fft", "outside what was learned: log_taps, dtype")


def test_limits_leave_out_what_is_above_or_not_known_and_never_pytorch():
    every = timed("torch", 1.0), timed("gemm", 0.5, workspace_bytes=10, relative_error=1e-3), timed("fft", 0.4)
    assert chosen(*every)[0] == "fft"
    assert chosen(*every, max_workspace_bytes=10) == ("gemm", "1 with more workspace, or an unknown one")
    assert chosen(*every, max_workspace_bytes=9)[0] == "torch"
    assert chosen(*every, max_error=1e-3) == ("gemm", "1 with a larger error, or an unknown one")
    assert chosen(*every, max_error=9e-4)[0] == "torch"


def test_a_prediction_outside_the_numbers_that_were_learned_is_taken_and_marked():
    every = timed("torch", 1.0), predicted("gemm", 0.5, "log_taps, far from all"), predicted("fft", 0.6)
    assert chosen(*every) == ("gemm", "tie with fft; outside what was learned: log_taps, far from all")


def test_a_layer_that_is_left_to_pytorch_is_marked_too():
    own = predicted("torch", 1.0, "log_taps")
    assert chosen(own) == ("torch", "no other candidate; outside what was learned: log_taps")
    assert chosen(own, predicted("gemm", 1.01)) == ("torch", "tie with gemm; outside what was learned: log_taps")


@pytest.mark.parametrize("name", ["card", "algorithm", "engine", "dtype", "math", "layout"])
def test_a_prediction_for_a_name_that_was_not_learned_is_taken_only_where_asked_for(name: str):
    every = timed("torch", 1.0), predicted("gemm", 0.5, f"{name}, log_taps"), predicted("fft", 0.6)
    assert chosen(*every) == ("fft", f"1 outside what was learned ({name}, log_taps)")
    assert chosen(*every, outside=True) == ("gemm", f"tie with fft; outside what was learned: {name}, log_taps")
    own = predicted("torch", 1.0, "card")
    assert chosen(own, timed("gemm", 0.5)) == ("torch", "outside what was learned: card")
    assert chosen(own, timed("gemm", 0.5), outside=True)[0] == "gemm"


def test_two_predictions_are_compared_by_the_interval_of_their_ratio():
    own = Candidate("torch", {"time": Value(1.0, 0.5, 2.0, PREDICTED)})

    def other(middle: float, half: float) -> Candidate:
        return Candidate("gemm", {"time": Value(middle, middle / 2, middle * 2, PREDICTED, against_own=half)})

    assert chosen(own, other(0.9, math.log(1.1))) == ("gemm", "")
    assert chosen(own, other(0.9, math.log(1.12))) == ("torch", "tie with gemm")
    assert chosen(own, other(0.9, math.inf)) == ("torch", "tie with gemm")
    assert chosen(timed("torch", 1.0, 0.4), other(0.9, 0.0)) == (
        "torch",
        "tie with gemm",
    )  # of one alone it says nothing
    saved = gain(other(0.8, math.log(1.25)).values["time"], own.values["time"])
    assert saved == pytest.approx((0.2, 0.0, 0.36))


def test_energy_and_the_product_with_time_have_their_own_optima():
    def both(name: str, ms: float, joules: float) -> Candidate:
        ends = {"time": Value(ms, ms, ms), "energy": Value(joules, joules, joules)}
        return Candidate(name, ends)

    every = both("torch", 1.0, 1.0), both("gemm", 0.8, 0.9), both("fft", 2.0, 0.5), both("winograd", 0.9, 0.7)
    names = [chosen(*every, objective=each)[0] for each in ("time", "energy", "edp")]
    assert names == ["gemm", "fft", "winograd"]
    assert chosen(every[0], timed("gemm", 0.1), objective="edp") == ("torch", "no other candidate; 1 without edp")


def test_a_product_is_measured_where_both_parts_are():
    part = Value(2.0, 1.0, 3.0)
    assert Candidate("gemm", {"time": part, "energy": part}).value("edp") == Value(4.0, 1.0, 9.0)
    mixed = Candidate("gemm", {"time": part, "energy": Value(2.0, 1.0, 3.0, PREDICTED, "card")}).value("edp")
    assert mixed == Value(4.0, 1.0, 9.0, PREDICTED, "card")
