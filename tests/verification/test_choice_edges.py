"""The choice at its edges: three candidates that are far apart, kernels that are the same, exact regrets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from fakes import ENVIRONMENT, layer, run
from fakes.kernel_names import IMPLICIT_KERNEL, XMMA_TF32
from fakes.swapping import SwapsNothing, subject_on

from convscope.errors import HostTooSlowError
from convscope.timing.summary import summarize
from convscope.verification import candidates, choice
from convscope.verification.choice import Candidate
from convscope.verification.rows import ModelKey

LAYERS = (layer(name="only"),)

CPU = torch.device("cpu")


def candidate(
    name: str, times: Sequence[float], kernels: dict[str, int] | None = None, ran: str | None = None
) -> Candidate:
    return Candidate(name, [summarize(times)], [ran], [kernels])


def rows(*candidates: Candidate) -> dict[str, choice.ChoiceRow]:
    """Return the rows of the one layer by candidate."""
    found = choice.rows(run(device="cuda:0", input_sizes=(224, 96)), ENVIRONMENT, LAYERS, candidates)
    return {row.candidate: row for row in found}


FAR = [candidate(name, [ms, ms + 2**-10, ms - 2**-10]) for name, ms in (("gemm", 4.0), ("fft", 1.0), ("winograd", 2.0))]


def test_each_is_compared_with_the_next_one_and_the_last_with_none():
    found = rows(*FAR)
    assert list(found) == ["fft", "winograd", "gemm"]
    assert [row.beats_next for row in found.values()] == ["beats winograd at 99 %", "beats gemm at 99 %", None]
    assert [row.rank for row in found.values()] == [1, 2, 3]
    assert {row.fastest for row in found.values()} == {"fft"}
    assert {row.rounds for row in found.values()} == {3}
    assert {row.input_size for row in found.values()} == {224}


def test_the_regret_is_the_exact_difference_of_the_means():
    found = rows(*FAR)
    assert [row.regret_us for row in found.values()] == [0.0, 1000.0, 3000.0]
    assert found["fft"].regret_ci99_us == 0.0
    assert 1.0 < found["gemm"].regret_ci99_us < 100.0


@pytest.mark.parametrize("apart_ms", [0.5, 0.001953125])
def test_a_small_difference_counts_as_a_large_one_where_it_is_sure(apart_ms: float):
    found = rows(candidate("gemm", [1.0 + apart_ms] * 3), candidate("fft", [1.0] * 3))
    assert (found["fft"].beats_next, found["gemm"].rank) == ("beats gemm at 99 %", 2)


def test_times_that_are_the_same_are_a_tie():
    found = rows(candidate("gemm", [1.0] * 3), candidate("fft", [1.0] * 3))
    assert [(row.beats_next, row.rank) for row in found.values()] == [("tie with fft", 1), (None, 1)]


def test_the_same_kernels_with_the_same_counts_are_the_same_work():
    found = rows(
        candidate("gemm", [1.0, 1.1], {IMPLICIT_KERNEL: 1}),
        candidate("fft", [2.0, 2.1], {IMPLICIT_KERNEL: 1, "Memset (Device)": 3}),
        candidate("winograd", [3.0, 3.1], {IMPLICIT_KERNEL: 2}),
        candidate("direct", [4.0, 4.1], {XMMA_TF32: 1}),
        candidate("smm", [5.0, 5.1], {}),
        candidate("winograd nonfused", [6.0, 6.1]),
    )
    assert [row.same_kernels_as for row in found.values()] == ["fft", "gemm", None, None, None, None]
    assert [row.kernels is None for row in found.values()] == [False] * 5 + [True]


def test_kernels_that_were_not_recorded_are_those_of_no_other_candidate():
    found = rows(candidate("gemm", [1.0, 1.1], {"Memset (Device)": 1}), candidate("fft", [2.0, 2.1]))
    assert [row.same_kernels_as for row in found.values()] == [None, None]


def test_kernels_of_which_none_is_known_to_do_the_convolution_tell_nothing_about_the_work():
    unknown = ({"one of a newer cuDNN": 1}, {"another": 1})
    found = rows(candidate("gemm", [1.0, 1.1], unknown[0]), candidate("fft", [2.0, 2.1], unknown[1]))
    assert [row.same_kernels_as for row in found.values()] == [None, None]


@pytest.mark.parametrize(("candidates", "pairs"), [(1, 1), (2, 1), (3, 3), (5, 10)])
def test_the_pairs_of_candidates_share_an_error_rate_of_one_percent(candidates: int, pairs: int):
    assert choice.pair_confidence(candidates) == pytest.approx(1 - 0.01 / pairs, abs=1e-12)


def test_regret_and_saving_have_students_interval_at_99_percent():
    passes = {
        choice.TOGETHER: choice.PassRounds([1.0, 2.0, 3.0], [0.5, 1.0, 1.5]),
        candidates.HEURISTIC: choice.PassRounds([2.0, 3.5, 5.0], [1.0, 2.0, 3.0]),
    }
    together, torchs = choice.pass_rows(ModelKey("alexnet", 64, 1, "fp32"), run(), passes)
    half_us = 500 * 9.92484320091807 / 3**0.5  # two degrees of freedom
    assert (together.layers_us, torchs.layers_us) == (1000.0, 2000.0)
    assert (torchs.regret_us, torchs.regret_ci99_us) == (1000.0, pytest.approx(half_us))
    assert (together.saved_us, together.saved_ci99_us) == (1500.0, pytest.approx(half_us))
    assert (together.regret_us, together.regret_ci99_us, torchs.saved_us, torchs.saved_ci99_us) == (0, 0, 0, 0)


def test_what_ran_is_told_by_the_identifier_before_the_kernels():
    found = rows(
        candidate("gemm", [1.0, 1.1], {IMPLICIT_KERNEL: 1}, ran="gemm"),
        candidate("guess", [2.0, 2.1], {IMPLICIT_KERNEL: 1}, ran="implicit gemm"),
    )
    assert (found["gemm"].chosen, found["guess"].chosen, found["guess"].same_kernels_as) == (
        "gemm",
        "implicit gemm",
        "gemm",
    )


def test_the_times_of_a_layer_that_is_called_twice_are_added():
    twice = (layer(name="same"), layer(name="same", position=1), layer(name="other", position=2))
    times = {"fft": ([1.0] * 2, [4.0] * 2, [1.0] * 2), "gemm": ([2.0] * 2, [2.5] * 2, [2.0] * 2)}
    every = [Candidate(name, [*map(summarize, of)], [None] * 3, [None] * 3) for name, of in times.items()]
    assert choice.fastest_of_each(twice, every) == {"same": "gemm", "other": "fft"}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, HostTooSlowError])
def test_a_candidate_that_cannot_be_timed_is_left_out_with_the_first_line_of_the_reason(error: type[Exception]):
    noted: list[str] = []
    released: list[str] = []
    swapped = SwapsNothing(subject_on("cpu"), noted.append, fft=[True] * 2, gemm=[True] * 2)

    def layer_times_ms(given: object, place: int) -> list[float]:
        if swapped.name == "fft" and released:
            raise error("too much\nof a thing\nat once")
        return [1.0, 2.0]

    bench = SimpleNamespace(layer_times_ms=layer_times_ms, release=lambda: released.append(swapped.name))
    times = choice._rounds(swapped._subject, bench, swapped, range(3), ["fft", "gemm"])
    assert times == {"gemm": [[1.0, 2.0]] * 3}
    assert noted == ["fft is left out: too much"]
    assert released == ["fft", "gemm", "fft", "gemm", "gemm"]


def test_the_fastest_together_are_judged_in_as_many_rounds_that_did_not_pick_them():
    places: list[tuple[str, int]] = []
    swapped = SwapsNothing(subject_on("cpu"))
    swapped.assignments = {"gemm": {}, choice.TOGETHER: {}, candidates.HEURISTIC: {}}

    def layer_times_ms(given: object, place: int) -> list[float]:
        places.append((swapped.name, place))
        return [1.0, 2.0]

    bench = SimpleNamespace(layer_times_ms=layer_times_ms, release=lambda: None)
    found = choice.judge(swapped._subject, bench, swapped, 3)
    names = [choice.TOGETHER, candidates.HEURISTIC]
    assert places == [(name, place) for place in (3, 4, 5) for name in names]
    assert {name: (len(one.passes_ms), one.layers_ms) for name, one in found.items()} == {
        name: (3, [3.0] * 3) for name in names
    }
