"""Findings in sentences: the fastest, how often, and where the intervals leave doubt."""

from __future__ import annotations

from pathlib import Path

from fakes import compared, reports

from convscope.report.exhibits import Content


def test_the_sentences_say_what_was_found(found: Content):
    best, choice, complete, trust = found.sentences
    assert "at 320 px, torch is fastest with 2.4 ± 0.048 ms a pass; fft tiling takes 3.12 times as long." in best
    assert "shorter than PyTorch's choice in 1 of 1 comparison, beyond the 99 % intervals; most for resnet50" in choice
    assert choice.endswith(" by 1.92 ± 0.24 %.")
    assert complete == "18 of the 18 sizes that were asked for are measured and ok (100 %)."
    assert trust == "Flags: 3 × throttled, 1 × unsupported. 2 faults of folders, listed below."


def test_several_models_say_how_often_which_is_fastest(tmp_path: Path):
    for model, algorithm, slower in (
        ("alexnet", "gemm", 1.0), ("alexnet", "fft", 1.0), ("vgg16", "gemm", 1.0), ("vgg16", "fft", 0.2),
        ("resnet50", "gemm", 1.0), ("resnet50", "implicit gemm", 1.01 / 1.5),
    ):  # fmt: skip
        reports.profile(tmp_path, model, algorithm, slower=slower)
    said = "fft is fastest in 1, gemm is fastest in 1, in 1 the first are level within their intervals."
    assert reports.shown(tmp_path).sentences[0].endswith(f"Of 3 models and settings at one size, {said}")


def test_nothing_that_can_be_read_is_said_in_one_sentence(tmp_path: Path):
    assert reports.shown(tmp_path).sentences == ["No folder of results could be read."]


def test_times_within_their_intervals_are_no_victory(tmp_path: Path):
    for algorithm, slower in (("gemm", 1.0), ("implicit gemm", 1.01 / 1.5), ("fft", 2.0)):
        reports.profile(tmp_path, "alexnet", algorithm, slower=slower)
    assert (
        "gemm has the least time, 3 ± 0.06 ms a pass, but not beyond the 95 % intervals of implicit gemm."
        in reports.shown(tmp_path).sentences[0]
    )


def test_a_time_without_an_interval_is_no_victory(tmp_path: Path):
    for algorithm, mean_ms in (("gemm", 1.0), ("torch", 2.0)):
        compared.written(
            tmp_path / algorithm, [compared.overall(algorithm=algorithm, mean=mean_ms, std=None)], algorithm=algorithm
        )
    assert "gemm has the least time, 1 ms a pass, but not beyond" in reports.shown(tmp_path).sentences[0]
