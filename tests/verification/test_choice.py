"""The choice: ranks, ties and regrets from times whose truth is known, and a whole study on a CPU."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd
import pytest
from fakes import ENVIRONMENT, layer, run
from fakes.kernel_names import IMPLICIT_KERNEL, XMMA_TF32

import run_verify
from convscope.timing.summary import summarize
from convscope.verification import choice
from convscope.verification.choice import Candidate

LAYERS = (layer(name="first"), layer(name="second", position=1))
FAST, SLOW = (1.0, 1.01, 0.99), (2.0, 2.01, 1.99)


def candidate(
    name: str, *times: Sequence[float] | None, kernels: dict[str, int] | None = None, ran: str | None = None
) -> Candidate:
    known = [None if one is None else summarize(one) for one in times]
    return Candidate(name, known, [ran] * len(times), [kernels] * len(times))


def rows(*candidates: Candidate) -> list[choice.ChoiceRow]:
    return choice.rows(run(device="cuda:0"), ENVIRONMENT, LAYERS, candidates)


def of(found: list[choice.ChoiceRow], name: str, position: int = 0) -> choice.ChoiceRow:
    return next(row for row in found if row.candidate == name and row.position == position)


def test_the_fastest_stands_first_and_regrets_nothing():
    found = rows(candidate("gemm", SLOW, FAST), candidate("fft", FAST, SLOW))
    assert [row.candidate for row in found] == ["fft", "gemm", "gemm", "fft"]
    assert (found[0].regret_us, found[0].regret_ci99_us, found[0].rank) == (0.0, 0.0, 1)


def test_what_is_slower_for_sure_has_a_later_rank_and_its_regret():
    slow = of(rows(candidate("gemm", SLOW, FAST), candidate("fft", FAST, SLOW)), "gemm")
    assert slow.rank == 2
    assert slow.fastest == "fft"
    assert slow.regret_us == pytest.approx(1000)
    assert 0 < slow.regret_ci99_us < 100


def test_what_nothing_tells_apart_shares_the_rank_and_is_called_a_tie():
    found = rows(candidate("gemm", (1.0, 1.1, 0.9), FAST), candidate("fft", (1.01, 1.11, 0.91), FAST))
    assert [of(found, name).rank for name in ("gemm", "fft")] == [1, 1]
    assert of(found, "gemm").beats_next == "tie with fft"


def test_what_wins_for_sure_says_at_which_confidence():
    assert of(rows(candidate("gemm", SLOW, FAST), candidate("fft", FAST, SLOW)), "fft").beats_next == (
        "beats gemm at 99 %"
    )


def test_a_layer_that_cannot_use_an_algorithm_has_no_row_of_it():
    found = rows(candidate("gemm", SLOW, SLOW), candidate("fft", FAST, None))
    assert [row.candidate for row in found if row.position == 1] == ["gemm"]


def test_a_choice_is_no_competitor_and_is_held_against_the_algorithms():
    found = rows(candidate("gemm", SLOW, FAST), candidate("torch", FAST, FAST))
    assert of(found, "gemm").rank == 1
    assert of(found, "torch").regret_us == pytest.approx(-1000)


def test_what_pytorch_chose_is_told_by_its_kernels():
    found = rows(
        candidate("implicit gemm", SLOW, SLOW, kernels={IMPLICIT_KERNEL: 1}),
        candidate("implicit precomp gemm", FAST, FAST, kernels={XMMA_TF32: 1}),
        candidate("torch", FAST, FAST, kernels={XMMA_TF32: 1, "Memset (Device)": 1}),
        candidate("torch benchmark", FAST, FAST, kernels={"another_kernel_gemm": 1}),
    )
    assert of(found, "torch").chosen == "implicit precomp gemm"
    assert of(found, "torch benchmark").chosen is None
    assert json.loads(of(found, "torch benchmark").kernels) == {"another_kernel_gemm": 1}


def test_what_cudnn_guessed_is_told_by_its_identifier():
    found = rows(candidate("gemm", FAST, FAST), candidate("guess", FAST, FAST, ran="gemm"))
    assert of(found, "guess").chosen == "gemm"


def test_the_totals_add_the_regrets_up_and_their_intervals_in_squares():
    found = rows(candidate("gemm", FAST, FAST), candidate("guess", SLOW, SLOW))
    one = of(found, "guess")
    total = choice.totals(found)["guess"]
    assert total.mean_ms == pytest.approx(2.0)
    assert total.half_width_ms == pytest.approx(2**0.5 * one.regret_ci99_us / 1e3)


def test_the_fastest_of_each_is_an_algorithm_for_each_layer():
    candidates = [candidate("gemm", SLOW, FAST), candidate("fft", FAST, SLOW), candidate("torch", (0.1,), (0.1,))]
    assert choice.fastest_of_each(LAYERS, candidates) == {"first": "fft", "second": "gemm"}


def test_a_layer_called_twice_has_one_algorithm_that_both_calls_can_use():
    twice = (layer(name="same"), layer(name="same", position=1))
    candidates = [candidate("fft", FAST, None), candidate("gemm", SLOW, SLOW)]
    assert choice.fastest_of_each(twice, candidates) == {"same": "gemm"}


def test_a_study_on_a_cpu_holds_ai3_against_pytorch(tmp_path, capsys: pytest.CaptureFixture[str]):
    asked = ["--choice", "--model", "alexnet", "--device", "cpu", "--input-size", "63", "--rounds", "2"]
    asked += ["--output-dir", str(tmp_path)]
    assert run_verify.main(asked) == 0
    path = tmp_path / "alexnet_cpu_63px_batch1_fp32/choice.csv"
    first, table = path.read_text(), pd.read_csv(path)
    assert len(table) == 5 * 3
    assert set(table["candidate"]) == {"direct", "smm", "torch"}
    assert (table.groupby("position")["rank"].min() == 1).all()
    assert (table["mean_ms"] > 0).all()
    assert f"saved: {tmp_path}" in capsys.readouterr().out
    assert run_verify.main(asked) == 0
    assert path.read_text() == first
    assert run_verify.main([*asked, "--overwrite"]) == 0
    assert path.read_text() != first
    (kept,) = tmp_path.glob("*.before-*")
    assert (kept / "choice.csv").read_text() == first


def test_fewer_than_two_rounds_have_no_spread(capsys: pytest.CaptureFixture[str]):
    assert run_verify.main(["--choice", "--model", "alexnet", "--device", "cpu", "--rounds", "1"]) == 2
    assert capsys.readouterr().err == "run_verify.py: --rounds 1: it must be at least 2\n"
