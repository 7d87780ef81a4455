"""Evaluation: errors beside baselines, intervals, noise, and a calibration that is not judged on what it learned."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of

from convscope.dataset import splits
from convscope.errors import InputError
from convscope.prediction import evaluation
from convscope.prediction.evaluation import NOISE, OF_MODELS, PREDICTOR, Score
from convscope.prediction.features import features
from convscope.prediction.learners import booster, core
from convscope.prediction.learners.baselines import BASELINES

ROUNDS, LINEAR_ROUNDS = booster.ROUNDS, core.LINEAR_ROUNDS


def frame(count: int, *cards: str, **options: float) -> pd.DataFrame:
    rows = drawn(count, cards or ("Tesla T4",), ("gemm", "winograd"), **options)  # type: ignore[arg-type]
    return frame_of(rows)


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    return list(evaluation.scores(frame(400), "time", ["layer"], {}))


def test_the_predictor_is_ahead_of_every_baseline(scores: list[Score]):
    by_name = {score.by: score for score in scores if not score.group}
    assert set(by_name) == {PREDICTOR, *BASELINES}
    best = min(by_name[name].mape_pct for name in BASELINES)
    assert by_name[PREDICTOR].mape_pct < 0.5 * best
    assert by_name[PREDICTOR].median_pct <= by_name[PREDICTOR].mape_pct <= by_name[PREDICTOR].p95_pct


def test_each_algorithm_has_its_own_line(scores: list[Score]):
    lines = {score.group: score for score in scores if score.by == PREDICTOR}
    assert set(lines) == {"", "gemm", "winograd"}
    assert lines[""].samples == lines["gemm"].samples + lines["winograd"].samples
    for line in lines.values():
        assert line.mape_low_pct is not None
        assert line.mape_high_pct is not None
        assert line.mape_low_pct < line.mape_pct < line.mape_high_pct
        assert line.covered_pct == pytest.approx(90, abs=10)


def test_cards_and_layers_of_models_have_lines_of_their_own_where_there_are_others():
    measured = frame(200, "Tesla T4", "Tesla P4")
    measured["model"] = np.where(measured["in_channels"] > 30, "vgg16", None)
    found = {score.by: score for score in evaluation.scores(measured, "time", ["layer"], {}) if not score.group}
    every, of_models = found[PREDICTOR], found[OF_MODELS]
    cards = [found[f"{PREDICTOR}, {name}"] for name in ("Tesla P4", "Tesla T4")]
    held_back = measured[next(splits.splits(measured, "layer")).held_back]
    assert [card.samples for card in cards] == [len(held_back) / 2] * 2
    assert np.mean([card.mape_pct for card in cards]) == pytest.approx(every.mape_pct)
    assert of_models.samples == held_back["model"].notna().sum() < every.samples
    assert of_models.mape_pct != every.mape_pct


def test_errors_are_of_the_ratio_to_what_was_measured():
    measured = frame(300)
    (split,) = [score for score in evaluation.scores(measured, "time", ["layer"], {}) if score.by == "roofline"]
    held_back = measured[next(evaluation.splits.splits(measured, "layer")).held_back]
    roofline_ms = evaluation.features(held_back.reset_index(drop=True), {}).roofline_ms
    off = 100 * np.abs(roofline_ms / held_back["mean_ms"].to_numpy() - 1)
    assert (split.mape_pct, split.median_pct) == pytest.approx((off.mean(), np.median(off)))
    assert split.within_10_pct == pytest.approx(100 * (off <= 10).mean())


@pytest.mark.long
def test_splits_in_processes_of_their_own_have_the_same_scores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(booster, "ROUNDS", ROUNDS)  # other processes have all trees
    monkeypatch.setattr(core, "LINEAR_ROUNDS", LINEAR_ROUNDS)
    some, kinds = frame(120, "Tesla T4", "Tesla P4"), ["layer", "gpu"]
    one, two = (list(evaluation.scores(some, "time", kinds, {}, processes=count)) for count in (1, 2))
    assert one == two
    assert [*dict.fromkeys(score.split for score in two)] == ["layer", "gpu Tesla P4", "gpu Tesla T4"]


@pytest.mark.long
def test_a_process_that_is_ended_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "_of_split", ends)
    with pytest.raises(InputError, match=r"^a process was ended, .*: fewer --processes$"):
        list(evaluation.scores(frame(120), "time", ["rows", "layer"], {}, processes=2))


def ends(*_: object) -> None:
    os._exit(9)


def test_repeats_show_the_noise_below_which_nothing_can_be():
    once = frame(300, noise=0.0)
    draw = np.random.default_rng(0)
    again = once.assign(run="again", mean_ms=once["mean_ms"] * np.exp(draw.normal(0, 0.05, len(once))))
    both = pd.concat([once, again], ignore_index=True)
    (noise,) = evaluation.noise(both, "time")
    assert (noise.by, noise.samples) == (NOISE, len(once))
    assert noise.mape_pct == pytest.approx(100 * 0.05 * np.sqrt(2 / np.pi), rel=0.1)
    assert list(evaluation.noise(once, "time")) == []


@pytest.mark.long
def test_a_calibration_is_judged_on_other_samples_than_it_learned():
    measured = frame(100, "Tesla T4", "Tesla P4", "Tesla P100-PCIE-16GB", noise=0.01, knack=0.2)
    slow = np.where(measured["gpu_name"] == "Tesla T4", 1.0 + 0.4 * (measured["batch_size"] > 1), 1.0)
    found = list(evaluation.scores(measured.assign(mean_ms=measured["mean_ms"] * slow), "time", ["gpu"], {}, 40))
    by_split = {score.split: score for score in found if score.by == PREDICTOR and not score.group}
    assert len(by_split) == 6
    before, after = by_split["gpu Tesla T4"], by_split["gpu Tesla T4, 40 samples of it"]
    assert before.samples == 200
    assert after.samples == 10 * 160
    assert after.mape_pct < 0.7 * before.mape_pct


@pytest.mark.long
def test_repeats_of_a_layer_that_was_chosen_are_not_judged():
    once = frame(120, "Tesla T4", "Tesla P4")
    twice = pd.concat([once, once.assign(run="again")], ignore_index=True)
    found = [score for score in evaluation.scores(twice, "time", ["gpu"], {}, 30) if score.by == PREDICTOR]
    counts = {score.split: score.samples for score in found if not score.group}
    assert counts["gpu Tesla T4"] == 480
    assert counts["gpu Tesla T4, 30 samples of it"] == 10 * 420  # each of the 30 with its repeat is left out


def test_samples_that_were_held_back_change_nothing_that_was_learned():
    measured = frame(300)
    split = next(evaluation.splits.splits(measured, "layer"))
    wrong = measured.assign(mean_ms=measured["mean_ms"] * np.where(split.held_back, 1000.0, 1.0))
    one, other = (next(s for s in evaluation.scores(each, "time", ["layer"], {}) if s.by == PREDICTOR)
                  for each in (measured, wrong))  # fmt: skip
    # Predictions are the same, so that all are a thousand times too small now.
    assert other.median_pct == pytest.approx(100 - one.median_pct / 1000, abs=0.2)
    assert dataclasses.replace(other, covered_pct=None).samples == one.samples


def test_kernels_with_costs_of_their_own_are_told_apart_by_the_nearest_layer():
    rows = frame(400, noise=0.0)
    given = features(rows, {})
    is_large = (rows["in_channels"] >= 64).to_numpy()  # a library that changes its kernel with the size
    compute_ms = given.roofline_ms * np.exp(np.minimum(given.values["ridge"].to_numpy(float), 0))
    rows["mean_ms"] = np.where(is_large, 0.05 + 0.5 * compute_ms, 0.01 + 3 * compute_ms)
    rows["kernels"] = np.where(is_large, "winograd_3x3_kernel;nchwToNhwcKernel", "implicit_convolve_sgemm")
    (split,) = splits.splits(rows, "layer")

    def median_error(name: str, samples: pd.DataFrame) -> float:
        given = features(samples, {})
        wanted = np.log(samples["mean_ms"].to_numpy(float) / given.roofline_ms)
        found = BASELINES[name](given.rows(split.learned), wanted[split.learned], given.rows(split.held_back))
        return float(np.median(np.abs(np.expm1(found - wanted[split.held_back]))))

    assert median_error("linear by kernel family", rows) < 1e-4
    assert median_error("k × FLOPs", rows) > 0.1
    gemm = (rows["algorithm"] == "gemm").to_numpy()
    of_one, of_other = (
        given.rows(gemm),
        given.rows(~gemm),
    )  # one that was not learned
    multiples = BASELINES["linear by kernel family"](of_one, np.log(np.full(int(gemm.sum()), 2.0)), of_other)
    assert multiples == pytest.approx(np.log(2.0))
    assert median_error("linear by kernel family", rows.assign(kernels=None)) > 0.1


def with_few_joules(measured: pd.DataFrame) -> pd.DataFrame:
    layer = np.arange(len(measured)) // 2
    return measured.assign(energy_j=(0.07 * measured["mean_ms"]).where(layer % 2 == 0))


def test_energies_are_judged_where_they_are_and_times_of_layers_held_back_are_not_learned():
    measured = with_few_joules(frame(400))
    split = next(splits.splits(measured, "layer"))
    wrong = measured.assign(mean_ms=measured["mean_ms"] * np.where(split.held_back, 1000.0, 1.0))
    one, other = (
        {score.by: score for score in evaluation.scores(each, "energy", ["layer"], {}) if not score.group}
        for each in (measured, wrong)
    )
    assert one[PREDICTOR].samples == (split.held_back & measured["energy_j"].notna()).sum()
    assert one[PREDICTOR].mape_pct < 0.5 * min(one[name].mape_pct for name in BASELINES)
    assert one[PREDICTOR].mape_pct == other[PREDICTOR].mape_pct


def test_energies_that_nobody_measured_are_not_judged():
    with pytest.raises(InputError, match="no sample has sizes and a measured energy"):
        list(evaluation.scores(frame(100), "energy", ["layer"], {}))
