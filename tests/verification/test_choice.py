"""The choice: ranks, ties and regrets from times whose truth is known, and a whole study on a CPU."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from ai3.swap_torch import Conv2D as SwappedConv2d
from fakes import ENVIRONMENT, layer, run, tiny
from fakes.kernel_names import IMPLICIT_KERNEL, XMMA_TF32

import run_verify
from convscope.timing.summary import summarize
from convscope.verification import choice, report
from convscope.verification.candidates import CHOOSERS_ONLY, CandidateSwap
from convscope.verification.choice import Candidate
from convscope.verification.evidence import open_subject
from convscope.verification.request import make_verification
from convscope.verification.rows import ModelKey

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


def test_pytorchs_own_choice_can_be_the_fastest_and_regrets_nothing_then():
    found = rows(candidate("gemm", SLOW, FAST), candidate("torch", FAST, FAST))
    torchs = of(found, "torch")
    assert (torchs.fastest, torchs.regret_us, torchs.regret_ci99_us, torchs.rank) == ("torch", 0.0, 0.0, 1)
    assert of(found, "gemm").rank == 2


@pytest.mark.parametrize("name", CHOOSERS_ONLY)
def test_a_chooser_that_no_layer_alone_can_be_given_is_no_competitor(name: str):
    found = rows(candidate("gemm", SLOW, FAST), candidate(name, FAST, FAST))
    assert of(found, "gemm").rank == 1
    assert of(found, name).regret_us == pytest.approx(-1000)


@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.long)])
def test_of_seven_equal_algorithms_hardly_a_layer_has_one_that_is_called_slower(rounds: int):
    drawn = np.random.default_rng(3).normal(1.0, 0.01, (7, 1500, rounds))
    layers = [layer(name=str(position), position=position) for position in range(1500)]
    found = choice.rows(
        run(device="cuda:0"), ENVIRONMENT, layers, [candidate(f"a{n}", *times) for n, times in enumerate(drawn)]
    )
    assert len({row.position for row in found if row.rank > 1}) <= 1.5 * 15  # 1 % of the layers; it was 10 %


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


def judged(**rounds_ms: Sequence[float]) -> dict[str, choice.PassRow]:
    """Return the rows of passes with these times, of which the convolutions are half."""
    names = {"together": choice.TOGETHER, "torch": "torch", "guess": "guess"}
    passes = {names[name]: choice.PassRounds(ms, [one / 2 for one in ms]) for name, ms in rounds_ms.items()}
    return {row.convolutions_by: row for row in choice.pass_rows(ModelKey("alexnet", 64, 1, "fp32"), run(), passes)}


@pytest.mark.long
def test_the_interval_of_a_total_covers_the_truth_where_a_round_has_an_error_that_all_layers_share():
    """53 layers, each 2 µs slower; a clock error for each round, a calibration error for each capture."""
    drawn, covered, draws = np.random.default_rng(5), 0, 2000
    for _ in range(draws):
        clock = 1 + drawn.normal(0, 0.01, (5, 1))
        fastest, torchs = (
            ((ms + drawn.normal(0, 1e-4, (5, 53))) * clock + drawn.normal(0, 2e-4, (5, 1))).sum(axis=1)
            for ms in (0.010, 0.012)
        )
        passes = {choice.TOGETHER: choice.PassRounds(fastest, fastest), "torch": choice.PassRounds(torchs, torchs)}
        row = choice.pass_rows(ModelKey("alexnet", 64, 1, "fp32"), run(), passes)[1]
        covered += abs(row.regret_us - 53 * 2) <= row.regret_ci99_us
    assert 0.985 <= covered / draws <= 0.996


def test_regret_and_saving_are_differences_round_by_round():
    found = judged(together=(1.0, 2.0, 3.0), torch=(1.1, 2.1, 3.1))
    assert (found["torch"].regret_us, found["torch"].regret_ci99_us) == pytest.approx((50, 0), abs=1e-6)
    together = found[choice.TOGETHER]
    assert (together.saved_us, together.saved_ci99_us) == pytest.approx((100, 0), abs=1e-6)
    assert (together.regret_us, found["torch"].saved_us) == (0, 0)


@pytest.mark.parametrize(
    ("torchs", "said"),
    [
        ((1.10, 1.11, 1.09), "choosing layer by layer would save 100.0 ± "),
        ((1.01, 0.97, 1.02), "keep PyTorch's choice: choosing layer by layer would take 0.0 ± "),
        ((0.90, 0.91, 0.89), "keep PyTorch's choice: choosing layer by layer would cost 100.0 ± "),
    ],
)
def test_the_last_line_says_what_to_do(torchs: Sequence[float], said: str):
    assert report.advice(judged(together=(1.0, 1.005, 0.995), torch=torchs)).startswith(said)


def test_a_gain_is_said_with_the_whole_of_which_it_is_a_part():
    line = report.advice(judged(together=(0.881, 0.881), torch=(0.893, 0.893)))
    assert line == ("choosing layer by layer would save 12.0 ± 0.0 µs of 893.0 µs (1.3 %; ± half the 99 % interval)")


def test_without_pytorchs_own_pass_there_is_no_advice():
    assert report.advice(judged(together=(1.0, 1.1))).startswith("no advice: ")


def test_tables_of_an_older_version_are_shown_without_totals_and_say_so():
    old = choice.PassRow("alexnet", 64, 1, "fp32", "torch", 1.0, 0.1, 5)
    text = report.choice_report(rows(candidate("gemm", SLOW, FAST)), {"torch": old})
    assert "torch: whole pass 1.0000 ± 0.1000 ms\n" in text
    assert text.splitlines()[-1].startswith("an older version wrote these tables")


def test_the_fastest_of_each_is_an_algorithm_for_each_layer_or_pytorchs_own():
    candidates = [candidate("gemm", SLOW, FAST), candidate("fft", FAST, SLOW), candidate("guess", (0.1,), (0.1,))]
    assert choice.fastest_of_each(LAYERS, candidates) == {"first": "fft", "second": "gemm"}
    assert choice.fastest_of_each(LAYERS, [*candidates, candidate("torch", (0.5,), SLOW)]) == {
        "first": "torch",
        "second": "gemm",
    }


def test_a_layer_called_twice_has_one_algorithm_that_both_calls_can_use():
    twice = (layer(name="same"), layer(name="same", position=1))
    candidates = [candidate("fft", FAST, None), candidate("gemm", SLOW, SLOW)]
    assert choice.fastest_of_each(twice, candidates) == {"same": "gemm"}


def test_a_study_on_a_cpu_holds_ai3_against_pytorch(
    tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    tiny.register(monkeypatch)
    asked = ["--choice", "--model", tiny.NAME, "--device", "cpu", "--input-size", "63", "--rounds", "2"]
    asked += ["--output-dir", str(tmp_path)]
    assert run_verify.main(asked) == 0
    path = tmp_path / "tiny_cpu_63px_batch1_fp32/choice.csv"
    first, table = path.read_text(), pd.read_csv(path)
    assert len(table) == tiny.CONVOLUTIONS * 3
    assert set(table["candidate"]) == {"direct", "smm", "torch"}
    assert (table.groupby("position")["rank"].min() == 1).all()
    assert (table["mean_ms"] > 0).all()
    printed = capsys.readouterr().out
    assert f"saved: {tmp_path}" in printed
    assert "choosing layer by layer would" in printed.splitlines()[-2]
    assert run_verify.main(asked) == 0
    assert capsys.readouterr().out == printed  # the totals are read back from the folder
    assert path.read_text() == first
    assert run_verify.main([*asked, "--overwrite"]) == 0
    assert path.read_text() != first
    (kept,) = tmp_path.glob("*/before-*")
    assert (kept / "choice.csv").read_text() == first


def test_fewer_than_two_rounds_have_no_spread(capsys: pytest.CaptureFixture[str]):
    assert run_verify.main(["--choice", "--model", "alexnet", "--device", "cpu", "--rounds", "1"]) == 2
    assert capsys.readouterr().err == "run_verify.py: --rounds 1: it must be at least 2\n"


def test_a_candidate_that_computes_something_else_is_no_choice(monkeypatch: pytest.MonkeyPatch):
    exact = SwappedConv2d.forward

    def forward(module: SwappedConv2d, given: torch.Tensor) -> torch.Tensor:
        return exact(module, given) * (1.001 if module.algorithm == "smm" else 1.0)

    monkeypatch.setattr(SwappedConv2d, "forward", forward)
    request = make_verification("torchvision:squeezenet1_1", "torch", 48, device="cpu", question="choice", rounds=2)
    notes: list[str] = []
    with open_subject(request) as subject, contextlib.closing(CandidateSwap(subject, notes.append)) as swapped:
        swapped.leave_out_wrong()
        assert {name: any(usable) for name, usable in swapped.usable.items()} == {
            "torch": True, "direct": True, "smm": False,
        }  # fmt: skip
    assert notes[0].startswith("smm is wrong for features.0 and left out there: relative error 0.001, tolerance ")
