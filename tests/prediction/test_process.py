"""Gaussian process: what it misses of rows left out is what a fit without them misses; near, far, with noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fakes.drawn_samples import drawn, frame_of
from fakes.left_out import assert_missed_as_by
from scipy.spatial.distance import cdist

from convscope.dataset import splits
from convscope.prediction import predictor
from convscope.prediction.features import CATEGORIES, features
from convscope.prediction.learners import process
from convscope.prediction.learners.weights import ALIKE, ALIKE_ALGORITHM, ALIKE_ENGINE, WEIGHTS
from convscope.prediction.shapes.sizes import Floats


def samples(count: int, seed: int = 0, **changed: object) -> pd.DataFrame:
    rows = drawn(count, algorithms=("gemm", "winograd"), seed=seed)
    return predictor.usable(frame_of(rows).assign(**changed), "time")


def smooth(frame: pd.DataFrame) -> Floats:
    values = features(frame, {}).values
    return (np.sin(values["log_channels"]) + 0.3 * values["log_filters"]).to_numpy(float)


def missed(frame: pd.DataFrame, asked: pd.DataFrame, noise: float = 0.0) -> Floats:
    wanted = smooth(frame) + noise * np.random.default_rng(0).standard_normal(len(frame))
    found = process.fit(features(frame, {}), frame, wanted, {}).process
    return smooth(asked) - found.predict(features(asked, {}), asked)


@pytest.mark.parametrize(("most", "at_once"), [(10_000, process.ROWS), (60, process.ROWS), (60, 7)])
def test_what_is_missed_of_rows_left_out_is_what_a_fit_without_them_misses(
    most: int, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "ROWS", at_once)
    frame = samples(100)
    is_gemm = (frame["algorithm"] == "gemm").to_numpy()
    wanted = smooth(frame) + 0.2 * is_gemm
    monkeypatch.setattr(process, "NOISES", (0.01,))
    monkeypatch.setattr(process, "MOST", most)
    alone = process.fit(features(frame, {}), frame, wanted, {}).process
    monkeypatch.setattr(process, "MOST", 2 * most)
    assert_missed_as_by(alone, frame, np.append(wanted, smooth(frame) + 0.2 * ~is_gemm))


def test_between_what_was_learned_it_is_near_and_with_more_it_is_nearer():
    asked = samples(40, seed=9)
    few, many = (float(np.abs(missed(samples(count), asked)).mean()) for count in (60, 400))
    assert many < 0.02
    assert many < few / 2


def test_each_weight_is_that_of_a_feature_and_each_feature_has_one():
    numbers = features(samples(3), {}).values.drop(columns=list(CATEGORIES))
    assert [*WEIGHTS] == [*numbers]
    assert min(WEIGHTS.values()) > 0


@pytest.mark.parametrize("at_once", [7, process.ROWS])
def test_an_estimate_is_a_mean_and_the_weights_of_points_by_their_likeness(
    at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "ROWS", at_once)
    frame, asked = samples(40), samples(20, seed=5)
    found = process.fit(features(frame, {}), frame, smooth(frame), {}).process
    points = pd.DataFrame(dict(found.points))

    def places(rows: pd.DataFrame) -> Floats:
        values = features(rows, {}).values
        return np.column_stack([(values[name] - found.center[name]) / found.spread[name] for name in found.center])

    apart = cdist(places(asked), places(points))
    np.testing.assert_allclose(found.far(features(asked, {}), asked), apart.min(axis=1))
    scaled = np.sqrt(3) * apart / process.LENGTH
    is_same = asked["algorithm"].to_numpy()[:, None] == points["algorithm"].to_numpy()  # and by the same engine
    alike = (1 + scaled) * np.exp(-scaled) * (ALIKE + (ALIKE_ENGINE + ALIKE_ALGORITHM) * is_same)
    (mean,) = found.means.values()
    np.testing.assert_allclose(found.predict(features(asked, {}), asked), mean + alike @ np.array(found.weights))


def test_a_feature_of_much_weight_makes_samples_unlike(monkeypatch: pytest.MonkeyPatch):
    frame, far = samples(100), list[float]()
    asked = frame.assign(out_channels=2 * frame["out_channels"])
    for weight in (1.0, 10.0):
        monkeypatch.setattr(process, "WEIGHTS", {**WEIGHTS, "log_filters": weight * WEIGHTS["log_filters"]})
        made = process.fit(features(frame, {}), frame, smooth(frame), {}).process
        far.append(float(made.far(features(asked, {}), asked).mean()))
    assert far[0] < 0.9 * far[1]


def test_noise_is_found_and_smoothed():
    frame = samples(300)
    assert float(np.abs(missed(frame, frame, noise=0.3)).mean()) < 0.15  # without noise it would be 0.24


def test_samples_of_another_arithmetic_say_nothing():
    frame, other = samples(60), samples(60, dtype="float16")
    found = process.fit(features(frame, {}), frame, smooth(frame), {}).process
    assert np.isnan(found.predict(features(other, {}), other)).all()
    both = pd.concat([frame, other], ignore_index=True)
    wanted = np.concatenate([smooth(frame), 5 + smooth(other)])
    again = process.fit(features(both, {}), both, wanted, {}).process
    assert again.predict(features(other, {}), other).mean() - found.predict(features(frame, {}), frame).mean() > 4.9


def test_the_same_algorithm_is_more_alike_than_another():
    frame = samples(80)
    wanted = np.where(frame["algorithm"] == "gemm", 1.0, -1.0)
    found = process.fit(features(frame, {}), frame, wanted, {}).process
    asked = samples(30, seed=5)
    said = found.predict(features(asked, {}), asked)
    assert (np.sign(said) == np.where(asked["algorithm"] == "gemm", 1.0, -1.0)).all()


def test_the_share_is_the_one_that_misses_least():
    rests = np.random.default_rng(1).standard_normal((2, 500))
    assert process.share(rests[0], 0.1 * rests[1]) > 0.8
    assert process.share(0.1 * rests[0], rests[1]) < 0.2
    assert process.share(rests[0], rests[1]) == pytest.approx(0.5, abs=0.11)
    assert process.share(rests[0], np.full(500, np.nan)) == 0.0


def test_whole_shapes_are_left_out_where_there_are_too_many():
    frame = samples(50)
    kept = process.thinned(frame, 31)
    shapes = pd.Series(splits.labels(frame, "layer"))
    assert 28 <= len(kept) <= 31
    assert set(shapes.iloc[kept].value_counts()) == {2}


def test_distances_are_those_to_the_nearest_that_is_not_left_out_by_the_same_engine():
    frame = samples(60)
    given, wanted = features(frame, {}), smooth(frame)
    out = np.arange(len(frame)) < 20
    fitted = process.fit(given, frame, wanted, {}, [(out, out)])
    alone = process.fit(given.rows(~out), frame[~out].reset_index(drop=True), wanted[~out], {}).process
    assert np.isinf(fitted.far[0][~out]).all()
    assert (fitted.far[0][out] > 0).all()
    # The scale of features is that of all samples there, and of two thirds of them here.
    np.testing.assert_allclose(fitted.far[0][out], alone.far(given.rows(out), frame[out]), rtol=0.3)
    assert (fitted.process.far(given, frame) < 1e-9).all()
    by_gemm = frame[frame["algorithm"] == "gemm"].reset_index(drop=True)
    of_gemm = process.fit(features(by_gemm, {}), by_gemm, smooth(by_gemm), {}).process
    unknown = by_gemm.assign(algorithm="cudnn")
    assert (of_gemm.far(features(unknown, {}), unknown) < 1e-9).all()  # the nearest by any
    other = by_gemm.assign(dtype="float16")
    assert np.isinf(of_gemm.far(features(other, {}), other)).all()


def test_an_engine_with_enough_samples_is_a_process_of_its_own_and_others_share_one(monkeypatch: pytest.MonkeyPatch):
    frame, asked = samples(100), samples(20, seed=5)
    asked = asked[asked["algorithm"] == "gemm"].reset_index(drop=True)
    is_winograd, wanted = (frame["algorithm"] == "winograd").to_numpy(), smooth(frame)

    def said(enough: int, change: float) -> Floats:
        monkeypatch.setattr(process, "ENOUGH", enough)
        found = process.fit(features(frame, {}), frame, wanted + change * is_winograd, {}).process
        assert len(found.means) == (2 if enough <= 100 else 1)
        return found.predict(features(asked, {}), asked)

    np.testing.assert_array_equal(said(100, 0.0), said(100, 5.0))
    assert np.abs(said(101, 0.0) - said(101, 5.0)).max() > 0.01


def test_a_group_with_too_few_samples_has_no_process():
    frame = samples(process.FEWEST // 2 - 1)
    fitted = process.fit(features(frame, {}), frame, smooth(frame), {}, [(np.ones(len(frame), bool),) * 2])
    assert np.isnan(fitted.rests[0]).all()
    assert np.isinf(fitted.far[0]).all()
    assert np.isnan(fitted.process.predict(features(frame, {}), frame)).all()
    assert np.isinf(fitted.process.far(features(frame, {}), frame)).all()


def test_rows_that_are_not_learned_are_judged_and_change_nothing():
    frame = samples(100)
    is_learned = np.arange(len(frame)) % 5 > 0
    is_learned[frame["batch_size"] == 8] = False  # no point of these shapes is left out with them
    wanted, given = smooth(frame), features(frame, {})
    out = np.ones(len(frame), dtype=bool)
    out[is_learned] = False
    learned, kept = np.flatnonzero(is_learned), frame[is_learned].reset_index(drop=True)
    found = process.fit(given, frame, wanted, {}, [(out, out)], is_learned)
    alone = process.fit(given.rows(learned), kept, wanted[learned], {})
    assert found.process.points == alone.process.points
    assert (found.process.center, found.process.spread) == (alone.process.center, alone.process.spread)
    np.testing.assert_allclose(found.process.weights, alone.process.weights, rtol=1e-6)
    expected = wanted[out] - alone.process.predict(given.rows(out), frame[out])
    np.testing.assert_allclose(found.rests[0][out], expected, atol=1e-9)
    assert np.isnan(found.rests[0][~out]).all()
